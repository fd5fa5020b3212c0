//! Looks up where targets are: containers by name or label, at the daemon, and judges them.
//!
//! ```text
//! Target --> machine: its port
//!        --> container: look it up --> may it be touched? does it run? --> whose network? --> Place
//! ```
//!
//! A new connection is made to what was looked up for it. So a container that was made anew is
//! found, and one that lost its address to another is never taken for it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::models::{ContainerInspectResponse, ContainerSummary};
use bollard::query_parameters::ListContainersOptionsBuilder;
use hub_protocol::kind::{Failure, FailureCode};
use hub_protocol::target::{Selector, Target};
use tokio::time::Instant;

use super::place::{Network, Place, missing, runs};
use crate::engine::{Engine, find, look, names, time};
use crate::operations::no_engine;
use crate::policy::{Policy, Subject, labels_of, name_of};

/// For how long a connection that is kept may be used without a new look at its container. It leads
/// to what was judged when it was made, whatever has become of the name.
const RECENT: Duration = Duration::from_secs(1);

/// How many containers one after the other may use each other's network.
const MAX_CHAIN: usize = 8;

/// How many running containers of one label are looked at, the newest first.
const MAX_LABELLED: usize = 64;

/// Finds targets. Clones share what they know. By itself it finds ports of the machine only.
#[derive(Clone, Default)]
pub struct Places {
    shared: Arc<Shared>,
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Places").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Shared {
    engine: Option<Engine>,
    policy: Arc<Policy>,
    recent: Mutex<BTreeMap<Target, (Instant, Place)>>,
}

impl Places {
    /// Finds containers of this engine, if there is one, that the policy allows.
    pub fn new(engine: Option<Engine>, policy: Arc<Policy>) -> Self {
        Self {
            shared: Arc::new(Shared {
                engine,
                policy,
                recent: Mutex::default(),
            }),
        }
    }

    /// Where a target is now, for a new connection.
    ///
    /// # Errors
    /// There is no such container, it does not run, the policy forbids it, it has no address, or
    /// the daemon does not say.
    pub async fn find(&self, target: &Target) -> Result<Place, Failure> {
        let Some(selector) = &target.container else {
            return Ok(Place::machine(target.port));
        };
        // What the daemon says of a container is large.
        let place = Box::pin(self.look_up(target, selector)).await?;
        let now = Instant::now();
        let recent = self.shared.recent.lock();
        let mut recent = recent.unwrap_or_else(PoisonError::into_inner);
        recent.retain(|_, (since, _)| now - *since < RECENT);
        recent.insert(target.clone(), (now, place.clone()));
        Ok(place)
    }

    async fn look_up(&self, target: &Target, selector: &Selector) -> Result<Place, Failure> {
        let Some(engine) = &self.shared.engine else {
            return Err(no_engine("connections to containers"));
        };
        let search = Search {
            engine,
            policy: &self.shared.policy,
        };
        let container = match selector {
            Selector::Name(name) => search.named(name).await?,
            Selector::Label(label) => search.labelled(label).await?,
        };
        let container = container.ok_or_else(|| missing(selector))?;
        runs(&container)?;
        search.place(&container, target).await
    }

    /// Where a target is or was a second ago, for a connection that is kept.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn find_kept(&self, target: &Target) -> Result<Place, Failure> {
        let recent = {
            let recent = self.shared.recent.lock();
            let recent = recent.unwrap_or_else(PoisonError::into_inner);
            let fresh = |(since, _): &&(Instant, Place)| since.elapsed() < RECENT;
            recent
                .get(target)
                .filter(fresh)
                .map(|(_, place)| place.clone())
        };
        match recent {
            Some(place) => Ok(place),
            None => self.find(target).await,
        }
    }
}

/// One look-up.
struct Search<'a> {
    engine: &'a Engine,
    policy: &'a Policy,
}

