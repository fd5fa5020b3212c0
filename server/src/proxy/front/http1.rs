//! HTTP/1.1 and HTTP/1.0, with a codec of our own.
//!
//! ```text
//! input --bytes--> Scan, parse --Head--> Asked --> the core
//!   |                                      ^ RequestBody: has the input until its end
//!   '---------- lent ----------------------'
//! output <--queue-- head, chunks <--- Interim, Response<ProxyBody> --- the core
//! ```
//!
//! One task serves a connection: requests one by one, in the order in which they came. While a
//! response is under way it reads ahead a little, and by that sees a browser go; what a browser
//! sends that nobody wants it throws away meanwhile, so that neither side waits for the other.
//!
//! The codec is strict where leniency could make the target read something else than was read here
//! (`head`, `chunked`): such a request is answered, its connection closed, and nothing of it goes
//! on. A connection that is closed is closed in two steps: the browser reads the answer to its end
//! before it can learn that nobody reads what it sends.

mod chunked;
mod head;
mod input;
mod output;
mod response;

use std::future::pending;
use std::pin::pin;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::{Response, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep, timeout_at};

use super::{Asked, Client, Interim, Interims, UpgradeSlot, Upgraded, request_body};
use crate::proxy::{Answer, Config, Proxy};
use crate::seats::Seat;
use head::{Head, HeadError, Scan};
use input::{Inbound, Patience};
use output::{Broke, Output};
use response::{Delimited, Persistence};

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
    let (read, write) = tokio::io::split(io);
    let mut connection = Connection {
        proxy,
        client,
        seat,
        inbound: Inbound::new(read),
        output: Output::new(write, proxy.config().stall_timeout),
        served: 0,
    };
    loop {
        match connection.turn().await {
            Turn::Next => connection.served += 1,
            Turn::End => return None,
            Turn::Upgrade(slot) => {
                let (io, early, seat) = connection.reclaim().await?;
                let io = Box::new(io);
                let _ = slot.send(Upgraded { io, early, seat });
                return None;
            }
            Turn::LooksWhole => return connection.reclaim().await.map(|(io, ..)| io),
        }
    }
}

/// What becomes of a connection after a request.
enum Turn {
    /// Another may follow.
    Next,
    /// It is over.
    End,
    /// It goes to the tunnel.
    Upgrade(tokio::sync::oneshot::Sender<Upgraded>),
    /// It must not be closed as it should be after a whole response.
    LooksWhole,
}

/// What comes for a connection that waits for a request.
enum Coming {
    Head(Box<Head>),
    Refused(HeadError),
    Nothing,
}

struct Connection<'p, I> {
    proxy: &'p Proxy,
    client: Client,
    seat: Option<Seat>,
    inbound: Inbound<ReadHalf<I>>,
    output: Output<WriteHalf<I>>,
    /// Requests so far.
    served: u64,
}

impl<I: AsyncRead + AsyncWrite + Unpin + Send + 'static> Connection<'_, I> {
    /// Takes the next request and answers it.
    async fn turn(&mut self) -> Turn {
        let head = match self.head().await {
            Coming::Head(head) => *head,
            Coming::Refused(error) => {
                self.refuse(error).await;
                return Turn::End;
            }
            Coming::Nothing => return Turn::End,
        };
        let config = self.proxy.config();
        let Head {
            parts,
            framing,
            keep_alive,
            expects,
            upgrade,
        } = head;
        let (method, version) = (parts.method.clone(), parts.version);
        let (interim, mut interims) = if version == Version::HTTP_11 {
            let (interim, interims) = Interim::channel();
            (interim, Some(interims))
        } else {
            (Interim::none(), None)
        };
        let (slot, connection) = upgrade.map(UpgradeSlot::new).unzip();
        let body = self.inbound.lend(framing, config.stall_timeout);
        let asked = Asked {
            head: parts,
            body: request_body(body),
            client: self.client,
            interim,
            upgrade: slot,
        };
        // Boxed, so that connections without a request have no room for one.
        let mut answer = Box::pin(self.proxy.answer(asked));
        let mut continued = false;
        let response = {
            let mut gone = pin!(gone(&mut self.inbound, config));
            loop {
                let interim = tokio::select! {
                    biased;
                    interim = next(interims.as_mut()) => interim,
                    response = &mut answer => break response,
                    () = &mut gone => return Turn::End,
                };
                continued |= interim.status() == StatusCode::CONTINUE;
                if self.output.interim(&interim).await.is_err() {
                    return Turn::End;
                }
            }
        };
        drop(answer);
        while let Some(interim) = interims.as_mut().and_then(|all| all.try_recv().ok()) {
            continued |= interim.status() == StatusCode::CONTINUE;
            if self.output.interim(&interim).await.is_err() {
                return Turn::End;
            }
        }

        let (mut parts, body) = response.into_parts();
        let known = output::known(&body);
        let (status, headers) = (parts.status, &mut parts.headers);
        let delimited = response::delimited(&method, version, status, headers, known);
        let whole = self.inbound.settled(patience(config)).now_or_never();
        // A browser that waits for a go-ahead and gets an answer may send its body all the same, or
        // not: what it sends next could be either.
        let unclear = expects && !continued && whole != Some(true);
        let keep = keep_alive
            && !unclear
            && whole != Some(false)
            && delimited != Delimited::Close
            && stopping(self.seat.as_ref()).now_or_never().is_none();
        let persistence = match version {
            _ if !keep => Persistence::Close,
            Version::HTTP_10 => Persistence::KeepAlive,
            _ => Persistence::Unsaid,
        };
        let response = Response::from_parts(parts, ());
        let date = Some(self.proxy.clock().now());
        self.output.head(&response, delimited, persistence, date);
        if let Some(connection) = connection
            && status == StatusCode::SWITCHING_PROTOCOLS
        {
            return match self.output.flush().await {
                Ok(()) => Turn::Upgrade(connection),
                Err(_) => Turn::End,
            };
        }
        let written = tokio::select! {
            biased;
            written = self.output.body(body, delimited) => written,
            () = gone(&mut self.inbound, config) => return Turn::End,
        };
        match written {
            Ok(()) => {}
            Err(Broke::Body) if delimited == Delimited::Close => return Turn::LooksWhole,
            Err(error) => {
                tracing::debug!("a browser's connection ends: {error}");
                return Turn::End;
            }
        }
        if !keep {
            self.output.shutdown().await;
        }
        // The target may want the rest of the body although it has answered.
        let settled = self.inbound.settled(patience(config)).await;
        if keep && settled {
            return Turn::Next;
        }
        if keep {
            self.output.shutdown().await;
        }
        let patience = if settled {
            brief(config)
        } else {
            patience(config)
        };
        if let Some(home) = self.inbound.home() {
            home.linger(patience).await;
        }
        Turn::End
    }

