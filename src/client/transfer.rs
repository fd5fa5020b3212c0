//! Bodies of any size: bytes that come, and bytes that go.

use std::io;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderMap, Method, Request, header};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hub_protocol::kind::transfer::Loaded;
use hyper::body::{Frame, Incoming};

use super::connect::Endpoint;
use super::{Client, ClientError, reason, uri};

/// The media type of a tar archive.
const TAR: &str = "application/x-tar";

/// Bytes that come. Whoever does not ask for them makes the node wait; dropped, they end there.
pub struct Download {
    endpoint: Endpoint,
    body: Incoming,
}

impl Download {
    /// The next bytes; nothing after the last.
    ///
    /// # Errors
    /// The connection broke: what came is not all.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| ClientError::Broken {
                endpoint: self.endpoint.clone(),
                reason: format!("{}; what came is not all", reason(&error)),
            })?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

impl Client {
    /// Gives images of a node as one `docker save` archive.
    pub async fn save(&self, node: &str, images: &[String]) -> Result<Download, ClientError> {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(images.iter().map(|image| ("image", image)));
        let uri = uri(&["nodes", node, "images", "save"], Some(&query.finish()));
        Ok(self.download(uri).await?.1)
    }

    /// Takes the images of a `docker save` archive to a node. An error of the archive is
    /// [`ClientError::Request`].
    pub async fn load(
        &self,
        node: &str,
        archive: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<Loaded, ClientError> {
        let uri = uri(&["nodes", node, "images", "load"], None);
        let answer = self.upload(Method::POST, uri, archive).await?;
        serde_json::from_slice(&answer).map_err(|error| self.senseless(error.to_string()))
    }

    /// Asks for a body, with the headers before it.
    pub(super) async fn download(&self, uri: String) -> Result<(HeaderMap, Download), ClientError> {
        let request = Request::builder()
            .method(Method::GET)
            .uri(uri)
            .body(Full::new(Bytes::new()))
            .map_err(|error| ClientError::Request(error.to_string()))?;
        let response = self.send(self.lasting().await?, request).await?;
        let (head, body) = self.granted(response).await?.into_parts();
        let download = Download {
            endpoint: self.endpoint.clone(),
            body,
        };
        Ok((head.headers, download))
    }

    /// Sends a tar archive as fast as it is taken; gives the body of the answer, which may come
    /// before all is sent. An archive that fails does not look whole at the other side.
    pub(super) async fn upload(
        &self,
        method: Method,
        uri: String,
        archive: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<Bytes, ClientError> {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::CONTENT_TYPE, TAR)
            .body(StreamBody::new(archive.map(|piece| piece.map(Frame::data))))
            .map_err(|error| ClientError::Request(error.to_string()))?;
        let response = self.send(self.lasting().await?, request).await?;
        self.success(response).await
    }
}
