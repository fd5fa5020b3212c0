//! HTTP/1.1 and HTTP/1.0.

use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hub_protocol::kind::http::MAX_HEADERS;
use hub_protocol::limits::MAX_HEAD;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Asked, Client, Interim, UpgradeSlot, Upgraded, request_body};
use crate::linger::linger;
use crate::proxy::body::ProxyBody;
use crate::proxy::{Answer, Proxy, head};
use crate::seats::Seat;

/// Serves a connection. Gives it back if closing it would end a response that is not whole:
/// HTTP/1.0 has no other sign of an end.
pub(in crate::proxy) async fn serve<I>(
    proxy: &Proxy,
    io: I,
    client: Client,
    seat: Option<Seat>,
) -> Option<I>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let old = AtomicBool::new(false);
    let service = service_fn(|request: Request<Incoming>| {
        if request.version() < Version::HTTP_11 {
            old.store(true, Ordering::Relaxed);
        }
        handle(proxy, request, client, seat.clone())
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(proxy.config().head_timeout)
        .max_header_size(MAX_HEAD)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let stopping = async {
        match &seat {
            Some(seat) => seat.stopping().await,
            None => pending().await,
        }
    };
    let served = tokio::select! {
        served = &mut connection => Some(served),
        () = stopping => None,
    };
    let served = if let Some(served) = served {
        served
    } else {
        Pin::new(&mut connection).graceful_shutdown();
        (&mut connection).await
    };
    let error = served.err()?;
    tracing::debug!("a browser's connection ended: {error}");
    let looks_whole = error.is_user() && old.load(Ordering::Relaxed);
    let parts = looks_whole.then(|| connection.into_parts())??;
    Some(parts.io.into_inner())
}

async fn handle(
    proxy: &Proxy,
    request: Request<Incoming>,
    client: Client,
    seat: Option<Seat>,
) -> Result<Response<ProxyBody>, Infallible> {
    let (mut head, body) = request.into_parts();
    if head::coded(&head) {
        return Ok(Answer::unknown_coding().into_response());
    }
    let body = Lingering {
        waits: head.headers.contains_key(EXPECT),
        body: Some(body),
    };
    let on_upgrade = head.extensions.remove::<OnUpgrade>();
    let (slot, connection) = head::upgrade(&head, body.size_hint().exact())
        .map(UpgradeSlot::new)
        .unzip();
    // The library sends none: they end here.
    let interim = if head.version < Version::HTTP_11 {
        Interim::none()
    } else {
        Interim::channel().0
    };
    let asked = Asked {
        head,
        body: request_body(body),
        client,
        interim,
        upgrade: slot,
    };
    let response = proxy.answer(asked).await;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let (Some(on_upgrade), Some(connection)) = (on_upgrade, connection)
    {
        tokio::spawn(async move {
            if let Ok(upgraded) = on_upgrade.await {
                let upgraded = Upgraded {
                    io: Box::new(TokioIo::new(upgraded)),
                    early: Bytes::new(),
                    seat,
                };
                let _ = connection.send(upgraded);
            }
        });
    }
    Ok(response)
}

/// A body whose rest is read and thrown away once it is dropped.
struct Lingering {
    body: Option<Incoming>,
    /// The browser waits for a go-ahead: without one, there is nothing to throw away.
    waits: bool,
}

impl Body for Lingering {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.waits = false;
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if let Some(body) = self.body.take()
            && !self.waits
            && !body.is_end_stream()
        {
            tokio::spawn(linger(body));
        }
    }
}
