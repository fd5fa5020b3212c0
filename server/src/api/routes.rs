//! The routes, and the OpenAPI document that is made from them.

use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use hub_protocol::{kind, ports};
use serde::de::DeserializeOwned;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::call::{self, Calls};
use super::problem::{Kind, Problem};
use super::types::{NewToken, Node, NodeSession, NodeState, Nodes, Status, Token};
use super::{Api, build, docker, exec, exposures, files, forward, records, seeing};
use crate::hub::{Addresses, Hub, NodeStatus};

/// The most bytes of a request's body.
const MAX_BODY: usize = 64 * 1024;

/// All routes. Each demands the token.
pub(super) fn router(api: Api) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/nodes", get(nodes))
        .route("/v1/nodes/{node}/exec", get(exec::exec_on_node))
        .route("/v1/nodes/{node}/execs/{id}/attach", get(exec::attach))
        .route("/v1/nodes/{node}/build", get(build::build))
        .route("/v1/nodes/{node}/docker", get(docker::docker))
        .route("/v1/nodes/{node}/forward", get(forward::forward))
        .route("/v1/nodes/{node}/logs", get(records::logs))
        .route("/v1/nodes/{node}/stats", get(records::stats))
        .route("/v1/nodes/{node}/images/save", get(files::save))
        .route("/v1/events", get(records::events))
        .route("/v1/tokens", post(create_token))
        .route(
            "/v1/exposures",
            get(exposures::exposures).post(exposures::expose),
        )
        .route(
            "/v1/exposures/{id}",
            get(exposures::exposure)
                .patch(exposures::change_exposure)
                .delete(exposures::unexpose),
        )
        .route(
            "/v1/exposures/{id}/token",
            post(exposures::rotate_token).delete(exposures::revoke_token),
        )
        .route("/v1/metrics", get(seeing::metrics))
        .route("/v1/top", get(seeing::top))
        .route("/v1/openapi.json", get(openapi))
        .fallback(no_such_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        // These have bounds of their own, or none.
        .merge(call::routes())
        .route(
            "/v1/nodes/{node}/archive",
            get(files::copy_out).put(files::copy_in),
        )
        .route("/v1/nodes/{node}/images/load", post(files::load))
        .layer(middleware::from_fn_with_state(api.clone(), authenticate))
        .with_state(api)
}

async fn authenticate(State(api): State<Api>, request: Request, next: Next) -> Response {
    if bearer(request.headers()).is_some_and(|token| api.token.matches(token)) {
        return next.run(request).await;
    }
    let detail = "send the API token as `Authorization: Bearer TOKEN`; \
                  it is in the file api-token of the hub's data directory";
    Problem::new(Kind::Unauthorized, detail).into_response()
}

/// The token that a request carries.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

async fn no_such_path() -> Problem {
    Problem::new(
        Kind::NoSuchPath,
        "see /v1/openapi.json for the paths there are",
    )
}

async fn method_not_allowed() -> Problem {
    Problem::new(
        Kind::MethodNotAllowed,
        "see /v1/openapi.json for the methods it takes",
    )
}

/// The body of a request, as far as its route allows.
pub(super) struct Limited(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for Limited {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let body = Bytes::from_request(request, state).await;
        body.map(Self)
            .map_err(|rejection| refused(rejection.status(), rejection.body_text()))
    }
}

/// A body that is not taken.
fn refused(status: StatusCode, detail: String) -> Problem {
    let kind = match status {
        StatusCode::PAYLOAD_TOO_LARGE => Kind::TooLarge,
        _ => Kind::InvalidRequest,
    };
    Problem::new(kind, detail)
}

/// The JSON body of a request.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let body = Json::from_request(request, state).await;
        body.map(|Json(body)| Self(body))
            .map_err(|rejection| refused(rejection.status(), rejection.body_text()))
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::new(Kind::InvalidRequest, rejection.body_text())
    }
}

