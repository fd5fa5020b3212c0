//! `GET /v1/nodes/{node}/docker`: one connection to a node's Docker socket behind a WebSocket.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use bytes::Bytes;
use hub_protocol::NodeName;
use hub_protocol::kind::transfer::DockerSocket;
use hub_quic::operation::Ended;
use tracing::Instrument as _;

use super::Api;
use super::channel::Finish;
use super::problem::{Problem, within};
use super::query::Query;
use super::socket::{Carried, Upgrade};
use crate::hub::Begun;

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
        let ask = api.hub.ask(&node, &DockerSocket {});
        let ask = ask.instrument(span.clone());
        let Begun {
            operation, node, ..
        } = upgrade.while_there(ask).await?.answered()?;
        Ok(upgrade.carry(operation, Connection { node }, span))
    };
    within("docker", run).await
}

struct Connection {
    node: NodeName,
}

impl Carried for Connection {
    type Word = Finish;

    fn json(word: &Finish) -> Vec<u8> {
        word.to_json()
    }

    fn word(&self, done: Result<Bytes, Ended>) -> Finish {
        let node = &self.node;
        Finish::of(
            node,
            "docker",
            done,
            |()| None,
            |why| format!("node {node}: the connection to the Docker socket broke: {why}"),
        )
    }

    fn cut(&self) -> Finish {
        self.word(Err(Ended::Lost("the hub is stopping".into())))
    }

    fn abandoned(&self) -> &'static str {
        "the connection is closed"
    }

    fn says_ends(&self) -> bool {
        true
    }
}
