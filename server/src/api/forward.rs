//! `GET /v1/nodes/{node}/forward`: one TCP connection to a port of a node, or of a container on it,
//! behind a WebSocket. Nothing has to be exposed: whoever holds the API token asks, and the node's
//! own policy answers.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use hub_protocol::kind::OperationKind;
use hub_protocol::kind::tcp::Open;
use hub_protocol::target::{Grant, Selector, Target};

use super::Api;
use super::connection::Connection;
use super::problem::{Problem, within};
use super::query::{Query, QueryError};
use super::socket::Upgrade;

/// What it is called in problem documents.
const NAME: &str = OperationKind::Tcp.name();

/// Connect to a TCP port of a node
///
/// Upgrades to a WebSocket with the subprotocol `v5.channel.k8s.io`, once the connection stands, if
/// the node's agent allows it. Channel 0 goes to the port, 1 comes from it, 255 with the channel
/// half-closes either, 3 is the last word. One WebSocket is one connection, byte for byte.
#[utoipa::path(
    get, path = "/v1/nodes/{node}/forward", tag = "nodes",
    params(
        ("node" = String, Path, description = "The node's name or id"),
        ("port" = u16, Query, description = "The port: 1 to 65535"),
        ("container" = Option<String>, Query, description = "The name of the container whose port it is; without, the machine's own"),
        ("label" = Option<String>, Query, description = "Instead: a label, KEY or KEY=VALUE; of those that have it the container that was started last"),
    ),
    responses(
        (status = 101, description = "The connection stands; the WebSocket carries its bytes"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn forward(
    State(api): State<Api>,
    node: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    upgrade: Result<Upgrade, Problem>,
) -> Result<Response, Problem> {
    let run = async {
        let Path(node) = node?;
        let upgrade = upgrade?;
        let target = target(query.as_deref())?;
        let span = tracing::info_span!("forward", %node, %target);
        let to = target.to_string();
        let grant = Grant::Operator;
        let open = Open { target, grant };
        Connection::open(&api, upgrade, &node, (NAME, to), &open, span).await
    };
    within(NAME, run).await
}

/// What a query asks to be connected to.
fn target(query: Option<&str>) -> Result<Target, QueryError> {
    let query = Query::parse(query, &["port", "container", "label"])?;
    let port = query.parsed::<u16>("port", "a number from 1 to 65535")?;
    let port = port.ok_or(QueryError::Missing("port"))?;
    if port == 0 {
        return Err(QueryError::Not("port", "a number from 1 to 65535"));
    }
    let text = |name| {
        query
            .text(name)
            .map(|text| text.filter(|text| !text.is_empty()))
    };
    let container = match (text("container")?, text("label")?) {
        (None, None) => None,
        (Some(name), None) => Some(Selector::Name(name)),
        (None, Some(label)) => Some(Selector::Label(label)),
        (Some(_), Some(_)) => {
            let both = "a container is named by container or by label, not by both";
            return Err(QueryError::Nonsense(both.into()));
        }
    };
    Ok(Target {
        container,
        ..Target::tcp(port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_port_and_at_most_one_container() {
        let of = |container| {
            Ok(Target {
                container: Some(container),
                ..Target::tcp(5432)
            })
        };
        assert_eq!(target(Some("port=22")), Ok(Target::tcp(22)));
        assert_eq!(
            target(Some("port=22&container=&label=")),
            Ok(Target::tcp(22))
        );
        let name = Selector::Name("db".into());
        assert_eq!(target(Some("container=db&port=5432")), of(name));
        let label = Selector::Label("app=db".into());
        assert_eq!(target(Some("port=5432&label=app%3Ddb")), of(label));
        for wrong in [
            None,
            Some("port=0"),
            Some("port=65536"),
            Some("port=ssh"),
            Some("port=1&port=2"),
            Some("port=1&container=a&label=b"),
            Some("port=1&host=b"),
        ] {
            assert!(target(wrong).is_err(), "{wrong:?}");
        }
    }
}