/// How the hub is
#[utoipa::path(
    get, path = "/v1/status", tag = "hub",
    responses(
        (status = 200, description = "How it is", body = Status),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn status(State(api): State<Api>) -> Result<Json<Status>, Problem> {
    let status = api.hub.status().await?;
    let Addresses {
        agents,
        enrollment,
        data_plane,
        domain,
    } = status.addresses;
    Ok(Json(Status {
        release: status.release.to_owned(),
        started: status.started.to_string(),
        ca: status.ca.to_string(),
        nodes: status.nodes,
        connected: status.connected,
        operations: status.operations,
        violations: status.violations,
        agents,
        enrollment,
        data_plane: Some(data_plane).filter(|url| !url.is_empty()),
        domain,
    }))
}

/// All nodes
#[utoipa::path(
    get, path = "/v1/nodes", tag = "nodes",
    responses(
        (status = 200, description = "By name", body = Nodes),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn nodes(State(api): State<Api>) -> Result<Json<Nodes>, Problem> {
    let nodes = api.hub.nodes().await?.into_iter().map(node).collect();
    Ok(Json(Nodes { nodes }))
}

fn node(NodeStatus { node, connected }: NodeStatus) -> Node {
    let (state, since) = match (node.revoked, &connected) {
        (Some(revoked), _) => (NodeState::Revoked, revoked),
        (None, Some(connected)) => (NodeState::Connected, connected.since),
        (None, None) => (NodeState::Away, node.presence_since),
    };
    let session = connected.map(|connected| {
        let hello = &connected.hello;
        let rtt = connected.session.connection().rtt();
        NodeSession {
            address: connected.remote().map(|remote| remote.to_string()),
            rtt_us: u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX),
            operations: connected.session.operations(),
            release: hello.release.clone(),
            os: hello.platform.os.clone(),
            arch: hello.platform.arch.clone(),
            hostname: hello.platform.hostname.clone(),
            capabilities: hello.capabilities.clone(),
            lingering: connected
                .lingering
                .iter()
                .map(|lingering| format!("{}: {}", lingering.what, lingering.why))
                .collect(),
        }
    });
    Node {
        id: node.id.to_string(),
        name: node.name.to_string(),
        local: node.is_local(),
        state,
        since: since.to_string(),
        created: node.created.to_string(),
        last_seen: node.last_seen.map(|seen| seen.to_string()),
        session,
    }
}

/// Create a join token
#[utoipa::path(
    post, path = "/v1/tokens", tag = "nodes", request_body = NewToken,
    responses(
        (status = 201, description = "The token, shown this once", body = Token),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn create_token(
    State(api): State<Api>,
    Body(new): Body<NewToken>,
) -> Result<(StatusCode, Json<Token>), Problem> {
    let made = api
        .hub
        .create_token(new.uses, Duration::from_secs(new.ttl_s))
        .await?;
    let token = made.token.reveal();
    let join_command = join_command(&token, &api.hub);
    let token = Token {
        token: token.into(),
        uses: new.uses,
        expires: made.expires.to_string(),
        join_command: join_command.into(),
    };
    Ok((StatusCode::CREATED, Json(token)))
}

fn join_command(token: &str, hub: &Hub) -> String {
    let Addresses {
        agents, enrollment, ..
    } = hub.addresses();
    let enroll = enroll_argument(agents, enrollment);
    let ca = hub.ca().fingerprint();
    format!("HUB_JOIN_TOKEN={token} hub-agent --hub {agents}{enroll} --ca {ca}")
}

/// Where to join, unless an agent that knows where to dial finds it by itself.
fn enroll_argument(agents: &str, enrollment: &str) -> String {
    let host = agents.rsplit_once(':').map(|(host, _)| host);
    let default = format!(":{}", ports::ENROLLMENT);
    if host.is_some() && host == enrollment.strip_suffix(&default) {
        String::new()
    } else {
        format!(" --enroll {enrollment}")
    }
}

/// This document
#[utoipa::path(
    get, path = "/v1/openapi.json", tag = "hub",
    responses((status = 200, description = "The OpenAPI document", content_type = "application/json")),
)]
async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(document())
}

