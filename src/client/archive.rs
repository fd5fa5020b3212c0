//! Files of containers, as tar archives.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, Method, Request};
use http_body_util::Full;
use hub_protocol::kind::transfer::{CopyIn, PathStat};
use hub_server::api::PATH_STAT_HEADER;

use super::transfer::Download;
use super::{Client, ClientError, uri};

impl Client {
    /// Says what stands at a path of a container. Links are not followed.
    ///
    /// # Errors
    /// Nothing stands there, or the container does not exist; or the hub or the network failed.
    pub async fn stat_path(
        &self,
        node: &str,
        container: &str,
        path: &str,
    ) -> Result<PathStat, ClientError> {
        let uri = archive_uri(node, &[("container", container), ("path", path)]);
        // The answer to a HEAD has no room for a problem, so this is a GET whose body nobody reads:
        // the end of the connection tells the node to stop.
        let request = Request::builder()
            .method(Method::GET)
            .uri(uri)
            .body(Full::new(Bytes::new()))
            .map_err(|error| ClientError::Request(error.to_string()))?;
        let response = self.send(self.lasting().await?, request).await?;
        self.path_stat(self.granted(response).await?.headers())
    }

    /// Copies files out of a container: what stands at the path, and a tar archive of it.
    ///
    /// # Errors
    /// As those of [`stat_path`](Self::stat_path).
    pub async fn copy_out(
        &self,
        node: &str,
        container: &str,
        path: &str,
    ) -> Result<(PathStat, Download), ClientError> {
        let uri = archive_uri(node, &[("container", container), ("path", path)]);
        let (headers, download) = self.download(uri).await?;
        Ok((self.path_stat(&headers)?, download))
    }

    /// Unpacks a tar archive into a directory of a container.
    ///
    /// # Errors
    /// The directory is not there, or the archive is refused; an error of the archive itself is
    /// [`ClientError::Request`].
    pub async fn copy_in(
        &self,
        node: &str,
        copy: &CopyIn,
        archive: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<(), ClientError> {
        let mut query = vec![("container", &*copy.container), ("path", &copy.path)];
        if copy.copy_uid_gid {
            query.push(("copy_uid_gid", "true"));
        }
        if copy.no_overwrite_dir_non_dir {
            query.push(("no_overwrite_dir_non_dir", "true"));
        }
        let uri = archive_uri(node, &query);
        self.upload(Method::PUT, uri, archive).await.map(drop)
    }

    fn path_stat(&self, headers: &HeaderMap) -> Result<PathStat, ClientError> {
        let senseless = || {
            self.senseless(format!(
                "its header {PATH_STAT_HEADER} is missing or malformed"
            ))
        };
        let header = headers.get(PATH_STAT_HEADER).ok_or_else(senseless)?;
        let json = BASE64.decode(header).map_err(|_| senseless())?;
        serde_json::from_slice(&json).map_err(|_| senseless())
    }
}

fn archive_uri(node: &str, query: &[(&str, &str)]) -> String {
    let mut text = form_urlencoded::Serializer::new(String::new());
    text.extend_pairs(query);
    uri(&["nodes", node, "archive"], Some(&text.finish()))
}
