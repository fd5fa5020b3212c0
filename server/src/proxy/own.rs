//! What is the hub's own in a head: its headers and its cookies. Pure.
//!
//! A target believes `X-Hub-User`, and the hub believes its cookies; so neither may come from
//! outside, nor leave by the wrong side:
//!
//! | | from the browser | from the target |
//! | --- | --- | --- |
//! | `X-Hub-…` | taken out; the hub sets its own | taken out |
//! | `Hub-Token` | taken out | passes: it means nothing there |
//! | the hub's cookies | taken out of `Cookie` | their `Set-Cookie` is taken out |
//!
//! Programs behind CGI and its kin see `X_Hub_User` and `X-Hub-User` as one: here, too, `_` is `-`.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{COOKIE, HeaderMap, HeaderValue, SET_COOKIE};
use hub_protocol::kind::http::Header;

/// The header in which a program shows an exposure's token, or an operator's.
pub(super) const TOKEN_HEADER: &str = "hub-token";

/// The header that tells a target who asks.
pub(super) const USER_HEADER: &str = "x-hub-user";

/// The start of the names of all headers between hub and target.
const HEADERS: &str = "x-hub-";

/// How many cookies of one name are looked at: a sibling host can set some of its own beside ours.
const MAX_SAME: usize = 8;

/// A cookie of the hub's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cookie {
    /// That somebody has shown a credential: see `session_cookie`.
    Session,
    /// Which replica a browser is to come back to: see `balance`.
    Replica,
    /// How often a browser has seen the page that waits: see `page`.
    Waiting,
}

const COOKIES: [Cookie; 3] = [Cookie::Session, Cookie::Replica, Cookie::Waiting];

/// From where a cookie is set, and where it comes back. Not for logs: the prefix holds the token.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    /// Whether the browser speaks TLS.
    pub(super) tls: bool,
    /// What was taken off the path's start; empty where an exposure has a host of its own.
    pub(super) prefix: &'a str,
}

