//! Events of many nodes as one stream of lines.
//!
//! ```text
//! node a: Watch --lines--> task --+
//! node b: Watch --lines--> task --+--> channel --> response       full: the tasks wait, and with
//! nodes that join --> task -------+                               them, by credit, the agents
//! ```
//!
//! Dropping the stream ends the tasks, and with them the operations.

use std::collections::BTreeSet;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{Stream, stream};
use hub_ledger::Timestamp;
use hub_protocol::kind;
use hub_protocol::kind::records::Events;
use hub_protocol::{NodeId, NodeName};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::problem::Problem;
use super::records::Wanted;
use super::relay::Reason;
use super::types::HubRecord;
use crate::hub::{AskError, Broke, GaveUp, Hub, Piece, Watch};

/// Pieces that may wait for the client, of all nodes together: mostly 64 KiB at most, and never more
/// than a line of the largest size beyond that.
const QUEUE: usize = 4;

/// What a task says.
enum Said {
    Lines(Bytes),
    /// The watch of a node that was named can't go on.
    Failed(GaveUp),
}

/// Starts to watch. Nodes that are named and there are asked before there is an answer, so that
/// what they refuse is a problem; those that are away are waited for.
pub(super) async fn begin(
    hub: Hub,
    wanted: Wanted,
) -> Result<impl Stream<Item = Result<Bytes, Reason>> + Send + 'static, Problem> {
    let (says, said) = mpsc::channel(QUEUE);
    let began = hub.clock().now();
    let mut tasks = JoinSet::new();
    let mut cursors = wanted.cursors;
    let mut seen = BTreeSet::new();
    for name in &wanted.nodes {
        let node = hub.known(name).await?;
        if !seen.insert(node.id) {
            continue;
        }
        let mut events = wanted.events.clone();
        let by_name = cursors.remove(node.name.as_str());
        events.cursor = by_name.or_else(|| cursors.remove(&node.id.to_string()));
        let mut watch = Watch::new(hub.clone(), node.id, node.name, events, began);
        match watch.open().await {
            Ok(_) | Err(AskError::Away { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        tasks.spawn(named(watch, says.clone()));
    }
    if wanted.nodes.is_empty() {
        let all = All {
            hub,
            events: wanted.events,
            cursors: cursors.into_iter().collect(),
            began,
            says,
        };
        tasks.spawn(all.run());
    }
    Ok(stream::unfold((said, tasks), |(mut said, tasks)| async {
        let piece = match said.recv().await? {
            Said::Lines(lines) => Ok(lines),
            Said::Failed(error) => Err(Reason::from(error)),
        };
        Some((piece, (said, tasks)))
    }))
}

/// Watches a node that was named: when that can't go on, the whole does not.
async fn named(watch: Watch<Events>, says: mpsc::Sender<Said>) {
    if let Err(error) = carry(watch, &says).await {
        let _ = says.send(Said::Failed(error)).await;
    }
}

/// Watches one of all nodes: when that can't go on, the others do.
async fn one_of_all(watch: Watch<Events>, says: mpsc::Sender<Said>) {
    let node = watch.node().clone();
    if let Err(error) = carry(watch, &says).await {
        let problem = Problem::from(error).operation("events");
        let line = hub_line(&node, &HubRecord::Failed { problem });
        let _ = says.send(Said::Lines(line)).await;
    }
}

async fn carry(mut watch: Watch<Events>, says: &mpsc::Sender<Said>) -> Result<(), GaveUp> {
    let node = watch.node().clone();
    while let Some(piece) = watch.next().await? {
        let lines = match piece {
            Piece::Lines(lines) => match named_lines(&node, &lines) {
                Ok(lines) => lines,
                Err(broke) => return Err(GaveUp::Broke { node, broke }),
            },
            Piece::Away => hub_line(&node, &HubRecord::Away),
            Piece::Back => hub_line(&node, &HubRecord::Back),
        };
        if says.send(Said::Lines(lines)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// A watch of all nodes that there are, and of those that join.
struct All {
    hub: Hub,
    events: Events,
    /// By name or id.
    cursors: Vec<(String, String)>,
    began: Timestamp,
    says: mpsc::Sender<Said>,
}

impl All {
    async fn run(self) {
        let mut tasks = JoinSet::new();
        let mut watched = BTreeSet::new();
        let mut changes = self.hub.sessions().changes();
        // With a cursor it goes on also on nodes that are away now.
        for (name, _) in &self.cursors {
            if let Ok(Some(node)) = self.hub.find(name).await
                && watched.insert(node.id)
            {
                tasks.spawn(one_of_all(
                    self.watch(node.id, node.name, false),
                    self.says.clone(),
                ));
            }
        }
        let mut late = false;
        loop {
            changes.mark_unchanged();
            for (id, _) in self.hub.sessions().all() {
                if watched.contains(&id) {
                    continue;
                }
                // One that the ledger can't tell of now is looked at with the next change.
                if let Ok(Some(node)) = self.hub.store().node(id).await {
                    watched.insert(id);
                    let watch = self.watch(id, node.name, late);
                    tasks.spawn(one_of_all(watch, self.says.clone()));
                }
            }
            late = true;
            tokio::select! {
                changed = changes.changed() => if changed.is_err() {
                    break;
                },
                () = self.over() => break,
            }
        }
        tasks.join_all().await;
    }

    /// Of one that is `late`, what happened since the watch began is wanted, too.
    fn watch(&self, id: NodeId, name: NodeName, late: bool) -> Watch<Events> {
        let mut events = self.events.clone();
        let id_text = id.to_string();
        let cursor = self
            .cursors
            .iter()
            .find(|(node, _)| node == name.as_str() || *node == id_text);
        events.cursor = cursor.map(|(_, cursor)| cursor.clone());
        if late && events.cursor.is_none() {
            events.since_ns.get_or_insert(crate::hub::nanos(self.began));
        }
        Watch::new(self.hub.clone(), id, name, events, self.began)
    }

    /// Resolves once nothing that happens from then on is wanted.
    async fn over(&self) {
        let Some(until) = self.events.until_ns else {
            return std::future::pending().await;
        };
        let now = crate::hub::nanos(self.hub.clock().now());
        let left = u64::try_from(until.saturating_sub(now)).unwrap_or(0);
        sleep(std::time::Duration::from_nanos(left)).await;
    }
}

/// Whole lines that a node sent, each with the field `node` in front.
///
/// # Errors
/// One is no JSON object, or says itself of which node it is: readers differ in which of two fields
/// of one name they take, and no node speaks for another.
fn named_lines(node: &NodeName, lines: &[u8]) -> Result<Bytes, Broke> {
    #[derive(Deserialize)]
    struct Claim {
        node: Option<IgnoredAny>,
    }
    let mut out = BytesMut::with_capacity(lines.len() + 4 * (node.as_str().len() + 11));
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        match serde_json::from_slice::<Claim>(line) {
            Ok(Claim { node: None }) if line.starts_with(b"{") => with_node(node, line, &mut out),
            _ => return Err(Broke::Nonsense("a line of events is no record".into())),
        }
    }
    Ok(out.freeze())
}

/// A JSON object with the field `node` in front, as a line.
fn with_node(node: &NodeName, object: &[u8], out: &mut BytesMut) {
    let rest = object.strip_prefix(b"{").unwrap_or(object);
    out.put_slice(format!("{{\"node\":\"{node}\"").as_bytes());
    if !rest.trim_ascii_start().starts_with(b"}") {
        out.put_u8(b',');
    }
    out.put_slice(rest);
    out.put_u8(b'\n');
}

fn hub_line(node: &NodeName, record: &HubRecord) -> Bytes {
    let mut line = BytesMut::new();
    with_node(node, &kind::to_json(record), &mut line);
    line.freeze()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hub_protocol::kind::records::EventRecord;

    use super::super::types::{NodeRecord, Record};
    use super::*;

    #[test]
    fn each_line_gets_its_node() {
        let node: NodeName = "shop-4".parse().unwrap();
        let lagged = EventRecord::Lagged {
            events: 3,
            cursor: "c".into(),
        };
        let mut line = kind::to_json(&lagged).to_vec();
        line.push(b'\n');
        let lines = named_lines(&node, &[&line[..], b"{}\n", &line[..]].concat()).unwrap();
        let lines: Vec<&[u8]> = lines.split_inclusive(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1], b"{\"node\":\"shop-4\"}\n");
        for line in [lines[0], lines[2]] {
            let record: NodeRecord = serde_json::from_slice(line).unwrap();
            assert_eq!(record.node, "shop-4");
            assert_eq!(record.record, Record::Node(lagged.clone()));
        }
        let away = hub_line(&node, &HubRecord::Away);
        assert_eq!(away, "{\"node\":\"shop-4\",\"record\":\"away\"}\n");
        let record: NodeRecord = serde_json::from_slice(&away).unwrap();
        assert_eq!(record.record, Record::Hub(HubRecord::Away));
    }

    #[test]
    fn no_node_speaks_for_another() {
        let node: NodeName = "shop-4".parse().unwrap();
        for line in [
            r#"{"record":"away","node":"other"}"#,
            r#"{"node":null,"node":"other"}"#,
            r#"{"n\u006fde":"other"}"#,
            r#"{"node":{"name":"other"}}"#,
            // Where a reader takes a carriage return for the end of a line.
            "{\"a\":1}\r{\"node\":\"other\"}",
            r#"["other"]"#,
            r#"{"record":"event""#,
            "x",
        ] {
            let refused = named_lines(&node, format!("{{}}\n{line}\n").as_bytes());
            assert!(matches!(refused, Err(Broke::Nonsense(_))), "{line}");
        }
        let nested = named_lines(&node, b"\n {\"attributes\":{\"node\":\"x\"}} \n").unwrap();
        let expected = "{\"node\":\"shop-4\",\"attributes\":{\"node\":\"x\"}}\n";
        assert_eq!(nested, expected);
    }
}