    /// Waits for the head of a request.
    async fn head(&mut self) -> Coming {
        let config = self.proxy.config();
        let Some(home) = self.inbound.home() else {
            return Coming::Nothing;
        };
        let closed = home.is_closed();
        let input = &mut home.input;
        if input.buffer.is_empty() {
            // Not to hold what a large body needed.
            input.buffer = BytesMut::new();
        }
        let mut scan = Scan::default();
        // On a new connection, the time for the head runs from the start.
        let mut begun = self.served == 0;
        let wait = if begun {
            config.head_timeout
        } else {
            config.idle_timeout
        };
        let mut deadline = Instant::now() + wait;
        loop {
            match scan.scan(&input.buffer) {
                Ok(None) => {}
                Ok(Some((range, next))) => {
                    let bytes = input.buffer.split_to(next).freeze();
                    return match head::parse(&bytes.slice(range)) {
                        Ok(head) => Coming::Head(Box::new(head)),
                        Err(error) => Coming::Refused(error),
                    };
                }
                Err(error) => return Coming::Refused(error),
            }
            if closed {
                return Coming::Nothing;
            }
            let idle = input.buffer.is_empty();
            if !idle && !begun {
                begun = true;
                deadline = Instant::now() + config.head_timeout;
            }
            let filled = tokio::select! {
                biased;
                filled = timeout_at(deadline, input.fill()) => filled,
                () = stopping(self.seat.as_ref()), if idle => return Coming::Nothing,
            };
            if !matches!(filled, Ok(Ok(1..))) {
                return Coming::Nothing;
            }
        }
    }

    /// Answers what is no request, and closes.
    async fn refuse(&mut self, error: HeadError) {
        tracing::debug!("a request's head is refused: {error}");
        let answer = match error {
            HeadError::Malformed(reason) => Answer::bad_request(reason),
            HeadError::LineTooLong => Answer::target_too_long(),
            HeadError::TooLarge => Answer::head_too_large(),
            HeadError::UnknownCoding => Answer::unknown_coding(),
            HeadError::Version => Answer::unknown_version(),
        };
        let (parts, body) = answer.into_response().into_parts();
        let mut response = Response::from_parts(parts, ());
        let (status, known) = (response.status(), output::known(&body));
        let (method, version) = (&http::Method::GET, Version::HTTP_11);
        let headers = response.headers_mut();
        let delimited = response::delimited(method, version, status, headers, known);
        let date = Some(self.proxy.clock().now());
        self.output
            .head(&response, delimited, Persistence::Close, date);
        if self.output.body(body, delimited).await.is_err() {
            return;
        }
        self.output.shutdown().await;
        if let Some(home) = self.inbound.home() {
            home.linger(patience(self.proxy.config())).await;
        }
    }

    /// The connection again, with what was read ahead. `None`: the runtime ends.
    async fn reclaim(self) -> Option<(I, Bytes, Option<Seat>)> {
        let input = self.inbound.into_home().await?.input;
        let io = input.io.unsplit(self.output.io);
        Some((io, input.buffer.freeze(), self.seat))
    }
}

/// Waits until the browser has closed its side, and a moment more: what is on its way may leave.
async fn gone<R: AsyncRead + Unpin>(inbound: &mut Inbound<R>, config: &Config) {
    inbound.settled(patience(config)).await;
    inbound.closed().await;
    sleep(config.half_closed).await;
}

/// The next informational response; never, if there is none.
async fn next(interims: Option<&mut Interims>) -> Box<Response<()>> {
    if let Some(interims) = interims
        && let Some(interim) = interims.recv().await
    {
        return interim;
    }
    pending().await
}

async fn stopping(seat: Option<&Seat>) {
    match seat {
        Some(seat) => seat.stopping().await,
        None => pending().await,
    }
}

/// With a browser that sends what nobody wants.
fn patience(config: &Config) -> Patience {
    Patience {
        whole: config.linger,
        idle: config.linger / 6,
    }
}

/// With a browser that has sent all it had to.
fn brief(config: &Config) -> Patience {
    Patience {
        whole: config.half_closed,
        idle: config.half_closed,
    }
}
