#![allow(clippy::unwrap_used)]

use http::HeaderName;
use proptest::prelude::*;

use super::*;

fn trusted(prefixes: &[&str]) -> Trusted {
    Trusted::new(prefixes.iter().map(|text| text.parse().unwrap()).collect())
}

fn origin(peer: &str, trust: &[&str], headers: &[(&'static str, &str)]) -> Origin {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(HeaderName::from_static(name), value.parse().unwrap());
    }
    let client = Client::plain(SocketAddr::new(peer.parse().unwrap(), 1));
    Origin::of(client, &trusted(trust), &map, "hub:80").under("/p")
}

fn said(origin: &Origin, name: &str) -> String {
    let lines = origin.lines();
    let line = lines.into_iter().find(|(known, _)| *known == name);
    line.unwrap().1
}

const LIES: [(&str, &str); 6] = [
    (FOR, "6.6.6.6"),
    (PROTO, "https"),
    (HOST, "evil"),
    (PREFIX, "/evil"),
    (REAL_IP, "6.6.6.6"),
    (FORWARDED, "for=6.6.6.6;proto=https;host=evil"),
];

#[test]
fn a_stranger_is_the_client_whatever_it_says() {
    for trust in [&[][..], &["10.0.0.0/8"]] {
        let origin = origin("::ffff:192.0.2.7", trust, &LIES);
        let mut lines = origin.lines();
        lines.sort_unstable();
        let expected = [
            (FORWARDED, "for=192.0.2.7;host=\"hub:80\";proto=http"),
            (FOR, "192.0.2.7"),
            (HOST, "hub:80"),
            (PREFIX, "/p"),
            (PROTO, "http"),
            (REAL_IP, "192.0.2.7"),
        ];
        assert_eq!(
            lines,
            expected.map(|(name, value)| (name, value.to_owned()))
        );
    }
}

#[test]
fn the_client_is_the_last_address_that_is_not_trusted() {
    let trust = &["10.0.0.0/8", "2001:db8::/32"][..];
    for (list, chain) in [
        (
            "6.6.6.6, 192.0.2.7, 10.0.0.9",
            "192.0.2.7, 10.0.0.9, 10.0.0.1",
        ),
        ("192.0.2.7:4711", "192.0.2.7, 10.0.0.1"),
        (
            "192.0.2.7,[2001:db8::5]:80",
            "192.0.2.7, 2001:db8::5, 10.0.0.1",
        ),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3, 10.0.0.2, 10.0.0.1"),
        ("192.0.2.7, unknown", "10.0.0.1"),
        ("192.0.2.7, _hidden, 10.0.0.2", "10.0.0.2, 10.0.0.1"),
        ("192.0.2.7,", "10.0.0.1"),
        ("::ffff:192.0.2.7", "192.0.2.7, 10.0.0.1"),
    ] {
        let origin = origin("10.0.0.1", trust, &[(FOR, list)]);
        assert_eq!(said(&origin, FOR), chain, "{list}");
        assert_eq!(said(&origin, REAL_IP), chain.split(',').next().unwrap());
    }
    let lines = [(FOR, "192.0.2.7"), (FOR, "10.0.0.9")];
    let origin = origin("10.0.0.1", trust, &lines);
    assert_eq!(origin.client().to_string(), "192.0.2.7");
}

#[test]
fn scheme_and_host_are_those_of_the_client_where_lists_go_together() {
    let trust = &["10.0.0.0/8"][..];
    let of = |list, protos, hosts| {
        let headers = [(FOR, list), (PROTO, protos), (HOST, hosts)];
        let origin = origin("10.0.0.1", trust, &headers);
        (origin.scheme(), said(&origin, HOST))
    };
    let both = "192.0.2.7, 10.0.0.2";
    assert_eq!(
        of(both, "https, http", "a.test, b"),
        (Scheme::Https, "a.test".into())
    );
    assert_eq!(
        of(both, "HTTPS", "a.test:8"),
        (Scheme::Https, "a.test:8".into())
    );
    assert_eq!(
        of("6.6.6.6, 192.0.2.7", "http, https", "evil, a"),
        (Scheme::Https, "a".into())
    );
    assert_eq!(of(both, "gopher", "a b"), (Scheme::Http, "hub:80".into()));
    let headers = [(PROTO, "https"), (HOST, "a.test"), (PREFIX, "/outer/")];
    let origin = origin("10.0.0.1", trust, &headers);
    assert_eq!(origin.scheme(), Scheme::Https);
    assert_eq!(said(&origin, HOST), "a.test");
    assert_eq!(said(&origin, PREFIX), "/outer/p");
}

#[test]
fn one_source_of_addresses_is_taken() {
    let trust = &["10.0.0.0/8"][..];
    let client = |headers: &[(&'static str, &str)]| {
        let origin = origin("10.0.0.1", trust, headers);
        (origin.client().to_string(), origin.scheme())
    };
    let standard = (
        FORWARDED,
        "for=6.6.6.6, for=\"192.0.2.7:1\";proto=https, for=10.0.0.2",
    );
    let real = (REAL_IP, "192.0.2.8");
    let list = (FOR, "192.0.2.9");
    assert_eq!(client(&[standard]), ("192.0.2.7".into(), Scheme::Https));
    assert_eq!(
        client(&[standard, real]),
        ("192.0.2.8".into(), Scheme::Http)
    );
    assert_eq!(
        client(&[standard, real, list]),
        ("192.0.2.9".into(), Scheme::Http)
    );
}

#[test]
fn what_the_hub_does_not_say_itself_passes_from_trusted_peers_only() {
    let stranger = origin("192.0.2.7", &[], &[]);
    let proxy = origin("10.0.0.1", &["10.0.0.1"], &[]);
    for name in [
        "x-forwarded-for",
        "X_Forwarded_For",
        "x-real_ip",
        "forwarded",
        "x-forwarded-prefix",
    ] {
        assert!(stranger.replaces(name.as_bytes()), "{name}");
        assert!(proxy.replaces(name.as_bytes()), "{name}");
    }
    for name in [
        "x-forwarded-user",
        "x_forwarded-email",
        "x-forwarded-",
        "x-forwarded-port",
    ] {
        assert!(stranger.replaces(name.as_bytes()), "{name}");
        assert!(!proxy.replaces(name.as_bytes()), "{name}");
    }
    for name in ["x-forwarded", "x-forward", "for", "accept", "x-real-ip2"] {
        assert!(!stranger.replaces(name.as_bytes()), "{name}");
    }
}

#[test]
fn who_comes_in_the_clear_is_sent_to_tls() {
    let place = |host: &str, secured, scheme, target: &str| {
        let client = Client {
            scheme,
            secured,
            ..Client::plain(([192, 0, 2, 7], 1).into())
        };
        let origin = Origin::of(client, &Trusted::default(), &HeaderMap::new(), host);
        origin.secure_place(target)
    };
    for (host, secured, target, location) in [
        ("hub:7480", Secured::Here, "/a?b", "https://hub:7480/a?b"),
        ("hub:80", Secured::Port(443), "/", "https://hub/"),
        ("hub", Secured::Port(7480), "/", "https://hub:7480/"),
        ("[::1]:80", Secured::Port(443), "/", "https://[::1]/"),
        ("[::1]", Secured::Port(1), "*", "https://[::1]:1/"),
    ] {
        let to = place(host, Some(secured), Scheme::Http, target);
        assert_eq!(to.as_deref(), Some(location));
    }
    assert_eq!(place("hub", None, Scheme::Http, "/"), None);
    assert_eq!(place("hub", Some(Secured::Here), Scheme::Https, "/"), None);
}

#[test]
fn prefixes_are_written_as_everywhere() {
    for (text, shown) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3", "10.1.2.3/32"),
        ("::1", "::1/128"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::/0", "::/0"),
    ] {
        assert_eq!(text.parse::<Prefix>().unwrap().to_string(), shown);
    }
    for text in [
        "",
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/+8",
        "10.0.0/8",
        "::/129",
        "a/8",
    ] {
        let error = text.parse::<Prefix>().unwrap_err();
        assert!(
            matches!(error, PrefixError::Malformed(_)),
            "{text}: {error}"
        );
    }
    let error = "10.1.2.3/8".parse::<Prefix>().unwrap_err();
    assert!(
        error.to_string().ends_with("the network is 10.0.0.0/8"),
        "{error}"
    );
}

proptest! {
    /// The first address that a target reads is the client's, and is nobody's word alone: it
    /// is the peer, or somebody trusted saw it.
    #[test]
    fn nobody_is_made_up(
        peer: IpAddr, list in proptest::collection::vec(any::<IpAddr>(), 0..6), bits in 0u8..=32,
    ) {
        let peer = peer.to_canonical();
        let prefix = Prefix { address: masked([10, 0, 0, 0].into(), bits).unwrap(), bits };
        let trusted = Trusted::new(vec![prefix]);
        let mut headers = HeaderMap::new();
        let text: Vec<_> = list.iter().map(IpAddr::to_string).collect();
        headers.insert(FOR, text.join(", ").parse().unwrap());
        let client = Client::plain(SocketAddr::new(peer, 1));
        let origin = Origin::of(client, &trusted, &headers, "");
        let (first, rest) = origin.chain.split_first().unwrap();
        prop_assert!(rest.iter().all(|proxy| trusted.contains(*proxy)));
        prop_assert_eq!(*origin.chain.last().unwrap(), peer);
        let whole = origin.chain.len() > list.len();
        prop_assert!(whole || !trusted.contains(*first));
    }

    #[test]
    fn a_prefix_has_what_shares_its_bits(network: IpAddr, other: IpAddr, bits in 0u8..=128) {
        prop_assume!(network == network.to_canonical() && other == other.to_canonical());
        let Some(address) = masked(network, bits) else { return Ok(()) };
        let prefix = Prefix { address, bits };
        prop_assert!(prefix.contains(network));
        prop_assert_eq!(prefix.to_string().parse::<Prefix>().unwrap(), prefix);
        let same = network.is_ipv4() == other.is_ipv4() && masked(other, bits) == Some(address);
        prop_assert_eq!(prefix.contains(other), same);
    }
}