impl Cookie {
    /// Its name, without a prefix.
    const fn bare(self) -> &'static str {
        match self {
            Self::Session => "hub_session",
            Self::Replica => "hub_replica",
            Self::Waiting => "hub_waiting",
        }
    }

    /// Its name on this site. Browsers take `__Host-` from nobody but this host itself, and
    /// `__Secure-` from nobody without TLS; the former is for the whole host only.
    fn name(self, site: Site<'_>) -> String {
        let prefix = match site {
            Site { tls: false, .. } => "",
            Site { prefix: "", .. } => "__Host-",
            Site { .. } => "__Secure-",
        };
        format!("{prefix}{}", self.bare())
    }

    /// The values of this cookie in a request.
    pub(super) fn values<'a>(self, headers: &'a HeaderMap, site: Site<'_>) -> Vec<&'a [u8]> {
        let name = self.name(site);
        let lines = headers.get_all(COOKIE).iter();
        lines
            .flat_map(|line| pairs(line.as_bytes()))
            .filter_map(|pair| split(pair))
            .filter(|(other, _)| *other == name.as_bytes())
            .map(|(_, value)| value)
            .take(MAX_SAME)
            .collect()
    }

    /// The line that sets it: for this host alone, out of reach of scripts, not sent along with
    /// requests that other sites cause (but for links). Without `seconds` it lasts as long as the
    /// browser; with 0 it is gone at once.
    pub(super) fn set(self, value: &str, site: Site<'_>, seconds: Option<u64>) -> HeaderValue {
        let name = self.name(site);
        let mut line = format!(
            "{name}={value}; Path={}/; HttpOnly; SameSite=Lax",
            site.prefix
        );
        if site.tls {
            line.push_str("; Secure");
        }
        if let Some(seconds) = seconds {
            line.push_str("; Max-Age=");
            line.push_str(&seconds.to_string());
        }
        // Names are constants, values base64 or digits, and prefixes were parsed.
        HeaderValue::try_from(line).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

/// The header lines of a request that are for the target: all but the hub's own.
pub(super) fn strip_request(lines: &mut Vec<Header>) {
    lines.retain_mut(|(name, value)| {
        if is_named(name, COOKIE.as_str()) {
            return match without_own(value) {
                Cow::Borrowed(_) => true,
                Cow::Owned(rest) => {
                    *value = Bytes::from(rest);
                    !value.is_empty()
                }
            };
        }
        !is_own(name) && !is_named(name, TOKEN_HEADER)
    });
}

/// The header lines of a response, or of its trailers, that are for the browser: all but what is
/// the hub's alone to say.
pub(super) fn strip_response(lines: &mut Vec<Header>) {
    lines.retain(|(name, value)| {
        let sets_own = || pairs(value).next().is_some_and(is_own_cookie);
        !(is_own(name) || is_named(name, SET_COOKIE.as_str()) && sets_own())
    });
}

/// Whether a header speaks between hub and target.
fn is_own(name: &[u8]) -> bool {
    let start = name.get(..HEADERS.len());
    start.is_some_and(|start| is_named(start, HEADERS))
}

/// Whether a header has this name, in lower case, to whoever takes `_` for `-`.
fn is_named(name: &[u8], other: &str) -> bool {
    let folded = name.iter().map(|byte| match byte {
        b'_' => b'-',
        byte => byte.to_ascii_lowercase(),
    });
    folded.eq(other.bytes())
}

/// A `Cookie` line without the hub's. Borrowed if there are none: then not a byte changes.
fn without_own(line: &[u8]) -> Cow<'_, [u8]> {
    if !pairs(line).any(is_own_cookie) {
        return Cow::Borrowed(line);
    }
    let rest: Vec<&[u8]> = pairs(line).filter(|pair| !is_own_cookie(pair)).collect();
    let rest = rest.join(&b';');
    Cow::Owned(rest.trim_ascii().to_vec())
}

fn pairs(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b';')
}

fn split(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    Some((pair[..at].trim_ascii(), pair[at + 1..].trim_ascii()))
}

