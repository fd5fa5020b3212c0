//! The door of the data plane: who gets in, whether there is room, and where to.
//!
//! ```text
//! request -> rate -> access -> requests of the exposure -> size -> Inside
//!              |        '- pages of the hub's own, 401            |
//!              '- 429           '- 503                 '- 413     '-> replica by replica
//! ```
//!
//! Whatever it counts it counts until the [`Holds`] of a request are dropped, at the end of its
//! response or its tunnel. The rules are pure and elsewhere: `access`, `limits`, `balance`, `own`,
//! `page`; here is what they remember.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE,
};
use http::{Method, Response, StatusCode, request};
use http_body_util::BodyExt as _;
use hub_ledger::{Exposure, ExposureId, Timestamp};
use hub_protocol::NodeName;
use hub_protocol::kind::http::elements;
use tokio::time::{Instant, timeout};

use super::access::{
    self, Admitted, Asking, Form, Gate, LOGIN, LOGOUT, MAX_FORM, Outside, RESERVED, Users, Visitor,
};
use super::answer::{Answer, CHALLENGE};
use super::balance::{Held, Loads, Marks, NoReplica, Places, ReplicaKey, Wanted};
use super::body::ProxyBody;
use super::front::{BodyError, RequestBody};
use super::limits::{BodySize, Buckets, ClientKey, Guarded, Quotas, Rate, Refusal};
use super::own::{Cookie, Site};
use super::page::{self, Asks};
use super::routes::Live;
use super::seeing;
use super::session_cookie::{Key, LIFE};
use crate::counter::{Counter, Permit, locked};
use crate::secret::HubSecret;

/// For how many client addresses rates are remembered at once.
const ROOM: usize = 65_536;

/// How long the form of a login page may take to come.
const FORM_TIME: Duration = Duration::from_secs(30);

/// What stands at the entrance of a data plane.
pub struct Door {
    key: Key,
    marks: Marks,
    users: Arc<dyn Users>,
    quotas: Quotas,
    rates: Mutex<Buckets<(ExposureId, ClientKey)>>,
    attempts: Mutex<Buckets<ClientKey>>,
    clients: Counter<ClientKey>,
    exposures: Counter<ExposureId>,
    nodes: Counter<NodeName>,
    loads: Loads,
    refused: Arc<[AtomicU64; Refusal::NAMES.len()]>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door")
            .field("quotas", &self.quotas)
            .finish_non_exhaustive()
    }
}

/// A request that wants in. Not for logs: paths hold tokens.
#[derive(Clone, Copy)]
pub(super) struct Entering<'a> {
    pub(super) exposure: &'a Exposure,
    /// Whether it came by the exposure's token.
    pub(super) by_token: bool,
    pub(super) head: &'a request::Parts,
    /// The host asked for, with or without a port.
    pub(super) host: &'a str,
    pub(super) site: Site<'a>,
    /// Path and query as the target is to see them.
    pub(super) target: &'a str,
    /// Who asks.
    pub(super) client: IpAddr,
    /// When the exposure was looked up.
    pub(super) at: Timestamp,
}

/// A request that got in.
pub(super) struct Inside {
    /// Who asks, where that is known.
    pub(super) user: Option<String>,
    /// The session's cookie, with a later end.
    renewed: Option<HeaderValue>,
    /// The cookie that has a browser come back to its replica.
    replica: Option<HeaderValue>,
    permit: Arc<Permit<ExposureId>>,
    /// For a browser that would rather see a page that waits than read why it can't go on: how
    /// long, and the cookie that counts.
    waits: Option<(u64, HeaderValue)>,
}

impl Inside {
    /// Adds to the target's response what the hub wants the browser to remember.
    pub(super) fn finish(self, response: &mut Response<ProxyBody>) {
        if is_shared(response.headers()) {
            // A cache would give one browser's cookies to all. The next response has them, too.
            return;
        }
        for cookie in self.renewed.into_iter().chain(self.replica) {
            response.headers_mut().append(SET_COOKIE, cookie);
        }
    }

    /// The answer to a request that did not get to a target: a page that waits, if that helps.
    pub(super) fn failed(self, answer: Answer) -> Result<Response<ProxyBody>, Answer> {
        let (true, Some((seconds, counted))) = (answer.is_soon(), self.waits) else {
            return Err(answer);
        };
        let waiting = page::waiting(seconds);
        let mut response = page::response(StatusCode::SERVICE_UNAVAILABLE, waiting);
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        headers.insert(SET_COOKIE, counted);
        Ok(response)
    }
}

