//! Calls about networks.
//!
//! Docker allows several networks of one name and tells a network by its name or the beginning of
//! its id. Who asks for a name means the name: it is looked for in the list, and of several the
//! oldest is meant.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bollard::models::{
    ContainerInspectResponse, EndpointSettings, Network as DockerNetwork, NetworkConnectRequest,
    NetworkDisconnectRequest, NetworkInspect,
};
use bollard::query_parameters::{
    InspectNetworkOptions, ListContainersOptionsBuilder, ListNetworksOptions,
};
use hub_protocol::kind::call::Change;
use hub_protocol::kind::call::network::{Connect, Disconnect, Ensure, List, Network, Remove};
use hub_protocol::kind::{Failure, FailureCode};
use serde::Serialize;

use super::containers::sorted;
use super::error::{self, failure};
use super::names::bare;
use super::{Calls, find, look, names};

/// Networks that are Docker's own: it neither makes nor removes them.
const OWN: [&str; 3] = ["bridge", "host", "none"];

/// How often a network is emptied before it is given up: containers may start meanwhile.
const ROUNDS: usize = 3;

impl Calls<'_> {
    /// Makes sure that a network is there.
    pub async fn network_ensure(&self, call: Ensure) -> Result<Network, Failure> {
        // Stricter than some daemons, as newer ones are.
        if !names::is_container_name(&call.name) {
            let why = "name: a network's name is of A-Z a-z 0-9 _ . -, and begins with a letter or \
                       a digit";
            return Err(Failure::new(FailureCode::INVALID, why));
        }
        // One after the other, so that all who ask at once get the same one.
        let _making = self.engine.making_network.lock().await;
        if let Some(found) = self.network_named(&call.name).await? {
            return Ok(found);
        }
        let create = CreateNetwork {
            name: &call.name,
            check_duplicate: true,
            internal: call.internal,
            labels: &call.labels,
        };
        let made = match self.engine.post("/networks/create", Some(&create)).await {
            Ok((_, made)) => made,
            // Somebody else was faster.
            Err(error) if error::status(&error) == Some(409) => {
                let found = self.network_named(&call.name).await?;
                return found.ok_or_else(|| failure(&error).retry());
            }
            Err(error) => return Err(failure(&error)),
        };
        let made: serde_json::Value = serde_json::from_slice(&made).unwrap_or_default();
        let made = made["Id"].as_str().unwrap_or_default();
        // Another client of the daemon may have made one meanwhile: the oldest stays.
        match self.network_named(&call.name).await? {
            Some(kept) => {
                if kept.id != made && !made.is_empty() {
                    // Nobody has heard of it.
                    let _ = self.engine.docker().remove_network(made).await;
                }
                Ok(kept)
            }
            None => Err(Failure::new(
                FailureCode::CONFLICT,
                format!("network {} was removed as soon as it was made", call.name),
            )
            .retry()),
        }
    }

    /// Lists networks by name.
    pub async fn network_list(&self, call: List) -> Result<Vec<Network>, Failure> {
        let prefix = call.prefix.unwrap_or_default();
        let mut networks = self.networks().await?;
        networks.retain(|(_, one)| one.name.starts_with(&prefix));
        networks.sort_by(|(_, a), (_, b)| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        Ok(networks.into_iter().map(|(_, network)| network).collect())
    }

    /// All networks, each after when it was made.
    async fn networks(&self) -> Result<Vec<(String, Network)>, Failure> {
        let docker = self.engine.docker();
        let found = look(docker.list_networks(None::<ListNetworksOptions>)).await?;
        let dated = |mut one: DockerNetwork| (one.created.take().unwrap_or_default(), network(one));
        Ok(found.into_iter().map(dated).collect())
    }

    /// The network of exactly this name: of several, the oldest.
    async fn network_named(&self, name: &str) -> Result<Option<Network>, Failure> {
        let networks = self.networks().await?.into_iter();
        let named = networks.filter(|(_, one)| one.name == name);
        let oldest = named.min_by(|(a, x), (b, y)| (a, &x.id).cmp(&(b, &y.id)));
        Ok(oldest.map(|(_, network)| network))
    }

    /// Connects a container to a network. One that is connected is unchanged.
    pub async fn network_connect(&self, call: Connect) -> Result<Change, Failure> {
        let Some((network, container)) = self.both(&call.network, &call.container).await? else {
            return Ok(Change::NotFound);
        };
        if let Some(settings) = place(&container, &network) {
            return known_by(&call, settings);
        }
        let request = NetworkConnectRequest {
            container: container.id.unwrap_or_default(),
            endpoint_config: Some(EndpointSettings {
                aliases: (!call.aliases.is_empty()).then(|| call.aliases.clone()),
                ..EndpointSettings::default()
            }),
        };
        let id = network.id.unwrap_or_default();
        let Err(error) = self.engine.docker().connect_network(&id, request).await else {
            return Ok(Change::Changed);
        };
        // Somebody else was faster: with the connection, or with removing either.
        match self.both(&id, &call.container).await? {
            None => Ok(Change::NotFound),
            Some((network, container)) => match place(&container, &network) {
                Some(settings) => known_by(&call, settings),
                None => Err(failure(&error)),
            },
        }
    }

    /// Disconnects a container from a network. One that is not connected is unchanged.
    pub async fn network_disconnect(&self, call: Disconnect) -> Result<Change, Failure> {
        let Some(network) = self.network(&call.network).await? else {
            return Ok(Change::NotFound);
        };
        let container = self.inspect(&call.container).await?;
        let connected = container
            .as_ref()
            .is_some_and(|one| place(one, &network).is_some());
        // An endpoint may outlive its container; force is for those, too.
        let mut endpoints = network.containers.iter().flatten();
        let stale = endpoints.any(|(id, endpoint)| {
            let name = endpoint.name.as_deref();
            *id == call.container || name == Some(bare(&call.container))
        });
        if !(connected || call.force && stale) {
            return Ok(match container {
                Some(_) => Change::Unchanged,
                None => Change::NotFound,
            });
        }
        let container = container.and_then(|container| container.id);
        let container = container.unwrap_or_else(|| bare(&call.container).to_owned());
        let network = network.id.unwrap_or_default();
        match self.detach(&network, container, call.force).await {
            Ok(true) => Ok(Change::Changed),
            Ok(false) => Ok(Change::Unchanged),
            Err(error) if error.code == FailureCode::NO_SUCH_CONTAINER => Ok(Change::NotFound),
            Err(error) => Err(error),
        }
    }

    /// The containers that its removal detaches from a network, by id or name.
    pub async fn network_detaches(&self, call: &Remove) -> Result<BTreeSet<String>, Failure> {
        match self.network(&call.network).await? {
            Some(network) => self.attached(&network).await,
            None => Ok(BTreeSet::new()),
        }
    }

    /// Detaches all that is attached to a network, whether it runs or not, and removes it.
    pub async fn network_remove(&self, call: Remove) -> Result<Change, Failure> {
        let Some(mut network) = self.network(&call.network).await? else {
            return Ok(Change::NotFound);
        };
        let name = network.name.clone().unwrap_or_default();
        if OWN.contains(&&*name) {
            let own = format!("network {name} is Docker's own and can't be removed");
            return Err(Failure::new(FailureCode::CONFLICT, own));
        }
        let id = network.id.clone().unwrap_or_default();
        for round in 1.. {
            for container in self.attached(&network).await? {
                match self.detach(&id, container, true).await {
                    Err(error) if error.code != FailureCode::NO_SUCH_CONTAINER => {
                        return Err(error);
                    }
                    _ => {}
                }
            }
            match self.engine.docker().remove_network(&id).await {
                Ok(()) => return Ok(Change::Changed),
                Err(error) if error::status(&error) == Some(404) => return Ok(Change::NotFound),
                Err(error) if round == ROUNDS || error::status(&error) != Some(403) => {
                    return Err(failure(&error));
                }
                Err(_) => match self.network(&id).await? {
                    Some(still) => network = still,
                    None => return Ok(Change::NotFound),
                },
            }
        }
        unreachable!("the last round returns")
    }

    /// Detaches a container; gives whether it was attached.
    async fn detach(&self, network: &str, container: String, force: bool) -> Result<bool, Failure> {
        let request = NetworkDisconnectRequest {
            container,
            force: Some(force),
        };
        match self
            .engine
            .docker()
            .disconnect_network(network, request)
            .await
        {
            Ok(()) => Ok(true),
            Err(error) if error::words(&error).contains("is not connected") => Ok(false),
            Err(error) => Err(failure(&error)),
        }
    }

    /// The containers that a network has, and those that will be in it when they start.
    async fn attached(&self, network: &NetworkInspect) -> Result<BTreeSet<String>, Failure> {
        // A container that never ran knows the name only.
        let named = [&network.id, &network.name].into_iter().flatten().cloned();
        let filters = HashMap::from([("network", named.collect())]);
        let options = ListContainersOptionsBuilder::new()
            .all(true)
            .filters(&filters)
            .build();
        let listed = look(self.engine.docker().list_containers(Some(options))).await?;
        let listed = listed.into_iter().filter_map(|one| one.id);
        let active = network.containers.iter().flatten().map(|(id, endpoint)| {
            // An endpoint without a container goes by its name.
            match (id.strip_prefix("ep-"), &endpoint.name) {
                (Some(_), Some(name)) => name.clone(),
                _ => id.clone(),
            }
        });
        Ok(listed.chain(active).collect())
    }

    async fn network(&self, name: &str) -> Result<Option<NetworkInspect>, Failure> {
        let Some(name) = names::part(name) else {
            return Ok(None);
        };
        let docker = self.engine.docker();
        find(docker.inspect_network(&name, None::<InspectNetworkOptions>)).await
    }

    async fn both(
        &self,
        network: &str,
        container: &str,
    ) -> Result<Option<(NetworkInspect, ContainerInspectResponse)>, Failure> {
        let Some(network) = self.network(network).await? else {
            return Ok(None);
        };
        let container = self.inspect(container).await?;
        Ok(container.map(|container| (network, container)))
    }
}

