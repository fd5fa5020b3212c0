#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;

use hub_ledger::exposure::Settings;
use hub_ledger::{Access, ExposureId, Protocol};

use super::*;

fn exposure(id: u64, name: Option<&str>) -> Arc<Exposure> {
    Arc::new(Exposure {
        id: ExposureId(id),
        name: name.map(|name| name.parse().unwrap()),
        token: None,
        access: Access::Public,
        protocol: Protocol::Http,
        replicas: Vec::new(),
        listen: None,
        settings: Settings::default(),
        created: Timestamp::from_millis(0),
    })
}

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));

fn begin(seeing: &Seeing, target: &str) -> Track {
    seeing.begin(&Begins {
        kind: Kind::Http,
        client: PEER,
        at: Timestamp::from_millis(1_700_000_000_123),
        method: Some(&Method::POST),
        target: Some(target),
        version: Some(Version::HTTP_11),
    })
}

fn metrics(seeing: &Seeing, exposures: &[u64]) -> String {
    let mut text = Text::default();
    seeing.write_metrics(&mut text, exposures);
    text.into_string()
}

/// The value of a series.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    line.parse().ok()
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_is_seen_until_its_last_holder_goes() {
    let seeing = Seeing::default();
    let first = begin(&seeing, "/");
    tokio::time::sleep(Duration::from_millis(20)).await;
    let second = begin(&seeing, "/");
    first.exposed(&exposure(7, Some("shop")), CLIENT);
    first.user(Some("operator"));
    first.opening(&"far".parse().unwrap());
    first.took(3);
    let seen = seeing.underway();
    assert_eq!(seen.len(), 2);
    let expected = Underway {
        number: 0,
        exposure: Some(7),
        name: Some("shop".into()),
        node: Some("far".into()),
        kind: Kind::Http,
        method: Some("POST".into()),
        status: None,
        client: CLIENT.to_string(),
        user: Some("operator".into()),
        age_ms: 20,
        bytes_in: 3,
        bytes_out: 0,
        waits_for: WaitsFor::Network,
    };
    assert_eq!(seen[0], expected);
    assert_eq!((seen[1].number, seen[1].waits_for), (1, WaitsFor::Hub));
    assert_eq!(seen[1].client, PEER.to_string());
    let held = first.clone();
    drop((first, second));
    assert_eq!(seeing.underway().len(), 1);
    held.accepted();
    assert_eq!(seeing.underway()[0].waits_for, WaitsFor::Target);
    held.answered(StatusCode::SWITCHING_PROTOCOLS, None);
    let upgraded = &seeing.underway()[0];
    assert_eq!((upgraded.kind, upgraded.status), (Kind::Upgrade, Some(101)));
    drop(held);
    assert!(seeing.underway().is_empty());
}

