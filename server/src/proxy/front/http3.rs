//! HTTP/3, on the `h3` crate over quinn.
//!
//! ```text
//! UDP --> endpoint --> a task for each connection --accept--> a task for each stream --> the core
//! ```
//!
//! What waits of a request is what the browser sent within QUIC's window of its stream, and one
//! piece of the response. The endpoint is the browsers' own: agents have another socket.
//!
//! The library does not tell that a browser takes a request back until something is written.
//! While a response's body has nothing to send, a frame without content is written from time to
//! time; before there is a response, only the end of the connection is seen. WebSockets stay with
//! HTTP/1.1 and HTTP/2, which browsers use by themselves where this is not offered.

use std::future::poll_fn;
use std::io;
use std::net::UdpSocket;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use h3::error::{Code, StreamError};
use h3::server::{RequestResolver, RequestStream};
use h3_quinn::{BidiStream, RecvStream, SendStream};
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hub_protocol::limits::MAX_HEAD;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use rustls::server::ResolvesServerCert;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::multiplexed::{self, Checked};
use super::{Asked, Client, Interim, request_body};
use crate::proxy::Proxy;
use crate::proxy::body::ProxyBody;
use crate::proxy::client::Scheme;
use crate::seats::{Seat, Seats};
use crate::tls::server_config;

/// Requests at once on one connection.
const STREAMS: u32 = 128;

/// Streams in one direction: control, both of header compression, and some that mean nothing.
const ONE_WAY: u32 = 8;

/// What a browser may send of one request before it is taken, in bytes.
const WINDOW: u32 = 256 * 1024;

/// What waits to be confirmed by the browser, of all responses of a connection, in bytes.
const SEND_WINDOW: u64 = 4 * 1024 * 1024;

/// How large a head may be for the library, which counts 32 bytes more for each line, and whose
/// refusal says nothing: smaller ones that are too large are answered by the core.
const HEAD: u64 = 2 * MAX_HEAD as u64;

/// How many requests more may be taken back than were answered.
const TAKEN_BACK: u32 = 200;

/// How long a connection is kept whose other end has gone silent.
const IDLE: Duration = Duration::from_secs(60);

/// How often the browser's end of a connection is asked whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// How long a browser may take to have the last answers, once the connection is over.
const FAREWELL: Duration = Duration::from_secs(5);

/// How often a response that has nothing to send finds out whether it is still wanted.
const PROBE: Duration = Duration::from_secs(15);

/// How much of a response is handed to QUIC at once, in bytes.
const PIECE: usize = 16 * 1024;

type Outbound = RequestStream<SendStream<Bytes>, Bytes>;
type Inbound = RequestStream<RecvStream, Bytes>;

/// How a stream came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Answered,
    /// The browser took it back, or is gone.
    TakenBack,
}

/// An endpoint for browsers on this socket.
pub(in crate::proxy) fn endpoint(
    socket: UdpSocket,
    certificates: Arc<dyn ResolvesServerCert>,
) -> io::Result<Endpoint> {
    let mut tls = server_config(certificates, &[b"h3"]);
    // What comes before the handshake's end could be repeated by anybody.
    tls.max_early_data_size = 0;
    let tls = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(ONE_WAY))
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW * STREAMS))
        .send_window(SEND_WINDOW)
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(IDLE.try_into().map_err(io::Error::other)?))
        .keep_alive_interval(Some(KEEP_ALIVE));
    let mut config = ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(Arc::new(transport));
    let runtime = Arc::new(TokioRuntime);
    Endpoint::new(EndpointConfig::default(), Some(config), socket, runtime)
}

/// Serves browsers until `stop`; then lets requests under way go on as far as `seats` does.
pub(in crate::proxy) async fn serve(
    proxy: &Proxy,
    endpoint: Endpoint,
    seats: Seats,
    stop: impl Future<Output = ()>,
) {
    let mut stop = pin!(stop);
    loop {
        let next = async {
            let seat = seats.free().await;
            (endpoint.accept().await, seat)
        };
        let (incoming, seat) = tokio::select! {
            biased;
            () = &mut stop => break,
            next = next => next,
        };
        let Some(incoming) = incoming else { break };
        if seats.are_scarce() && !incoming.remote_address_validated() {
            // Whoever only claims an address does not get to take a seat.
            let _ = incoming.retry();
            continue;
        }
        let Some(seat) = proxy.admit(seat, incoming.remote_address().ip()) else {
            incoming.refuse();
            continue;
        };
        let proxy = proxy.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = connection(&proxy, incoming, &seat) => {}
                () = seat.cut() => {}
            }
        });
    }
    endpoint.set_server_config(None);
    seats.vacate().await;
    endpoint.close(VarInt::from_u32(0x100), b"the hub is stopping");
    let _ = timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
}

