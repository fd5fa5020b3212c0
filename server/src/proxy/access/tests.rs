#![allow(clippy::unwrap_used)]

use std::time::Duration;

use futures_util::FutureExt as _;
use http::Request;
use hub_ledger::exposure::{PreviousToken, Settings};
use hub_ledger::{ExposureId, ExposureToken, Protocol};
use proptest::prelude::*;

use super::*;
use crate::secret::HubSecret;

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const HOST: &str = "shop.example.com";
const SITE: Site<'_> = Site {
    tls: false,
    prefix: "",
};

fn head(method: &str, headers: &[(&str, &str)]) -> request::Parts {
    let mut request = Request::builder().method(method).uri("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn token(byte: u8) -> Token {
    Token::from_bytes([byte; 32])
}

fn exposure(access: Access) -> Exposure {
    Exposure {
        id: ExposureId(7),
        name: Some("shop".parse().unwrap()),
        token: Some(ExposureToken {
            hash: token(1).exposure_hash(),
            expires: None,
            previous: None,
        }),
        access,
        protocol: Protocol::Http,
        replicas: Vec::new(),
        listen: None,
        settings: Settings::default(),
        created: NOW,
    }
}

/// One user besides the operator's.
struct Two(ApiToken);

impl Users for Two {
    fn verify<'a>(&'a self, name: &'a str, secret: &'a str) -> BoxFuture<'a, bool> {
        let ada = name == "ada" && secret == "love";
        let operator = name == OPERATOR && self.0.matches(secret.as_bytes());
        async move { ada || operator }.boxed()
    }

    fn binding<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<[u8; 32]>> {
        let binding = match name {
            "ada" => Some([1; 32]),
            OPERATOR => Some([2; 32]),
            _ => None,
        };
        async move { binding }.boxed()
    }
}

struct World {
    key: Key,
    users: Two,
    exposure: Exposure,
    now: Timestamp,
}

impl World {
    fn new(access: Access) -> Self {
        Self {
            key: Key::new(&HubSecret::from_bytes([1; 32])),
            users: Two(ApiToken::random().unwrap()),
            exposure: exposure(access),
            now: NOW,
        }
    }

    fn asking<'a>(&'a self, head: &'a request::Parts) -> Asking<'a> {
        Asking {
            exposure: &self.exposure,
            head,
            host: HOST,
            site: SITE,
            now: self.now,
        }
    }

    fn gate(&self) -> Gate<'_> {
        Gate {
            key: &self.key,
            users: &self.users,
        }
    }

    fn asks(&self) -> Asks {
        asks(self.exposure.access, false).unwrap()
    }

    fn admit(&self, method: &str, headers: &[(&str, &str)]) -> Result<Admitted, Outside> {
        let head = head(method, headers);
        let admit = self.gate();
        let asking = self.asking(&head);
        admit.admit(self.asks(), asking).now_or_never().unwrap()
    }

    fn log_in(&self, user: &str, secret: &str) -> Option<String> {
        let head = head("POST", &[]);
        let form = Form {
            user: user.to_owned(),
            secret: secret.to_owned(),
            to: String::new(),
        };
        let (gate, asking) = (self.gate(), self.asking(&head));
        gate.log_in(self.asks(), &form, asking)
            .now_or_never()
            .unwrap()
    }

    fn with_cookie(&self, value: &str) -> Result<Admitted, Outside> {
        self.admit("GET", &[("cookie", &format!("hub_session={value}"))])
    }
}

fn someone(user: Option<&str>) -> Admitted {
    Admitted {
        user: user.map(str::to_owned),
        renewed: None,
    }
}

#[test]
fn pages_are_for_those_who_read_them() {
    use Visitor::{Navigation, Program};
    let html = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    for (method, headers, expected) in [
        ("GET", vec![("sec-fetch-mode", "navigate")], Navigation),
        ("POST", vec![("sec-fetch-mode", "navigate")], Navigation),
        ("GET", vec![("sec-fetch-mode", "cors"), html], Program),
        ("GET", vec![("sec-fetch-mode", "no-cors")], Program),
        ("GET", vec![("sec-fetch-mode", "websocket")], Program),
        ("GET", vec![html], Navigation),
        ("HEAD", vec![("accept", "*/*, TEXT/HTML")], Navigation),
        ("POST", vec![html], Program),
        ("GET", vec![], Program),
        ("GET", vec![("accept", "*/*")], Program),
        ("GET", vec![("accept", "text/html;q=0")], Program),
        ("GET", vec![("accept", "text/htmlx")], Program),
        (
            "GET",
            vec![html, ("x-requested-with", "XMLHttpRequest")],
            Program,
        ),
        ("GET", vec![html, ("upgrade", "websocket")], Program),
    ] {
        assert_eq!(
            visitor(&head(method, &headers)),
            expected,
            "{method} {headers:?}"
        );
    }
}

