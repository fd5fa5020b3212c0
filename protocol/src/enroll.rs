//! Joining: how a machine without an identity asks for one.
//!
//! ```text
//! agent                          hub
//!  | JoinRequest, FIN ----------> |   one bidirectional stream of an enrollment connection,
//!  | <--------- JoinResponse, FIN |   whose hub is known by the pinned fingerprint of its CA
//! ```
//!
//! Both are one JSON object each, the whole content of their direction of the stream. Fields that
//! a reader does not know are passed over, so that any two releases can at least tell each other
//! why not. The request carries the only secret of the protocol, the [`JoinToken`].

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};

use crate::ids::{Deployment, NodeId, NodeName};
use crate::session::{Platform, Refused};

/// The version of these messages.
pub const VERSION: u32 = 1;

/// The most bytes of a request: 16 KiB.
pub const MAX_REQUEST: usize = 16 * 1024;

/// The most bytes of a response: 64 KiB, for a chain and a trust bundle.
pub const MAX_RESPONSE: usize = 64 * 1024;

/// The secret that an operator carries to a new machine: 32 random bytes, written `hub1_` and 43
/// characters of URL-safe base64.
///
/// `Debug` shows none of it and there is no `Display`: its text leaves only by
/// [`JoinToken::reveal`] and in an encoded request.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken([u8; 32]);

impl JoinToken {
    const PREFIX: &str = "hub1_";

    /// The token of these bytes, drawn from a cryptographic random source.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The secret bytes. What is stored is their SHA-256.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The token's text, for the one time that an operator sees it.
    pub fn reveal(&self) -> String {
        format!("{}{}", Self::PREFIX, URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinToken(..)")
    }
}

/// A text that is no join token. It does not repeat the text, which may be one with a typing error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no join token: it takes hub1_ and 43 characters of URL-safe base64")]
pub struct TokenError;

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let encoded = text.strip_prefix(Self::PREFIX).ok_or(TokenError)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| TokenError)?;
        bytes.try_into().map(Self).map_err(|_| TokenError)
    }
}

/// Writes the secret: a request is the only thing that is serialized with it.
impl Serialize for JoinToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.reveal())
    }
}

impl<'de> Deserialize<'de> for JoinToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

/// DER bytes; base64 in JSON.
#[derive(Clone, PartialEq, Eq)]
pub struct Der(pub Vec<u8>);

/// Its length: what is in it is for other tools to show.
impl fmt::Debug for Der {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Der({} bytes)", self.0.len())
    }
}

impl Serialize for Der {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Der {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD
            .decode(text)
            .map(Self)
            .map_err(|_| D::Error::custom("this is no base64"))
    }
}

/// What a machine says to become a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The version of the message: [`VERSION`].
    pub version: u32,
    /// What entitles it to join.
    pub token: JoinToken,
    /// PKCS #10: the key it wants a certificate for, and the proof that it holds it. Subject and
    /// extensions are ignored.
    pub csr: Der,
    /// The name it asks for; without, the hub makes one of the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<NodeName>,
    /// The machine.
    #[serde(default)]
    pub platform: Platform,
}

/// The hub's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JoinResponse {
    /// The machine is a node now. Asked again with the same token, key and name, the hub says so
    /// again and spends nothing.
    Joined(Box<Joined>),
    /// It is not, and nothing was spent. The codes are those of [`refusal`].
    Refused(Refused),
}

/// The identity of a new node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Its id, for life.
    pub node_id: NodeId,
    /// Its name.
    pub name: NodeName,
    /// The deployment it belongs to now.
    pub deployment: Deployment,
    /// Its certificate, and those between it and a CA of `trust`, if any.
    pub chain: Vec<Der>,
    /// The CA certificates by which it knows hubs of this deployment.
    pub trust: Vec<Der>,
    /// Where sessions go, as `HOST:PORT`, if the operator told the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operational: Option<String>,
}

/// Codes of a refused join.
pub mod refusal {
    /// The message is malformed, too large, or of a version that the hub does not know.
    pub const BAD_REQUEST: &str = "bad_request";
    /// The certificate request is malformed, not signed by its own key, or of a kind of key that
    /// is not accepted.
    pub const BAD_CSR: &str = "bad_csr";
    /// The token is unknown, expired, spent or for something else: one and the same answer.
    pub const INVALID_TOKEN: &str = "invalid_token";
    /// An operator has to approve the key first.
    pub const APPROVAL_NEEDED: &str = "approval_needed";
    /// Another node has the name.
    pub const NAME_TAKEN: &str = "name_taken";
    /// The key joined under another name.
    pub const KEY_TAKEN: &str = "key_taken";
    /// The node with this key was revoked.
    pub const REVOKED: &str = "revoked";
    /// The hub cannot decide now.
    pub const TRY_LATER: &str = "try_later";
}

