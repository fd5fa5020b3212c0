//! What operators see of the data plane: what is under way, and what was counted.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;

use super::Api;
use super::problem::Problem;
use super::types::Top;
use crate::hub::Status;
use crate::proxy::{self, Text};

/// Requests and streams under way
#[utoipa::path(
    get, path = "/v1/top", tag = "exposures",
    responses(
        (status = 200, description = "The longest first", body = Top),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn top(State(api): State<Api>) -> Json<Top> {
    Json(Top {
        streams: api.seeing.underway(),
    })
}

/// What was counted, for Prometheus
#[utoipa::path(
    get, path = "/v1/metrics", tag = "hub",
    responses(
        (status = 200, description = "Metrics in Prometheus' text format", body = String, content_type = "text/plain"),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn metrics(State(api): State<Api>) -> Result<Response, Problem> {
    let status = api.hub.status().await?;
    let exposures = api.hub.exposures().await?;
    let exposures: Vec<u64> = exposures.iter().map(|one| one.exposure.id.0).collect();
    let mut kinds = BTreeMap::<_, u64>::new();
    for (_, connected) in api.hub.sessions().all() {
        for (kind, count) in connected.session.operations_by_kind() {
            *kinds.entry(kind.name()).or_default() += count;
        }
    }
    let mut text = Text::default();
    write(&mut text, &status, &kinds);
    api.seeing.write_metrics(&mut text, &exposures);
    let kind = [(CONTENT_TYPE, proxy::CONTENT_TYPE)];
    Ok((kind, text.into_string()).into_response())
}

/// What is counted of the hub as a whole.
fn write(text: &mut Text, status: &Status, operations: &BTreeMap<&'static str, u64>) {
    let name = "hub_build_info";
    text.metric(name, "gauge", "The release of the program; always 1.");
    text.value(name, &[("release", status.release)], 1);
    text.single(
        "hub_start_time_seconds",
        "gauge",
        "Since when the hub runs, in seconds since 1970.",
        status.started.as_secs(),
    );
    text.single("hub_nodes", "gauge", "Nodes.", status.nodes);
    text.single(
        "hub_sessions",
        "gauge",
        "Nodes that are connected.",
        status.connected,
    );
    let name = "hub_operations";
    text.metric(name, "gauge", "Operations under way, by kind.");
    for (kind, count) in operations {
        text.value(name, &[("kind", kind)], count);
    }
    text.single(
        "hub_violations_total",
        "counter",
        "How often agents broke the protocol.",
        status.violations,
    );
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hub_ledger::Timestamp;
    use hub_protocol::Fingerprint;

    use super::*;
    use crate::hub::Addresses;

    #[test]
    fn the_hub_as_a_whole_is_counted() {
        let status = Status {
            release: "0.1.0",
            started: Timestamp::from_millis(1_700_000_000_123),
            ca: Fingerprint::from_digest([0; 32]),
            nodes: 3,
            connected: 2,
            operations: 5,
            violations: 1,
            addresses: Addresses::default(),
        };
        let mut text = Text::default();
        write(
            &mut text,
            &status,
            &BTreeMap::from([("http", 4), ("exec", 1)]),
        );
        let text = text.into_string();
        for line in [
            r#"hub_build_info{release="0.1.0"} 1"#,
            "hub_start_time_seconds 1700000000",
            "hub_nodes 3",
            "hub_sessions 2",
            r#"hub_operations{kind="exec"} 1"#,
            r#"hub_operations{kind="http"} 4"#,
            "hub_violations_total 1",
        ] {
            assert!(text.lines().any(|has| has == line), "{line}\n{text}");
        }
    }
}