#[test]
fn what_other_hosts_have_a_browser_do_does_not_count() {
    let origin = |origin| ("origin", origin);
    for (method, headers, expected) in [
        ("GET", vec![origin("https://evil.example.com")], false),
        (
            "GET",
            vec![origin("https://evil.example.com"), ("upgrade", "websocket")],
            true,
        ),
        (
            "GET",
            vec![origin("http://shop.example.com"), ("upgrade", "websocket")],
            false,
        ),
        ("POST", vec![], false),
        ("POST", vec![origin("https://shop.example.com:443")], false),
        ("POST", vec![origin("https://shop.example.com:444")], true),
        ("POST", vec![origin("null")], true),
        (
            "POST",
            vec![origin("null"), ("sec-fetch-site", "same-origin")],
            false,
        ),
        ("DELETE", vec![("sec-fetch-site", "same-site")], true),
        ("PUT", vec![("sec-fetch-site", "cross-site")], true),
        ("POST", vec![("sec-fetch-site", "none")], false),
    ] {
        let head = head(method, &headers);
        assert_eq!(foreign(&head, HOST), expected, "{method} {headers:?}");
    }
}

#[test]
fn only_this_hosts_own_form_logs_in() {
    for (headers, expected) in [
        (vec![], false),
        (vec![("origin", "http://shop.example.com")], true),
        (vec![("origin", "https://SHOP.example.com")], true),
        (vec![("origin", "http://example.com")], false),
        (vec![("origin", "http://shop.example.com.evil.com")], false),
        (vec![("origin", "http://evil.com/shop.example.com")], false),
        (vec![("origin", "http://evil.com#@shop.example.com")], false),
        (vec![("origin", "null")], false),
        (vec![("origin", "http://")], false),
        (vec![("origin", "ftp://shop.example.com")], false),
        (vec![("referer", "http://shop.example.com/a?b")], true),
        (
            vec![("referer", "http://evil.com/a?http://shop.example.com")],
            false,
        ),
        (
            vec![
                ("origin", "http://evil.com"),
                ("referer", "http://shop.example.com/"),
            ],
            false,
        ),
        (
            vec![
                ("origin", "http://shop.example.com"),
                ("sec-fetch-site", "same-site"),
            ],
            false,
        ),
        (
            vec![
                ("origin", "http://shop.example.com"),
                ("sec-fetch-site", "same-origin"),
            ],
            true,
        ),
    ] {
        assert_eq!(
            own_form(&head("POST", &headers), HOST),
            expected,
            "{headers:?}"
        );
    }
    let with_port = head("POST", &[("origin", "http://shop.example.com:7480")]);
    assert!(own_form(&with_port, "shop.example.com:7480"));
    assert!(!own_form(&with_port, HOST));
}

#[test]
fn nobody_is_sent_elsewhere() {
    for good in [
        "/",
        "/a/b?c=d&e=%2F%2Fx",
        "/a//b",
        "/a?u=https://x",
        "/.hubs",
    ] {
        assert_eq!(return_path(good), good);
    }
    let long = format!("/{}", "a".repeat(MAX_RETURN));
    for bad in [
        "",
        "a",
        "//evil.com",
        "/\\evil.com",
        "\\/evil.com",
        "/\t/evil.com",
        "/a\r\nset-cookie: x",
        "https://evil.com",
        "javascript:alert(1)",
        "/.hub/logout",
        "/ä",
        &long,
    ] {
        assert_eq!(return_path(bad), "/", "{bad:?}");
    }
}

proptest! {
    #[test]
    fn whatever_is_asked_for_is_a_path_of_this_host(to in ".{0,20}") {
        let path = return_path(&to);
        prop_assert!(path.starts_with('/'));
        let second = path.as_bytes().get(1);
        prop_assert!(!matches!(second, Some(b'/' | b'\\')));
        prop_assert!(path.bytes().all(|byte| (0x21..0x7f).contains(&byte)));
    }
}

#[test]
fn what_has_to_be_shown_depends_on_the_way() {
    assert_eq!(asks(Access::Public, false), None);
    assert_eq!(asks(Access::Token, true), None);
    assert_eq!(asks(Access::Token, false), Some(Asks::Token));
    assert_eq!(asks(Access::Login, true), Some(Asks::Login));
    assert_eq!(asks(Access::Login, false), Some(Asks::Login));
}

