//! Comes back to a kept command: hands the operation to the command's task, which answers it as
//! [`exec`](super::exec) would.

use hub_protocol::kind::exec::Attach;
use hub_quic::operation::Operation;

use super::kept::Kept;

/// Carries out one attach.
pub async fn run(operation: Operation, open: Attach, kept: &Kept) {
    kept.attach(operation, open).await;
}
