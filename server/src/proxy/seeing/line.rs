//! A line of the access log: which requests get one, and what stands in it. Pure.
//!
//! Headers are never in it, and so neither cookies nor credentials. Of a path the token is cut out;
//! queries often hold secrets of the target's and are left out unless the operator wants them.

use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

use super::Kind;
use crate::proxy::place::BY_TOKEN;

/// The most bytes of a path, with its query, in a line.
const MAX_PATH: usize = 1024;

/// The length of a token as text.
const TOKEN: usize = 43;

/// What stands for what was cut out.
const CUT: &str = "-";

/// A request or stream that is over.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Line<'a> {
    /// When it began.
    pub(super) time: String,
    pub(super) kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exposure: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<&'a str>,
    pub(super) client: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<&'static str>,
    /// None: the browser left before there was an answer.
    pub(super) status: Option<u16>,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) duration_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) first_byte_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target_first_byte_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refusal: Option<&'static str>,
    /// Whether the answer came to its end.
    pub(super) whole: bool,
}

/// Milliseconds, with microseconds after the point.
pub(super) fn millis(time: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "exact for 285 years")]
    let micros = time.as_micros() as f64;
    micros / 1000.0
}

impl Line<'_> {
    /// As JSON, with a line break at its end.
    pub(super) fn to_json(&self) -> Vec<u8> {
        // Strings and numbers can always be written.
        let mut json = serde_json::to_vec(self).unwrap_or_default();
        json.push(b'\n');
        json
    }
}

/// Whether the request of this number gets a line, where `share` of all do. Errors always do: an
/// answer of 400 and above, or none.
pub(super) fn is_logged(number: u64, share: f64, status: Option<u16>) -> bool {
    if share >= 1.0 || status.is_none_or(|status| status >= 400) {
        return true;
    }
    // Mixed, so that what comes at regular intervals is not seen always or never (SplitMix64).
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    #[expect(clippy::cast_precision_loss, reason = "53 bits are kept")]
    let drawn = (mixed >> 11) as f64 / (1_u64 << 53) as f64;
    drawn < share
}

/// A path as it may be logged: without tokens, and without its query unless that is wanted. What
/// stands where a token belongs is cut out whatever it is, and so is elsewhere what looks like one.
pub(super) fn loggable(target: &str, with_query: bool) -> String {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, with_query.then_some(query)),
        None => (target, None),
    };
    let mut text = String::new();
    let path = if let Some(rest) = path.strip_prefix(BY_TOKEN) {
        text.push_str(BY_TOKEN);
        text.push_str(CUT);
        rest.find('/').map_or("", |end| &rest[end..])
    } else {
        path
    };
    push_cut(&mut text, path);
    if let Some(query) = query {
        text.push('?');
        push_cut(&mut text, query);
    }
    if text.len() > MAX_PATH {
        let whole = (0..=MAX_PATH).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(whole.unwrap_or(0));
        text.push('…');
    }
    text
}

/// Adds a text without what may be a token: as many of a token's characters in a row as it has, at
/// least. Without a capital letter it is none, but for one in billions; it is some words, or a hash.
fn push_cut(text: &mut String, from: &str) {
    let is_token = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let mut rest = from;
    while let Some(first) = rest.chars().next() {
        let inside = is_token(first);
        let end = rest.find(|c| is_token(c) != inside).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        let secret = run.len() >= TOKEN && run.bytes().any(|byte| byte.is_ascii_uppercase());
        text.push_str(if inside && secret { CUT } else { run });
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::secret::Token;

    #[test]
    fn paths_are_as_they_came_but_for_tokens_and_queries() {
        let token = Token::from_bytes([0x5a; 32]).to_text().to_string();
        for (target, with_query, expected) in [
            ("/a/b%2Fc?x=y", false, "/a/b%2Fc"),
            ("/a?x=y", true, "/a?x=y"),
            ("*", true, "*"),
            ("", false, ""),
            ("/v1/data/mistyped/a", false, "/v1/data/-/a"),
            ("/v1/data/mistyped?a", true, "/v1/data/-?a"),
            (
                "/a-very-long-title-that-somebody-has-written-about-something/",
                false,
                "/a-very-long-title-that-somebody-has-written-about-something/",
            ),
        ] {
            assert_eq!(loggable(target, with_query), expected);
        }
        assert_eq!(
            loggable(&format!("/v1/data/{token}/a?b"), false),
            "/v1/data/-/a"
        );
        let long = loggable(&"/é".repeat(40_000), false);
        assert!(long.len() <= MAX_PATH + 3 && long.ends_with('…'));
    }

    #[test]
    fn a_share_of_requests_is_logged_and_all_errors() {
        for share in [0.0, 0.1, 0.5, 1.0] {
            let logged = (0..100_000).filter(|n| is_logged(*n, share, Some(200)));
            let logged = f64::from(u32::try_from(logged.count()).unwrap()) / 100_000.0;
            assert!((logged - share).abs() < 0.01, "{share}: {logged}");
        }
        for status in [None, Some(400), Some(429), Some(502)] {
            assert!((0..100).all(|n| is_logged(n, 0.0, status)), "{status:?}");
        }
    }

    proptest! {
        #[test]
        fn no_token_is_ever_logged(
            bytes: [u8; 32],
            before in "(/[a-z%2F]{0,8}){0,3}",
            after in "[/?&=#a-z]{0,8}",
            with_query: bool,
        ) {
            let token = Token::from_bytes(bytes).to_text().to_string();
            prop_assert_eq!(token.len(), TOKEN);
            prop_assume!(token.bytes().any(|byte| byte.is_ascii_uppercase()));
            for target in [
                format!("/v1/data/{token}{after}"),
                format!("{before}/{token}{after}"),
                format!("{before}?to=%2Fv1%2Fdata%2F{token}%2F{after}"),
                format!("/.hub/login?to=/v1/data/{token}/{after}"),
                format!("//v1/data/{token}{token}"),
            ] {
                let logged = loggable(&target, with_query);
                prop_assert!(!logged.contains(&token), "{} {}", target, logged);
            }
        }
    }
}
