//! Informational responses (1xx but 101) on their way from a target to the hub.
//!
//! ```text
//! connection --push--> Interim (bounded) --until--> Message::Informational, before the head
//! ```
//!
//! They come from a connection that has no way to hold them back, so there is a bound on all that
//! one request may have of them; a target that goes beyond it is broken.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use hub_protocol::kind;
use hub_protocol::kind::http::{Informational, Message, weight};
use hub_protocol::limits::MAX_HEAD;
use hub_quic::operation::Operation;
use tokio::sync::Notify;

use super::head;

/// The most informational responses to one request.
const MAX_RESPONSES: usize = 32;

/// More than one request may have, or larger: 32 responses, 64 KiB of headers in all.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Excess;

/// Those of one request.
#[derive(Default)]
pub(super) struct Interim {
    state: Mutex<State>,
    came: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Informational>,
    /// So many came in all, with so many bytes of headers.
    count: usize,
    weight: usize,
    continued: bool,
}

impl Interim {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it leaves a change half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one that came.
    pub(super) fn push(&self, status: StatusCode, headers: &HeaderMap) {
        let mut headers = head::lines(headers);
        headers.retain(|(name, _)| name[..] != *CONTENT_LENGTH.as_str().as_bytes());
        let mut state = self.lock();
        state.count += 1;
        state.weight += weight(&headers);
        state.continued |= status == StatusCode::CONTINUE;
        if !state.is_excessive() {
            let status = status.as_u16();
            state.waiting.push_back(Informational { status, headers });
        }
        drop(state);
        self.came.notify_one();
    }

    /// Whether the target has asked for the body with a 100.
    pub(super) fn continued(&self) -> bool {
        self.lock().continued
    }

    /// What `response` gives. Passes on what comes until then, and first what came before it.
    pub(super) async fn until<T>(
        &self,
        operation: &Operation,
        response: impl Future<Output = T>,
    ) -> Result<T, Excess> {
        let passing = async {
            loop {
                self.pass_on(operation).await?;
                self.came.notified().await;
            }
        };
        let response = tokio::select! {
            biased;
            response = response => response,
            excess = passing => return excess,
        };
        self.pass_on(operation).await?;
        Ok(response)
    }

    /// Passes on what waits, as far as the hub takes it. Can be given up at any point.
    async fn pass_on(&self, operation: &Operation) -> Result<(), Excess> {
        while let Some(next) = self.next()? {
            let message = kind::encode(&Message::Informational(next));
            // An operation that ended is the business of whoever carries it.
            if operation.send_message(message).await.is_err() {
                return Ok(());
            }
            self.lock().waiting.pop_front();
        }
        Ok(())
    }

    fn next(&self) -> Result<Option<Informational>, Excess> {
        let state = self.lock();
        if state.is_excessive() {
            return Err(Excess);
        }
        Ok(state.waiting.front().cloned())
    }
}

impl State {
    fn is_excessive(&self) -> bool {
        self.count > MAX_RESPONSES || self.weight > MAX_HEAD
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn there_is_an_end_to_them() {
        let interim = Interim::default();
        let mut headers = HeaderMap::new();
        headers.insert("link", HeaderValue::from_static("</a>"));
        headers.insert("connection", HeaderValue::from_static("close"));
        headers.insert("content-length", HeaderValue::from_static("5"));
        interim.push(StatusCode::EARLY_HINTS, &headers);
        assert!(!interim.continued());
        let first = interim.next().ok().flatten().map(|next| next.headers);
        assert_eq!(first, Some(vec![("link".into(), "</a>".into())]));
        for _ in 1..MAX_RESPONSES {
            interim.push(StatusCode::CONTINUE, &HeaderMap::new());
        }
        assert!(interim.continued() && interim.next().is_ok());
        interim.push(StatusCode::CONTINUE, &HeaderMap::new());
        assert_eq!(interim.next().err(), Some(Excess));
        assert_eq!(interim.lock().waiting.len(), MAX_RESPONSES);

        let interim = Interim::default();
        if let Ok(value) = HeaderValue::try_from("x".repeat(MAX_HEAD)) {
            headers.insert("x", value);
        }
        interim.push(StatusCode::EARLY_HINTS, &headers);
        assert_eq!(interim.next().err(), Some(Excess));
        assert!(interim.lock().waiting.is_empty());
    }
}