/// The OpenAPI document of this release.
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Hub",
        description = "Runs work on machines it cannot dial. Every request carries the API token; \
                       errors are problem documents (RFC 9457).",
    ),
    paths(
        status, nodes, exec::exec_on_node, exec::attach, build::build, docker::docker,
        forward::forward, records::logs, records::stats, records::events, files::copy_out,
        files::copy_in, files::save, files::load,
        create_token, exposures::exposures, exposures::expose, exposures::exposure,
        exposures::change_exposure, exposures::unexpose, exposures::rotate_token,
        exposures::revoke_token, seeing::metrics, seeing::top, openapi
    ),
    // What lists, optional replies and texts hold.
    components(schemas(
        kind::build::Build, kind::build::Progress, kind::call::Progress, kind::call::Change,
        kind::call::container::Created, kind::call::container::Container,
        kind::call::container::ExitState, kind::call::container::Summary,
        kind::call::image::Image, kind::call::image::Pulled, kind::call::volume::Volume,
        kind::call::network::Network, kind::call::exec::Kept,
    )),
    modifiers(&BearerToken, &Calls),
    security(("token" = [])),
)]
struct Document;

struct BearerToken;

impl Modify for BearerToken {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The file api-token in the hub's data directory"))
            .build();
        document
            .components
            .get_or_insert_default()
            .add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use http::HeaderValue;

    use hub_protocol::kind::call::METHODS;

    use super::*;

    #[test]
    fn only_a_bearer_token_counts() {
        let bearer = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            bearer(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(bearer("Bearer abc"), Some(b"abc".to_vec()));
        assert_eq!(bearer("bearer  abc "), Some(b"abc".to_vec()));
        for value in ["", "abc", "Basic abc", "Bearer"] {
            assert_eq!(bearer(value), None, "{value}");
        }
        assert_eq!(super::bearer(&HeaderMap::new()), None);
    }

    #[test]
    fn the_place_to_join_is_said_where_it_cannot_be_guessed() {
        assert_eq!(enroll_argument("hub.example:7443", "hub.example:7444"), "");
        assert_eq!(enroll_argument("[::1]:7443", "[::1]:7444"), "");
        let other = enroll_argument("hub.example:7443", "join.example:7444");
        assert_eq!(other, " --enroll join.example:7444");
        assert_eq!(enroll_argument("h:4433", "h:7444"), "");
        assert_eq!(enroll_argument("h:7443", "h:4434"), " --enroll h:4434");
    }

    #[test]
    fn the_document_describes_every_route_and_its_errors() {
        let document = serde_json::to_value(document()).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let mut methods: Vec<String> = paths
            .iter()
            .flat_map(|(path, item)| {
                item.as_object()
                    .unwrap()
                    .keys()
                    .map(move |method| format!("{method} {path}"))
            })
            .collect();
        methods.sort();
        let expected = [
            "delete /v1/exposures/{id}",
            "delete /v1/exposures/{id}/token",
            "get /v1/events",
            "get /v1/exposures",
            "get /v1/exposures/{id}",
            "patch /v1/exposures/{id}",
            "post /v1/exposures/{id}/token",
            "get /v1/metrics",
            "get /v1/nodes",
            "get /v1/nodes/{node}/archive",
            "get /v1/nodes/{node}/build",
            "get /v1/nodes/{node}/docker",
            "get /v1/nodes/{node}/exec",
            "get /v1/nodes/{node}/execs/{id}/attach",
            "get /v1/nodes/{node}/forward",
            "get /v1/nodes/{node}/images/save",
            "get /v1/nodes/{node}/logs",
            "get /v1/nodes/{node}/stats",
            "get /v1/openapi.json",
            "get /v1/status",
            "get /v1/top",
            "post /v1/exposures",
            "post /v1/nodes/{node}/images/load",
            "post /v1/tokens",
            "put /v1/nodes/{node}/archive",
        ];
        let calls = METHODS
            .iter()
            .map(|method| format!("post /v1/nodes/{{node}}/call/{method}"));
        let mut expected: Vec<String> = expected
            .map(str::to_owned)
            .into_iter()
            .chain(calls)
            .collect();
        expected.sort();
        assert_eq!(methods, expected);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for name in [
            "Status",
            "Node",
            "NodeSession",
            "Token",
            "CreatedExposure",
            "EditExposure",
            "ExposureReplica",
            "Problem",
            "CreateContainer",
            "ContainerSummary",
            "Change",
            "Build",
        ] {
            assert!(schemas.contains_key(name), "{name}");
        }
        // Whatever the document refers to is in it.
        let text = document.to_string();
        for rest in text.split("#/components/schemas/").skip(1) {
            let name = rest.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name} is missing");
        }
        assert_eq!(
            document["components"]["securitySchemes"]["token"]["scheme"],
            "bearer"
        );
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    }
}
