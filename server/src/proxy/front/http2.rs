//! HTTP/2, over TLS or in the clear, on the `h2` crate.
//!
//! ```text
//! connection --accept--> a task for each stream --Asked--> the core
//!   Upload:   a piece's window goes back to the browser once the core has sent the piece on
//!   download: a piece is taken from the core, and sent as far as the browser's windows allow
//! ```
//!
//! So what a request holds here is one piece in each direction, and what the browser sent within
//! the stream's window. The connection's window is that of all its streams together: one whose
//! target does not read holds up no other.

mod tunnel;

use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::ext::Protocol;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Empty};
use hub_protocol::limits::MAX_HEAD;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

use super::multiplexed::{self, Checked};
use super::{Asked, Client, Interim, UpgradeSlot, Upgraded, request_body};
use crate::proxy::Proxy;
use crate::proxy::body::ProxyBody;
use crate::seats::Seat;
use tunnel::Tunnel;

/// Requests at once on one connection.
const STREAMS: u32 = 128;

/// What a browser may send of one request's body before it is taken, in bytes.
const WINDOW: u32 = 256 * 1024;

/// What waits here of one response for the connection to take it, in bytes.
const SEND_BUFFER: usize = 64 * 1024;

/// How large a head may be for the library, which counts 32 bytes more for each line, and whose
/// refusal says nothing: smaller ones that are too large are answered by the core.
const HEAD: u32 = 2 * MAX_HEAD as u32;

/// How many requests more may be taken back than were answered.
const TAKEN_BACK: u32 = 200;

/// How long a browser may take to agree that the connection is over.
const FAREWELL: Duration = Duration::from_secs(5);

/// How long what comes of an unwanted body is thrown away before the browser is told to stop.
const DRAIN: Duration = Duration::from_secs(2);

/// How a stream came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Answered,
    /// The browser took it back, or is gone.
    TakenBack,
}

/// Serves a connection until its end.
pub(in crate::proxy) async fn serve<I>(proxy: &Proxy, io: I, client: Client, seat: Option<Seat>)
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = Builder::new()
        .max_concurrent_streams(STREAMS)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW * STREAMS)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(HEAD)
        .max_pending_accept_reset_streams(STREAMS as usize)
        .enable_connect_protocol()
        .handshake(io);
    let Ok(Ok(mut connection)) = timeout(proxy.config().head_timeout, handshake).await else {
        return;
    };
    let stopping = async {
        match &seat {
            Some(seat) => seat.stopping().await,
            None => pending().await,
        }
    };
    let patience = proxy.config().idle_timeout;
    let (mut stopping, mut idle) = (pin!(stopping), pin!(sleep(patience)));
    let mut streams = JoinSet::new();
    let (mut leaving, mut taken_back) = (false, 0_u32);
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                None => break,
                Some(Err(error)) => {
                    tracing::debug!("a browser's connection ended: {error}");
                    break;
                }
                Some(Ok((request, respond))) => {
                    let (proxy, seat) = (proxy.clone(), seat.clone());
                    streams.spawn(async move {
                        carry(&proxy, request, respond, client, seat).await
                    });
                }
            },
            Some(ended) = streams.join_next() => {
                match ended {
                    Ok(Ended::TakenBack) => taken_back += 1,
                    _ => taken_back = taken_back.saturating_sub(1),
                }
                if taken_back > TAKEN_BACK {
                    tracing::debug!("a browser takes back request after request");
                    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                }
                let patience = if leaving { FAREWELL } else { patience };
                idle.as_mut().reset(Instant::now() + patience);
            }
            () = &mut stopping, if !leaving => {
                leaving = true;
                connection.graceful_shutdown();
                idle.as_mut().reset(Instant::now() + FAREWELL);
            }
            () = &mut idle, if streams.is_empty() => {
                if leaving {
                    break;
                }
                leaving = true;
                connection.graceful_shutdown();
                idle.as_mut().reset(Instant::now() + FAREWELL);
            }
        }
    }
}

/// Carries one request and its response.
async fn carry(
    proxy: &Proxy,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    client: Client,
    seat: Option<Seat>,
) -> Ended {
    let (head, received) = request.into_parts();
    let method = head.method.clone();
    let protocol = head.extensions.get::<Protocol>().cloned();
    let protocol = protocol.as_ref().map(Protocol::as_str);
    let mut key = [0; 16];
    // Without random bytes the key is a known one, whose only use is to tell caches apart.
    let _ = getrandom::fill(&mut key);
    let checked = multiplexed::check(head, received.is_end_stream(), protocol, key);
    let Checked {
        head,
        length,
        websocket,
    } = match checked {
        Ok(checked) => checked,
        Err(answer) => return send(proxy, respond, answer.into_response(), &method).await,
    };
    let (interim, mut interims) = Interim::channel();
    let mut tunnel = None;
    let (body, upgrade) = if websocket.is_some() {
        let (slot, connection) = UpgradeSlot::new(Bytes::from_static(b"websocket"));
        tunnel = Some((received, connection));
        (request_body(Empty::new()), Some(slot))
    } else {
        (request_body(Upload::new(received, length)), None)
    };
    let asked = Asked {
        head,
        body,
        client,
        interim,
        upgrade,
    };
    let response = {
        let mut answer = pin!(proxy.answer(asked));
        loop {
            tokio::select! {
                biased;
                _ = poll_fn(|cx| respond.poll_reset(cx)) => return Ended::TakenBack,
                Some(interim) = interims.recv() => inform(&mut respond, *interim),
                response = &mut answer => break response,
            }
        }
    };
    while let Ok(interim) = interims.try_recv() {
        inform(&mut respond, *interim);
    }
    let (Some(expected), Some((received, connection))) = (websocket, tunnel) else {
        return send(proxy, respond, multiplexed::plain(response), &method).await;
    };
    let switches = response.status() == http::StatusCode::SWITCHING_PROTOCOLS;
    let response = match multiplexed::switched(response, &expected) {
        Ok(response) => response,
        Err(answer) => return send(proxy, respond, answer.into_response(), &method).await,
    };
    if !switches {
        return send(proxy, respond, response, &method).await;
    }
    let Ok(sent) = respond.send_response(response.map(drop), false) else {
        return Ended::TakenBack;
    };
    let (held, released) = oneshot::channel();
    let upgraded = Upgraded {
        io: Box::new(Tunnel::new(sent, received, held)),
        early: Bytes::new(),
        seat,
    };
    let _ = connection.send(upgraded);
    // The stream is under way for as long as the tunnel is.
    let _: Result<(), _> = released.await;
    Ended::Answered
}

