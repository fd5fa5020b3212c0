//! Bodies that nobody wants.

use std::time::Duration;

use http_body::Body;
use http_body_util::BodyExt as _;
use tokio::time::timeout;

/// How long a body that nobody wants is read on for, so that its sender reads the response before
/// it learns that the connection is closed.
const LINGER: Duration = Duration::from_secs(30);

/// How long such a body may bring nothing.
const IDLE: Duration = Duration::from_secs(5);

/// Reads what nobody wants, for a while.
pub(crate) async fn linger<B: Body + Unpin>(mut body: B) {
    let _ = timeout(LINGER, async {
        while let Ok(Some(Ok(_))) = timeout(IDLE, body.frame()).await {}
    })
    .await;
}