async fn connection(proxy: &Proxy, incoming: Incoming, seat: &Seat) {
    let patience = proxy.config().head_timeout;
    let connected = async {
        let connection = incoming.accept().ok()?.await.ok()?;
        let client = Client {
            scheme: Scheme::Https,
            ..Client::plain(connection.remote_address())
        };
        let mut builder = h3::server::builder();
        let builder = builder.max_field_section_size(HEAD);
        let connection = builder.build(h3_quinn::Connection::new(connection)).await;
        Some((connection.ok()?, client))
    };
    let connected = tokio::select! {
        connected = timeout(patience, connected) => connected,
        // Nothing was asked yet.
        () = seat.stopping() => return,
    };
    let Ok(Some((mut connection, client))) = connected else {
        return;
    };
    let patience = proxy.config().idle_timeout;
    let (mut stopping, mut idle) = (pin!(seat.stopping()), pin!(sleep(patience)));
    let mut streams = JoinSet::new();
    let (mut leaving, mut taken_back) = (false, 0_u32);
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!("a browser's connection ended: {error}");
                    break;
                }
                Ok(Some(resolver)) => {
                    let proxy = proxy.clone();
                    streams.spawn(async move { carry(&proxy, resolver, client).await });
                }
            },
            Some(ended) = streams.join_next() => {
                match ended {
                    Ok(Ended::TakenBack) => taken_back += 1,
                    _ => taken_back = taken_back.saturating_sub(1),
                }
                if taken_back > TAKEN_BACK {
                    tracing::debug!("a browser takes back request after request");
                    break;
                }
                let patience = if leaving { FAREWELL } else { patience };
                idle.as_mut().reset(Instant::now() + patience);
            }
            () = &mut stopping, if !leaving => {
                leaving = true;
                let _ = connection.shutdown(0).await;
                idle.as_mut().reset(Instant::now() + FAREWELL);
            }
            () = &mut idle, if streams.is_empty() => {
                if leaving {
                    break;
                }
                leaving = true;
                let _ = connection.shutdown(0).await;
                idle.as_mut().reset(Instant::now() + FAREWELL);
            }
        }
    }
}

/// Carries one request and its response.
async fn carry(
    proxy: &Proxy,
    resolver: RequestResolver<h3_quinn::Connection, Bytes>,
    client: Client,
) -> Ended {
    let patience = proxy.config().head_timeout;
    let resolved = timeout(patience, resolver.resolve_request()).await;
    let Ok(Ok((request, stream))) = resolved else {
        return Ended::TakenBack;
    };
    let method = request.method().clone();
    let (send, receive) = RequestStream::<BidiStream<Bytes>, Bytes>::split(stream);
    match answer(proxy, request, receive, client, send).await {
        Ok((response, send)) => {
            let idle = proxy.response_idle();
            send_response(send, response, &method, idle).await
        }
        Err(Gone) => Ended::TakenBack,
    }
}

/// The browser takes no more of a stream.
struct Gone;

async fn answer(
    proxy: &Proxy,
    request: Request<()>,
    receive: Inbound,
    client: Client,
    mut send: Outbound,
) -> Result<(Response<ProxyBody>, Outbound), Gone> {
    let (head, ()) = request.into_parts();
    let mut upload = Upload::new(receive);
    if !multiplexed::brings_a_body(&head) {
        // Whether it does all the same says only the end of the stream, which comes at once.
        let first = timeout(
            proxy.config().head_timeout,
            poll_fn(|cx| upload.poll_first(cx)),
        )
        .await;
        if let Ok(Err(_)) = first {
            return Err(Gone);
        }
    }
    let checked = multiplexed::check(head, upload.ended(), None, [0; 16]);
    let Checked { head, length, .. } = match checked {
        Ok(checked) => checked,
        Err(answer) => return Ok((answer.into_response(), send)),
    };
    upload.length = length;
    let (interim, mut interims) = Interim::channel();
    let asked = Asked {
        head,
        body: request_body(upload),
        client,
        interim,
        upgrade: None,
    };
    let mut answer = pin!(proxy.answer(asked));
    let response = loop {
        tokio::select! {
            biased;
            Some(interim) = interims.recv() => inform(&mut send, *interim).await?,
            response = &mut answer => break response,
        }
    };
    while let Ok(interim) = interims.try_recv() {
        inform(&mut send, *interim).await?;
    }
    Ok((multiplexed::plain(response), send))
}

