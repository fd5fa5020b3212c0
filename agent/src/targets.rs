//! What the hub has exposed on this node: the only ports that the agent connects to.
//!
//! The hub sends the list on the control stream and asks for connections on operation streams, so
//! either may arrive first. [`Targets`] holds the newest list; a request names the revision that
//! made it possible, and waits for it.

use std::time::Duration;

use hub_protocol::kind::{Failure, FailureCode};
use hub_protocol::session;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a request waits for the list that allows it.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// The list of exposed ports. Clones share it. At first nothing is exposed.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    list: watch::Sender<session::Targets>,
}

/// A port that the agent does not connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotExposed {
    /// The list does not have it.
    #[error("port {port} is not exposed on this node; `hub expose` exposes it")]
    NotListed {
        /// The port.
        port: u16,
    },
    /// The list that the request speaks of has not come.
    #[error(
        "whether port {port} is exposed is not known yet: the list of exposures came to revision \
         {known}, and the request needs {wanted}; try again"
    )]
    Late {
        /// The port.
        port: u16,
        /// The newest revision that came.
        known: u64,
        /// The least revision that the request needs.
        wanted: u64,
    },
}

impl From<NotExposed> for Failure {
    fn from(error: NotExposed) -> Self {
        Self {
            code: FailureCode::NOT_EXPOSED,
            message: error.to_string(),
            retry: matches!(error, NotExposed::Late { .. }),
        }
    }
}

impl Targets {
    /// Takes a list from the hub, unless it is older than the one there is.
    pub fn update(&self, targets: session::Targets) {
        self.list.send_if_modified(|list| {
            let newer = targets.revision >= list.revision && targets != *list;
            if newer {
                *list = targets;
            }
            newer
        });
    }

    /// Whether the agent may connect to `port`, by a list of at least this revision; waits for it
    /// up to five seconds.
    ///
    /// # Errors
    /// It may not, or nobody knows yet.
    pub async fn allowed(&self, port: u16, revision: u64) -> Result<(), NotExposed> {
        let mut list = self.list.subscribe();
        let current = timeout(
            LIST_TIMEOUT,
            list.wait_for(|list| list.revision >= revision),
        )
        .await;
        // The sender is `self`: it does not go away meanwhile.
        let Ok(Ok(current)) = current else {
            let known = self.list.borrow().revision;
            let wanted = revision;
            return Err(NotExposed::Late {
                port,
                known,
                wanted,
            });
        };
        if current.ports.contains(&port) {
            Ok(())
        } else {
            Err(NotExposed::NotListed { port })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(revision: u64, ports: &[u16]) -> session::Targets {
        let ports = ports.to_vec();
        session::Targets { revision, ports }
    }

    #[tokio::test]
    async fn an_older_list_never_replaces_a_newer() {
        let targets = Targets::default();
        assert_eq!(
            targets.allowed(80, 0).await,
            Err(NotExposed::NotListed { port: 80 })
        );
        targets.update(list(3, &[80, 90]));
        targets.update(list(2, &[70]));
        assert_eq!(targets.allowed(80, 3).await, Ok(()));
        assert_eq!(
            targets.allowed(70, 2).await,
            Err(NotExposed::NotListed { port: 70 })
        );
        targets.update(list(4, &[90]));
        assert_eq!(
            targets.allowed(80, 3).await,
            Err(NotExposed::NotListed { port: 80 })
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_its_list_but_not_for_ever() {
        let targets = Targets::default();
        let late = NotExposed::Late {
            port: 80,
            known: 0,
            wanted: 1,
        };
        assert_eq!(targets.allowed(80, 1).await, Err(late));
        let update = async {
            tokio::task::yield_now().await;
            targets.update(list(1, &[80]));
        };
        let (allowed, ()) = tokio::join!(targets.allowed(80, 1), update);
        assert_eq!(allowed, Ok(()));
    }
}
