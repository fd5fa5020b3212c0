//! Each end on a thread and a single-threaded runtime of its own, as the programs are.

use std::thread;

use tokio::sync::oneshot;

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// Runs a future on a thread and a runtime of its own; gives what it says when it is ready.
pub fn on_its_own<T: Send + 'static, F: Future<Output = ()> + 'static>(
    name: &str,
    work: impl FnOnce(oneshot::Sender<T>) -> F + Send + 'static,
) -> T {
    let (ready, is_ready) = oneshot::channel();
    thread::Builder::new()
        .name(name.into())
        .spawn(move || runtime().block_on(work(ready)))
        .unwrap();
    is_ready.blocking_recv().unwrap()
}

pub const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);
