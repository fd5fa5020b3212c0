//! A request's way to its target: whose it is, whether it gets in, and replica by replica until
//! one takes it.

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body::Body as _;
use hub_protocol::kind::http::{Body, Open, Protocol, REQUEST, RequestHead};
use hub_protocol::kind::{Failure, OperationKind};
use hub_protocol::target::Grant;
use hub_quic::operation::Sender;
use tokio::time::Duration;

use super::answer::Answer;
use super::balance::{self, Places};
use super::body::ProxyBody;
use super::client::{Origin, Scheme};
use super::door::{Entering, Holds, Inside};
use super::exchange::{self, Exchange, NoHead, UploadBroke};
use super::front::{Asked, Interim, RequestBody, UpgradeSlot};
use super::head;
use super::limits::Guarded;
use super::own::Site;
use super::place::{Place, place};
use super::routes::{Live, Resolved, Route, RouteError};
use super::seeing::Track;
use super::{Proxy, tunnel};
use crate::hub::{NotBegun, begun};

/// How long an agent may take to say that the target is connected: longer than it waits itself
/// for its list of exposures and for the target.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What is left of a request once it is known where it goes.
struct Request {
    head: RequestHead,
    protocol: Protocol,
    body: Option<Guarded<RequestBody>>,
    interim: Interim,
    upgrade: Option<UpgradeSlot>,
    method: Method,
    track: Track,
}

/// Why one replica did not answer.
enum Missed {
    /// It certainly never had the request, and the request is whole: another may be tried.
    NotStarted(Answer),
    /// It may have had it, or the request is spent.
    Over(Answer),
}

impl Proxy {
    /// Carries a request to its target.
    pub(super) async fn carry(
        &self,
        asked: Asked,
        track: &Track,
    ) -> Result<Response<ProxyBody>, Answer> {
        let Asked {
            head,
            body,
            client,
            interim,
            upgrade,
        } = asked;
        let host = head::host(&head)
            .ok_or_else(|| Answer::bad_request("the request does not name one host"))?;
        if head.method == Method::CONNECT {
            return Err(Answer::connect_refused());
        }
        let target = head.uri.path_and_query();
        let target = target.map_or("", |target| target.as_str());
        let origin = Origin::of(client, &self.inner.config.trusted, &head.headers, host);
        if let Some(location) = origin.secure_place(target) {
            return Err(Answer::secured(&location));
        }
        let domain = self.inner.config.domain.as_deref();
        let (route, prefix, target) = match place(host, target, domain) {
            Place::Exposure {
                route,
                prefix,
                target,
            } => (route, prefix, target),
            Place::Redirect(location) => return Err(Answer::redirect(&location)),
            Place::UnknownName => return Err(Answer::unknown_name()),
            Place::UnknownToken => return Err(Answer::unknown_token()),
            Place::Nowhere => return Err(Answer::nowhere()),
        };
        let origin = origin.under(prefix);
        let by_token = matches!(route, Route::Token(_));
        let resolved = self.resolve(route).await?;
        let entering = Entering {
            exposure: &resolved.exposure,
            by_token,
            head: &head,
            host,
            site: Site {
                tls: origin.scheme() == Scheme::Https,
                prefix: origin.prefix(),
            },
            target,
            client: origin.client(),
            at: resolved.at,
        };
        track.exposed(&resolved.exposure, entering.client);
        let length = body.size_hint().exact();
        let mut body = Some(body);
        let mut inside = match self.inner.door.enter(entering, &mut body).await {
            Ok(inside) => inside,
            Err(own) => return Ok(*own),
        };
        let user = inside.user.as_deref();
        track.user(user);
        let protocol = upgrade.as_ref().map(|slot| slot.protocol.clone());
        let announced = head::body(&head, length);
        let asked = head::request(&head, target, &origin, user, host, announced, protocol);
        let asked = asked.ok_or_else(Answer::head_too_large)?;
        let body = match body {
            Some(body) => Some(self.inner.door.guard(entering.exposure, body, length)?),
            None => None,
        };
        let request = Request {
            head: asked,
            protocol: match resolved.exposure.protocol {
                hub_ledger::Protocol::Http2 => Protocol::Http2,
                _ => Protocol::Http1,
            },
            body,
            interim,
            upgrade,
            method: head.method.clone(),
            track: track.clone(),
        };
        match self
            .to_replicas(request, &resolved, entering, &mut inside)
            .await
        {
            Ok(mut response) => {
                inside.finish(&mut response);
                Ok(response)
            }
            Err(answer) => inside.failed(answer),
        }
    }

