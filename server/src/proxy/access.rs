//! Who gets in: by the way they came, by what they show, and how they log in. Pure, but for
//! [`Users`], who are looked up.
//!
//! ```text
//! public ------------------------------------------------------------------------> target
//! token -- the token in the path, in Hub-Token, or a session begun with it ------> target
//! login -- a user's session, or a user's credential in Hub-Token -- X-Hub-User --> target
//!    '- else: a page with a form to whoever opens a page, 401 to programs
//! ```
//!
//! Where something has to be shown, paths under [`RESERVED`] are the hub's own: `login` takes the
//! form, `logout` ends the session. `Authorization` belongs to the target: it is neither read nor
//! taken out.
//!
//! A session's cookie comes along with whatever another page of the same site does, and exposures
//! under one domain are one site. So it counts only for requests that this host's own pages make,
//! and for links from elsewhere: see [`foreign`].

use futures_util::future::BoxFuture;
use http::header::{ACCEPT, HeaderMap, HeaderValue, ORIGIN, REFERER, UPGRADE};
use http::{Method, request};
use hub_ledger::{Access, Exposure, ExposureTokenHash, Timestamp};
use hub_protocol::kind::http::elements;
use ring::digest::{Context, SHA256};

use super::own::{Cookie, Site, TOKEN_HEADER};
use super::page::Asks;
use super::session_cookie::{Binding, Claim, Key, MAX_USER, Session};
use crate::api::ApiToken;
use crate::secret::Token;

/// The start of the paths that are the hub's where something has to be shown.
pub(super) const RESERVED: &str = "/.hub/";

/// Where the form of the login page goes.
pub(super) const LOGIN: &str = "/.hub/login";

/// Where a session is ended.
pub(super) const LOGOUT: &str = "/.hub/logout";

/// The name of the one who has the API's token.
const OPERATOR: &str = "operator";

/// The longest body of a login form, in bytes.
pub(super) const MAX_FORM: usize = 16 * 1024;

/// The longest path to go back to, in bytes.
const MAX_RETURN: usize = 4 * 1024;

/// Those who can log in.
pub trait Users: Send + Sync {
    /// Whether this is the credential of the user of this name. Takes no longer for one that is
    /// nearly right.
    fn verify<'a>(&'a self, name: &'a str, secret: &'a str) -> BoxFuture<'a, bool>;

    /// A digest that changes with the credential of the user of this name: their sessions end
    /// then. `None`: there is no such user.
    fn binding<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<[u8; 32]>>;
}

/// One user, `operator`, whose credential is the API's token.
#[derive(Debug, Clone)]
pub struct Operator(ApiToken);

impl Operator {
    /// The one with this token.
    pub fn new(token: ApiToken) -> Self {
        Self(token)
    }
}

impl Users for Operator {
    fn verify<'a>(&'a self, name: &'a str, secret: &'a str) -> BoxFuture<'a, bool> {
        // As it is pasted, spaces come along.
        let right = name == OPERATOR && self.0.matches(secret.trim().as_bytes());
        Box::pin(async move { right })
    }

    fn binding<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<[u8; 32]>> {
        let binding = (name == OPERATOR).then(|| digest(b"", self.0.expose().as_bytes()));
        Box::pin(async move { binding })
    }
}

/// Nobody: for a hub without operators.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nobody;

impl Users for Nobody {
    fn verify<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async { false })
    }

    fn binding<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Option<[u8; 32]>> {
        Box::pin(async { None })
    }
}

/// Who made a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Visitor {
    /// Somebody who opens a page, and reads what is answered.
    Navigation,
    /// A script or a program.
    Program,
}

/// Who made this request, as browsers say since 2020, and as older ones give away.
pub(super) fn visitor(head: &request::Parts) -> Visitor {
    let reads = head.method == Method::GET || head.method == Method::HEAD;
    let headers = &head.headers;
    let navigates = match headers.get("sec-fetch-mode") {
        Some(mode) => mode == "navigate",
        None => reads && accepts_html(headers) && !headers.contains_key("x-requested-with"),
    };
    if navigates && !headers.contains_key(UPGRADE) {
        Visitor::Navigation
    } else {
        Visitor::Program
    }
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let mut types = headers
        .get_all(ACCEPT)
        .iter()
        .flat_map(|line| elements(line.as_bytes()));
    types.any(|element| {
        let mut parts = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let html = parts
            .next()
            .is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/html"));
        html && !parts.any(|part| part.eq_ignore_ascii_case(b"q=0"))
    })
}

