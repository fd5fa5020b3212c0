//! Logs, events and statistics: records as they happen.
//!
//! ```text
//! Records --GET--> lines --> Next::Record(line)       its cursor is remembered
//!             ^------ broken: Next::Lost, wait, from the last cursor on, Next::Back
//! ```
//!
//! The hub follows nodes that go and come back. A client follows the hub: what it lost it opens
//! again from the last cursor that came, so that no record comes twice and none is missing that a
//! gap does not name.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use form_urlencoded::Serializer;
use http::{Method, Request, header};
use http_body_util::Full;
use hub_protocol::kind::call::stats::Stats;
use hub_protocol::kind::records::{EventRecord, LogRecord, MAX_RECORD, Output};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::backoff::Backoff;
use super::call::NDJSON;
use super::lines::Lines;
use super::{Client, ClientError, uri};

/// Something that comes in records.
pub trait Watch {
    /// A record.
    type Record: DeserializeOwned;

    /// Path and query, from the last place on.
    #[doc(hidden)]
    fn uri(&self) -> String;

    /// Whether it goes on until it is stopped: then it survives the hub.
    #[doc(hidden)]
    fn follows(&self) -> bool;

    /// A record came that says where it is.
    #[doc(hidden)]
    fn passed(&mut self, place: Place);
}

/// Where a record is.
#[doc(hidden)]
#[derive(Debug, Deserialize)]
pub struct Place {
    node: Option<String>,
    cursor: Option<String>,
}

/// A container's log. Times are RFC 3339 or nanoseconds since 1970 UTC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logs {
    /// The node's name or id.
    pub node: String,
    /// The container's name or id.
    pub container: String,
    /// Whether to go on at the end of what there is.
    pub follow: bool,
    /// The lines of this output only; without, of both.
    pub output: Option<Output>,
    /// The last lines only, counted over both outputs.
    pub tail: Option<u64>,
    /// From this time on.
    pub since: Option<String>,
    /// Until this time.
    pub until: Option<String>,
    /// From behind the record with this cursor.
    pub cursor: Option<String>,
}

/// Adds what is there.
fn pair(query: &mut Serializer<'_, String>, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        query.append_pair(name, value);
    }
}

impl Watch for Logs {
    type Record = LogRecord;

    fn uri(&self) -> String {
        let mut query = Serializer::new(String::new());
        query.append_pair("container", &self.container);
        if self.follow {
            query.append_pair("follow", "true");
        }
        match self.output {
            Some(Output::Stdout) => pair(&mut query, "stderr", Some("false")),
            Some(Output::Stderr) => pair(&mut query, "stdout", Some("false")),
            None => {}
        }
        // Whoever knows where to go on needs no last lines.
        let tail = self.tail.filter(|_| self.cursor.is_none());
        pair(
            &mut query,
            "tail",
            tail.map(|tail| tail.to_string()).as_deref(),
        );
        pair(&mut query, "since", self.since.as_deref());
        pair(&mut query, "until", self.until.as_deref());
        pair(&mut query, "cursor", self.cursor.as_deref());
        uri(&["nodes", &self.node, "logs"], Some(&query.finish()))
    }

    fn follows(&self) -> bool {
        self.follow
    }

    fn passed(&mut self, place: Place) {
        self.cursor = place.cursor.or(self.cursor.take());
    }
}

/// What happens on nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Events {
    /// Names or ids; without, all there are and all that join.
    pub nodes: Vec<String>,
    /// From this time on; without, from now on.
    pub since: Option<String>,
    /// Until this time; without, for ever.
    pub until: Option<String>,
    /// Only what matches: key and value.
    pub filters: Vec<(String, String)>,
    /// By node, from behind the record with this cursor.
    pub cursors: BTreeMap<String, String>,
}

/// A record of an event watch, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NodeEvent {
    /// The node's name.
    pub node: String,
    /// The record.
    #[serde(flatten)]
    pub record: EventRecord,
}

impl Watch for Events {
    type Record = NodeEvent;

    fn uri(&self) -> String {
        let mut query = Serializer::new(String::new());
        for node in &self.nodes {
            query.append_pair("node", node);
        }
        pair(&mut query, "since", self.since.as_deref());
        pair(&mut query, "until", self.until.as_deref());
        for (key, value) in &self.filters {
            query.append_pair("filter", &format!("{key}={value}"));
        }
        for (node, cursor) in &self.cursors {
            query.append_pair("cursor", &format!("{node}:{cursor}"));
        }
        uri(&["events"], Some(&query.finish()))
    }

    fn follows(&self) -> bool {
        true
    }

    fn passed(&mut self, place: Place) {
        if let (Some(node), Some(cursor)) = (place.node, place.cursor) {
            self.cursors.insert(node, cursor);
        }
    }
}

/// What a container uses, about once a second until it stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowStats {
    /// The node's name or id.
    pub node: String,
    /// The container's name or id.
    pub container: String,
}

impl Watch for FollowStats {
    type Record = Stats;

    fn uri(&self) -> String {
        let mut query = Serializer::new(String::new());
        query.append_pair("container", &self.container);
        uri(&["nodes", &self.node, "stats"], Some(&query.finish()))
    }

    fn follows(&self) -> bool {
        true
    }

    fn passed(&mut self, _: Place) {}
}

/// What comes next.
#[derive(Debug)]
pub enum Next<T> {
    /// A record.
    Record {
        /// As it came: a JSON object.
        json: Bytes,
        /// Read; nothing where only a later release knows it.
        record: Option<T>,
    },
    /// The hub is lost, for this reason; it is tried again and again. Said once.
    Lost(String),
    /// The hub is back, and records go on where they stopped.
    Back,
}