/// Whether a pair is a cookie of the hub's, under any of its names. Case is passed over, as some
/// browsers do with prefixes.
fn is_own_cookie(pair: &[u8]) -> bool {
    // One without `=` is a value without a name to browsers, and a name without a value to others.
    let name = split(pair).map_or(pair.trim_ascii(), |(name, _)| name);
    let after = |prefix: &str| {
        let (start, rest) = name.split_at_checked(prefix.len())?;
        start
            .eq_ignore_ascii_case(prefix.as_bytes())
            .then_some(rest)
    };
    let bare = after("__Host-").or(after("__Secure-")).unwrap_or(name);
    COOKIES
        .iter()
        .any(|cookie| bare.eq_ignore_ascii_case(cookie.bare().as_bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const HOST: Site<'_> = Site {
        tls: false,
        prefix: "",
    };

    fn lines(lines: &[(&str, &str)]) -> Vec<Header> {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        lines
            .iter()
            .map(|(name, value)| (bytes(name), bytes(value)))
            .collect()
    }

    #[test]
    fn what_is_the_hubs_does_not_come_in() {
        let mut request = lines(&[
            ("accept", "*/*"),
            ("X-Hub-User", "operator"),
            ("x_hub_user", "operator"),
            ("x-hub-anything", "1"),
            ("hub-token", "secret"),
            ("Hub_Token", "secret"),
            ("authorization", "Bearer kept"),
            ("x-hubs", "kept"),
            ("cookie", "a=1; hub_session=x; b=2"),
            (
                "cookie",
                "__Host-hub_session=x;__SECURE-HUB_REPLICA=y; hub_waiting",
            ),
            ("cookie", "a=\"x;  y\";;c"),
            ("cookie", "hub_sessions=kept"),
        ]);
        strip_request(&mut request);
        let kept = lines(&[
            ("accept", "*/*"),
            ("authorization", "Bearer kept"),
            ("x-hubs", "kept"),
            ("cookie", "a=1; b=2"),
            ("cookie", "a=\"x;  y\";;c"),
            ("cookie", "hub_sessions=kept"),
        ]);
        assert_eq!(request, kept);
    }

    #[test]
    fn what_is_the_hubs_does_not_come_out_of_a_target() {
        let mut response = lines(&[
            ("x-hub-user", "operator"),
            ("X_HUB_REPLICA", "1"),
            ("set-cookie", "hub_session=evil; Domain=example.com"),
            ("Set-Cookie", "__host-hub_replica = evil; Path=/"),
            ("set-cookie", "hub_waiting"),
            ("set-cookie", "mine=hub_session=1; Path=/"),
            ("hub-token", "means nothing"),
        ]);
        strip_response(&mut response);
        let kept = lines(&[
            ("set-cookie", "mine=hub_session=1; Path=/"),
            ("hub-token", "means nothing"),
        ]);
        assert_eq!(response, kept);
    }

    #[test]
    fn cookies_are_of_one_host_and_have_the_strictest_name_it_allows() {
        let set = |tls, prefix| {
            let line = Cookie::Session.set("v", Site { tls, prefix }, Some(60));
            line.to_str().unwrap().to_owned()
        };
        assert_eq!(
            set(false, ""),
            "hub_session=v; Path=/; HttpOnly; SameSite=Lax; Max-Age=60"
        );
        assert_eq!(
            set(true, ""),
            "__Host-hub_session=v; Path=/; HttpOnly; SameSite=Lax; Secure; Max-Age=60"
        );
        assert_eq!(
            set(true, "/v1/data/T"),
            "__Secure-hub_session=v; Path=/v1/data/T/; HttpOnly; SameSite=Lax; Secure; Max-Age=60"
        );
    }

    #[test]
    fn all_of_one_name_are_seen_and_no_other() {
        let mut headers = HeaderMap::new();
        let line =
            HeaderValue::from_static("hub_session=1; x=2; hub_session=3;__Host-hub_session=4");
        headers.append(COOKIE, line);
        headers.append(COOKIE, HeaderValue::from_static("hub_session=5"));
        let values = Cookie::Session.values(&headers, HOST);
        assert_eq!(values, [b"1", b"3", b"5"]);
        let tls = Site { tls: true, ..HOST };
        assert_eq!(Cookie::Session.values(&headers, tls), [b"4"]);
        let many = HeaderValue::from_static("hub_session=");
        (0..100).for_each(|_| _ = headers.append(COOKIE, many.clone()));
        assert_eq!(Cookie::Session.values(&headers, HOST).len(), MAX_SAME);
    }

    proptest! {
        /// Whatever a browser sends, no cookie of the hub's is left of it, and what was set by
        /// others comes through, in order.
        #[test]
        fn of_a_cookie_line_exactly_the_hubs_are_missing(
            pairs in prop::collection::vec(
                prop_oneof![
                    "[a-z]{1,4}=[a-z=\"]{0,4}",
                    "(__Host-|__Secure-|)hub_(session|replica|waiting)(=[a-z=]{0,3})?",
                ],
                0..8,
            ),
        ) {
            let line = pairs.join("; ");
            let mut request = lines(&[("cookie", &line)]);
            strip_request(&mut request);
            let kept: Vec<_> = pairs.iter().filter(|pair| !pair.contains("hub_")).collect();
            let expected: Vec<_> = kept.iter().map(|pair| pair.as_str()).collect();
            let left = request.first().map(|(_, value)| String::from_utf8(value.to_vec()).unwrap());
            if kept.is_empty() && !pairs.is_empty() {
                prop_assert_eq!(left, None);
            } else {
                prop_assert_eq!(left.unwrap(), expected.join("; "));
            }
        }
    }
}
