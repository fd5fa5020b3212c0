//! Where the ledger's connection lives and who runs on it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rusqlite::Connection;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::error::StoreError;

/// How many jobs wait for the thread at most: more than that is a disk that does not keep up, and
/// whoever asks is told so instead of waiting behind all of them.
pub(super) const MAX_WAITING: usize = 1024;

/// Where the ledger's work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// On a thread of its own, so that a slow disk never holds up a session.
    Thread,
    /// On the caller, within the first poll: for simulated time, which knows no other threads.
    Inline,
}

pub(super) type Job = Box<dyn FnOnce(&mut Connection) + Send>;

pub(super) enum Order {
    Run(Job),
    Close(oneshot::Sender<Result<(), StoreError>>),
}

#[derive(Clone)]
pub(super) enum Executor {
    Thread(mpsc::Sender<Order>),
    Inline(Arc<Mutex<Option<Connection>>>),
}

impl Executor {
    /// Opens a connection where it is to live, with `open`, and gives what that gives beside it.
    pub(super) async fn start<T: Send + 'static>(
        execution: Execution,
        open: impl FnOnce() -> Result<(Connection, T), StoreError> + Send + 'static,
    ) -> Result<(Self, T), StoreError> {
        match execution {
            Execution::Inline => {
                let (connection, opened) = open()?;
                Ok((Self::Inline(Arc::new(Mutex::new(Some(connection)))), opened))
            }
            Execution::Thread => {
                let (orders, queue) = mpsc::channel(MAX_WAITING);
                let (reply, answer) = oneshot::channel();
                let thread = move || match open() {
                    Ok((connection, opened)) => {
                        // Nobody waits any more: the queue is gone too, and serving ends at once.
                        let _ = reply.send(Ok(opened));
                        serve(connection, queue);
                    }
                    Err(error) => {
                        let _ = reply.send(Err(error));
                    }
                };
                thread::Builder::new()
                    .name("ledger".into())
                    .spawn(thread)
                    .map_err(|error| StoreError::Io(format!("no thread for it: {error}")))?;
                let opened = answer.await.map_err(|_| StoreError::Closed)??;
                Ok((Self::Thread(orders), opened))
            }
        }
    }

    /// Runs a job, unless [`MAX_WAITING`] wait already ([`StoreError::Busy`]). One whose future is
    /// dropped after its first poll runs all the same.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        match self {
            Self::Inline(connection) => {
                let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
                job(connection.as_mut().ok_or(StoreError::Closed)?)
            }
            Self::Thread(orders) => {
                let (reply, answer) = oneshot::channel();
                let job = Box::new(move |connection: &mut Connection| {
                    let _ = reply.send(job(connection));
                });
                orders
                    .try_send(Order::Run(job))
                    .map_err(|refused| match refused {
                        TrySendError::Full(_) => StoreError::Busy,
                        TrySendError::Closed(_) => StoreError::Closed,
                    })?;
                answer.await.map_err(|_| StoreError::Closed)?
            }
        }
    }

    /// Closes the connection once all jobs before are done. Every later job finds it closed.
    pub(super) async fn close(&self) -> Result<(), StoreError> {
        match self {
            Self::Inline(connection) => {
                let connection = connection
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
                close(connection.ok_or(StoreError::Closed)?)
            }
            Self::Thread(orders) => {
                let (reply, answer) = oneshot::channel();
                orders
                    .send(Order::Close(reply))
                    .await
                    .map_err(|_| StoreError::Closed)?;
                answer.await.map_err(|_| StoreError::Closed)?
            }
        }
    }
}

fn serve(mut connection: Connection, mut queue: mpsc::Receiver<Order>) {
    while let Some(order) = queue.blocking_recv() {
        match order {
            Order::Run(job) => job(&mut connection),
            Order::Close(reply) => {
                let _ = reply.send(close(connection));
                return;
            }
        }
    }
}

fn close(connection: Connection) -> Result<(), StoreError> {
    connection.close().map_err(|(_, error)| error.into())
}
