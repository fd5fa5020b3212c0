//! Starts a command with a terminal and takes its connection as it is.
//!
//! The client library parts every answer into frames of outputs, and guesses where there are none:
//! binary output of a terminal could pass for a frame. So this one request goes over a connection of
//! its own.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::models::ExecStartConfig;
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hub_protocol::kind::exec::Size;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::timeout;

use super::output::Frames;
use crate::engine::Engine;

/// How long the daemon may take to start it; as long as for any other answer.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The most bytes of an error's body that are read.
const MAX_ERROR: usize = 64 * 1024;

/// Bytes asked for with one read.
const READ: usize = 16 * 1024;

/// What goes into a command.
pub(super) type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// The first version of the API that takes a terminal's size at the start.
const SIZED: (usize, usize) = (1, 42);

/// Whether a daemon takes a terminal's size at the start, by the version of its API.
pub(super) fn takes_size(version: (usize, usize)) -> bool {
    version >= SIZED
}

/// The version of the API that is spoken with the daemon.
pub(super) fn version(engine: &Engine) -> (usize, usize) {
    let version = engine.docker().client_version();
    (version.major_version, version.minor_version)
}

/// A size as the API has it.
pub(super) fn console_size(size: Size) -> Vec<usize> {
    vec![size.rows.into(), size.cols.into()]
}

/// Starts the command of this id.
pub(super) async fn start(engine: &Engine, id: &str, size: Size) -> Result<(Frames, Input), Error> {
    let connection = timeout(TIMEOUT, upgraded(engine, id, size))
        .await
        .map_err(|_| Error::RequestTimeoutError)??;
    let (output, input) = tokio::io::split(connection);
    Ok((frames(output), Box::pin(input)))
}

async fn upgraded(
    engine: &Engine,
    id: &str,
    size: Size,
) -> Result<impl AsyncRead + AsyncWrite + Send + use<>, Error> {
    let (major, minor) = version(engine);
    let config = ExecStartConfig {
        detach: Some(false),
        tty: Some(true),
        console_size: takes_size((major, minor)).then(|| console_size(size)),
    };
    let body = serde_json::to_vec(&config).map_err(io::Error::other)?;
    let request = Request::post(format!("/v{major}.{minor}/exec/{id}/start"))
        .header(HOST, "docker")
        .header(CONTENT_TYPE, "application/json")
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "tcp")
        .body(Full::new(Bytes::from(body)))
        .map_err(io::Error::other)?;
    let (mut sender, driver) = http1::handshake(TokioIo::new(engine.dial().await?)).await?;
    // Ends with the connection; what goes wrong there, the answer tells.
    tokio::spawn(driver.with_upgrades());
    let response = sender.send_request(request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(TokioIo::new(hyper::upgrade::on(response).await?));
    }
    let status_code = response.status().as_u16();
    let body = Limited::new(response.into_body(), MAX_ERROR)
        .collect()
        .await
        .map_err(io::Error::other)?
        .to_bytes();
    let said: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
    let said = said.as_ref().and_then(|said| said["message"].as_str());
    Err(Error::DockerResponseServerError {
        status_code,
        message: said.map_or_else(|| String::from_utf8_lossy(&body).into(), str::to_owned),
    })
}

/// All that comes, as one output.
fn frames(output: impl AsyncRead + Send + Unpin + 'static) -> Frames {
    let state = (output, BytesMut::new());
    Box::pin(stream::try_unfold(
        state,
        |(mut output, mut buffer)| async {
            buffer.reserve(READ);
            if output.read_buf(&mut buffer).await? == 0 {
                return Ok(None);
            }
            let message = buffer.split().freeze();
            Ok(Some((LogOutput::StdOut { message }, (output, buffer))))
        },
    ))
}

/// What a command with a terminal reads. The daemon takes an end of it for the end of everything, so
/// there is none: shutting it down or dropping it sends nothing.
pub(super) struct Keyboard(pub(super) Input);

impl AsyncWrite for Keyboard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_23_takes_a_size_at_the_start() {
        assert!(takes_size((1, 42)) && takes_size((1, 51)) && takes_size((2, 0)));
        assert!(!takes_size((1, 41)) && !takes_size((0, 99)));
        let size = Size { cols: 80, rows: 24 };
        assert_eq!(console_size(size), [24, 80]);
    }
}