/// Whether a response says that caches may give it to others.
fn is_shared(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(CACHE_CONTROL).iter();
    let mut directives = lines.flat_map(|line| elements(line.as_bytes()));
    directives.any(|directive| {
        let name = directive.split(|byte| *byte == b'=').next();
        name.is_some_and(|name| {
            name.eq_ignore_ascii_case(b"public") || name.eq_ignore_ascii_case(b"s-maxage")
        })
    })
}

/// What a request under way counts against. Dropping it says that it is over.
pub(super) struct Holds {
    _exposure: Arc<Permit<ExposureId>>,
    _node: Permit<NodeName>,
    replica: Held,
}

impl Holds {
    /// It asked for an upgrade and did not get it.
    pub(super) fn not_upgraded(&mut self) {
        self.replica.not_upgraded();
    }
}

/// An answer of the hub's own to a request that gets no further.
type Own = Box<Response<ProxyBody>>;

impl Door {
    /// One whose cookies stand on `secret`, for these users, with these quotas.
    pub fn new(secret: &HubSecret, users: Arc<dyn Users>, quotas: Quotas) -> Self {
        Self {
            key: Key::new(secret),
            marks: Marks::new(secret),
            users,
            quotas,
            rates: Mutex::new(Buckets::new(ROOM)),
            attempts: Mutex::new(Buckets::new(ROOM)),
            clients: Counter::default(),
            exposures: Counter::default(),
            nodes: Counter::default(),
            loads: Loads::default(),
            refused: Arc::new([const { AtomicU64::new(0) }; Refusal::NAMES.len()]),
        }
    }

