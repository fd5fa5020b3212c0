//! Networks and volumes.

use bollard::query_parameters::{InspectNetworkOptions, ListNetworksOptions, ListVolumesOptions};
use hub_protocol::kind::call::container::{Attachment, Mount, MountKind};
use hub_protocol::kind::call::{Change, network, volume};
use serde_json::json;

use super::{Class, Refusal, Side, Way, with};

const CHANGED: Result<Change, Refusal> = Ok(Change::Changed);
const UNCHANGED: Result<Change, Refusal> = Ok(Change::Unchanged);
const NOT_FOUND: Result<Change, Refusal> = Ok(Change::NotFound);

/// The networks of a side: name, driver, labels, and whether they have a way out.
async fn networks(side: &Side<'_>, prefix: &str) -> Vec<String> {
    let line = |name, driver, internal: bool, label: Option<&String>| {
        format!("{name:?} {driver:?} {internal} {label:?}")
    };
    let mut lines: Vec<_> = match side.way {
        Way::Hub => {
            let prefix = Some(prefix.into());
            let found = side.ask(&network::List { prefix }).await.unwrap();
            let lines = found.into_iter();
            lines
                .map(|one| line(one.name, one.driver, one.internal, one.labels.get("k")))
                .collect()
        }
        Way::Daemon => {
            let docker = &side.rig.docker;
            let found = docker.list_networks(None::<ListNetworksOptions>).await;
            let found = found.unwrap().into_iter();
            let found = found.filter(|one| one.name.as_ref().unwrap().starts_with(prefix));
            found
                .map(|one| {
                    let labels = one.labels.unwrap_or_default();
                    let (name, driver) = (one.name.unwrap(), one.driver.unwrap());
                    line(name, driver, one.internal.unwrap(), labels.get("k"))
                })
                .collect()
        }
    };
    lines.sort();
    lines
}

