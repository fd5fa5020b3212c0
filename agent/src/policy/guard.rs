//! Judges what the hub asks before anything is done, and passes on what was judged.
//!
//! A name can come to mean another container between the judgement and the deed. So where containers
//! are chosen, the name is resolved first, the container of that id is judged, and the operation gets
//! the id. What is not there when it is judged is not there for the operation either.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::ContainerInspectResponse;
use bytes::Bytes;
use hub_protocol::kind::call::container::Create;
use hub_protocol::kind::call::network::{Connect, Remove};
use hub_protocol::kind::call::{self, Call};
use hub_protocol::kind::records::{FollowStats, Logs};
use hub_protocol::kind::transfer::{CopyIn, CopyOut};
use hub_protocol::kind::{
    self, Failure, FailureCode, OperationKind, Request, exec, http, tcp, udp,
};
use hub_protocol::target::{Grant, Target};
use tokio::time::timeout;

use super::{HOST, JOINS, Peer, Policy, Subject, bind, binds};
use crate::engine::{Engine, names};

/// How long the daemon may take to say what a container or a network is.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// How many containers one after the other may use each other's network.
const MAX_CHAIN: usize = 8;

/// An id that no container has: what was not there when it was judged.
const NOBODY: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Whoever stands before the operations: a policy, and the daemon that knows the facts.
#[derive(Debug, Clone, Copy)]
pub struct Guard<'a> {
    /// What may be done.
    pub policy: &'a Policy,
    /// The Docker Engine, where the node has one.
    pub engine: Option<&'a Engine>,
}