/// Whether a page of another host had the browser make this request, other than by a link: its
/// cookies are not to be believed then.
pub(super) fn foreign(head: &request::Parts, host: &str) -> bool {
    let reads = head.method == Method::GET || head.method == Method::HEAD;
    if reads && !head.headers.contains_key(UPGRADE) && head.method != Method::CONNECT {
        // What it reads stays with the browser, unless the target lets that page have it.
        return false;
    }
    match head
        .headers
        .get("sec-fetch-site")
        .map(HeaderValue::as_bytes)
    {
        Some(b"same-origin" | b"none") => false,
        Some(_) => true,
        None => head
            .headers
            .get(ORIGIN)
            .is_some_and(|origin| !is_origin(origin.as_bytes(), host)),
    }
}

/// Whether a form was sent by a page of this host. Not known is no: every browser says so of a
/// `POST`.
pub(super) fn own_form(head: &request::Parts, host: &str) -> bool {
    let site = head
        .headers
        .get("sec-fetch-site")
        .map(HeaderValue::as_bytes);
    if !matches!(site, None | Some(b"same-origin")) {
        return false;
    }
    let from = head.headers.get(ORIGIN).or(head.headers.get(REFERER));
    from.is_some_and(|from| is_origin(from.as_bytes(), host))
}

/// Whether an origin, or a URL, is of this host. The scheme is passed over: what the browser
/// speaks is not always known here.
fn is_origin(url: &[u8], host: &str) -> bool {
    let Some((scheme, rest)) = str::from_utf8(url)
        .ok()
        .and_then(|url| url.split_once("://"))
    else {
        return false;
    };
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let bare = |name: &str| {
        let name = name.to_ascii_lowercase();
        name.strip_suffix(port).map(str::to_owned).unwrap_or(name)
    };
    !authority.is_empty() && bare(authority) == bare(host)
}

/// Where to go after the login: a path of this host, and nothing that a browser takes for
/// another. Anything else is the front page.
pub(super) fn return_path(to: &str) -> &str {
    let safe = to.starts_with('/')
        && !to.starts_with("//")
        && !to.starts_with(RESERVED)
        && to.len() <= MAX_RETURN
        && to
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if safe { to } else { "/" }
}

/// Who got in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Admitted {
    /// Who it is, where that is known.
    pub(super) user: Option<String>,
    /// The session's cookie anew, because half of its time is over.
    pub(super) renewed: Option<String>,
}

/// Why somebody stays outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outside {
    /// Nothing was shown that holds.
    Nothing,
    /// A credential was shown, and it is wrong.
    Wrong,
}

/// What an exposure wants to be shown by those who came this way.
pub(super) fn asks(access: Access, by_token: bool) -> Option<Asks> {
    match access {
        Access::Public => None,
        Access::Token if by_token => None,
        Access::Token => Some(Asks::Token),
        Access::Login => Some(Asks::Login),
    }
}

/// A request, as far as it matters to who gets in.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) exposure: &'a Exposure,
    pub(super) head: &'a request::Parts,
    /// The host asked for, with or without a port.
    pub(super) host: &'a str,
    pub(super) site: Site<'a>,
    pub(super) now: Timestamp,
}

/// Judges who gets in.
pub(super) struct Gate<'a> {
    pub(super) key: &'a Key,
    pub(super) users: &'a dyn Users,
}