/// A message that cannot be read. The peer speaks another protocol or a newer one; asking again
/// gives the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// More bytes than a message has.
    #[error("the message is longer than {0} bytes")]
    TooLong(usize),
    /// Not the JSON that was expected. The text names the place, never a content.
    #[error("the message is malformed at line {line}, column {column}")]
    Malformed {
        /// Counted from 1.
        line: usize,
        /// Counted from 1; 0 at the end of the line before.
        column: usize,
    },
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8], most: usize) -> Result<T, MessageError> {
    if bytes.len() > most {
        return Err(MessageError::TooLong(most));
    }
    // The text of the library's error may hold pieces of the message, and so of a token.
    serde_json::from_slice(bytes).map_err(|error| MessageError::Malformed {
        line: error.line(),
        column: error.column(),
    })
}

fn encode(message: &impl Serialize) -> Vec<u8> {
    // Fails only for maps with keys that are no text, and for writers that fail.
    serde_json::to_vec(message).unwrap_or_default()
}

impl JoinRequest {
    /// The request as bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a request of at most [`MAX_REQUEST`] bytes.
    ///
    /// # Errors
    /// [`MessageError`], which never shows any of the content.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        decode(bytes, MAX_REQUEST)
    }
}

impl JoinResponse {
    /// The response as bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a response of at most [`MAX_RESPONSE`] bytes.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        decode(bytes, MAX_RESPONSE)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const TOKEN: &str = "hub1_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

    fn token() -> JoinToken {
        JoinToken::from_bytes(std::array::from_fn(|index| index as u8))
    }

    fn request() -> JoinRequest {
        JoinRequest {
            version: VERSION,
            token: token(),
            csr: Der(vec![0x30, 0x03, 0xff]),
            name: Some("shop-4".parse().unwrap()),
            platform: Platform {
                os: "linux".to_owned(),
                arch: "x86_64".to_owned(),
                hostname: "till".to_owned(),
            },
        }
    }

    fn joined() -> Joined {
        Joined {
            node_id: NodeId::from_bytes([0xab; 16]),
            name: "shop-4".parse().unwrap(),
            deployment: Deployment::from_bytes([0xcd; 16]),
            chain: vec![Der(vec![1])],
            trust: vec![Der(vec![2, 3])],
            operational: Some("hub.example:7443".to_owned()),
        }
    }

    const REQUEST: &str = concat!(
        r#"{"version":1,"token":"hub1_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8","#,
        r#""csr":"MAP/","name":"shop-4","#,
        r#""platform":{"os":"linux","arch":"x86_64","hostname":"till"}}"#,
    );

    const JOINED: &str = concat!(
        r#"{"joined":{"node_id":"abababababababababababababababab","name":"shop-4","#,
        r#""deployment":"cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd","chain":["AQ=="],"trust":["AgM="],"#,
        r#""operational":"hub.example:7443"}}"#,
    );

    const REFUSED: &str = concat!(
        r#"{"refused":{"permanent":true,"code":"invalid_token","message":"ask for a new one","#,
        r#""retry_after_ms":null}}"#,
    );

    #[test]
    fn golden() {
        assert_eq!(String::from_utf8(request().encode()).unwrap(), REQUEST);
        assert_eq!(JoinRequest::decode(REQUEST.as_bytes()), Ok(request()));
        let response = JoinResponse::Joined(Box::new(joined()));
        assert_eq!(String::from_utf8(response.encode()).unwrap(), JOINED);
        assert_eq!(JoinResponse::decode(JOINED.as_bytes()), Ok(response));
        let response = JoinResponse::Refused(Refused {
            permanent: true,
            code: refusal::INVALID_TOKEN.to_owned(),
            message: "ask for a new one".to_owned(),
            retry_after_ms: None,
        });
        assert_eq!(String::from_utf8(response.encode()).unwrap(), REFUSED);
        assert_eq!(JoinResponse::decode(REFUSED.as_bytes()), Ok(response));
    }