async fn inform(send: &mut Outbound, interim: Response<()>) -> Result<(), Gone> {
    let sent = send.send_response(multiplexed::plain(interim)).await;
    sent.map_err(|_| Gone)
}

/// Sends a response. Whatever was not read of the request by then is not wanted.
async fn send_response(
    mut send: Outbound,
    response: Response<ProxyBody>,
    method: &Method,
    idle: Duration,
) -> Ended {
    let (head, body) = response.into_parts();
    let ends = body.is_end_stream() || multiplexed::bodyless(method, head.status);
    let sent = async {
        let head = Response::from_parts(head, ());
        send.send_response(head).await.map_err(|_| Gone)?;
        if ends {
            send.finish().await.map_err(|_| Gone)
        } else {
            send_body(&mut send, body, idle).await
        }
    };
    match sent.await {
        Ok(()) => Ended::Answered,
        Err(Gone) => Ended::TakenBack,
    }
}

/// Sends a body, of which the browser may take nothing for `idle` at most.
async fn send_body(send: &mut Outbound, mut body: ProxyBody, idle: Duration) -> Result<(), Gone> {
    loop {
        let Ok(frame) = timeout(PROBE, body.frame()).await else {
            send.send_data(Bytes::new()).await.map_err(|_| Gone)?;
            continue;
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(_)) => {
                // It has been logged. The browser must not take what it has for all of it.
                send.stop_stream(Code::H3_INTERNAL_ERROR);
                return Ok(());
            }
            None => break,
        };
        match frame.into_data() {
            Ok(mut bytes) => {
                while !bytes.is_empty() {
                    let piece = bytes.split_to(bytes.len().min(PIECE));
                    let Ok(sent) = timeout(idle, send.send_data(piece)).await else {
                        send.stop_stream(Code::H3_REQUEST_CANCELLED);
                        return Err(Gone);
                    };
                    sent.map_err(|_| Gone)?;
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    send.send_trailers(trailers).await.map_err(|_| Gone)?;
                    break;
                }
            }
        }
    }
    send.finish().await.map_err(|_| Gone)
}

/// The body of a request.
struct Upload {
    receive: Inbound,
    length: Option<u64>,
    /// What came first, if that was asked for.
    first: Option<Bytes>,
    data: bool,
    /// Bytes so far.
    received: u64,
}

/// Why a request's body is not whole.
#[derive(Debug, thiserror::Error)]
enum Broke {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("it is not as long as its head announced")]
    Length,
}

impl Upload {
    fn new(receive: Inbound) -> Self {
        Self {
            receive,
            length: None,
            first: None,
            data: true,
            received: 0,
        }
    }

    /// Whether it is known that there is nothing.
    fn ended(&self) -> bool {
        !self.data && self.received == 0
    }

    /// Waits for the first piece, or the end.
    fn poll_first(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broke>> {
        self.first = ready!(self.poll_data(cx))?;
        Poll::Ready(Ok(()))
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Broke>> {
        while self.data {
            match ready!(self.receive.poll_recv_data(cx))? {
                Some(mut piece) => {
                    let bytes = piece.copy_to_bytes(piece.remaining());
                    self.received += bytes.len() as u64;
                    if !bytes.is_empty() {
                        return Poll::Ready(Ok(Some(bytes)));
                    }
                }
                None => self.data = false,
            }
        }
        Poll::Ready(Ok(None))
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Broke;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broke>>> {
        let data = match self.first.take() {
            Some(first) => Some(first),
            None => ready!(self.poll_data(cx))?,
        };
        if self.length.is_some_and(|length| {
            self.received > length || (data.is_none() && self.received < length)
        }) {
            return Poll::Ready(Some(Err(Broke::Length)));
        }
        if let Some(bytes) = data {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let trailers = ready!(self.receive.poll_recv_trailers(cx))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.length.map(SizeHint::with_exact);
        length.unwrap_or_default()
    }
}
