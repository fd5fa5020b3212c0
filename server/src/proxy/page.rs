//! Pages of the hub's own: the login, the logout, and the one that waits for a target. Pure.
//!
//! Each is one piece of HTML without scripts or anything from elsewhere; its headers let it do
//! nothing but send its form back to where it came from, and nobody frame it.

use std::fmt::Write as _;
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{Response, StatusCode};
use ring::digest::{SHA256, digest};

use super::body::ProxyBody;

/// How long a browser waits before it asks again, the first time, the second, and so on.
const WAITS: [u64; 7] = [2, 3, 5, 8, 13, 20, 30];

const STYLE: &str = include_str!("page/style.css");

/// The style by its digest: nothing else may style these pages, so nothing that slipped into
/// them, either.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let style = STANDARD.encode(digest(&SHA256, STYLE.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; form-action 'self'; \
         frame-ancestors 'none'; base-uri 'none'"
    )
});

/// What the login page asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asks {
    /// The token of the exposure.
    Token,
    /// An operator's credential.
    Login,
}

/// The page with the form. `action` is where it goes, `to` where its sender wants to be; both are
/// paths. `said` is what was wrong before.
pub(super) fn login(asks: Asks, action: &str, to: &str, said: Option<&str>) -> String {
    let (lead, label) = match asks {
        Asks::Token => (
            "Whoever is to see this page has its token.",
            "Token of this page",
        ),
        Asks::Login => ("This page is for operators of the hub.", "API token"),
    };
    let said = said.map_or_else(String::new, |said| {
        format!("<p class=\"wrong\" role=\"alert\">{}</p>", escaped(said))
    });
    let user = match asks {
        Asks::Token => "",
        Asks::Login => {
            "<label>Name<input name=\"user\" value=\"operator\" autocomplete=\"username\" \
             maxlength=\"64\"></label>"
        }
    };
    let content = format!(
        "<h1>Log in</h1><p>{lead}</p>{said}<form method=\"post\" action=\"{action}\">{user}\
         <label>{label}<input name=\"secret\" type=\"password\" required autofocus \
         autocomplete=\"current-password\" maxlength=\"256\"></label>\
         <input type=\"hidden\" name=\"to\" value=\"{to}\"><button>Log in</button></form>",
        action = escaped(action),
        to = escaped(to),
    );
    page("Log in", "", &content)
}

/// The page that asks whether to log out.
pub(super) fn logout(action: &str) -> String {
    let content = format!(
        "<h1>Log out</h1><p>This browser will have to log in again to see this page.</p>\
         <form method=\"post\" action=\"{}\"><button>Log out</button></form>",
        escaped(action)
    );
    page("Log out", "", &content)
}

/// The page that asks again by itself, in so many seconds.
pub(super) fn waiting(seconds: u64) -> String {
    let refresh = format!("<meta http-equiv=\"refresh\" content=\"{seconds}\">");
    let content = format!(
        "<h1>Not there yet</h1><p role=\"status\">What you asked for is not running at the moment, \
         or is just starting. This page looks again in {seconds} s.</p>"
    );
    page("Not there yet", &refresh, &content)
}

/// How long a browser that has seen the waiting page so often is to wait.
pub(super) fn wait(seen: usize) -> Duration {
    Duration::from_secs(WAITS[seen.min(WAITS.len() - 1)])
}

/// How often a browser has seen the waiting page, as its cookie says; anything but a small number
/// is none.
pub(super) fn seen(cookies: &[&[u8]]) -> usize {
    let number = |value: &&[u8]| str::from_utf8(value).ok()?.parse().ok();
    cookies
        .iter()
        .filter_map(number)
        .max()
        .unwrap_or(0)
        .min(WAITS.len())
}

/// A page as a response.
pub(super) fn response(status: StatusCode, page: String) -> Response<ProxyBody> {
    let mut response = Response::new(ProxyBody::own(Bytes::from(page)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    headers.insert(CONTENT_TYPE, html);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(policy) = HeaderValue::try_from(POLICY.as_str()) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Without a referrer a browser would send its form with `Origin: null`.
    let same_origin = HeaderValue::from_static("same-origin");
    headers.insert(REFERRER_POLICY, same_origin);
    response
}

fn page(title: &str, head: &str, content: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta name=\"robots\" content=\"noindex\">{head}<title>{title}</title>\
         <style>{STYLE}</style></head><body><main>{content}</main></body></html>\n"
    )
}

/// A text that is nothing but text, also within quotes.
fn escaped(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut out, char| {
            match char {
                '&' | '<' | '>' | '"' | '\'' => _ = write!(out, "&#{};", u32::from(char)),
                char => out.push(char),
            }
            out
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_text_becomes_markup(text in "\\PC{0,40}") {
            let plain = login(Asks::Login, "/.hub/login", "", None);
            let filled = login(Asks::Login, "/.hub/login", &text, None);
            for special in ['<', '>', '"', '\''] {
                prop_assert_eq!(plain.matches(special).count(), filled.matches(special).count());
            }
        }
    }

    #[test]
    fn pages_need_nothing_from_elsewhere_and_run_nothing() {
        for page in [
            login(Asks::Token, "/.hub/login", "/", Some("that is <wrong>")),
            login(Asks::Login, "/.hub/login", "/", None),
            logout("/.hub/logout"),
            waiting(2),
        ] {
            for sign in ["<script", "http:", "https:", "//", "src=", "url(", " on"] {
                let html = page.replace(STYLE, "").replace(" on it", "");
                assert!(
                    !html.contains(&format!("{sign}=")) || sign != " on",
                    "{sign}"
                );
                assert!(sign == " on" || !html.contains(sign), "{sign}: {html}");
            }
            assert!(!page.contains("<wrong>"));
        }
        assert!(POLICY.starts_with("default-src 'none'; style-src 'sha256-"));
    }

    #[test]
    fn a_browser_asks_less_and_less_often() {
        let waits: Vec<u64> = (0..9).map(|seen| wait(seen).as_secs()).collect();
        assert_eq!(waits, [2, 3, 5, 8, 13, 20, 30, 30, 30]);
        assert_eq!(seen(&[]), 0);
        assert_eq!(seen(&[b"2", b"x", b"-1", b""]), 2);
        assert_eq!(seen(&[b"99999999999999999999"]), 0);
        assert_eq!(seen(&[b"4000"]), WAITS.len());
    }
}
