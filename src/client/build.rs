//! Builds: a context goes to a node, progress and an image come back, over a WebSocket.
//!
//! The connection lasts as long as the build. When it ends, however it does, the build is stopped:
//! a [`Building`] that is dropped, and a process that is killed, leave nothing running.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, Uri};
use hub_protocol::kind::build::Build;
use hub_server::api::channel::{self, Finish};
use hub_server::api::problem::{Kind, Problem};
use hub_server::api::registries::{self, REGISTRIES_HEADER};
use tokio_tungstenite::tungstenite;

use super::socket::{self, Incoming, Reader, Socket, Writer};
use super::{Client, ClientError, uri};

const CONTEXT: u8 = 0;
const IMAGE: u8 = 1;
const PROGRESS: u8 = 2;

impl Client {
    /// Starts a build: comes back when the node takes the context.
    ///
    /// # Errors
    /// The node has no builder, or may not build; or the hub or the network failed.
    pub async fn build(&self, node: &str, build: &Build) -> Result<Building, ClientError> {
        let (uri, headers) = request(node, build)?;
        let (socket, _) = socket::open(self, uri, headers).await?;
        Ok(Building { socket })
    }
}

/// What is asked for a build. Credentials are no part of the URL, which may be written down on its
/// way.
fn request(node: &str, build: &Build) -> Result<(Uri, HeaderMap), ClientError> {
    let options = Build {
        credentials: BTreeMap::new(),
        ..build.clone()
    };
    let options = serde_json::to_string(&options);
    let options = options.map_err(|error| ClientError::Request(error.to_string()))?;
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("options", &options);
    let uri = super::parse(uri(&["nodes", node, "build"], Some(&query.finish())))?;
    let mut headers = HeaderMap::new();
    if !build.credentials.is_empty() {
        let shown = registries::to_header(&build.credentials);
        let shown = shown.map_err(|error| ClientError::Request(error.to_string()))?;
        headers.insert(REGISTRIES_HEADER, shown);
    }
    Ok((uri, headers))
}

/// A build on a node.
pub struct Building {
    socket: Socket,
}

impl Building {
    /// Its two directions, which do not wait for each other.
    pub fn split(self) -> (Context, Output) {
        let (writer, reader) = self.socket.split();
        (Context { writer }, Output { reader })
    }
}

/// What the build is made of.
pub struct Context {
    writer: Writer,
}

impl Context {
    /// Sends bytes of the archive, as fast as the node takes them.
    ///
    /// # Errors
    /// The connection broke; [`Output`] says more.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), tungstenite::Error> {
        self.writer.send(CONTEXT, bytes).await
    }

    /// Says that the archive is whole.
    ///
    /// # Errors
    /// The connection broke; [`Output`] says more.
    pub async fn finish(&mut self) -> Result<(), tungstenite::Error> {
        self.writer.close(CONTEXT).await
    }
}

/// What comes from a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes of its progress: JSON lines, cut anywhere.
    Progress(Bytes),
    /// Bytes of the image, as `docker save` writes it.
    Image(Bytes),
    /// It takes no more of the context.
    ContextClosed,
    /// It ended so. The last event.
    Ended(Finish),
}

/// What a build says and makes, and how it ends.
pub struct Output {
    reader: Reader,
}

impl Output {
    /// The next event. Whoever does not ask for it makes the build wait. A connection that ends
    /// without a last word is an unknown end.
    pub async fn next(&mut self) -> Event {
        loop {
            return match self.reader.next().await {
                Incoming::Data(PROGRESS, bytes) => Event::Progress(bytes),
                Incoming::Data(IMAGE, bytes) => Event::Image(bytes),
                Incoming::Data(channel::STATUS, json) => Event::Ended(Finish::from_json(&json)),
                Incoming::Closed(CONTEXT) => Event::ContextClosed,
                Incoming::Data(..) | Incoming::Closed(_) => continue,
                Incoming::Lost(why) => {
                    let why = format!(
                        "the connection to the hub ended before the build did ({why}); \
                         the build is being stopped"
                    );
                    let problem = Problem::new(Kind::OutcomeUnknown, why);
                    Event::Ended(Finish::Failed(Box::new(problem)))
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hub_protocol::kind::call::image::Credentials;

    use super::*;

    #[test]
    fn credentials_are_in_a_header_and_in_no_url() {
        let mut build = Build {
            tags: vec!["a".into()],
            ..Build::default()
        };
        let (without, headers) = request("n", &build).unwrap();
        assert_eq!(headers, HeaderMap::new());
        let shown = Credentials {
            password: "hunter2".into(),
            ..Credentials::default()
        };
        build.credentials.insert("r.example".into(), shown);
        let (with, headers) = request("n", &build).unwrap();
        assert_eq!(with, without);
        let value = &headers[REGISTRIES_HEADER];
        assert_eq!(value, registries::to_header(&build.credentials).unwrap());
        assert!(value.is_sensitive());
        assert!(!format!("{build:?}").contains("hunter2"));
    }
}