    /// Finds out where a request goes.
    async fn resolve(&self, route: Route) -> Result<Resolved, Answer> {
        let unknown = match &route {
            Route::Token(_) => Answer::unknown_token(),
            Route::Name(_) => Answer::unknown_name(),
        };
        self.inner.routes.resolve(route).await.map_err(|error| {
            if let RouteError::Ledger(error) = &error {
                tracing::warn!("a request could not be routed: the ledger: {error}");
            }
            Answer::unrouted(&error, unknown)
        })
    }

    /// Tries replicas, each once, until one takes the request.
    async fn to_replicas(
        &self,
        mut request: Request,
        resolved: &Resolved,
        entering: Entering<'_>,
        inside: &mut Inside,
    ) -> Result<Response<ProxyBody>, Answer> {
        let replicas = &resolved.replicas;
        if replicas.is_empty() {
            return Err(Answer::all_away(&resolved.away));
        }
        let (door, upgrade) = (&self.inner.door, request.upgrade.is_some());
        let (mut tried, mut missed) = (Places::default(), None);
        loop {
            let chosen = door.choose(inside, entering, replicas, &mut tried, upgrade);
            let (place, holds) = match (chosen, missed) {
                (Ok(chosen), _) => chosen,
                (Err(_), Some(answer)) => return Err(answer),
                (Err(refusal), None) => return Err(door.refuse(refusal)),
            };
            // With somewhere else to go, the body is kept until this one has taken the request.
            let keep = replicas.len() > 1;
            match self
                .attempt(&mut request, &replicas[place], holds, keep)
                .await
            {
                Ok(response) => return Ok(response),
                Err(Missed::Over(answer)) => return Err(answer),
                Err(Missed::NotStarted(answer)) => missed = Some(answer),
            }
        }
    }

    /// Asks one replica. Takes the request's body once it is on its way.
    async fn attempt(
        &self,
        request: &mut Request,
        replica: &Live,
        holds: Holds,
        keep: bool,
    ) -> Result<Response<ProxyBody>, Missed> {
        let Live {
            node_name: node,
            session,
            target,
            revision,
        } = replica;
        let grant = Grant::Exposed {
            revision: *revision,
        };
        let open = Open {
            target: target.clone(),
            grant,
            protocol: request.protocol,
            head: request.head.clone(),
        };
        let streams = matches!(open.head.body, Body::Chunked | Body::Length(1..));
        request.track.opening(node);
        let operation = session.open(OperationKind::Http, &open).await;
        let operation = operation.map_err(|error| {
            tracing::debug!(%node, %target, %error, "a request could not be sent to its node");
            Missed::NotStarted(Answer::unopened(node, &error))
        })?;
        let mut sender = Some(operation.sender(REQUEST));
        let mut exchange = Exchange::new(operation, node.clone(), target.clone(), holds);
        if streams && !keep {
            start_upload(&mut exchange, request, &mut sender);
        } else if !streams && request.upgrade.is_none() {
            finish(sender.take());
        }
        if let Err(error) = self.accepted(&mut exchange).await {
            let spent = streams && request.body.is_none();
            return Err(match error {
                Missed::NotStarted(answer) if spent => Missed::Over(answer),
                error => error,
            });
        }
        request.track.accepted();
        if streams {
            start_upload(&mut exchange, request, &mut sender);
        }
        self.answered(request, exchange, sender)
            .await
            .map_err(Missed::Over)
    }