    /// How often each limit has held somebody back, by the names in docs/expose.md.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.refused.iter();
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        Refusal::NAMES.into_iter().zip(counts)
    }

    /// Where it is counted how often each limit has held somebody back.
    pub(super) fn limits(&self) -> seeing::Limits {
        self.refused.clone()
    }

    /// The quotas that hold.
    pub(super) fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Counts a connection of a client until what it gives is dropped; `None`: it has as many as it
    /// may have.
    pub(super) fn connect(&self, client: IpAddr) -> Option<Permit<ClientKey>> {
        let key = ClientKey::from(client);
        let permit = self.clients.enter(&key, self.quotas.connections_per_client);
        if permit.is_none() {
            self.count(Refusal::ClientConnections);
        }
        permit
    }

    /// Counts that a limit has held somebody back.
    pub(super) fn count(&self, refusal: Refusal) {
        self.refused[refusal.index()].fetch_add(1, Ordering::Relaxed);
        tracing::debug!(limit = refusal.name(), "refused: {refusal}");
    }

    /// What somebody is answered whom a limit held back.
    pub(super) fn refuse(&self, refusal: Refusal) -> Answer {
        self.count(refusal);
        Answer::refused(refusal)
    }

    /// Lets a request in, or answers it. The body is taken only if it is the hub's to read.
    pub(super) async fn enter(
        &self,
        entering: Entering<'_>,
        body: &mut Option<RequestBody>,
    ) -> Result<Inside, Own> {
        let settings = &entering.exposure.settings;
        if let Some(rate) = settings.rate.and_then(NonZeroU32::new) {
            let rate = Rate {
                every: Duration::from_secs(1) / rate.get(),
                burst: rate,
            };
            let key = (entering.exposure.id, ClientKey::from(entering.client));
            let taken = locked(&self.rates).take(key, rate, Instant::now());
            taken.map_err(|wait| own(self.refuse(Refusal::ClientRate(wait))))?;
        }
        let visitor = access::visitor(entering.head);
        let Admitted { user, renewed } = match entering.asks() {
            Some(asks) => self.admit(asks, visitor, entering, body).await?,
            None => Admitted::default(),
        };
        let most = settings.max_requests;
        let most = most.unwrap_or(self.quotas.requests_per_exposure);
        let permit = self.exposures.enter(&entering.exposure.id, most);
        let permit = permit.ok_or_else(|| own(self.refuse(Refusal::ExposureRequests)))?;
        let site = entering.site;
        let reads = visitor == Visitor::Navigation && entering.head.method == Method::GET;
        let waits = reads.then(|| {
            let seen = page::seen(&Cookie::Waiting.values(&entering.head.headers, site));
            let wait = page::wait(seen).as_secs();
            let counted = (seen + 1).to_string();
            (wait, Cookie::Waiting.set(&counted, site, Some(wait + 60)))
        });
        Ok(Inside {
            user,
            renewed: renewed.map(|value| session(&value, site)),
            replica: None,
            permit: Arc::new(permit),
            waits,
        })
    }

    /// Whether a request gets in where `asks` has to be shown; else the page or answer for it.
    async fn admit(
        &self,
        asks: Asks,
        visitor: Visitor,
        entering: Entering<'_>,
        body: &mut Option<RequestBody>,
    ) -> Result<Admitted, Own> {
        let path = entering.path();
        if path.starts_with(RESERVED) {
            return Err(match path {
                LOGIN => self.log_in(asks, entering, body).await,
                LOGOUT => log_out(entering),
                _ => own(Answer::nowhere()),
            });
        }
        let gate = self.gate();
        let outside = match gate.admit(asks, entering.asking()).await {
            Ok(admitted) => return Ok(admitted),
            Err(outside) => outside,
        };
        if outside == Outside::Wrong {
            self.attempt(entering.client).map_err(own)?;
        } else if visitor == Visitor::Navigation {
            let page = entering.login_page(asks, entering.target, None);
            return Err(login_page(StatusCode::UNAUTHORIZED, page));
        }
        Err(own(Answer::unauthorized(asks)))
    }

    /// Somebody showed a wrong credential: whether they may go on trying.
    fn attempt(&self, client: IpAddr) -> Result<(), Answer> {
        let (key, now) = (ClientKey::from(client), Instant::now());
        let taken = locked(&self.attempts).take(key, self.quotas.attempts, now);
        taken.map_err(|wait| self.refuse(Refusal::Attempts(wait)))
    }

    /// The login page, and what becomes of its form.
    async fn log_in(
        &self,
        asks: Asks,
        entering: Entering<'_>,
        body: &mut Option<RequestBody>,
    ) -> Own {
        match entering.head.method {
            Method::GET | Method::HEAD => {
                let query = entering
                    .target
                    .split_once('?')
                    .map_or("", |(_, query)| query);
                let to = Form::read(query.as_bytes()).to;
                login_page(StatusCode::OK, entering.login_page(asks, &to, None))
            }
            Method::POST => match self.form(entering, body).await {
                Ok(form) => self.filled_in(asks, &form, entering).await,
                Err(answer) => own(answer),
            },
            _ => own(Answer::not_for_that_method()),
        }
    }

    /// The form in the body of a request.
    async fn form(
        &self,
        entering: Entering<'_>,
        body: &mut Option<RequestBody>,
    ) -> Result<Form, Answer> {
        if !access::own_form(entering.head, entering.host) {
            return Err(Answer::foreign_form());
        }
        let Some(body) = body.take() else {
            return Ok(Form::default());
        };
        let size = BodySize::new(Some(MAX_FORM as u64), None);
        let size = size.map_err(|refusal| self.refuse(refusal))?;
        let body = Guarded::new(body, size, FORM_TIME);
        match timeout(FORM_TIME, whole(body)).await {
            Ok(Ok(body)) => Ok(Form::read(&body)),
            Ok(Err(error)) => Err(match error.downcast_ref::<Refusal>() {
                Some(refusal) => self.refuse(*refusal),
                None => Answer::upload_broke(),
            }),
            Err(_) => Err(self.refuse(Refusal::UploadIdle(FORM_TIME))),
        }
    }

    async fn filled_in(&self, asks: Asks, form: &Form, entering: Entering<'_>) -> Own {
        let (key, now) = (ClientKey::from(entering.client), Instant::now());
        let may = locked(&self.attempts).peek(key, self.quotas.attempts, now);
        if let Err(wait) = may {
            return own(self.refuse(Refusal::Attempts(wait)));
        }
        let gate = self.gate();
        if let Some(value) = gate.log_in(asks, form, entering.asking()).await {
            let to = access::return_path(&form.to);
            return see(to, session(&value, entering.site), entering.site);
        }
        if let Err(answer) = self.attempt(entering.client) {
            return own(answer);
        }
        let wrong = match asks {
            Asks::Token => "That is not the token of this page, or it holds no longer.",
            Asks::Login => "There is no such user, or that is not their credential.",
        };
        let page = entering.login_page(asks, &form.to, Some(wrong));
        login_page(StatusCode::UNAUTHORIZED, page)
    }

    fn gate(&self) -> Gate<'_> {
        Gate {
            key: &self.key,
            users: &*self.users,
        }
    }

    /// Guards the body of a request: its size and its pace.
    pub(super) fn guard(
        &self,
        exposure: &Exposure,
        body: RequestBody,
        announced: Option<u64>,
    ) -> Result<Guarded<RequestBody>, Answer> {
        let size = BodySize::new(exposure.settings.max_body, announced);
        let size = size.map_err(|refusal| self.refuse(refusal))?;
        Ok(Guarded::new(body, size, self.quotas.upload_idle))
    }

    /// Chooses one of the replicas that were not tried, and counts the request there. A browser
    /// that is to stay is told of it by a cookie.
    pub(super) fn choose(
        &self,
        inside: &mut Inside,
        entering: Entering<'_>,
        replicas: &[Live],
        tried: &mut Places,
        upgrade: bool,
    ) -> Result<(usize, Holds), Refusal> {
        let (exposure, settings) = (entering.exposure, &entering.exposure.settings);
        let key = |live: &Live| ReplicaKey {
            exposure: exposure.id,
            node: live.node_name.clone(),
            target: live.target.clone(),
        };
        let keys: Vec<ReplicaKey> = replicas.iter().map(key).collect();
        let marks = Cookie::Replica.values(&entering.head.headers, entering.site);
        let sticky = settings.sticky.then(|| self.marks.find(&marks, &keys));
        let wanted = Wanted {
            session: upgrade,
            max_sessions: settings.max_sessions,
            sticky: sticky.flatten(),
            turn: 0,
        };
        let mut full = Refusal::ReplicaSessions;
        loop {
            let (place, replica) = match self.loads.take(&keys, *tried, wanted) {
                Ok(taken) => taken,
                Err(NoReplica::Full | NoReplica::Tried) => return Err(full),
            };
            tried.add(place);
            let most = self.quotas.requests_per_node;
            let Some(node) = self.nodes.enter(&keys[place].node, most) else {
                full = Refusal::NodeRequests;
                continue;
            };
            let moved = settings.sticky && wanted.sticky != Some(place);
            let mark = moved.then(|| self.marks.of(&keys[place]));
            let cookie = mark.map(|mark| Cookie::Replica.set(&mark, entering.site, None));
            inside.replica = cookie;
            let holds = Holds {
                _exposure: inside.permit.clone(),
                _node: node,
                replica,
            };
            return Ok((place, holds));
        }
    }
}

