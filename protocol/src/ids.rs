//! The names of things that cross the wire.
//!
//! Each id is a newtype with one text form, used in certificates, JSON, logs and on the command
//! line alike, and one parser that is the exact inverse. None of them is secret.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Serialize};

/// A text that is no valid id of the kind asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {kind}: {expected}")]
pub struct IdError {
    kind: &'static str,
    text: String,
    expected: &'static str,
}

impl IdError {
    fn new(kind: &'static str, text: &str, expected: &'static str) -> Self {
        // A peer chooses the text; an error must not become a way to fill a log.
        let text = text.chars().take(80).collect();
        Self {
            kind,
            text,
            expected,
        }
    }
}

fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(bytes)
}

macro_rules! text_form {
    ($name:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    };
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The id made of these 16 bytes. Whoever draws them takes them from a
            /// cryptographic random source.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// The 16 bytes.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                parse_hex(text)
                    .map(Self)
                    .ok_or_else(|| IdError::new($kind, text, "it takes 32 lower-case hex digits"))
            }
        }

        text_form!($name);
    };
}

hex_id! {
    /// Identifies a node for life. Issued by the hub at join; the common name of the node's
    /// certificate and, as `<node id>.node.hub.internal`, its DNS name.
    NodeId, "node id"
}

hex_id! {
    /// One run of an agent process: 16 random bytes it draws at start.
    Incarnation, "incarnation"
}

hex_id! {
    /// Identifies a hub's ledger: an agent that joined one deployment is refused by another.
    Deployment, "deployment"
}

/// Counts the registrations of a node, from 1. A late one never replaces a newer.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// The fence generation of a node: moves only when the hub took all of its work away.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// The name that an operator gives a node: `[A-Za-z0-9._-]`, 1 to 64 characters, not starting
/// with `-` or `.`, so that it is safe in a shell, a path and a table.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(String);

impl NodeName {
    /// The most characters a name has.
    pub const MAX_LEN: usize = 64;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for NodeName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let well_formed = (1..=Self::MAX_LEN).contains(&text.len())
            && text.bytes().all(allowed)
            && !text.starts_with(['-', '.']);
        if well_formed {
            Ok(Self(text.to_owned()))
        } else {
            Err(IdError::new(
                "node name",
                text,
                "it takes 1 to 64 of A-Z a-z 0-9 . _ -, and starts with neither - nor .",
            ))
        }
    }
}

text_form!(NodeName);

/// The fingerprint of a key, for humans: SHA-256 over its SPKI (the DER of
/// `SubjectPublicKeyInfo`), written `SHA256:` and base64 without padding, as OpenSSH does.
#[derive(Clone, Copy, PartialOrd, Ord, Hash)]
#[expect(
    clippy::derived_hash_with_manual_eq,
    reason = "the same equality, in constant time"
)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint with this SHA-256 digest.
    pub const fn from_digest(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// The SHA-256 digest.
    pub const fn digest(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Takes the same time wherever two fingerprints differ first.
impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        let differing = self
            .0
            .iter()
            .zip(&other.0)
            .fold(0, |acc, (a, b)| acc | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

impl Eq for Fingerprint {}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SHA256:{}", STANDARD_NO_PAD.encode(self.0))
    }
}

impl FromStr for Fingerprint {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let digest = text
            .strip_prefix("SHA256:")
            // Some tools print the padding; it carries nothing.
            .map(|encoded| encoded.strip_suffix('=').unwrap_or(encoded))
            .and_then(|encoded| STANDARD_NO_PAD.decode(encoded).ok())
            .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        digest.map(Self).ok_or_else(|| {
            IdError::new(
                "fingerprint",
                text,
                "it takes SHA256: and 43 characters of base64",
            )
        })
    }
}

text_form!(Fingerprint);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_are_exact_inverses() {
        let id = NodeId::from_bytes(
            *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\xfd\xfe\xff",
        );
        assert_eq!(id.to_string(), "000102030405060708090a0b0cfdfeff");
        assert_eq!(id.to_string().parse(), Ok(id));
        let fingerprint = Fingerprint::from_digest([0xab; 32]);
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        assert_eq!(format!("{fingerprint}=").parse(), Ok(fingerprint));
    }

    #[test]
    fn near_misses_are_refused() {
        for text in [
            "",
            "00",
            "000102030405060708090A0B0CFDFEFF",
            "000102030405060708090a0b0cfdfefg",
        ] {
            assert!(text.parse::<NodeId>().is_err(), "{text}");
        }
        for text in [
            "SHA256:",
            "sha256:q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s",
            "SHA256:q6s",
        ] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
        for text in ["", "-x", ".x", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert!(text.parse::<NodeName>().is_err(), "{text}");
        }
        for text in ["x", "shop-4.example_2", &"x".repeat(64)] {
            assert!(text.parse::<NodeName>().is_ok(), "{text}");
        }
    }
}
