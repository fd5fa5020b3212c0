//! Queries of requests: names that are known, values of their kind. Errors repeat names only:
//! values may be secret.

use std::str::FromStr;

use super::problem::{Kind, Problem};
use super::time;

/// A query that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueryError {
    #[error("the query parameter {found:?} is unknown; there are {}", .known.join(", "))]
    Unknown {
        found: String,
        known: &'static [&'static str],
    },
    #[error("the query parameter {0} may be given once")]
    Repeated(&'static str),
    #[error("the query parameter {0} is missing")]
    Missing(&'static str),
    #[error("the query parameter {0} takes {1}")]
    Not(&'static str, &'static str),
    #[error("{0}")]
    Nonsense(String),
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        Self::new(Kind::InvalidRequest, error.to_string())
    }
}

/// The parameters of a query, in their order.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Query(Vec<(&'static str, String)>);

impl Query {
    /// Reads a query in which only `known` names may be.
    pub(super) fn parse(
        query: Option<&str>,
        known: &'static [&'static str],
    ) -> Result<Self, QueryError> {
        form_urlencoded::parse(query.unwrap_or_default().as_bytes())
            .map(|(name, value)| {
                let found = known.iter().find(|known| **known == name);
                let found = found.ok_or_else(|| QueryError::Unknown {
                    found: name.chars().take(40).collect(),
                    known,
                })?;
                Ok((*found, value.into_owned()))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// All values of a parameter.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let named = self.0.iter().filter(move |(found, _)| *found == name);
        named.map(|(_, value)| value.as_str())
    }

    /// The value of a parameter that may be given once.
    pub(super) fn one(&self, name: &'static str) -> Result<Option<&str>, QueryError> {
        let mut all = self.all(name);
        match (all.next(), all.next()) {
            (_, Some(_)) => Err(QueryError::Repeated(name)),
            (one, None) => Ok(one),
        }
    }

    /// The same, as a text of its own.
    pub(super) fn text(&self, name: &'static str) -> Result<Option<String>, QueryError> {
        Ok(self.one(name)?.map(str::to_owned))
    }

    /// The value of a parameter that must be given, and not be empty.
    pub(super) fn required(&self, name: &'static str) -> Result<String, QueryError> {
        let text = self.text(name)?.filter(|value| !value.is_empty());
        text.ok_or(QueryError::Missing(name))
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, name: &'static str) -> Result<Option<bool>, QueryError> {
        self.parsed(name, "true or false")
    }

    /// What a text can be read as; `what` says what it has to be.
    pub(super) fn parsed<T: FromStr>(
        &self,
        name: &'static str,
        what: &'static str,
    ) -> Result<Option<T>, QueryError> {
        let value = self.one(name)?.map(str::parse);
        value.transpose().map_err(|_| QueryError::Not(name, what))
    }

    /// A point in time, in nanoseconds since 1970 UTC.
    pub(super) fn time(&self, name: &'static str) -> Result<Option<i64>, QueryError> {
        const WHAT: &str = "a time like 2026-01-31T09:30:00Z, or nanoseconds since 1970 UTC";
        let value = self.one(name)?;
        let parsed = value.map(|value| time::parse(value).ok_or(QueryError::Not(name, WHAT)));
        parsed.transpose()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const KNOWN: &[&str] = &["a", "b"];

    fn query(text: &str) -> Query {
        Query::parse(Some(text), KNOWN).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn values_are_read_in_their_order() {
        let query = query("a=1&b=x+%26y&a=2&a=");
        assert_eq!(query.all("a").collect::<Vec<_>>(), ["1", "2", ""]);
        assert_eq!(query.one("b"), Ok(Some("x &y")));
        assert_eq!(query.one("a"), Err(QueryError::Repeated("a")));
        let none = Query::parse(None, KNOWN).map_err(|error| error.to_string());
        assert_eq!(none.unwrap().one("a"), Ok(None));
    }

    #[test]
    fn what_makes_no_sense_is_said_without_its_value() {
        let error = Query::parse(Some("c=hunter2"), KNOWN).err().unwrap();
        assert_eq!(
            error.to_string(),
            "the query parameter \"c\" is unknown; there are a, b"
        );
        let query = query("a=hunter2&b=");
        for error in [
            query.flag("a").err().unwrap(),
            query.parsed::<u16>("a", "a number").err().unwrap(),
            query.time("a").err().unwrap(),
            query.required("b").err().unwrap(),
        ] {
            let text = error.to_string();
            assert!(
                !text.contains("hunter2") && text.contains("parameter"),
                "{text}"
            );
        }
    }
}
