//! What the agent connects to on behalf of others: what the hub has exposed on this node, and what
//! an operator asks for, as far as the node's policy goes.
//!
//! ```text
//! Target --Targets: is it exposed?--> Places: where is it? --> Place --> a connection
//! ```
//!
//! The hub sends the list of what is exposed on the control stream and asks for connections on
//! operation streams, so either may arrive first. [`Targets`] holds the newest list; a request names
//! the revision that made it possible, and waits for it.

mod place;
mod places;

use std::time::Duration;

use hub_protocol::kind::{Failure, FailureCode};
use hub_protocol::session;
use hub_protocol::target::{Grant, Target};
use tokio::sync::watch;
use tokio::time::timeout;

pub use place::{Address, Place};
pub use places::Places;

/// How long a request waits for the list that allows it.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// The list of exposed targets. Clones share it. At first nothing is exposed.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    list: watch::Sender<session::Targets>,
}

/// A target that the agent does not connect to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotExposed {
    /// The list does not have it.
    #[error("{target} is not exposed on this node; `hub expose` exposes it")]
    NotListed {
        /// The target.
        target: Target,
    },
    /// The list that the request speaks of has not come.
    #[error(
        "whether {target} is exposed is not known yet: the list of exposures came to revision \
         {known}, and the request needs {wanted}; try again"
    )]
    Late {
        /// The target.
        target: Target,
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

    /// Whether the agent may connect to `target`: it is on a list of at least the revision that the
    /// grant names, which is waited for up to five seconds; or an operator asks.
    ///
    /// # Errors
    /// It may not, or nobody knows yet.
    pub async fn allowed(&self, target: &Target, grant: Grant) -> Result<(), NotExposed> {
        let Grant::Exposed { revision } = grant else {
            return Ok(());
        };
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
                target: target.clone(),
                known,
                wanted,
            });
        };
        if current.targets.contains(target) {
            Ok(())
        } else {
            Err(NotExposed::NotListed {
                target: target.clone(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use hub_protocol::target::{Selector, Transport};

    use super::*;

    fn list(revision: u64, ports: &[u16]) -> session::Targets {
        let targets = ports.iter().copied().map(Target::tcp).collect();
        session::Targets { revision, targets }
    }

    async fn allowed(targets: &Targets, port: u16, revision: u64) -> Result<(), NotExposed> {
        let grant = Grant::Exposed { revision };
        targets.allowed(&Target::tcp(port), grant).await
    }

    fn not_listed(port: u16) -> Result<(), NotExposed> {
        let target = Target::tcp(port);
        Err(NotExposed::NotListed { target })
    }

    #[tokio::test]
    async fn an_older_list_never_replaces_a_newer() {
        let targets = Targets::default();
        assert_eq!(allowed(&targets, 80, 0).await, not_listed(80));
        targets.update(list(3, &[80, 90]));
        targets.update(list(2, &[70]));
        assert_eq!(allowed(&targets, 80, 3).await, Ok(()));
        assert_eq!(allowed(&targets, 70, 2).await, not_listed(70));
        targets.update(list(4, &[90]));
        assert_eq!(allowed(&targets, 80, 3).await, not_listed(80));
    }

    #[tokio::test]
    async fn a_port_is_exposed_as_what_it_is() {
        let targets = Targets::default();
        targets.update(list(1, &[53]));
        let udp = Target {
            transport: Transport::Udp,
            ..Target::tcp(53)
        };
        let of_container = Target {
            container: Some(Selector::Name("web".into())),
            ..Target::tcp(53)
        };
        for target in [udp, of_container] {
            let asked = targets.allowed(&target, Grant::Exposed { revision: 1 });
            assert_eq!(asked.await, Err(NotExposed::NotListed { target }));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_its_list_but_not_for_ever() {
        let targets = Targets::default();
        let late = NotExposed::Late {
            target: Target::tcp(80),
            known: 0,
            wanted: 1,
        };
        assert_eq!(allowed(&targets, 80, 1).await, Err(late));
        let update = async {
            tokio::task::yield_now().await;
            targets.update(list(1, &[80]));
        };
        let (allowed, ()) = tokio::join!(allowed(&targets, 80, 1), update);
        assert_eq!(allowed, Ok(()));
    }
}
