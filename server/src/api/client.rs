//! The client behind a request, as far as handlers need to know it: whether it is still there, and
//! whether the hub still has time for it.

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::problem::{Kind, Problem};
use crate::hangup::Hangup;
use crate::seats::Seat;

/// Who asks. The connection puts it into every request.
#[derive(Debug, Clone)]
pub(super) struct Client {
    /// Tells when it is gone.
    pub(super) hangup: Hangup,
    /// What its connection holds of the listener.
    pub(super) seat: Seat,
}

impl<S: Send + Sync> FromRequestParts<S> for Client {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let client = parts.extensions.get::<Self>().cloned();
        client
            .ok_or_else(|| Problem::new(Kind::Internal, "the request came without its connection"))
    }
}

impl Client {
    /// What `work` gives, unless the client is gone first: then it is dropped, and nobody reads the
    /// problem.
    pub(super) async fn while_there<T>(&self, work: impl Future<Output = T>) -> Result<T, Problem> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.hangup.wait() => {
                Err(Problem::new(Kind::InvalidRequest, "the client is gone"))
            }
        }
    }
}
