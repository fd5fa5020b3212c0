//! Each call both ways, its answer in the same terms.

use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerUpdateBody, EndpointSettings,
    NetworkConnectRequest, NetworkCreateRequest, NetworkDisconnectRequest, VolumeCreateRequest,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, LogsOptionsBuilder,
    RemoveContainerOptionsBuilder, RemoveImageOptionsBuilder, RemoveVolumeOptions,
    StartContainerOptions, StopContainerOptionsBuilder, WaitContainerOptions,
};
use futures_util::StreamExt as _;
use hub_protocol::kind::call::container::{Create, Remove, Resources, Start, Stop, Update};
use hub_protocol::kind::call::{Call, Change, image, network, volume};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Got, HANG, Side, Way, of_daemon, of_hub};
use crate::world::NODE;

/// A container in the hub's words and in the daemon's.
#[derive(Clone)]
pub struct Spec {
    pub ours: Create,
    pub theirs: Value,
}

impl Side<'_> {
    /// Asks through the hub.
    pub async fn ask<C: Call>(&self, call: &C) -> Got<C::Reply> {
        self.rig.client.call(NODE, call).await.map_err(of_hub)
    }

    /// A container without a network.
    pub fn spec(&self, what: &str, command: &[&str]) -> Spec {
        Spec {
            ours: Create {
                name: self.named(what),
                image: self.rig.image.clone(),
                command: Some(command.iter().map(ToString::to_string).collect()),
                network_mode: Some("none".into()),
                ..Create::default()
            },
            theirs: json!({
                "Image": self.rig.image,
                "Cmd": command,
                "HostConfig": {"NetworkMode": "none"},
            }),
        }
    }

    /// One that idles.
    pub fn idle(&self, what: &str) -> Spec {
        self.spec(what, &["sleep", "3600"])
    }

    /// Creates a container; gives its id.
    pub async fn create(&self, spec: Spec) -> Got<String> {
        match self.way {
            Way::Hub => Ok(self.ask(&spec.ours).await?.id),
            Way::Daemon => {
                let options = CreateContainerOptionsBuilder::new().name(&spec.ours.name);
                let body: ContainerCreateBody = serde_json::from_value(spec.theirs).unwrap();
                let docker = &self.rig.docker;
                let created = docker.create_container(Some(options.build()), body).await;
                Ok(created.map_err(of_daemon)?.id)
            }
        }
    }

    pub async fn start(&self, container: &str) -> Got<Change> {
        match self.way {
            Way::Hub => {
                let container = container.into();
                self.ask(&Start { container }).await
            }
            Way::Daemon => {
                let docker = &self.rig.docker;
                let started = docker.start_container(container, None::<StartContainerOptions>);
                let started = started.await;
                // A start has more to miss than its container.
                match started.map_err(of_daemon) {
                    Err(refusal) if !refusal.words.starts_with("No such container") => Err(refusal),
                    Err(_) => Ok(Change::NotFound),
                    Ok(()) => self.changed(Ok(())),
                }
            }
        }
    }

    /// Creates and starts a container.
    pub async fn run(&self, spec: Spec) -> String {
        let id = self.create(spec).await.unwrap();
        assert_eq!(self.start(&id).await, Ok(Change::Changed));
        id
    }

    pub async fn stop(&self, container: &str, timeout_s: Option<i64>) -> Got<Change> {
        match self.way {
            Way::Hub => {
                let container = container.into();
                let stop = Stop {
                    container,
                    timeout_s,
                };
                self.ask(&stop).await
            }
            Way::Daemon => {
                let options = timeout_s.map(|seconds| {
                    let seconds = i32::try_from(seconds).unwrap();
                    StopContainerOptionsBuilder::new().t(seconds).build()
                });
                self.changed(self.rig.docker.stop_container(container, options).await)
            }
        }
    }

    pub async fn remove(&self, container: &str, force: bool) -> Got<Change> {
        match self.way {
            Way::Hub => {
                let remove = Remove {
                    container: container.into(),
                    force,
                    volumes: true,
                };
                self.ask(&remove).await
            }
            Way::Daemon => {
                let options = RemoveContainerOptionsBuilder::new().force(force).v(true);
                let docker = &self.rig.docker;
                let removed = docker.remove_container(container, Some(options.build()));
                self.changed(removed.await)
            }
        }
    }

    pub async fn update(
        &self,
        container: &str,
        resources: Resources,
        theirs: Value,
    ) -> Got<Change> {
        match self.way {
            Way::Hub => {
                let container = container.into();
                let update = Update {
                    container,
                    resources,
                };
                self.ask(&update).await
            }
            Way::Daemon => {
                let body: ContainerUpdateBody = serde_json::from_value(theirs).unwrap();
                let updated = self.rig.docker.update_container(container, body).await;
                self.changed(updated.map(drop))
            }
        }
    }

    /// Waits until a container has ended by itself.
    pub async fn over(&self, container: &str) {
        let docker = &self.rig.docker;
        let mut ended = docker.wait_container(container, None::<WaitContainerOptions>);
        // A code other than 0 is an error to the client.
        let _ = timeout(HANG, ended.next()).await.unwrap();
    }

    /// Waits until a container prints something.
    pub async fn ready(&self, container: &str) {
        let options = LogsOptionsBuilder::new().follow(true).stdout(true).build();
        let mut printed = self.rig.docker.logs(container, Some(options));
        timeout(HANG, printed.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }

    /// What the daemon says of a container, whichever way it came to be.
    pub async fn daemon_s(&self, container: &str) -> ContainerInspectResponse {
        let docker = &self.rig.docker;
        let found = docker.inspect_container(container, None::<InspectContainerOptions>);
        found.await.unwrap()
    }

    /// What the daemon says of a container's state.
    pub async fn state(&self, label: &str, container: &str) {
        let state = self.daemon_s(container).await.state.unwrap();
        let came = (
            state.status,
            state.running,
            state.exit_code,
            state.oom_killed,
            state.pid.is_some_and(|pid| pid != 0),
        );
        self.step(label, came);
    }

    pub async fn remove_image(&self, image: &str, force: bool) -> Got<Change> {
        match self.way {
            Way::Hub => {
                let image = image.into();
                self.ask(&image::Remove { image, force }).await
            }
            Way::Daemon => {
                let options = RemoveImageOptionsBuilder::new().force(force).build();
                let docker = &self.rig.docker;
                let removed = docker.remove_image(image, Some(options), None).await;
                self.changed(removed.map(drop))
            }
        }
    }

    /// Makes a volume; gives its name, driver and labels.
    pub async fn ensure_volume(&self, name: &str) -> Got<(String, String, String)> {
        let label = ("k".to_owned(), "v".to_owned());
        match self.way {
            Way::Hub => {
                let ensure = volume::Ensure {
                    name: name.into(),
                    labels: [label].into(),
                };
                let made = self.ask(&ensure).await?;
                Ok((made.name, made.driver, format!("{:?}", made.labels)))
            }
            Way::Daemon => {
                let request = VolumeCreateRequest {
                    name: Some(name.into()),
                    labels: Some([label].into()),
                    ..VolumeCreateRequest::default()
                };
                let made = self.rig.docker.create_volume(request).await;
                let made = made.map_err(of_daemon)?;
                Ok((made.name, made.driver, format!("{:?}", made.labels)))
            }
        }
    }

    pub async fn remove_volume(&self, name: &str) -> Got<Change> {
        match self.way {
            Way::Hub => {
                let name = name.into();
                self.ask(&volume::Remove { name }).await
            }
            Way::Daemon => {
                let docker = &self.rig.docker;
                self.changed(
                    docker
                        .remove_volume(name, None::<RemoveVolumeOptions>)
                        .await,
                )
            }
        }
    }

    /// Makes a network with no way out; gives its id.
    pub async fn ensure_network(&self, name: &str) -> Got<String> {
        let label = ("k".to_owned(), "v".to_owned());
        match self.way {
            Way::Hub => {
                let ensure = network::Ensure {
                    name: name.into(),
                    internal: true,
                    labels: [label].into(),
                };
                Ok(self.ask(&ensure).await?.id)
            }
            Way::Daemon => {
                let request = NetworkCreateRequest {
                    name: name.into(),
                    internal: Some(true),
                    labels: Some([label].into()),
                    ..NetworkCreateRequest::default()
                };
                let made = self.rig.docker.create_network(request).await;
                Ok(made.map_err(of_daemon)?.id)
            }
        }
    }

    pub async fn connect(&self, network: &str, container: &str, alias: &str) -> Got<Change> {
        match self.way {
            Way::Hub => {
                let connect = network::Connect {
                    network: network.into(),
                    container: container.into(),
                    aliases: vec![alias.into()],
                };
                self.ask(&connect).await
            }
            Way::Daemon => {
                let request = NetworkConnectRequest {
                    container: container.into(),
                    endpoint_config: Some(EndpointSettings {
                        aliases: Some(vec![alias.into()]),
                        ..EndpointSettings::default()
                    }),
                };
                self.changed(self.rig.docker.connect_network(network, request).await)
            }
        }
    }

    pub async fn disconnect(&self, network: &str, container: &str) -> Got<Change> {
        match self.way {
            Way::Hub => {
                let disconnect = network::Disconnect {
                    network: network.into(),
                    container: container.into(),
                    force: false,
                };
                self.ask(&disconnect).await
            }
            Way::Daemon => {
                let request = NetworkDisconnectRequest {
                    container: container.into(),
                    force: Some(false),
                };
                self.changed(self.rig.docker.disconnect_network(network, request).await)
            }
        }
    }

    pub async fn remove_network(&self, network: &str) -> Got<Change> {
        match self.way {
            Way::Hub => {
                let network = network.into();
                self.ask(&network::Remove { network }).await
            }
            Way::Daemon => self.changed(self.rig.docker.remove_network(network).await),
        }
    }
}
