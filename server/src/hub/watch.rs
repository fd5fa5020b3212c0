//! A watch of one node that goes on through the loss of its sessions: the I/O around
//! [`follow`](super::follow).

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use hub_ledger::Timestamp;
use hub_protocol::{NodeId, NodeName};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Hub;
use super::ask::AskError;
use super::follow::{Follow, GaveUp, Next, Resume};
use super::incoming::{Broke, Incoming};
use crate::clip;

/// How often the ledger is asked about a node that is away: it may have been revoked.
const RECHECK: Duration = Duration::from_secs(60);

/// What comes of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Whole lines.
    Lines(Bytes),
    /// The node is away: the watch waits for it.
    Away,
    /// The node is back, and the watch goes on where it stopped.
    Back,
}

/// A watch of one node. Dropping it ends it there.
#[derive(Debug)]
pub(crate) struct Watch<R> {
    hub: Hub,
    id: NodeId,
    node: NodeName,
    follow: Follow<R>,
    incoming: Option<Incoming>,
    next: Next,
    sessions: watch::Receiver<u64>,
}

pub(crate) fn nanos(time: Timestamp) -> i64 {
    i64::try_from(u128::from(time.as_millis()) * 1_000_000).unwrap_or(i64::MAX)
}

impl<R: Resume> Watch<R> {
    /// A watch of a node of the ledger that is yet to be opened; `began` is when it was asked for.
    pub(crate) fn new(hub: Hub, id: NodeId, node: NodeName, request: R, began: Timestamp) -> Self {
        Self {
            sessions: hub.sessions().changes(),
            hub,
            id,
            node,
            follow: Follow::new(request, nanos(began)),
            incoming: None,
            next: Next::Open,
        }
    }

    /// The node's name.
    pub(crate) fn node(&self) -> &NodeName {
        &self.node
    }

    /// Opens it; comes back with why not, which `next` would wait for. Whether the node is back from
    /// having been away.
    ///
    /// # Errors
    /// It can't be opened now.
    pub(crate) async fn open(&mut self) -> Result<bool, AskError> {
        self.sessions.mark_unchanged();
        let (id, request) = (self.id.to_string(), self.follow.request());
        let begun = self.hub.ask(&id, &request).await.answered()?;
        self.incoming = Some(Incoming::new(begun.operation));
        Ok(self.follow.opened())
    }

    /// What comes next; `None` after the last.
    ///
    /// # Errors
    /// It can't go on.
    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, GaveUp> {
        loop {
            if let Some(incoming) = &mut self.incoming {
                match incoming.chunk().await {
                    Ok(Some(bytes)) => match self.follow.took(bytes) {
                        Ok(Some(lines)) => return Ok(Some(Piece::Lines(lines))),
                        Ok(None) => continue,
                        Err(broke) => self.next = Next::Broke(Box::new(broke)),
                    },
                    Ok(None) => self.next = self.follow.ended(Ok(())),
                    Err(broke) => {
                        tracing::info!(node = %self.node, "a watch is interrupted: {}", clip::error(&broke));
                        self.next = self.follow.ended(Err(broke));
                    }
                }
                self.incoming = None;
            }
            match &self.next {
                Next::Open => {}
                Next::Wait => self.back().await,
                Next::Pause(pause) => sleep(*pause).await,
                Next::End => return Ok(None),
                Next::Refused(error) => return Err(GaveUp::Refused((**error).clone())),
                Next::Broke(broke) => return Err(self.broke((**broke).clone())),
            }
            // Dropped in the middle of what follows, it opens again.
            self.next = Next::Open;
            match self.open().await {
                Ok(true) => return Ok(Some(Piece::Back)),
                Ok(false) => {}
                Err(error) => {
                    let now = nanos(self.hub.clock().now());
                    let (next, news) = self.follow.refused(&error, now);
                    self.next = next;
                    if news {
                        return Ok(Some(Piece::Away));
                    }
                }
            }
        }
    }

    fn broke(&self, broke: Broke) -> GaveUp {
        let node = self.node.clone();
        GaveUp::Broke { node, broke }
    }

    /// Waits until the node has a session again, or it is time to ask the ledger.
    async fn back(&mut self) {
        let back = async {
            loop {
                if self.sessions.changed().await.is_err() {
                    // The hub is gone, and with it whoever waits here.
                    return pending().await;
                }
                if self.hub.sessions().get(&self.id).is_some() {
                    return;
                }
            }
        };
        let _ = timeout(RECHECK, back).await;
    }
}