impl Guard<'_> {
    /// Judges an operation by the body of its `Open`; gives the body to carry it out with.
    ///
    /// # Errors
    /// The policy forbids it, the body can't be read, there is no such container, or the daemon does
    /// not say what is to be known of it.
    pub async fn admit(&self, kind: OperationKind, body: &Bytes) -> Result<Bytes, Failure> {
        if kind == OperationKind::Call {
            return self.call(body).await;
        }
        self.may(self.policy.check_operation(kind.name()))?;
        match kind {
            OperationKind::Exec => self.exec(body).await,
            OperationKind::Logs => self.of(body, |logs: &mut Logs| &mut logs.container).await,
            OperationKind::Stats => {
                self.of(body, |watch: &mut FollowStats| &mut watch.container)
                    .await
            }
            OperationKind::CopyOut => {
                self.of(body, |copy: &mut CopyOut| &mut copy.container)
                    .await
            }
            OperationKind::CopyIn => self.of(body, |copy: &mut CopyIn| &mut copy.container).await,
            OperationKind::Http => {
                self.target(body, |open: &http::Open| (&open.target, open.grant))
            }
            OperationKind::Tcp => self.target(body, |open: &tcp::Open| (&open.target, open.grant)),
            OperationKind::Udp => self.target(body, |open: &udp::Open| (&open.target, open.grant)),
            // The first three name no container. Kept commands were judged when they began, by the
            // same policy; events are judged one by one.
            OperationKind::Build
            | OperationKind::Save
            | OperationKind::Load
            | OperationKind::Attach
            | OperationKind::Events
            | OperationKind::DockerSocket
            | OperationKind::Call => Ok(body.clone()),
        }
    }

    /// What connects to a target. Its container is judged when it is looked up, which
    /// may be long after this: see [`Places`](crate::targets::Places).
    fn target<R: Request>(
        &self,
        body: &Bytes,
        target: impl Fn(&R) -> (&Target, Grant),
    ) -> Result<Bytes, Failure> {
        if self.policy.chooses_targets() {
            let request = R::from_body(body)?;
            let (target, grant) = target(&request);
            self.may(self.policy.check_target(target, grant))?;
        }
        Ok(body.clone())
    }

    fn may(&self, verdict: Result<(), super::Refusal>) -> Result<(), Failure> {
        self.policy.may(verdict)
    }

    async fn exec(&self, body: &Bytes) -> Result<Bytes, Failure> {
        let mut open = exec::Open::from_body(body)?;
        let Some(container) = &mut open.container else {
            self.may(self.policy.check_host_exec())?;
            return Ok(body.clone());
        };
        if !self.policy.chooses_containers() {
            return Ok(body.clone());
        }
        *container = self.there(container).await?;
        Ok(open.to_body())
    }

    /// An operation that is about the container which `container` finds in its body.
    async fn of<R: Request>(
        &self,
        body: &Bytes,
        container: impl Fn(&mut R) -> &mut String,
    ) -> Result<Bytes, Failure> {
        if !self.policy.chooses_containers() {
            return Ok(body.clone());
        }
        let mut request = R::from_body(body)?;
        let name = container(&mut request);
        *name = self.there(name).await?;
        Ok(request.to_body())
    }

    async fn call(&self, body: &Bytes) -> Result<Bytes, Failure> {
        let mut open = call::Open::from_body(body)?;
        self.may(self.policy.check_operation(&open.method))?;
        if open.method == Create::METHOD {
            let create = self.create(open.params()?).await?;
            open.params = kind::to_json(&create);
            return Ok(open.to_body());
        }
        if open.method == Connect::METHOD {
            let connect: Connect = open.params()?;
            if self.is_host(&connect.network).await? {
                self.may(self.policy.check_host_network())?;
            }
        }
        if !self.policy.chooses_containers() {
            return Ok(body.clone());
        }
        if open.method == Remove::METHOD {
            let remove: Remove = open.params()?;
            self.detaches(&remove).await?;
        }
        // Whatever names a container has it under one name.
        let Ok(mut params) = serde_json::from_slice::<serde_json::Value>(&open.params) else {
            // The call says what is wrong with it, and does nothing.
            return Ok(body.clone());
        };
        if !params.is_object() {
            let why = format!(
                "a malformed {:?}: its parameters are no object",
                open.method
            );
            return Err(Failure::new(FailureCode::INVALID, why));
        }
        if let Some(serde_json::Value::String(container)) = params.get_mut("container") {
            // "It is not there" is an answer of the call.
            *container = self
                .resolve(container)
                .await?
                .unwrap_or_else(|| NOBODY.to_owned());
        }
        // Of a name that is there twice the call would take neither or the other: it gets one.
        open.params = kind::to_json(&params);
        Ok(open.to_body())
    }

    /// The id of a container that may be touched.
    async fn there(&self, name: &str) -> Result<String, Failure> {
        self.resolve(name).await?.ok_or_else(|| {
            let name: String = name.chars().take(128).collect();
            let message = format!("there is no container {name:?} on this node");
            Failure::new(FailureCode::NO_SUCH_CONTAINER, message)
        })
    }

    /// The id of a container that may be touched; `None` if it is not there.
    async fn resolve(&self, name: &str) -> Result<Option<String>, Failure> {
        let Some(container) = self.inspect(name).await? else {
            return Ok(None);
        };
        let (name, labels) = (name_of(&container), labels_of(&container));
        let subject = Subject {
            name: &name,
            labels: &labels,
        };
        self.may(self.policy.check_container(subject))?;
        Ok(container.id)
    }

    async fn inspect(&self, name: &str) -> Result<Option<ContainerInspectResponse>, Failure> {
        match (self.engine, names::container(name)) {
            (Some(engine), Some(name)) => look(engine.docker().inspect_container(name, None)).await,
            // Without an engine there are no containers; without such a name there is none of it.
            _ => Ok(None),
        }
    }

    /// Judges a container that is to be created; gives it with ids and canonical paths.
    async fn create(&self, mut create: Create) -> Result<Create, Failure> {
        if create.name.starts_with('/') {
            create.name.remove(0);
        }
        let peer = match create
            .network_mode
            .as_deref()
            .and_then(|mode| mode.strip_prefix(JOINS))
        {
            Some(name) if self.policy.container_network => self.peer(name).await?,
            _ => None,
        };
        let mut on_host = false;
        if !self.policy.host_network {
            let attached = create.network.as_ref().map(|network| &network.name);
            for name in create.network_mode.iter().chain(attached) {
                on_host |= !name.starts_with(JOINS) && self.is_host(name).await?;
            }
        }
        let real = self.real_paths(&create).await?;
        let real = |path: &Path| match real.get(path) {
            Some(Ok(real)) => Ok(real.clone()),
            Some(Err(error)) => Err(io::Error::other(error.clone())),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        let (id, peer) = peer.unzip();
        let verdict = self
            .policy
            .check_create(&create, &real, peer.as_ref(), on_host);
        self.may(verdict)?;
        if let Some(id) = id {
            create.network_mode = Some(format!("{JOINS}{id}"));
        }
        for mount in create.mounts.iter_mut().filter(|mount| binds(mount)) {
            // Under a policy without rules it need not be there.
            if let Ok(path) = real(Path::new(&mount.source))
                && let Some(path) = path.to_str()
            {
                path.clone_into(&mut mount.source);
            }
        }
        Ok(create)
    }

    /// Where the paths of a request and those of the policy lead.
    async fn real_paths(
        &self,
        create: &Create,
    ) -> Result<HashMap<PathBuf, Result<PathBuf, String>>, Failure> {
        let sources = create.mounts.iter().filter(|mount| binds(mount));
        let sources = sources.map(|mount| PathBuf::from(&mount.source));
        let mut paths: BTreeSet<_> = sources.filter(|path| bind::is_plain(path)).collect();
        if paths.is_empty() || self.policy.everything {
            return Ok(HashMap::new());
        }
        paths.extend(self.policy.bind_mounts.iter().cloned());
        // A file system of the network may take its time.
        let resolve = move || {
            let real = paths.into_iter().map(|path| {
                let real = bind::real(&path).map_err(|error| error.to_string());
                (path, real)
            });
            real.collect()
        };
        tokio::task::spawn_blocking(resolve)
            .await
            .map_err(|error| Failure::new(FailureCode::INTERNAL, error.to_string()))
    }

    /// The container whose network another wants to use, with its id.
    async fn peer(&self, name: &str) -> Result<Option<(String, Peer)>, Failure> {
        let Some(container) = self.inspect(name).await? else {
            let message = format!("there is no container {name:?} whose network could be used");
            return Err(Failure::new(FailureCode::NO_SUCH_CONTAINER, message));
        };
        let mut peer = Peer {
            name: name_of(&container),
            labels: labels_of(&container),
            on_host: false,
        };
        let id = container.id.clone().unwrap_or_default();
        let mut next = container;
        for _ in 0..MAX_CHAIN {
            let networks = next.network_settings.and_then(|network| network.networks);
            let mode = next.host_config.and_then(|config| config.network_mode);
            let mode = mode.unwrap_or_default();
            let Some(joined) = mode.strip_prefix(JOINS) else {
                peer.on_host =
                    mode == HOST || networks.is_some_and(|networks| networks.contains_key(HOST));
                return Ok(Some((id, peer)));
            };
            let Some(container) = self.inspect(joined).await? else {
                break;
            };
            next = container;
        }
        // Where the chain ends nobody knows.
        peer.on_host = true;
        Ok(Some((id, peer)))
    }

    /// Whether a network is the machine's own, whatever it is called by.
    async fn is_host(&self, name: &str) -> Result<bool, Failure> {
        if self.policy.host_network || self.policy.everything {
            return Ok(false);
        }
        match (self.engine, name, names::container(name)) {
            (_, HOST, _) => Ok(true),
            (_, "" | "default" | "bridge" | "none", _) | (None, ..) | (.., None) => Ok(false),
            (Some(engine), _, Some(name)) => {
                let network = look(engine.docker().inspect_network(name, None)).await?;
                Ok(network.is_some_and(|network| network.driver.as_deref() == Some(HOST)))
            }
        }
    }

    /// Judges every container that the removal of a network detaches from it.
    async fn detaches(&self, remove: &Remove) -> Result<(), Failure> {
        let Some(engine) = self.engine else {
            return Ok(());
        };
        for id in engine.calls(&|_| ()).network_detaches(remove).await? {
            self.resolve(&id).await?;
        }
        Ok(())
    }
}

pub(crate) fn name_of(container: &ContainerInspectResponse) -> String {
    let name = container.name.as_deref().unwrap_or_default();
    names::bare(name).to_owned()
}

pub(crate) fn labels_of(container: &ContainerInspectResponse) -> BTreeMap<String, String> {
    let config = container.config.as_ref();
    let labels = config.and_then(|config| config.labels.clone());
    labels.into_iter().flatten().collect()
}

/// What the daemon says of something, within 10 s; `None` if it is not there.
async fn look<T>(question: impl Future<Output = Result<T, Error>>) -> Result<Option<T>, Failure> {
    let unknown = |why: String| {
        let message = format!("this node's policy can't be checked: the Docker daemon {why}");
        Failure::new(FailureCode::RUNTIME_UNAVAILABLE, message).retry()
    };
    match timeout(LOOK_TIMEOUT, question).await {
        Ok(Ok(answer)) => Ok(Some(answer)),
        Ok(Err(Error::DockerResponseServerError {
            status_code: 404, ..
        })) => Ok(None),
        Ok(Err(error)) => Err(unknown(format!("says {error}"))),
        Err(_) => Err(unknown(format!(
            "said nothing within {} s",
            LOOK_TIMEOUT.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests;