    #[test]
    fn what_a_newer_release_adds_is_passed_over() {
        let newer = REQUEST.replacen('{', r#"{"tpm":{"quote":["AQ=="]},"#, 1);
        assert_eq!(JoinRequest::decode(newer.as_bytes()), Ok(request()));
        let least = format!(r#"{{"version":1,"token":"{TOKEN}","csr":""}}"#);
        let least = JoinRequest::decode(least.as_bytes()).unwrap();
        assert_eq!((least.name, least.platform), (None, Platform::default()));
        let newer = JOINED.replacen(r#""name""#, r#""color":"red","name""#, 1);
        assert_eq!(
            JoinResponse::decode(newer.as_bytes()),
            Ok(JoinResponse::Joined(Box::new(joined())))
        );
    }

    #[test]
    fn tokens_have_one_text_form() {
        assert_eq!(token().reveal(), TOKEN);
        assert_eq!(TOKEN.parse(), Ok(token()));
        let canonical = TOKEN.trim_end_matches('8');
        for wrong in [
            String::new(),
            TOKEN.to_owned() + "=",
            TOKEN.to_owned() + "A",
            canonical.to_owned(),
            // The last character has two bits that carry nothing.
            format!("{canonical}9"),
            TOKEN.replacen("hub1_", "HUB1_", 1),
            TOKEN.replacen("hub1_", "", 1),
            format!(" {TOKEN}"),
        ] {
            assert_eq!(wrong.parse::<JoinToken>(), Err(TokenError), "{wrong}");
        }
    }

    #[test]
    fn no_text_but_the_message_shows_the_token() {
        let secret = &TOKEN[5..];
        let mut texts = vec![format!("{:?} {:#?}", request(), token())];
        let with = |token: &str| REQUEST.replacen(TOKEN, token, 1);
        // A token with a typing error is as good as a secret.
        for token in [format!("{TOKEN}x"), format!("hub2_{secret}")] {
            let error = JoinRequest::decode(with(&token).as_bytes()).unwrap_err();
            texts.push(format!("{error} {error:?}"));
            texts.push(token.parse::<JoinToken>().unwrap_err().to_string());
        }
        // In the place of another field, where a library would quote it.
        for (field, content) in [("shop-4", format!(" {TOKEN}")), ("MAP/", TOKEN.to_owned())] {
            let misplaced = REQUEST.replace(field, &content);
            let error = JoinRequest::decode(misplaced.as_bytes()).unwrap_err();
            texts.push(format!("{error} {error:?}"));
        }
        let misplaced = format!(r#"{{"version":"{TOKEN}"}}"#);
        texts.push(
            JoinRequest::decode(misplaced.as_bytes())
                .unwrap_err()
                .to_string(),
        );
        for text in texts {
            assert!(!text.contains(secret), "{text}");
        }
    }

    #[test]
    fn oversize_is_refused_before_it_is_read() {
        let padded = |most: usize, message: &str| {
            let mut bytes = message.as_bytes().to_vec();
            bytes.resize(most, b' ');
            bytes
        };
        assert!(JoinRequest::decode(&padded(MAX_REQUEST, REQUEST)).is_ok());
        assert_eq!(
            JoinRequest::decode(&padded(MAX_REQUEST + 1, REQUEST)),
            Err(MessageError::TooLong(MAX_REQUEST))
        );
        assert!(JoinResponse::decode(&padded(MAX_RESPONSE, JOINED)).is_ok());
        assert!(JoinResponse::decode(&padded(MAX_RESPONSE + 1, JOINED)).is_err());
        let deep = "[".repeat(MAX_REQUEST);
        assert!(JoinRequest::decode(deep.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn requests_come_back_as_they_were(
            bytes: [u8; 32],
            csr in prop::collection::vec(any::<u8>(), 0..2000),
            name in prop::option::of("[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"),
            hostname in ".{0,64}",
        ) {
            let request = JoinRequest {
                version: VERSION,
                token: JoinToken::from_bytes(bytes),
                csr: Der(csr),
                name: name.map(|name| name.parse().unwrap()),
                platform: Platform { hostname, ..Platform::default() },
            };
            prop_assert_eq!(request.token.reveal().parse(), Ok(request.token.clone()));
            prop_assert_eq!(JoinRequest::decode(&request.encode()), Ok(request));
        }

        #[test]
        fn garbage_is_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(JoinRequest::decode(&bytes).is_err());
            prop_assert!(JoinResponse::decode(&bytes).is_err());
        }

        #[test]
        fn bent_messages_do_not_panic(index in 0..REQUEST.len(), byte: u8) {
            let mut bytes = REQUEST.as_bytes().to_vec();
            bytes[index] = byte;
            let _ = JoinRequest::decode(&bytes);
            let _ = JoinRequest::decode(&bytes[..index]);
            let mut bytes = JOINED.as_bytes().to_vec();
            let index = index % bytes.len();
            bytes[index] = byte;
            let _ = JoinResponse::decode(&bytes);
        }
    }
}
