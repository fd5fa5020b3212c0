//! `/v1/nodes/{node}/logs`, `/v1/nodes/{node}/stats` and `/v1/events`: records as they happen, one
//! JSON object a line.
//!
//! A log that is followed and a watch of events go on when a node's session is lost and comes back:
//! see `hub::follow`. They end with the client, or when the hub stops.

use std::collections::BTreeMap;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use futures_util::stream;
use hub_protocol::kind::records::{Events, FollowStats, Logs};
use tracing::Instrument as _;

use super::Api;
use super::call::NDJSON;
use super::client::Client;
use super::merge;
use super::problem::{Problem, within};
use super::query::{Query, QueryError};
use super::relay::{self, Reason};
use crate::hub::{Piece, Watch};

/// Read a container's log
///
/// One `LogRecord` a line. A line of type `gap` stands where something is missing. Followed, it goes
/// on when the node was away and comes back; its cursor says where to go on in a request that comes
/// later.
#[utoipa::path(
    get, path = "/v1/nodes/{node}/logs", tag = "records",
    params(
        ("node" = String, Path, description = "The node's name or id"),
        ("container" = String, Query, description = "The container's name or id"),
        ("follow" = Option<bool>, Query, description = "Whether to go on at the end of what there is"),
        ("tail" = Option<u64>, Query, description = "The last lines only; not together with a cursor"),
        ("since" = Option<String>, Query, description = "From this time on: RFC 3339, or nanoseconds since 1970 UTC"),
        ("until" = Option<String>, Query, description = "Until this time"),
        ("stdout" = Option<bool>, Query, description = "Whether standard output is wanted; true without"),
        ("stderr" = Option<bool>, Query, description = "Whether standard error is wanted; true without"),
        ("cursor" = Option<String>, Query, description = "From behind the record with this cursor"),
    ),
    responses(
        (status = 200, description = "Lines; a log that breaks off is not all", body = hub_protocol::kind::records::LogRecord, content_type = "application/x-ndjson"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn logs(
    State(api): State<Api>,
    node: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    client: Client,
) -> Result<Response, Problem> {
    let run = async {
        let Path(node) = node?;
        let request = parse_logs(query.as_deref())?;
        let span = tracing::info_span!("logs", %node, container = request.container);
        if !request.follow {
            let begin = async {
                let begun = api.hub.ask(&node, &request).await.answered()?;
                relay::download(begun).await
            };
            let pieces = client.while_there(begin.instrument(span)).await??;
            return Ok(relay::response(pieces, NDJSON));
        }
        let found = api.hub.known(&node).await?;
        let began = api.hub.clock().now();
        let mut watch = Watch::new(api.hub.clone(), found.id, found.name, request, began);
        // A node that is away now is a refusal; one that goes away later is waited for.
        client.while_there(watch.open().instrument(span)).await??;
        let pieces = stream::unfold(watch, |mut watch| async {
            loop {
                let piece = match watch.next().await {
                    Ok(Some(Piece::Lines(lines))) => Ok(lines),
                    Ok(Some(Piece::Away | Piece::Back)) => continue,
                    Ok(None) => return None,
                    Err(error) => Err(Reason::from(error)),
                };
                return Some((piece, watch));
            }
        });
        Ok(relay::lasting_response(pieces, NDJSON, &client))
    };
    within("logs", run).await
}

fn parse_logs(query: Option<&str>) -> Result<Logs, QueryError> {
    let query = Query::parse(
        query,
        &[
            "container",
            "follow",
            "tail",
            "since",
            "until",
            "stdout",
            "stderr",
            "cursor",
        ],
    )?;
    let logs = Logs {
        container: query.required("container")?,
        follow: query.flag("follow")?.unwrap_or(false),
        tail: query.parsed("tail", "a number of lines")?,
        since_ns: query.time("since")?,
        until_ns: query.time("until")?,
        no_stdout: !query.flag("stdout")?.unwrap_or(true),
        no_stderr: !query.flag("stderr")?.unwrap_or(true),
        cursor: query.text("cursor")?,
    };
    let nonsense = |detail: &str| Err(QueryError::Nonsense(detail.into()));
    if logs.no_stdout && logs.no_stderr {
        return nonsense("without stdout and stderr nothing is left of a log");
    }
    if logs.tail.is_some() && logs.cursor.is_some() {
        return nonsense("the query parameters tail and cursor exclude each other");
    }
    Ok(logs)
}

/// Watch what a container uses
///
/// One `Stats` a line, about one a second until the container stops.
#[utoipa::path(
    get, path = "/v1/nodes/{node}/stats", tag = "records",
    params(
        ("node" = String, Path, description = "The node's name or id"),
        ("container" = String, Query, description = "The container's name or id"),
    ),
    responses(
        (status = 200, description = "Lines", body = hub_protocol::kind::call::stats::Stats, content_type = "application/x-ndjson"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn stats(
    State(api): State<Api>,
    node: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    client: Client,
) -> Result<Response, Problem> {
    let run = async {
        let Path(node) = node?;
        let query = Query::parse(query.as_deref(), &["container"])?;
        let request = FollowStats {
            container: query.required("container")?,
        };
        let span = tracing::info_span!("stats", %node, container = request.container);
        let ask = api.hub.ask(&node, &request).instrument(span);
        let begun = client.while_there(ask).await?.answered()?;
        Ok(relay::lasting_response(
            relay::follow(begun),
            NDJSON,
            &client,
        ))
    };
    within("stats", run).await
}

/// Watch what happens on nodes
///
/// One `NodeRecord` a line: what a node says, with its name; and `away`, `back` and `failed` of the
/// hub's own. Without `node`, all nodes that are connected now or later. A node that goes away is
/// waited for, and its events go on where they stopped; `gap` names what is missing.
#[utoipa::path(
    get, path = "/v1/events", tag = "records",
    params(
        ("node" = Option<Vec<String>>, Query, description = "Name or id: repeated"),
        ("since" = Option<String>, Query, description = "From this time on: RFC 3339, or nanoseconds since 1970 UTC; without, from now on"),
        ("until" = Option<String>, Query, description = "Until this time; without, for ever"),
        ("filter" = Option<Vec<String>>, Query, description = "KEY=VALUE as `docker events --filter` has it: repeated"),
        ("cursor" = Option<Vec<String>>, Query, description = "NODE:CURSOR, from behind the record with this cursor: repeated"),
    ),
    responses(
        (status = 200, description = "Lines", body = super::types::NodeRecord, content_type = "application/x-ndjson"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn events(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
    client: Client,
) -> Result<Response, Problem> {
    let run = async {
        let wanted = parse_events(query.as_deref())?;
        let span = tracing::info_span!("events");
        let begin = merge::begin(api.hub.clone(), wanted).instrument(span);
        let pieces = client.while_there(begin).await??;
        Ok(relay::lasting_response(pieces, NDJSON, &client))
    };
    within("events", run).await
}

/// What is to be watched, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Names or ids; all nodes without.
    pub(super) nodes: Vec<String>,
    /// Of each node, without its cursor.
    pub(super) events: Events,
    /// By name or id of a node.
    pub(super) cursors: BTreeMap<String, String>,
}

fn parse_events(query: Option<&str>) -> Result<Wanted, QueryError> {
    let query = Query::parse(query, &["node", "since", "until", "filter", "cursor"])?;
    let mut filters: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for filter in query.all("filter") {
        let pair = filter.split_once('=').filter(|(key, _)| !key.is_empty());
        let (key, value) = pair.ok_or(QueryError::Not("filter", "KEY=VALUE"))?;
        filters.entry(key.into()).or_default().push(value.into());
    }
    let mut cursors = BTreeMap::new();
    for cursor in query.all("cursor") {
        let pair = cursor.split_once(':').filter(|(node, _)| !node.is_empty());
        let (node, cursor) = pair.ok_or(QueryError::Not("cursor", "NODE:CURSOR"))?;
        if cursors.insert(node.to_owned(), cursor.to_owned()).is_some() {
            let detail = format!("the query parameter cursor names node {node} twice");
            return Err(QueryError::Nonsense(detail));
        }
    }
    Ok(Wanted {
        nodes: query.all("node").map(str::to_owned).collect(),
        events: Events {
            since_ns: query.time("since")?,
            until_ns: query.time("until")?,
            filters,
            cursor: None,
        },
        cursors,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn logs_are_asked_for() {
        let query =
            "container=web&follow=true&tail=5&since=1970-01-01T00:00:01Z&until=7&stderr=false";
        let expected = Logs {
            container: "web".into(),
            follow: true,
            tail: Some(5),
            since_ns: Some(1_000_000_000),
            until_ns: Some(7),
            no_stdout: false,
            no_stderr: true,
            cursor: None,
        };
        assert_eq!(parse_logs(Some(query)), Ok(expected));
        for query in [
            "",
            "container=",
            "container=web&tail=-1",
            "container=web&since=yesterday",
            "container=web&stdout=false&stderr=false",
            "container=web&tail=1&cursor=c",
        ] {
            assert!(parse_logs(Some(query)).is_err(), "{query}");
        }
    }

    #[test]
    fn events_are_asked_for() {
        let query = "node=a&node=b&filter=type%3Dcontainer&filter=label%3Da%3Db&filter=label%3Dc\
                     &cursor=a:1:2&since=5";
        let wanted = parse_events(Some(query)).unwrap();
        assert_eq!(wanted.nodes, ["a", "b"]);
        assert_eq!(wanted.events.filters["label"], ["a=b", "c"]);
        assert_eq!(wanted.events.filters["type"], ["container"]);
        assert_eq!(wanted.cursors["a"], "1:2");
        assert_eq!(wanted.events.since_ns, Some(5));
        for query in [
            "filter=x",
            "filter=%3Dx",
            "cursor=x",
            "cursor=a:1&cursor=a:2",
        ] {
            assert!(parse_events(Some(query)).is_err(), "{query}");
        }
    }
}
