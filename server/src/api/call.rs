//! `POST /v1/nodes/{node}/call/{method}`: every call of the wire as a route and as a path of the
//! OpenAPI document, both made from the list of calls itself.

use std::convert::Infallible;
use std::pin::Pin;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, header};
use hub_protocol::for_each_call;
use hub_protocol::kind;
use hub_protocol::kind::call::{
    Call, Change, MAX_PARAMS, Progress, container, exec, image, network, stats, volume,
};
use serde::Serialize;
use tokio::sync::mpsc;
use tracing::Instrument as _;
use utoipa::openapi::path::{OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::{
    ContentBuilder, HttpMethod, PathItem, Ref, RefOr, Required, ResponseBuilder, Schema,
};
use utoipa::{Modify, PartialSchema, ToSchema};

use super::Api;
use super::client::Client;
use super::problem::{self, Kind, Problem};
use super::routes::Limited;
use crate::hub::{CallError, Hub};

/// The media type of lines of JSON.
pub(super) const NDJSON: &str = "application/x-ndjson";

/// The most bytes of a body: parameters of the largest size, written with room between them.
const MAX_BODY: usize = 2 * MAX_PARAMS;

/// A line of an answer that is streamed.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Line<R> {
    Progress(Progress),
    Reply(R),
    Problem(Problem),
}

/// Carries out one call.
async fn handle<C: Call>(
    State(api): State<Api>,
    node: Result<Path<String>, PathRejection>,
    client: Client,
    headers: HeaderMap,
    body: Result<Limited, Problem>,
) -> Response {
    let run = async {
        let Path(node) = node?;
        let Limited(body) = body?;
        let body = if body.is_empty() {
            Bytes::from_static(b"{}")
        } else {
            body
        };
        let params: C = kind::from_json_object(C::METHOD, &body)
            .map_err(|error| Problem::new(Kind::InvalidRequest, error.to_string()))?;
        let span = tracing::info_span!("call", %node, method = C::METHOD);
        if accepts_lines(&headers) {
            return Ok(lines(api.hub, node, params, span));
        }
        let call = api.hub.call(&node, &params, None).instrument(span);
        let reply = client.while_there(call).await??;
        Ok(Json(reply).into_response())
    };
    let answer: Result<Response, Problem> = run.await;
    answer.unwrap_or_else(|problem| problem.operation(C::METHOD).into_response())
}

fn accepts_lines(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(header::ACCEPT).iter();
    ranges
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|range| range.split(';').next())
        .any(|range| range.trim().eq_ignore_ascii_case(NDJSON))
}

/// A call whose answer is streamed: it runs, or has ended and what it said last still waits.
enum Streamed<C: Call> {
    Running(Running<C>, mpsc::Receiver<Progress>),
    Ended(Result<C::Reply, CallError>, mpsc::Receiver<Progress>),
}

type Running<C> = Pin<Box<dyn Future<Output = Result<<C as Call>::Reply, CallError>> + Send>>;

impl<C: Call> Streamed<C> {
    /// The next line, and what is left after it.
    async fn next(self) -> (Line<C::Reply>, Option<Self>) {
        let (reply, mut said) = match self {
            Self::Running(mut running, mut said) => tokio::select! {
                biased;
                Some(progress) = said.recv() => {
                    return (Line::Progress(progress), Some(Self::Running(running, said)));
                }
                reply = &mut running => (reply, said),
            },
            Self::Ended(reply, said) => (reply, said),
        };
        match (said.try_recv(), reply) {
            (Ok(progress), reply) => (Line::Progress(progress), Some(Self::Ended(reply, said))),
            (Err(_), Ok(reply)) => (Line::Reply(reply), None),
            (Err(_), Err(error)) => {
                let problem = Problem::from(error).operation(C::METHOD);
                (Line::Problem(problem), None)
            }
        }
    }
}

