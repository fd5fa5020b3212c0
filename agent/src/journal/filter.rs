//! Which events a watch is about: the filters of `docker events`.

use std::collections::BTreeMap;

use super::{Event, State};

/// Keys that are known.
const KEYS: [&str; 7] = [
    "type",
    "event",
    "container",
    "image",
    "label",
    "volume",
    "network",
];

/// A key that is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("events can't be filtered by {0:?}: only by {known}", known = KEYS.join(", "))]
pub struct UnknownKey(String);

/// For each key, one of its values has to match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter(BTreeMap<String, Vec<String>>);

impl Filter {
    /// The filter of a request.
    ///
    /// # Errors
    /// It has a key that is not known.
    pub fn new(filters: BTreeMap<String, Vec<String>>) -> Result<Self, UnknownKey> {
        match filters.keys().find(|key| !KEYS.contains(&key.as_str())) {
            Some(key) => Err(UnknownKey(key.clone())),
            None => Ok(Self(filters)),
        }
    }

    /// Whether an event is wanted.
    pub fn wants(&self, event: &Event) -> bool {
        let named = |kind: &str, value: &str| {
            event.kind == kind
                && (is_id(&event.id, value)
                    || event.id == value
                    || event
                        .attributes
                        .get("name")
                        .is_some_and(|name| name == value))
        };
        self.each(|key, value| match key {
            "type" => event.kind == value,
            "event" => {
                // `health_status: healthy`, `exec_create: sh -c …`.
                let name = event.action.split(':').next();
                event.action == value || name == Some(value)
            }
            "label" => has_label(&event.attributes, value),
            "image" => {
                let key = if event.kind == "image" {
                    "name"
                } else {
                    "image"
                };
                let names = [Some(&event.id), event.attributes.get(key)];
                names
                    .into_iter()
                    .flatten()
                    .any(|name| is_image(name, value))
            }
            kind => named(kind, value),
        })
    }

    /// Whether what a container is, is wanted: by all that a listing tells of it.
    pub fn wants_state(&self, state: &State) -> bool {
        self.each(|key, value| match key {
            "type" => value == "container",
            // It would tell of any event of the container.
            "event" => true,
            "container" => is_id(&state.id, value) || state.name == value,
            "label" => has_label(&state.labels, value),
            "image" => is_image(&state.image, value),
            _ => false,
        })
    }

    fn each(&self, matches: impl Fn(&str, &str) -> bool) -> bool {
        self.0.iter().all(|(key, values)| {
            values.is_empty() || values.iter().any(|value| matches(key, value))
        })
    }
}

/// Whether `value` is the beginning of an id, as people copy it.
fn is_id(id: &str, value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|b| b.is_ascii_hexdigit()) && id.starts_with(value)
}

fn has_label(labels: &BTreeMap<String, String>, wanted: &str) -> bool {
    match wanted.split_once('=') {
        Some((key, value)) => labels.get(key).is_some_and(|label| label == value),
        None => labels.contains_key(wanted),
    }
}

/// Whether an image's name is the one that is wanted, with its tag or without.
fn is_image(name: &str, wanted: &str) -> bool {
    let tag = name
        .rfind(':')
        .filter(|at| !name[*at..].contains('/') && !name.starts_with("sha256:"));
    name == wanted || tag.is_some_and(|at| &name[..at] == wanted)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn event(kind: &str, action: &str, id: &str, attributes: &[(&str, &str)]) -> Event {
        let attributes = attributes.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        Event {
            time_ns: 1,
            kind: kind.into(),
            action: action.into(),
            id: id.into(),
            attributes: attributes.collect(),
        }
    }

    fn filter(pairs: &[(&str, &[&str])]) -> Filter {
        let values = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect();
        let pairs = pairs.iter().map(|(k, v)| ((*k).to_owned(), values(v)));
        Filter::new(pairs.collect()).unwrap()
    }

    #[test]
    fn one_value_of_each_key_has_to_match() {
        let died = event(
            "container",
            "die",
            "0123abcd",
            &[
                ("name", "web"),
                ("image", "reg:5000/app:1"),
                ("tier", "a=b"),
            ],
        );
        for wanted in [
            filter(&[]),
            filter(&[("type", &["network", "container"])]),
            filter(&[("event", &["die"]), ("container", &["web"])]),
            filter(&[("container", &["0123"])]),
            filter(&[("image", &["reg:5000/app"])]),
            filter(&[("image", &["reg:5000/app:1"])]),
            filter(&[("label", &["tier"])]),
            filter(&[("label", &["none", "tier=a=b"])]),
            filter(&[("label", &[])]),
        ] {
            assert!(wanted.wants(&died), "{wanted:?}");
        }
        for other in [
            filter(&[("type", &["network"])]),
            filter(&[("event", &["die"]), ("container", &["we"])]),
            filter(&[("container", &[""])]),
            filter(&[("image", &["reg"])]),
            filter(&[("label", &["tier=a"])]),
            filter(&[("volume", &["web"])]),
            filter(&[("network", &["web"])]),
        ] {
            assert!(!other.wants(&died), "{other:?}");
        }
    }

    #[test]
    fn an_action_is_known_by_what_stands_before_its_colon() {
        let health = event("container", "health_status: healthy", "0", &[]);
        assert!(filter(&[("event", &["health_status"])]).wants(&health));
        assert!(filter(&[("event", &["health_status: healthy"])]).wants(&health));
        assert!(!filter(&[("event", &["health_status: unhealthy"])]).wants(&health));
        assert!(!filter(&[("event", &["health"])]).wants(&health));
    }

    #[test]
    fn things_are_known_by_id_or_name() {
        let made = event("network", "create", "feed01", &[("name", "front")]);
        assert!(filter(&[("network", &["front"])]).wants(&made));
        assert!(filter(&[("network", &["feed"])]).wants(&made));
        assert!(!filter(&[("container", &["front"])]).wants(&made));
        let volume = event("volume", "create", "data-1", &[]);
        assert!(filter(&[("volume", &["data-1"])]).wants(&volume));
        assert!(!filter(&[("volume", &["data"])]).wants(&volume));
        let image = event("image", "tag", "sha256:77", &[("name", "app:2")]);
        assert!(filter(&[("image", &["app"])]).wants(&image));
        assert!(filter(&[("image", &["sha256:77"])]).wants(&image));
        assert!(!filter(&[("image", &["sha256"])]).wants(&image));
    }

    #[test]
    fn a_key_that_is_not_known_is_named() {
        let filters = BTreeMap::from([("colour".to_owned(), vec!["red".to_owned()])]);
        let error = Filter::new(filters).unwrap_err();
        assert!(error.to_string().contains("\"colour\""), "{error}");
    }
}
