//! `GET /v1/nodes/{node}/docker`: one connection to a node's Docker socket behind a WebSocket.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use hub_protocol::kind::transfer::DockerSocket;

use super::Api;
use super::connection::Connection;
use super::problem::{Problem, within};
use super::query::Query;
use super::socket::Upgrade;

/// Connect to a node's Docker socket
///
/// Upgrades to a WebSocket with the subprotocol `v5.channel.k8s.io`, once the connection stands, if
/// the node's agent allows it. Channel 0 goes to the socket, 1 comes from it, 255 with the channel
/// half-closes either, 3 is the last word. One WebSocket is one connection, byte for byte.
#[utoipa::path(
    get, path = "/v1/nodes/{node}/docker", tag = "nodes",
    params(("node" = String, Path, description = "The node's name or id")),
    responses(
        (status = 101, description = "The connection stands; the WebSocket carries its bytes"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn docker(
    State(api): State<Api>,
    node: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    upgrade: Result<Upgrade, Problem>,
) -> Result<Response, Problem> {
    let run = async {
        let Path(node) = node?;
        let upgrade = upgrade?;
        Query::parse(query.as_deref(), &[])?;
        let span = tracing::info_span!("docker", %node);
        let what = ("docker", "the Docker socket".into());
        Connection::open(&api, upgrade, &node, what, &DockerSocket {}, span).await
    };
    within("docker", run).await
}