/// Records as they come.
pub struct Records<W> {
    client: Client,
    watch: W,
    lines: Option<Lines>,
    began: bool,
    lost: bool,
    backoff: Backoff,
    wait: Option<Duration>,
}

impl Client {
    /// Watches something: its records come one after the other, and whoever does not ask for the
    /// next makes the node wait. Dropped, it ends on the node, too.
    pub fn watch<W: Watch>(&self, watch: W) -> Records<W> {
        Records {
            client: self.clone(),
            watch,
            lines: None,
            began: false,
            lost: false,
            backoff: Backoff::default(),
            wait: None,
        }
    }
}

impl<W: Watch> Records<W> {
    /// What comes next; nothing after the last.
    ///
    /// # Errors
    /// It could not begin, it can't go on, or the hub is lost and it does not follow.
    pub async fn next(&mut self) -> Result<Option<Next<W::Record>>, ClientError> {
        loop {
            if let Some(wait) = self.wait {
                sleep(wait).await;
                self.wait = None;
            }
            let error = match &mut self.lines {
                None => match open(&self.client, &self.watch).await {
                    Ok(lines) => {
                        self.lines = Some(lines);
                        self.began = true;
                        if std::mem::take(&mut self.lost) {
                            return Ok(Some(Next::Back));
                        }
                        continue;
                    }
                    Err(error) => error,
                },
                Some(lines) => match lines.next().await {
                    Ok(Some(json)) => {
                        self.backoff = Backoff::default();
                        return self.record(json).map(Some);
                    }
                    Ok(None) => return Ok(None),
                    Err(error) => error,
                },
            };
            if !(self.began && self.watch.follows() && may_pass(&error)) {
                return Err(error);
            }
            self.lines = None;
            self.wait = Some(self.backoff.rolled());
            if !std::mem::replace(&mut self.lost, true) {
                return Ok(Some(Next::Lost(error.to_string())));
            }
        }
    }

    fn record(&mut self, json: Bytes) -> Result<Next<W::Record>, ClientError> {
        let place: Place = serde_json::from_slice(&json)
            .map_err(|error| self.client.senseless(error.to_string()))?;
        self.watch.passed(place);
        let record = serde_json::from_slice(&json).ok();
        Ok(Next::Record { json, record })
    }
}

async fn open(client: &Client, watch: &impl Watch) -> Result<Lines, ClientError> {
    let request = Request::builder()
        .method(Method::GET)
        .uri(watch.uri())
        .header(header::ACCEPT, NDJSON)
        .body(Full::new(Bytes::new()))
        .map_err(|error| ClientError::Request(error.to_string()))?;
    let response = client.send(client.lasting().await?, request).await?;
    let response = client.granted(response).await?;
    Ok(Lines::new(client.endpoint.clone(), response, MAX_RECORD))
}

/// Whether what was under way may go on later.
pub(crate) fn may_pass(error: &ClientError) -> bool {
    matches!(error, ClientError::Broken { .. }) || error.retry_helps()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn place(json: &str) -> Place {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_log_goes_on_behind_its_last_cursor() {
        let mut logs = Logs {
            node: "a b".into(),
            container: "web".into(),
            follow: true,
            tail: Some(10),
            since: Some("2026-01-31T12:00:00Z".into()),
            ..Logs::default()
        };
        assert_eq!(
            logs.uri(),
            "/v1/nodes/a%20b/logs?container=web&follow=true&tail=10&since=2026-01-31T12%3A00%3A00Z"
        );
        logs.passed(place(r#"{"type":"line","cursor":"c1","new":[1]}"#));
        // A gap says nothing of where it is.
        logs.passed(place(r#"{"type":"gap","why":"rotated"}"#));
        assert_eq!(
            logs.uri(),
            "/v1/nodes/a%20b/logs?container=web&follow=true&since=2026-01-31T12%3A00%3A00Z&cursor=c1"
        );
    }

    #[test]
    fn one_output_is_asked_for_by_leaving_out_the_other() {
        let uri = |output| {
            let logs = Logs {
                node: "n".into(),
                container: "web".into(),
                output,
                ..Logs::default()
            };
            logs.uri()
        };
        let both = "/v1/nodes/n/logs?container=web";
        assert_eq!(uri(None), both);
        assert_eq!(uri(Some(Output::Stdout)), format!("{both}&stderr=false"));
        assert_eq!(uri(Some(Output::Stderr)), format!("{both}&stdout=false"));
    }

    #[test]
    fn events_go_on_node_by_node() {
        let mut events = Events {
            nodes: vec!["a".into(), "b".into()],
            filters: vec![("label".into(), "x=y".into())],
            ..Events::default()
        };
        let begin = "/v1/events?node=a&node=b&filter=label%3Dx%3Dy";
        assert_eq!(events.uri(), begin);
        events.passed(place(r#"{"node":"b","cursor":"7"}"#));
        events.passed(place(r#"{"node":"b","cursor":"8"}"#));
        events.passed(place(r#"{"record":"of a later release"}"#));
        assert_eq!(events.uri(), format!("{begin}&cursor=b%3A8"));
    }

    #[test]
    fn an_event_has_its_node() {
        let event: NodeEvent = serde_json::from_str(
            r#"{"node":"n","record":"lagged","events":3,"cursor":"c","more":true}"#,
        )
        .unwrap();
        let record = EventRecord::Lagged {
            events: 3,
            cursor: "c".into(),
        };
        assert_eq!(
            event,
            NodeEvent {
                node: "n".into(),
                record
            }
        );
    }
}
