//! The header with which a request shows registries who it comes from: Docker's `X-Registry-Config`.
//!
//! ```text
//! X-Registry-Config: base64({"registry.example:5000": {"username": "me", "password": "…"}, …})
//! ```
//!
//! A WebSocket has no body that could hold it before it is open, and a URL is what proxies and
//! browsers write down. Pure: server and client share it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_URL_SAFE;
use http::HeaderValue;
use http::header::{HeaderMap, InvalidHeaderValue};
use hub_protocol::kind::call::image::Credentials;
use hub_protocol::kind::{self, BodyError};

use super::problem::{Kind, Problem};

/// The header's name.
pub const REGISTRIES_HEADER: &str = "x-registry-config";

/// Either alphabet is read, with padding and without.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The header's value for these registries, marked as secret.
///
/// # Errors
/// None that base64 can have: it is text.
pub fn to_header(
    credentials: &BTreeMap<String, Credentials>,
) -> Result<HeaderValue, InvalidHeaderValue> {
    let encoded = BASE64_URL_SAFE.encode(kind::to_json(credentials));
    let mut value = HeaderValue::try_from(encoded)?;
    value.set_sensitive(true);
    Ok(value)
}

/// A header that can't be read. Nothing of what stands in it is repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RegistriesError {
    #[error("the header X-Registry-Config may be given once")]
    Repeated,
    #[error("the header X-Registry-Config takes JSON in base64")]
    NoBase64,
    #[error("the header X-Registry-Config holds {0}")]
    Malformed(#[from] BodyError),
}

impl From<RegistriesError> for Problem {
    fn from(error: RegistriesError) -> Self {
        Self::new(Kind::InvalidRequest, error.to_string())
    }
}

/// What a request shows registries.
///
/// # Errors
/// The header is there twice or malformed.
pub(super) fn of_request(
    headers: &HeaderMap,
) -> Result<BTreeMap<String, Credentials>, RegistriesError> {
    let mut values = headers.get_all(REGISTRIES_HEADER).iter();
    let Some(value) = values.next() else {
        return Ok(BTreeMap::new());
    };
    if values.next().is_some() {
        return Err(RegistriesError::Repeated);
    }
    let alphabet = |byte: &u8| match byte {
        b'-' => b'+',
        b'_' => b'/',
        byte => *byte,
    };
    let encoded: Vec<u8> = value.as_bytes().iter().map(alphabet).collect();
    let json = LENIENT.decode(encoded);
    let json = json.map_err(|_| RegistriesError::NoBase64)?;
    Ok(kind::from_json_object("object of credentials", &json)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};

    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let named = |value: &&str| (REGISTRIES_HEADER.parse().unwrap(), value.parse().unwrap());
        values.iter().map(named).collect()
    }

    #[test]
    fn what_is_shown_arrives_in_either_alphabet_and_under_docker_s_names() {
        let shown = Credentials {
            username: "üser?>~".into(),
            password: "pass~~~???".into(),
            ..Credentials::default()
        };
        let all = BTreeMap::from([("registry.example:5000".to_owned(), shown)]);
        let value = to_header(&all).unwrap();
        assert!(value.is_sensitive() && !format!("{value:?}").contains("cGFz"));
        let given = HeaderMap::from_iter([(REGISTRIES_HEADER.parse().unwrap(), value)]);
        assert_eq!(of_request(&given).unwrap(), all);
        let json = kind::to_json(&all);
        for encoded in [
            BASE64_STANDARD.encode(&json),
            BASE64_STANDARD_NO_PAD.encode(&json),
            BASE64_URL_SAFE_NO_PAD.encode(&json),
        ] {
            assert_eq!(of_request(&headers(&[&encoded])).unwrap(), all);
        }
        let docker = r#"{"r":{"identitytoken":"t","serveraddress":"r"}}"#;
        let docker = of_request(&headers(&[&BASE64_STANDARD.encode(docker)])).unwrap();
        assert_eq!(docker["r"].identity_token, "t");
        assert_eq!(docker["r"].server, "r");
        assert_eq!(of_request(&HeaderMap::new()).unwrap(), BTreeMap::new());
    }

    #[test]
    fn what_cannot_be_read_is_refused_without_a_secret() {
        let json = |json: &str| BASE64_STANDARD.encode(json);
        for (values, part) in [
            (vec!["hunter2!".to_owned()], "base64"),
            (vec![json(r#"["hunter2"]"#)], "object"),
            (vec![json(r#"{"r":{"pasword":"hunter2"}}"#)], "`pasword`"),
            (vec![json(r#"{"r":{"password":["hunter2"]}}"#)], "string"),
            (vec![json("{}"), json("{}")], "once"),
        ] {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            let error = of_request(&headers(&values)).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
