//! The header `Forwarded` (RFC 7239). Pure.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::client::{Scheme, address};

/// What one proxy says about who came to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hop {
    /// Who came; none if it is unknown or hidden.
    pub(super) address: Option<IpAddr>,
    /// How.
    pub(super) scheme: Option<Scheme>,
    /// What host was asked for.
    pub(super) host: Option<String>,
}

/// The hops that a header names, the first proxy's first. `None`: it is malformed.
pub(super) fn read(text: &str) -> Option<Vec<Hop>> {
    let mut hops = Vec::new();
    let mut hop = Hop::default();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t']);
        let end = rest.find(['=', ';', ',']).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        if let Some(after) = rest.strip_prefix('=') {
            let (value, after) = value(after)?;
            pair(&mut hop, name, &value);
            rest = after.trim_start_matches([' ', '\t']);
        } else if !name.trim().is_empty() {
            return None;
        }
        match rest.as_bytes().first() {
            None => break,
            Some(b';') => {}
            Some(b',') => hops.push(std::mem::take(&mut hop)),
            Some(_) => return None,
        }
        rest = &rest[1..];
    }
    hops.push(hop);
    Some(hops)
}

/// A token or a quoted string, and what follows.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([';', ',', ' ', '\t']).unwrap_or(text.len());
        let (token, rest) = text.split_at(end);
        return (!token.contains('"')).then(|| (token.to_owned(), rest));
    };
    let mut value = String::new();
    let mut characters = quoted.chars();
    loop {
        match characters.next()? {
            '"' => return Some((value, characters.as_str())),
            '\\' => value.push(characters.next()?),
            character => value.push(character),
        }
    }
}

fn pair(hop: &mut Hop, name: &str, value: &str) {
    if name.eq_ignore_ascii_case("for") {
        hop.address = address(value);
    } else if name.eq_ignore_ascii_case("proto") {
        hop.scheme = Scheme::named(value);
    } else if name.eq_ignore_ascii_case("host") {
        hop.host = Some(value.to_owned());
    }
}

/// The header for a chain from the client to the peer: how the client came to the first, and who
/// came to the others.
pub(super) fn write(chain: &[IpAddr], scheme: Scheme, host: &str) -> String {
    let mut text = String::new();
    for (at, address) in chain.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { ", " });
        let _ = match address {
            IpAddr::V4(address) => write!(text, "for={address}"),
            IpAddr::V6(address) => write!(text, "for=\"[{address}]\""),
        };
        if at == 0 {
            if !host.is_empty() {
                let quoted = host.replace('\\', "\\\\").replace('"', "\\\"");
                let _ = write!(text, ";host=\"{quoted}\"");
            }
            let _ = write!(text, ";proto={}", scheme.as_str());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn hop(address: Option<&str>, scheme: Option<Scheme>, host: Option<&str>) -> Hop {
        Hop {
            address: address.map(|text| text.parse().unwrap()),
            scheme,
            host: host.map(str::to_owned),
        }
    }

    #[test]
    fn the_examples_of_the_standard() {
        for (text, hops) in [
            ("for=\"_gazonk\"", vec![Hop::default()]),
            (
                "For=\"[2001:db8:cafe::17]:4711\"",
                vec![hop(Some("2001:db8:cafe::17"), None, None)],
            ),
            (
                "for=192.0.2.60;proto=http;by=203.0.113.43",
                vec![hop(Some("192.0.2.60"), Some(Scheme::Http), None)],
            ),
            (
                "for=192.0.2.43, for=198.51.100.17",
                vec![
                    hop(Some("192.0.2.43"), None, None),
                    hop(Some("198.51.100.17"), None, None),
                ],
            ),
            (
                "for=unknown;host=\"a,b;c\" ,\tfor=10.0.0.1 ;proto=https",
                vec![
                    hop(None, None, Some("a,b;c")),
                    hop(Some("10.0.0.1"), Some(Scheme::Https), None),
                ],
            ),
            ("", vec![Hop::default()]),
        ] {
            assert_eq!(read(text), Some(hops), "{text}");
        }
        for text in [
            "for",
            "for=\"1.2.3.4",
            "for=1\"2",
            "for=\"a\"b",
            "for=a b",
            "\"",
            "a;b=c",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            chain in proptest::collection::vec(any::<IpAddr>(), 1..5),
            host in "[ -~]{0,20}",
            secure: bool,
        ) {
            let scheme = if secure { Scheme::Https } else { Scheme::Http };
            let hops = read(&write(&chain, scheme, &host)).unwrap();
            let addresses: Vec<_> = hops.iter().filter_map(|hop| hop.address).collect();
            let canonical: Vec<_> = chain.iter().map(IpAddr::to_canonical).collect();
            prop_assert_eq!(addresses, canonical);
            prop_assert_eq!(hops[0].scheme, Some(scheme));
            prop_assert_eq!(hops[0].host.as_deref().unwrap_or_default(), host);
        }

        #[test]
        fn anything_may_come(text in "\\PC{0,60}") {
            let _ = read(&text);
        }
    }
}
