//! What happens, in the daemon's words, and what its containers are.

use std::collections::BTreeMap;

use bytes::{Buf as _, BytesMut};
use serde::Deserialize;

use super::stream::{Body, StreamError};
use super::time::query_time;
use super::{Engine, names};
use crate::journal::{Event, State};

/// The most bytes of one event: the labels of a container are all in it.
const MAX_EVENT: usize = 8 * 1024 * 1024;

/// Events as the daemon tells them: first those it remembers, then those that happen.
#[derive(Debug)]
pub(crate) struct EventStream {
    body: Body,
    buffer: BytesMut,
    /// Bytes of the buffer that hold no newline.
    searched: usize,
}

#[derive(Deserialize)]
struct Message {
    #[serde(rename = "Type", default)]
    kind: String,
    #[serde(rename = "Action", default)]
    action: String,
    #[serde(rename = "Actor", default)]
    actor: Actor,
    #[serde(rename = "timeNano", default)]
    time_ns: i64,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Actor {
    #[serde(rename = "ID", default)]
    id: String,
    #[serde(default)]
    attributes: Option<BTreeMap<String, String>>,
}

impl EventStream {
    /// The next one; `None` when the daemon has ended the stream. A call that is given up loses
    /// nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, StreamError> {
        loop {
            while let Some(found) = self.buffer[self.searched..]
                .iter()
                .position(|b| *b == b'\n')
            {
                let line = self.buffer.split_to(self.searched + found);
                self.buffer.advance(1);
                self.searched = 0;
                if !line.is_empty() {
                    return read(&line).map(Some);
                }
            }
            self.searched = self.buffer.len();
            if self.searched > MAX_EVENT {
                let size = format!("an event of more than {MAX_EVENT} bytes");
                return Err(StreamError::Malformed(size));
            }
            match self.body.chunk().await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None if self.buffer.is_empty() => return Ok(None),
                None => {
                    let line = self.buffer.split();
                    self.searched = 0;
                    return read(&line).map(Some);
                }
            }
        }
    }
}

fn read(line: &[u8]) -> Result<Event, StreamError> {
    let message: Message = serde_json::from_slice(line)
        .map_err(|error| StreamError::Malformed(format!("an event: {error}")))?;
    Ok(Event {
        time_ns: message.time_ns,
        kind: message.kind,
        action: message.action,
        id: message.actor.id,
        attributes: message.actor.attributes.unwrap_or_default(),
    })
}

impl Engine {
    /// The events from `since_ns` on that the daemon remembers (20.10: 256 at most), and then
    /// those that happen, up to `until_ns` by its clock or for ever.
    pub(crate) async fn events(
        &self,
        since_ns: i64,
        until_ns: Option<i64>,
    ) -> Result<EventStream, StreamError> {
        let mut path = format!("/events?since={}", query_time(since_ns));
        if let Some(until) = until_ns {
            path = format!("{path}&until={}", query_time(until));
        }
        Ok(EventStream {
            body: self.get(&path).await?,
            buffer: BytesMut::new(),
            searched: 0,
        })
    }

    /// All containers, running or not.
    pub(crate) async fn states(&self) -> Result<Vec<State>, StreamError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Summary {
            id: String,
            #[serde(default)]
            names: Option<Vec<String>>,
            #[serde(default)]
            image: String,
            #[serde(default)]
            state: String,
            #[serde(default)]
            labels: Option<BTreeMap<String, String>>,
        }
        let found: Vec<Summary> = self.get_json("/containers/json?all=1").await?;
        Ok(found
            .into_iter()
            .map(|summary| State {
                id: summary.id,
                name: names::own(&summary.names.unwrap_or_default())
                    .unwrap_or_default()
                    .to_owned(),
                state: summary.state,
                image: summary.image,
                labels: summary.labels.unwrap_or_default(),
            })
            .collect())
    }
}