    /// Waits until the agent has connected to the target.
    async fn accepted(&self, exchange: &mut Exchange) -> Result<(), Missed> {
        let operation = exchange.operation.clone();
        let begun = begun(&operation, ANSWER_TIMEOUT);
        match exchange.unless_upload_breaks(begun).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(NotBegun::Failed(failure))) => {
                let answer = failed(exchange, &failure);
                Err(if balance::never_started(failure.code) {
                    Missed::NotStarted(answer)
                } else {
                    Missed::Over(answer)
                })
            }
            Ok(Err(NotBegun::Ended(_))) => Err(Missed::Over(Answer::lost(&exchange.node))),
            Ok(Err(NotBegun::Silent(waited))) => {
                Err(Missed::Over(Answer::silent(&exchange.node, waited)))
            }
            Err(broke) => Err(Missed::Over(self.broke(broke))),
        }
    }

    /// Waits for the target's answer, and hands on what follows it.
    async fn answered(
        &self,
        request: &mut Request,
        mut exchange: Exchange,
        sender: Option<Sender>,
    ) -> Result<Response<ProxyBody>, Answer> {
        let operation = exchange.operation.clone();
        let received = exchange
            .unless_upload_breaks(exchange::head(&operation, &request.interim))
            .await
            .map_err(|broke| self.broke(broke))?;
        let received = received.map_err(|error| headless(&mut exchange, error))?;
        exchange.answered();
        request.track.target_answered();
        let left = head::length(&received, &request.method);
        let upgradable = request.upgrade.is_some();
        let response = head::response(received, &request.method, upgradable);
        let response = response.ok_or_else(|| Answer::nonsense(&exchange.node))?;
        match (request.upgrade.take(), sender) {
            (Some(upgrade), Some(sender))
                if response.status() == StatusCode::SWITCHING_PROTOCOLS =>
            {
                let (holds, track) = (exchange.holds, request.track.clone());
                tokio::spawn(tunnel::run(operation, sender, upgrade, holds, track));
                Ok(response.map(|()| ProxyBody::own(Bytes::new())))
            }
            (_, sender) => {
                // Not upgraded after all: there is no body.
                finish(sender);
                exchange.holds.not_upgraded();
                Ok(response.map(|()| ProxyBody::relay(exchange, left)))
            }
        }
    }

    /// The answer to whoever sends a body that broke.
    fn broke(&self, broke: UploadBroke) -> Answer {
        match broke {
            UploadBroke::Itself => Answer::upload_broke(),
            UploadBroke::Refused(refusal) => self.inner.door.refuse(refusal),
        }
    }
}

fn start_upload(exchange: &mut Exchange, request: &mut Request, sender: &mut Option<Sender>) {
    if let (Some(body), Some(sender)) = (request.body.take(), sender.take()) {
        exchange.upload(body, sender, request.track.clone());
    }
}

/// Says that there is no body.
fn finish(sender: Option<Sender>) {
    if let Some(mut sender) = sender {
        sender.finish();
    }
}

fn headless(exchange: &mut Exchange, error: NoHead) -> Answer {
    match error {
        NoHead::Lost => Answer::lost(&exchange.node),
        NoHead::Nonsense => Answer::nonsense(&exchange.node),
        NoHead::Broken(failure) => failed(exchange, &failure),
    }
}

/// The answer to a request that the agent gave up, whose body goes unread. The agent's own words
/// are for the log.
fn failed(exchange: &mut Exchange, failure: &Failure) -> Answer {
    let (node, target) = (&exchange.node, &exchange.target);
    tracing::debug!(%node, %target, code = failure.code.0, "a request failed: {failure}");
    let answer = Answer::failed(node, target, failure);
    exchange.release();
    answer
}