/// What is under way is counted already, and what ends is not counted again.
#[tokio::test(start_paused = true)]
async fn counters_go_on_and_never_back() {
    let seeing = Seeing::default();
    let received = r#"hub_exposure_received_bytes_total{exposure="7",name="shop"}"#;
    let open = r#"hub_exposure_streams{exposure="7",name="shop",kind="http"}"#;
    let begun = r#"hub_exposure_streams_total{exposure="7",name="shop",kind="http"}"#;
    let track = begin(&seeing, "/");
    track.exposed(&exposure(7, Some("shop")), CLIENT);
    track.took(10);
    let text = metrics(&seeing, &[7]);
    assert_eq!(value(&text, received), Some(10.0));
    assert_eq!(
        (value(&text, open), value(&text, begun)),
        (Some(1.0), Some(1.0))
    );
    track.opening(&"far".parse().unwrap());
    tokio::time::sleep(Duration::from_millis(30)).await;
    track.accepted();
    tokio::time::sleep(Duration::from_millis(200)).await;
    track.target_answered();
    track.answered(StatusCode::OK, None);
    drop(track);
    let text = metrics(&seeing, &[7]);
    assert_eq!(value(&text, received), Some(10.0));
    assert_eq!(
        (value(&text, open), value(&text, begun)),
        (Some(0.0), Some(1.0))
    );
    for (series, expected) in [
        (
            r#"hub_exposure_requests_total{exposure="7",name="shop",code="2xx"}"#,
            1.0,
        ),
        (
            r#"hub_exposure_first_byte_seconds_sum{exposure="7",name="shop"}"#,
            0.23,
        ),
        (
            r#"hub_exposure_target_first_byte_seconds_sum{exposure="7",name="shop"}"#,
            0.2,
        ),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
    // A browser that leaves before it is answered; and a limit.
    let left = begin(&seeing, "/");
    left.exposed(&exposure(7, Some("shop")), CLIENT);
    drop(left);
    let refused = begin(&seeing, "/");
    refused.exposed(&exposure(7, Some("shop")), CLIENT);
    refused.answered(StatusCode::SERVICE_UNAVAILABLE, Some("node_requests"));
    drop(refused);
    let text = metrics(&seeing, &[7]);
    for series in [
        r#"hub_exposure_requests_total{exposure="7",name="shop",code="none"}"#,
        r#"hub_exposure_requests_total{exposure="7",name="shop",code="5xx"}"#,
        r#"hub_exposure_refusals_total{exposure="7",name="shop",limit="node_requests"}"#,
    ] {
        assert_eq!(value(&text, series), Some(1.0), "{series}\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn exposures_that_are_gone_are_forgotten_once_nothing_of_them_is_under_way() {
    let seeing = Seeing::default();
    let open = begin(&seeing, "/");
    open.exposed(&exposure(1, None), CLIENT);
    begin(&seeing, "/").exposed(&exposure(2, None), CLIENT);
    let one = r#"hub_exposure_sent_bytes_total{exposure="1",name=""}"#;
    let two = r#"hub_exposure_sent_bytes_total{exposure="2",name=""}"#;
    let text = metrics(&seeing, &[2]);
    assert!(value(&text, one).is_some() && value(&text, two).is_some());
    drop(open);
    let text = metrics(&seeing, &[]);
    assert!(value(&text, one).is_none() && value(&text, two).is_none());
    assert_eq!(metrics(&seeing, &[1, 2]), metrics(&seeing, &[]));
}

#[tokio::test(start_paused = true)]
async fn timing_tells_the_hub_the_way_and_the_target_apart() {
    let seeing = Seeing::default();
    let track = begin(&seeing, "/");
    let pass = |millis| tokio::time::sleep(Duration::from_millis(millis));
    pass(2).await;
    assert_eq!(track.server_timing(), "hub;dur=2.0");
    track.opening(&"gone".parse().unwrap());
    pass(3).await;
    track.opening(&"far".parse().unwrap());
    pass(40).await;
    track.accepted();
    pass(100).await;
    assert_eq!(
        track.server_timing(),
        "hub;dur=5.0, connect;dur=40.0, target;dur=100.0"
    );
}

#[tokio::test]
async fn the_access_log_has_a_line_for_each_request_that_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let seeing = Seeing::new(SeeingConfig {
        access_log: Some(path.clone()),
        access_log_sample: 0.0,
        ..SeeingConfig::default()
    });
    let seeing = seeing.unwrap();
    let token = crate::secret::Token::from_bytes([0x5a; 32])
        .to_text()
        .to_string();
    let track = begin(&seeing, &format!("/v1/data/{token}/a?b=c"));
    track.exposed(&exposure(7, Some("shop")), CLIENT);
    track.answered(StatusCode::TOO_MANY_REQUESTS, Some("client_rate"));
    track.gives(5);
    track.whole();
    drop(track);
    let fine = begin(&seeing, "/");
    fine.answered(StatusCode::OK, None);
    drop(fine);
    seeing.flush().await;
    let written = std::fs::read_to_string(path).unwrap();
    assert!(!written.contains(&token));
    let mut line: serde_json::Value = serde_json::from_str(&written).unwrap();
    let times = line.as_object_mut().unwrap();
    for time in ["duration_ms", "first_byte_ms"] {
        assert!(times.remove(time).unwrap().is_f64(), "{time}");
    }
    let expected = serde_json::json!({
        "time": "2023-11-14T22:13:20.123Z", "kind": "http", "exposure": 7, "name": "shop",
        "client": "198.51.100.7", "method": "POST", "path": "/v1/data/-/a", "version": "HTTP/1.1",
        "status": 429, "bytes_in": 0, "bytes_out": 5, "refusal": "client_rate", "whole": true,
    });
    assert_eq!(line, expected);
}