impl<'a> Entering<'a> {
    fn asks(self) -> Option<Asks> {
        access::asks(self.exposure.access, self.by_token)
    }

    fn path(self) -> &'a str {
        self.target.split('?').next().unwrap_or(self.target)
    }

    fn asking(self) -> Asking<'a> {
        Asking {
            exposure: self.exposure,
            head: self.head,
            host: self.host,
            site: self.site,
            now: self.at,
        }
    }

    fn login_page(self, asks: Asks, to: &str, said: Option<&str>) -> String {
        let action = format!("{}{LOGIN}", self.site.prefix);
        page::login(asks, &action, access::return_path(to), said)
    }
}

/// All of a body.
async fn whole(mut body: Guarded<RequestBody>) -> Result<Vec<u8>, BodyError> {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame?.into_data() {
            whole.extend_from_slice(&bytes);
        }
    }
    Ok(whole)
}

fn own(answer: Answer) -> Own {
    Box::new(answer.into_response())
}

fn login_page(status: StatusCode, page: String) -> Own {
    let mut response = page::response(status, page);
    if status == StatusCode::UNAUTHORIZED {
        let challenge = HeaderValue::from_static(CHALLENGE);
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    Box::new(response)
}

/// The page that ends a session, and what becomes of its form.
fn log_out(entering: Entering<'_>) -> Own {
    let site = entering.site;
    match entering.head.method {
        Method::GET | Method::HEAD => {
            let page = page::logout(&format!("{}{LOGOUT}", site.prefix));
            Box::new(page::response(StatusCode::OK, page))
        }
        Method::POST if !access::own_form(entering.head, entering.host) => {
            own(Answer::foreign_form())
        }
        Method::POST => see("/", Cookie::Session.set("", site, Some(0)), site),
        _ => own(Answer::not_for_that_method()),
    }
}

/// Sends a browser to a path of this exposure, with a cookie.
fn see(path: &str, cookie: HeaderValue, site: Site<'_>) -> Own {
    let mut response = Response::new(ProxyBody::own(Bytes::new()));
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::try_from(format!("{}{path}", site.prefix)) {
        headers.insert(LOCATION, location);
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(SET_COOKIE, cookie);
    Box::new(response)
}

/// The cookie of a session. It ends with the session at the latest, which may be sooner.
fn session(value: &str, site: Site<'_>) -> HeaderValue {
    Cookie::Session.set(value, site, Some(LIFE.as_secs()))
}