/// Where a container is, as the daemon says it.
async fn places(side: &Side<'_>, label: &str, container: &str) {
    let settings = side.daemon_s(container).await.network_settings.unwrap();
    let mut places: Vec<_> = settings
        .networks
        .unwrap_or_default()
        .into_iter()
        .map(|(name, place)| {
            let mut aliases = place.aliases.unwrap_or_default();
            aliases.sort();
            (
                name,
                aliases,
                place.ip_address.is_some_and(|ip| !ip.is_empty()),
            )
        })
        .collect();
    places.sort();
    side.step(label, places);
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_networks_are_the_same() {
    with(async |rig| {
        // A daemon may be unable to make any.
        let probe = rig.maker();
        if let Err(refusal) = probe.ensure_network(&rig.named("probe")).await {
            return eprintln!("skipped: no network can be made: {}", refusal.words);
        }
        rig.script(async |side| {
            for own in ["bridge", "host", "none"] {
                side.step("the daemon's own", networks(side, own).await);
            }
            let name = side.named("net");
            let id = side.ensure_network(&name).await.unwrap();
            side.step("made", networks(side, &side.named("")).await);
            // The daemon has no way to ask for what is there already.
            if side.way == Way::Hub {
                assert_eq!(side.ensure_network(&name).await, Ok(id.clone()));
            }
            side.step("still one", networks(side, &side.named("")).await);
            let docker = &side.rig.docker;
            let found = docker
                .inspect_network(&id, None::<InspectNetworkOptions>)
                .await
                .unwrap();
            side.step(
                "as the daemon has it",
                (
                    found.name,
                    found.driver,
                    found.internal,
                    found.labels,
                    found.attachable,
                ),
            );
            side.step(
                "its options",
                (found.options, found.enable_ipv6, found.ingress),
            );

            let mut spec = side.idle("one");
            spec.ours.network_mode = None;
            spec.ours.network = Some(Attachment {
                name: name.clone(),
                aliases: vec!["first".into()],
            });
            spec.theirs["HostConfig"]["NetworkMode"] = json!(name);
            spec.theirs["NetworkingConfig"] =
                json!({"EndpointsConfig": {&name: {"Aliases": ["first"]}}});
            let one = side.run(spec).await;
            places(side, "created in it", &one).await;
            let mode = side.daemon_s(&one).await.host_config.unwrap().network_mode;
            side.step("its mode", mode);
            let mut spec = side.idle("two");
            spec.ours.network_mode = Some(name.clone());
            spec.theirs["HostConfig"]["NetworkMode"] = json!(name);
            let two = side.run(spec).await;
            places(side, "created by its mode", &two).await;
            side.expect("disconnect", side.disconnect(&name, &two).await, &CHANGED);
            places(side, "disconnected", &two).await;
            side.expect(
                "connect",
                side.connect(&name, &two, "second").await,
                &CHANGED,
            );
            places(side, "connected", &two).await;
            // The daemon refuses both; to the hub it is as it should be.
            let again = side.connect(&name, &two, "second").await;
            match side.way {
                Way::Hub => assert_eq!(again, UNCHANGED),
                Way::Daemon => assert_eq!(again.unwrap_err().class, Class::Conflict),
            }
            side.expect(
                "disconnect again",
                side.disconnect(&id, &two).await,
                &CHANGED,
            );
            let again = side.disconnect(&id, &two).await;
            match side.way {
                Way::Hub => assert_eq!(again, UNCHANGED),
                Way::Daemon => assert!(again.unwrap_err().words.contains("is not connected")),
            }
            places(side, "out of it", &two).await;
            for (network, container) in [(&*name, "hub-no-such"), ("hub-no-such", &*two)] {
                let none = side.connect(network, container, "x").await;
                side.expect("connect what is missing", none, &NOT_FOUND);
                let none = side.disconnect(network, container).await;
                side.expect("disconnect what is missing", none, &NOT_FOUND);
            }
            // The daemon does not remove what is in use: the hub empties it first.
            if side.way == Way::Daemon {
                let refused = side.remove_network(&name).await.unwrap_err();
                assert_eq!(refused.class, Class::Conflict, "{refused:?}");
                assert_eq!(side.disconnect(&name, &one).await, CHANGED);
            }
            side.expect("remove", side.remove_network(&name).await, &CHANGED);
            side.expect("remove again", side.remove_network(&name).await, &NOT_FOUND);
            side.expect("by its id", side.remove_network(&id).await, &NOT_FOUND);
            side.state("it runs on", &one).await;
            side.step("none is left", networks(side, &side.named("")).await);
            let own = side.remove_network("none").await.unwrap_err();
            side.expect("the daemon's own", own.class, &Class::Conflict);
        })
        .await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_volumes_are_the_same() {
    with(async |rig| {
        let volumes = async |side: &Side<'_>, prefix: &str| -> Vec<_> {
            let mut found: Vec<_> = match side.way {
                Way::Hub => {
                    let prefix = Some(prefix.into());
                    let found = side.ask(&volume::List { prefix }).await.unwrap();
                    let found = found.into_iter();
                    found
                        .map(|one| (one.name, one.driver, one.created, one.labels))
                        .collect()
                }
                Way::Daemon => {
                    let docker = &side.rig.docker;
                    let found = docker.list_volumes(None::<ListVolumesOptions>).await;
                    let found = found.unwrap().volumes.unwrap_or_default().into_iter();
                    let found = found.filter(|one| one.name.starts_with(prefix));
                    found
                        .map(|one| {
                            let labels = one.labels.into_iter().collect();
                            (one.name, one.driver, one.created_at, labels)
                        })
                        .collect()
                }
            };
            found.sort();
            found
        };
        let shared = rig.named("shared");
        let maker = rig.maker();
        maker.ensure_volume(&shared).await.unwrap();
        rig.script(async |side| {
            side.same("one that is there", volumes(side, &shared).await);
            side.step("the same made", side.ensure_volume(&shared).await);
            side.same("and nothing changed", volumes(side, &shared).await);
            let name = side.named("volume");
            side.step("made", side.ensure_volume(&name).await);
            side.step("made twice", side.ensure_volume(&name).await);
            assert_eq!(volumes(side, &name).await.len(), 1);
            let found = side.rig.docker.inspect_volume(&name).await.unwrap();
            side.step(
                "as the daemon has it",
                (
                    found.name,
                    found.driver,
                    found.labels,
                    found.options,
                    found.scope,
                ),
            );
            let mut spec = side.idle("user");
            spec.ours.mounts = vec![Mount {
                kind: MountKind::Volume,
                source: name.clone(),
                target: "/data".into(),
                read_only: false,
            }];
            spec.theirs["HostConfig"]["Mounts"] =
                json!([{"Type": "volume", "Source": name, "Target": "/data"}]);
            let id = side.create(spec).await.unwrap();
            side.refused("in use", side.remove_volume(&name).await, Class::Conflict);
            side.expect("its user goes", side.remove(&id, true).await, &CHANGED);
            // Only those without a name go with a container.
            assert_eq!(volumes(side, &name).await.len(), 1);
            side.expect("remove", side.remove_volume(&name).await, &CHANGED);
            side.expect("remove again", side.remove_volume(&name).await, &NOT_FOUND);
            let bad = side.ensure_volume("../x").await.unwrap_err();
            side.expect("no name", bad.class, &Class::Invalid);
        })
        .await;
    })
    .await;
}
