//! Which exposure a request is for, by its host and path. Pure.

use hub_ledger::ExposureName;

use super::routes::Route;
use crate::secret::Token;

/// Where exposures are reached by token.
pub(super) const BY_TOKEN: &str = "/v1/data/";

/// What a request's host and path say. Not for logs: paths hold tokens.
pub(super) enum Place<'a> {
    /// It is for an exposure.
    Exposure {
        /// Which one.
        route: Route,
        /// What was taken off the path's start; it holds the token.
        prefix: &'a str,
        /// Path and query as the target is to see them.
        target: &'a str,
    },
    /// A slash is missing: this is where it should go. It holds the token.
    Redirect(String),
    /// No name can be that.
    UnknownName,
    /// No token can be that.
    UnknownToken,
    /// Neither a name nor a token.
    Nowhere,
}

/// The place of a request with this host (with or without a port), and this path and query.
/// Under the domain, a name is the label before it; elsewhere, a token is in the path.
pub(super) fn place<'a>(host: &str, target: &'a str, domain: Option<&str>) -> Place<'a> {
    if let Some(label) = domain.and_then(|domain| label(host, domain)) {
        return match label.parse::<ExposureName>() {
            Ok(name) => Place::Exposure {
                route: Route::Name(name),
                prefix: "",
                target,
            },
            Err(_) => Place::UnknownName,
        };
    }
    let Some(rest) = target.strip_prefix(BY_TOKEN) else {
        return Place::Nowhere;
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (text, rest) = rest.split_at(end);
    let Ok(token) = text.parse::<Token>() else {
        return Place::UnknownToken;
    };
    let prefix = &target[..BY_TOKEN.len() + end];
    if !rest.starts_with('/') {
        return Place::Redirect(format!("{prefix}/{rest}"));
    }
    Place::Exposure {
        route: Route::Token(token.exposure_hash()),
        prefix,
        target: rest,
    }
}

/// The part of `host` before `domain`, in lower case. Both may carry a port.
fn label(host: &str, domain: &str) -> Option<String> {
    let bare = |name: &str| {
        let name = name.split_once(':').map_or(name, |(name, _)| name);
        name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
    };
    let (host, domain) = (bare(host), bare(domain));
    let label = host.strip_suffix(&domain)?.strip_suffix('.')?;
    (!domain.is_empty()).then(|| label.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn by_name(host: &str, domain: &str) -> Option<String> {
        match place(host, "/x?y", Some(domain)) {
            Place::Exposure {
                route: Route::Name(name),
                prefix: "",
                target: "/x?y",
            } => Some(name.to_string()),
            Place::UnknownName => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn names_are_the_label_before_the_domain() {
        for host in [
            "shop.example.com",
            "SHOP.Example.COM.:7480",
            "shop.example.com.",
        ] {
            assert_eq!(
                by_name(host, "example.com").as_deref(),
                Some("shop"),
                "{host}"
            );
        }
        assert_eq!(by_name("shop.test", "Test.:7480").as_deref(), Some("shop"));
        for host in ["a.b.example.com", "_.example.com", ".example.com"] {
            assert_eq!(by_name(host, "example.com").as_deref(), Some(""), "{host}");
        }
        for host in [
            "example.com",
            "shopexample.com",
            "example.com.evil",
            "",
            "[::1]:7480",
        ] {
            assert_eq!(by_name(host, "example.com"), None, "{host}");
        }
        assert_eq!(by_name("shop.", ""), None);
    }

    #[test]
    fn tokens_are_in_the_path() {
        let token = Token::from_bytes([7; 32]);
        let text = token.to_text();
        for rest in ["/", "/a/b?c=/v1/data/", "//x", "/?"] {
            let target = format!("/v1/data/{}{rest}", *text);
            let Place::Exposure {
                route: Route::Token(hash),
                prefix,
                target: stripped,
            } = place("localhost", &target, Some("example.com"))
            else {
                panic!("{rest}");
            };
            assert_eq!((hash, stripped), (token.exposure_hash(), rest));
            assert_eq!(format!("{prefix}{stripped}"), target);
        }
        for (rest, to) in [("", "/"), ("?a", "/?a")] {
            let target = format!("/v1/data/{}{rest}", *text);
            let Place::Redirect(location) = place("", &target, None) else {
                panic!("{rest}");
            };
            assert_eq!(location, format!("/v1/data/{}{to}", *text));
        }
        for target in ["/v1/data/", "/v1/data/x/", "/v1/data//", "/v1/data/%41/"] {
            assert!(
                matches!(place("", target, None), Place::UnknownToken),
                "{target}"
            );
        }
        let longer = format!("/v1/data/{}x/", *text);
        assert!(matches!(place("", &longer, None), Place::UnknownToken));
        for target in ["/", "*", "", "/v1/data", "/V1/data/x/"] {
            assert!(
                matches!(place("", target, None), Place::Nowhere),
                "{target}"
            );
        }
    }
}