/// What the daemon is asked for.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct CreateNetwork<'a> {
    name: &'a str,
    check_duplicate: bool,
    internal: bool,
    labels: &'a BTreeMap<String, String>,
}

/// A container's place in a network, if it has one.
fn place<'a>(
    container: &'a ContainerInspectResponse,
    network: &NetworkInspect,
) -> Option<&'a EndpointSettings> {
    let networks = container.network_settings.as_ref()?.networks.as_ref()?;
    let settings = networks.get(network.name.as_ref()?)?;
    // Of a container that never ran the id may not be known yet.
    let id = settings.network_id.as_deref().filter(|id| !id.is_empty());
    (id.is_none() || id == network.id.as_deref()).then_some(settings)
}

/// Whether a container that is connected has the names that it should have: they can't be given to
/// it without cutting its connections.
fn known_by(call: &Connect, settings: &EndpointSettings) -> Result<Change, Failure> {
    let known = settings.aliases.as_deref().unwrap_or_default();
    match call.aliases.iter().find(|alias| !known.contains(*alias)) {
        None => Ok(Change::Unchanged),
        Some(alias) => {
            let Connect {
                network, container, ..
            } = call;
            let message = format!(
                "container {container} is connected to network {network} without the alias \
                 {alias}; disconnect it first"
            );
            Err(Failure::new(FailureCode::CONFLICT, message))
        }
    }
}

fn network(found: DockerNetwork) -> Network {
    Network {
        id: found.id.unwrap_or_default(),
        name: found.name.unwrap_or_default(),
        driver: found.driver.unwrap_or_default(),
        internal: found.internal.unwrap_or(false),
        labels: sorted(found.labels),
    }
}