/// An answer in lines: how far it is, as often as the client reads, then what came of it. A client
/// that goes drops it, and with it the call.
fn lines<C: Call>(hub: Hub, node: String, params: C, span: tracing::Span) -> Response {
    let (says, said) = mpsc::channel(1);
    let call = async move { hub.call(&node, &params, Some(says)).await };
    let start = Streamed::<C>::Running(Box::pin(call.instrument(span)), said);
    let lines = stream::unfold(Some(start), |streamed| async {
        let (next, left) = streamed?.next().await;
        Some((Ok::<_, Infallible>(line::<C>(&next)), left))
    });
    let mut response = Response::new(Body::from_stream(lines));
    let value = HeaderValue::from_static(NDJSON);
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}

fn line<C: Call>(line: &Line<C::Reply>) -> Bytes {
    let mut bytes = kind::to_json(line).to_vec();
    bytes.push(b'\n');
    bytes.into()
}

/// What describes one call.
struct Description {
    method: &'static str,
    name: &'static str,
    summary: &'static str,
    params: RefOr<Schema>,
    reply: RefOr<Schema>,
}

impl Description {
    fn path(self) -> (String, PathItem) {
        let Self {
            method,
            name,
            summary,
            params,
            reply,
        } = self;
        let json = |schema| ContentBuilder::new().schema(Some(schema)).build();
        let node = ParameterBuilder::new()
            .name("node")
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(Some("The node's name or id"))
            .schema(Some(String::schema()));
        let body = RequestBodyBuilder::new()
            .content("application/json", json(params))
            .required(Some(Required::True))
            .build();
        let answer = "The reply. With `Accept: application/x-ndjson`, lines: any number of \
                      `{\"progress\":…}`, then `{\"reply\":…}` or `{\"problem\":…}`";
        let problem = RefOr::Ref(Ref::from_schema_name(Problem::name()));
        let operation = OperationBuilder::new()
            .tag("calls")
            .operation_id(Some(name))
            .summary(Some(summary))
            .parameter(node)
            .request_body(Some(body))
            .response(
                "200",
                ResponseBuilder::new()
                    .description(answer)
                    .content("application/json", json(reply)),
            )
            .response(
                "default",
                ResponseBuilder::new()
                    .description("Why not")
                    .content(problem::MEDIA_TYPE, json(problem)),
            );
        let path = format!("/v1/nodes/{{node}}/call/{method}");
        (path, PathItem::new(HttpMethod::Post, operation))
    }
}

macro_rules! calls {
    ($($method:literal, $name:ident, $module:ident::$params:ident => $reply:ty, $effect:ident, $doc:literal;)*) => {
        /// The routes of all calls.
        pub(super) fn routes() -> Router<Api> {
            Router::new()
                $(.route(
                    concat!("/v1/nodes/{node}/call/", $method),
                    post(handle::<$module::$params>),
                ))*
                .layer(DefaultBodyLimit::max(MAX_BODY))
        }

        fn descriptions() -> Vec<Description> {
            vec![$(Description {
                method: $method,
                name: stringify!($name),
                summary: $doc,
                params: reference::<$module::$params>(),
                reply: <$reply as PartialSchema>::schema(),
            }),*]
        }

        fn schemas() -> Vec<(String, RefOr<Schema>)> {
            let mut schemas = Vec::new();
            $(
                schemas.push(named::<$module::$params>());
                <$module::$params as ToSchema>::schemas(&mut schemas);
                <$reply as ToSchema>::schemas(&mut schemas);
            )*
            schemas
        }
    };
}

for_each_call!(calls);

fn reference<T: ToSchema>() -> RefOr<Schema> {
    RefOr::Ref(Ref::from_schema_name(T::name()))
}

fn named<T: ToSchema>() -> (String, RefOr<Schema>) {
    (T::name().into_owned(), T::schema())
}

/// Adds all calls to the OpenAPI document.
pub(super) struct Calls;

impl Modify for Calls {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let paths = descriptions().into_iter().map(Description::path);
        document.paths.paths.extend(paths);
        let components = document.components.get_or_insert_default();
        components.schemas.extend(schemas());
    }
}