/// Sends an informational response. One that can't be sent is missed by nobody.
fn inform(respond: &mut SendResponse<Bytes>, interim: Response<()>) {
    let _ = respond.send_informational(multiplexed::plain(interim));
}

/// Sends a response. Whatever was not read of the request by then is not wanted.
async fn send(
    proxy: &Proxy,
    mut respond: SendResponse<Bytes>,
    response: Response<ProxyBody>,
    method: &Method,
) -> Ended {
    let (head, body) = response.into_parts();
    let ends = body.is_end_stream() || multiplexed::bodyless(method, head.status);
    let Ok(sent) = respond.send_response(Response::from_parts(head, ()), ends) else {
        return Ended::TakenBack;
    };
    if ends {
        return Ended::Answered;
    }
    match send_body(sent, body, proxy.response_idle()).await {
        Ok(()) => Ended::Answered,
        Err(Gone) => Ended::TakenBack,
    }
}

/// The browser takes no more of a stream.
struct Gone;

/// Sends a body, of which the browser may take nothing for `idle` at most.
async fn send_body(
    mut sent: SendStream<Bytes>,
    mut body: ProxyBody,
    idle: Duration,
) -> Result<(), Gone> {
    loop {
        let frame = tokio::select! {
            biased;
            _ = poll_fn(|cx| sent.poll_reset(cx)) => return Err(Gone),
            frame = body.frame() => frame,
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(_)) => {
                // It has been logged. The browser must not take what it has for all of it, but it
                // is to have that: a reset throws away what the connection has not written yet.
                yield_now().await;
                sent.send_reset(Reason::INTERNAL_ERROR);
                return Ok(());
            }
            None => return sent.send_data(Bytes::new(), true).map_err(|_| Gone),
        };
        match frame.into_data() {
            Ok(mut bytes) => {
                while !bytes.is_empty() {
                    let room = poll_fn(|cx| poll_room(&mut sent, bytes.len(), cx));
                    let Ok(room) = timeout(idle, room).await else {
                        // The connection may be read from all the same.
                        sent.send_reset(Reason::CANCEL);
                        return Err(Gone);
                    };
                    let room = room?;
                    let piece = bytes.split_to(room);
                    sent.send_data(piece, false).map_err(|_| Gone)?;
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    return sent.send_trailers(trailers).map_err(|_| Gone);
                }
            }
        }
    }
}

/// How much may be sent now, of so many bytes: at least one.
fn poll_room(
    sent: &mut SendStream<Bytes>,
    wanted: usize,
    cx: &mut Context<'_>,
) -> Poll<Result<usize, Gone>> {
    sent.reserve_capacity(wanted);
    loop {
        let room = sent.capacity().min(wanted);
        if room > 0 {
            return Poll::Ready(Ok(room));
        }
        match ready!(sent.poll_capacity(cx)) {
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return Poll::Ready(Err(Gone)),
        }
    }
}

/// The body of a request.
struct Upload {
    /// There until this is dropped.
    received: Option<RecvStream>,
    length: Option<u64>,
    /// Bytes that were handed on and whose window the browser does not have back yet.
    lent: usize,
    data: bool,
}

impl Upload {
    fn new(received: RecvStream, length: Option<u64>) -> Self {
        Self {
            received: Some(received),
            length,
            lent: 0,
            data: true,
        }
    }

    fn release(&mut self) {
        let lent = std::mem::take(&mut self.lent);
        if let Some(received) = self.received.as_mut().filter(|_| lent > 0) {
            // Fails only for a stream that is over.
            let _ = received.flow_control().release_capacity(lent);
        }
    }
}

/// Throws away what comes of a body that nobody wants, up to a window of it. A browser whose upload
/// is cut off may take that for the answer, which is on its way; one that is about to end is let end.
async fn drain(mut received: RecvStream) {
    let all = async {
        let mut left = WINDOW as usize;
        while left > 0
            && let Some(Ok(bytes)) = received.data().await
        {
            left = left.saturating_sub(bytes.len());
            let _ = received.flow_control().release_capacity(bytes.len());
        }
    };
    let _ = timeout(DRAIN, all).await;
}

impl Body for Upload {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        // Whoever asks for more has sent on what there was.
        self.release();
        let this = &mut *self;
        let Some(received) = &mut this.received else {
            return Poll::Ready(None);
        };
        while this.data {
            match ready!(received.poll_data(cx)) {
                Some(Ok(bytes)) if bytes.is_empty() => {}
                Some(Ok(bytes)) => {
                    this.lent = bytes.len();
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => this.data = false,
            }
        }
        let trailers = ready!(received.poll_trailers(cx));
        Poll::Ready(trailers.transpose().map(|read| read.map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        (self.received.as_ref()).is_none_or(RecvStream::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.length
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.release();
        let received = self.received.take();
        if let Some(received) = received.filter(|received| !received.is_end_stream())
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(drain(received));
        }
    }
}