impl Gate<'_> {
    /// Whether this request gets in where `asks` has to be shown.
    pub(super) async fn admit(&self, asks: Asks, asking: Asking<'_>) -> Result<Admitted, Outside> {
        if let Some(shown) = asking.head.headers.get(TOKEN_HEADER) {
            let shown = shown.to_str().unwrap_or_default();
            let right = self.credential(asks, OPERATOR, shown, asking).await;
            return match (right, asks) {
                (None, _) => Err(Outside::Wrong),
                (Some(_), Asks::Token) => Ok(Admitted::default()),
                (Some(_), Asks::Login) => Ok(Admitted {
                    user: Some(OPERATOR.to_owned()),
                    renewed: None,
                }),
            };
        }
        if foreign(asking.head, asking.host) {
            return Err(Outside::Nothing);
        }
        for text in Cookie::Session.values(&asking.head.headers, asking.site) {
            if let Some((session, binding)) = self.session(asks, text, asking).await {
                let renewed = session.renewed(asking.now);
                return Ok(Admitted {
                    renewed: renewed.map(|session| self.key.sign(&session, binding)),
                    user: session.user,
                });
            }
        }
        Err(Outside::Nothing)
    }

    /// The value of a cookie for whoever filled in the form, if the credential is right.
    pub(super) async fn log_in(
        &self,
        asks: Asks,
        form: &Form,
        asking: Asking<'_>,
    ) -> Option<String> {
        let binding = self
            .credential(asks, &form.user, &form.secret, asking)
            .await?;
        let user = match asks {
            Asks::Token => None,
            Asks::Login => Some(form.user.clone()),
        };
        let session = Session::new(asking.exposure.id, user, asking.now);
        Some(self.key.sign(&session, binding))
    }

    /// What a session stands on that is begun with this credential, if that is right.
    async fn credential(
        &self,
        asks: Asks,
        user: &str,
        secret: &str,
        asking: Asking<'_>,
    ) -> Option<Binding> {
        match asks {
            Asks::Token => {
                let shown = secret.trim().parse::<Token>().ok()?.exposure_hash();
                let token = asking.exposure.token?;
                token.admits(shown, asking.now).then(|| of_token(shown))
            }
            Asks::Login if user.is_empty() || user.len() > MAX_USER => None,
            Asks::Login => {
                let right = self.users.verify(user, secret).await;
                if !right {
                    return None;
                }
                self.users.binding(user).await.map(of_user)
            }
        }
    }

    /// The session that a cookie proves, and what it stands on.
    async fn session(
        &self,
        asks: Asks,
        text: &[u8],
        asking: Asking<'_>,
    ) -> Option<(Session, Binding)> {
        let claim = Claim::read(text)?;
        let prove = |binding| {
            let session = self
                .key
                .prove(&claim, asking.exposure.id, binding, asking.now)?;
            Some((session, binding))
        };
        match (asks, claim.user()) {
            (Asks::Token, None) => {
                let token = asking.exposure.token?;
                let previous = token.previous.map(|previous| previous.hash);
                [Some(token.hash), previous]
                    .into_iter()
                    .flatten()
                    .filter(|hash| token.admits(*hash, asking.now))
                    .find_map(|hash| prove(of_token(hash)))
            }
            (Asks::Login, Some(user)) => prove(of_user(self.users.binding(user).await?)),
            _ => None,
        }
    }
}

/// What was filled in. Not for logs.
#[derive(Default)]
pub(super) struct Form {
    user: String,
    secret: String,
    /// Where to go then; not yet checked.
    pub(super) to: String,
}

impl Form {
    /// The form in this body. What is missing is empty.
    pub(super) fn read(body: &[u8]) -> Self {
        let mut form = Self {
            user: OPERATOR.to_owned(),
            ..Self::default()
        };
        for (name, value) in form_urlencoded::parse(body) {
            match &*name {
                "user" => value.trim().clone_into(&mut form.user),
                "secret" => form.secret = value.into_owned(),
                "to" => form.to = value.into_owned(),
                _ => {}
            }
        }
        form
    }
}

fn of_token(hash: ExposureTokenHash) -> Binding {
    Binding(digest(b"hub token session v1", &hash.0))
}

fn of_user(digest_of_credential: [u8; 32]) -> Binding {
    Binding(digest(b"hub user session v1", &digest_of_credential))
}

fn digest(label: &[u8], content: &[u8]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(label);
    context.update(content);
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

#[cfg(test)]
mod tests;
