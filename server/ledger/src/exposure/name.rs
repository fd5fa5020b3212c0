//! The name of an exposure.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of an exposure: a DNS label, `[a-z0-9-]`, 1 to 63 characters, with `-` neither first
/// nor last. It becomes the first label of a host name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExposureName(String);

impl ExposureName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that is no exposure name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no exposure name: it takes 1 to 63 of a-z 0-9 -, and - neither first nor last"
)]
pub struct ExposureNameError {
    text: String,
}

impl FromStr for ExposureName {
    type Err = ExposureNameError;

    fn from_str(text: &str) -> Result<Self, ExposureNameError> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let well_formed = (1..=63).contains(&text.len())
            && text.bytes().all(allowed)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if well_formed {
            Ok(Self(text.to_owned()))
        } else {
            // Anybody may choose the text; an error must not become a way to fill a log.
            Err(ExposureNameError {
                text: text.chars().take(80).collect(),
            })
        }
    }
}

impl TryFrom<String> for ExposureName {
    type Error = ExposureNameError;

    fn try_from(text: String) -> Result<Self, ExposureNameError> {
        text.parse()
    }
}

impl From<ExposureName> for String {
    fn from(name: ExposureName) -> Self {
        name.0
    }
}

impl fmt::Display for ExposureName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for ExposureName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_labels() {
        for text in ["a", "shop-4", "0", &"x".repeat(63)] {
            assert!(text.parse::<ExposureName>().is_ok(), "{text}");
        }
        for text in ["", "-a", "a-", "A", "a.b", "a_b", "ä", &"x".repeat(64)] {
            assert!(text.parse::<ExposureName>().is_err(), "{text}");
        }
    }
}