impl Search<'_> {
    async fn inspect(&self, name: &str) -> Result<Option<ContainerInspectResponse>, Failure> {
        match names::container(name) {
            Some(name) => find(self.engine.docker().inspect_container(name, None)).await,
            None => Ok(None),
        }
    }

    /// The container of a name, if it may be touched.
    async fn named(&self, name: &str) -> Result<Option<ContainerInspectResponse>, Failure> {
        let found = self.inspect(name).await?;
        if let Some(container) = &found {
            self.judge(container)?;
        }
        Ok(found)
    }

    fn judge(&self, container: &ContainerInspectResponse) -> Result<(), Failure> {
        let (name, labels) = (name_of(container), labels_of(container));
        let subject = Subject {
            name: &name,
            labels: &labels,
        };
        self.policy.may(self.policy.check_container(subject))
    }

    /// Of the containers with a label that may be touched, the running one that was started last.
    async fn labelled(&self, label: &str) -> Result<Option<ContainerInspectResponse>, Failure> {
        if label.is_empty() || label.starts_with('=') {
            let message = "a label without a key; it is KEY or KEY=VALUE";
            return Err(Failure::new(FailureCode::INVALID, message));
        }
        let filters = HashMap::from([("label", vec![label])]);
        let options = ListContainersOptionsBuilder::new()
            .all(true)
            .filters(&filters)
            .build();
        let listed = look(self.engine.docker().list_containers(Some(options))).await?;
        let shown: Vec<_> = listed.iter().filter(|one| self.shows(one)).collect();
        if let (Some(hidden), true) = (listed.first(), shown.is_empty()) {
            let (name, labels) = summary(hidden);
            let subject = Subject {
                name: &name,
                labels: &labels,
            };
            self.policy.may(self.policy.check_container(subject))?;
        }
        let running = shown.iter().filter(|one| {
            let state = one.state.map(|state| state.to_string());
            state.as_deref() == Some("running")
        });
        let mut newest: Option<(Option<i64>, ContainerInspectResponse)> = None;
        for one in running.take(MAX_LABELLED) {
            // It may be gone, or have ended, since it was listed.
            let Some(found) = self.inspect(one.id.as_deref().unwrap_or_default()).await? else {
                continue;
            };
            let state = found.state.as_ref();
            let started = state.and_then(|state| time::nanoseconds(state.started_at.as_deref()?));
            if runs(&found).is_ok() && newest.as_ref().is_none_or(|(last, _)| started > *last) {
                newest = Some((started, found));
            }
        }
        match (newest, shown.len()) {
            (Some((_, found)), _) => Ok(Some(found)),
            (None, 0) => Ok(None),
            (None, _) => {
                let names: Vec<_> = shown.iter().take(8).map(|one| summary(one).0).collect();
                let message = format!(
                    "no container labelled {label:?} runs; there are {}; `hub start` starts one",
                    names.join(", ")
                );
                Err(Failure::new(FailureCode::NOT_RUNNING, message).retry())
            }
        }
    }

    fn shows(&self, listed: &ContainerSummary) -> bool {
        let (name, labels) = summary(listed);
        self.policy.shows(Subject {
            name: &name,
            labels: &labels,
        })
    }

    /// Where a container's port is. Whoever shares a network with others speaks for all of them.
    async fn place(
        &self,
        container: &ContainerInspectResponse,
        target: &Target,
    ) -> Result<Place, Failure> {
        let mut network = container.clone();
        for _ in 0..MAX_CHAIN {
            let Network::Container(other) = Network::of(&network) else {
                if Network::of(&network) == Network::Machine {
                    let (transport, port) = (target.transport, target.port);
                    self.policy.may(self.policy.check_port(transport, port))?;
                }
                return Place::of(container, &network, target);
            };
            let Some(found) = self.named(other).await? else {
                break;
            };
            network = found;
        }
        let message = format!(
            "{target} can't be reached: the container whose network {} uses is gone",
            name_of(container)
        );
        Err(Failure::new(FailureCode::TARGET_REFUSED, message))
    }
}

/// Name and labels of a container in a list.
fn summary(listed: &ContainerSummary) -> (String, BTreeMap<String, String>) {
    let name = listed.names.as_deref().and_then(names::own);
    let labels = listed.labels.clone().into_iter().flatten();
    (name.unwrap_or_default().to_owned(), labels.collect())
}

#[cfg(test)]
mod tests;