#[test]
fn a_token_gets_in_by_header_and_by_session() {
    let mut world = World::new(Access::Token);
    let (good, bad) = (token(1).to_text(), token(2).to_text());
    assert_eq!(
        world.admit("GET", &[("hub-token", &good)]),
        Ok(someone(None))
    );
    assert_eq!(
        world.admit("GET", &[("hub-token", &bad)]),
        Err(Outside::Wrong)
    );
    let nothing = Err(Outside::Nothing);
    assert_eq!(world.admit("GET", &[]), nothing);
    let bearer = format!("Bearer {}", *good);
    assert_eq!(world.admit("GET", &[("authorization", &bearer)]), nothing);

    assert_eq!(world.log_in("", &bad), None);
    let cookie = world.log_in("", &good).unwrap();
    assert_eq!(world.with_cookie(&cookie), Ok(someone(None)));
    // Rotated, with a grace: both hold until it is over.
    world.exposure.token = Some(ExposureToken {
        hash: token(2).exposure_hash(),
        expires: None,
        previous: Some(PreviousToken {
            hash: token(1).exposure_hash(),
            until: NOW.saturating_add(Duration::from_secs(60)),
        }),
    });
    assert_eq!(world.with_cookie(&cookie), Ok(someone(None)));
    assert_eq!(
        world.admit("GET", &[("hub-token", &bad)]),
        Ok(someone(None))
    );
    world.now = NOW.saturating_add(Duration::from_secs(60));
    assert_eq!(world.with_cookie(&cookie), nothing);
    world.exposure.token = None;
    assert_eq!(world.with_cookie(&cookie), nothing);
}

#[test]
fn a_login_is_of_a_user_and_of_an_exposure() {
    let mut world = World::new(Access::Login);
    let nothing = Err(Outside::Nothing);
    assert_eq!(world.log_in("ada", "hate"), None);
    assert_eq!(world.log_in("bob", "love"), None);
    assert_eq!(world.log_in("", "love"), None);
    let cookie = world.log_in("ada", "love").unwrap();
    assert_eq!(world.with_cookie(&cookie), Ok(someone(Some("ada"))));
    // A sibling host may set one of its own beside it.
    let two = format!("hub_session=junk; hub_session={cookie}");
    assert_eq!(
        world.admit("GET", &[("cookie", &two)]),
        Ok(someone(Some("ada")))
    );
    // The page of another host does not act in her name.
    let line = format!("hub_session={cookie}");
    let evil = ("origin", "http://evil.example.com");
    assert_eq!(world.admit("POST", &[("cookie", &line), evil]), nothing);

    let operators = world.users.0.expose().to_owned();
    let header = [("hub-token", operators.as_str())];
    assert_eq!(world.admit("GET", &header), Ok(someone(Some(OPERATOR))));
    // The exposure's token is no login, and a session of the one mode is none of the other.
    let tokens = token(1).to_text();
    assert!(world.admit("GET", &[("hub-token", &tokens)]).is_err());
    world.exposure.access = Access::Token;
    let by_token = world.log_in("", &tokens).unwrap();
    assert!(world.with_cookie(&cookie).is_err());
    world.exposure.access = Access::Login;
    assert_eq!(world.with_cookie(&by_token), nothing);
    world.exposure.id = ExposureId(8);
    assert_eq!(world.with_cookie(&cookie), nothing);
}

#[test]
fn a_session_in_use_is_renewed() {
    let mut world = World::new(Access::Login);
    let cookie = world.log_in("ada", "love").unwrap();
    world.now = NOW.saturating_add(super::super::session_cookie::LIFE / 2);
    let admitted = world.with_cookie(&cookie).unwrap();
    let renewed = admitted.renewed.unwrap();
    world.now = NOW.saturating_add(super::super::session_cookie::LIFE);
    assert!(world.with_cookie(&cookie).is_err());
    assert_eq!(
        world.with_cookie(&renewed).unwrap().user.as_deref(),
        Some("ada")
    );
}

#[test]
fn forms_are_read_as_browsers_send_them() {
    let form = Form::read(b"user=+ada+&secret=a%2Bb%20c&to=%2Fx%3Fy&more=1");
    assert_eq!(
        (&*form.user, &*form.secret, &*form.to),
        ("ada", "a+b c", "/x?y")
    );
    let form = Form::read(b"secret=x");
    assert_eq!((&*form.user, &*form.to), (OPERATOR, ""));
    let form = Form::read(&[0xff, b'=', 0xfe]);
    assert_eq!(&*form.secret, "");
}

#[test]
fn the_operator_has_the_apis_token() {
    let token = ApiToken::random().unwrap();
    let operator = Operator::new(token.clone());
    let verify = |name, secret| operator.verify(name, secret).now_or_never().unwrap();
    assert!(verify("operator", token.expose()));
    assert!(!verify("operator", "wrong") && !verify("ada", token.expose()));
    let binding = |name| operator.binding(name).now_or_never().unwrap();
    assert!(binding("operator").is_some() && binding("ada").is_none());
    let other = Operator::new(ApiToken::random().unwrap());
    assert_ne!(
        binding("operator"),
        other.binding("operator").now_or_never().unwrap()
    );
}
