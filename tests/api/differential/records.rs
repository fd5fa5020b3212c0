//! Logs, events and statistics: both sides asked about the same thing.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bollard::container::LogOutput;
use bollard::query_parameters::{
    EventsOptions, KillContainerOptions, LogsOptions, RenameContainerOptionsBuilder,
    RestartContainerOptions, StatsOptionsBuilder,
};
use futures_util::StreamExt as _;
use hub::client::records::{Events, Logs, Next, Records, Watch};
use hub_protocol::kind::call::{Change, stats};
use hub_protocol::kind::records::{EventRecord, LogRecord, Output};
use tokio::time::timeout;

use super::{Class, Got, HANG, Side, Way, of_daemon, of_hub, with};
use crate::world::NODE;

/// The next record of a watch that the hub does not lose.
async fn record<W: Watch>(records: &mut Records<W>) -> Got<Option<W::Record>> {
    match timeout(HANG, records.next()).await.unwrap() {
        Err(error) => Err(of_hub(error)),
        Ok(None) => Ok(None),
        Ok(Some(Next::Record { json, record })) => {
            assert!(record.is_some(), "{}", json.escape_ascii());
            Ok(record)
        }
        Ok(Some(Next::Lost(why))) => panic!("{why}"),
        Ok(Some(Next::Back)) => panic!("it was not lost"),
    }
}

/// What to see of a log.
#[derive(Clone, Copy, Default)]
struct View {
    tail: Option<u64>,
    since_s: i32,
    until_s: i32,
    follow: bool,
    output: Option<Output>,
}

/// Bytes with a time before them: where, when, what. Pieces of one line are put together.
type Line = (&'static str, String, String);

impl Side<'_> {
    async fn log(&self, container: &str, view: View) -> Got<Vec<Line>> {
        let mut lines: Vec<(&str, String, Vec<u8>)> = Vec::new();
        match self.way {
            Way::Hub => {
                let second = |s: i32| (s > 0).then(|| format!("{s}000000000"));
                let mut records = self.rig.client.watch(Logs {
                    node: NODE.into(),
                    container: container.into(),
                    follow: view.follow,
                    output: view.output,
                    tail: view.tail,
                    since: second(view.since_s),
                    until: second(view.until_s),
                    cursor: None,
                });
                while let Some(record) = record(&mut records).await? {
                    let LogRecord::Line {
                        output,
                        time,
                        text,
                        base64,
                        ..
                    } = record
                    else {
                        panic!("{record:?}")
                    };
                    let bytes = match (text, base64) {
                        (Some(text), None) => text.into_bytes(),
                        (None, Some(base64)) => BASE64_STANDARD.decode(base64).unwrap(),
                        both => panic!("{both:?}"),
                    };
                    let output = match output {
                        Output::Stdout => "stdout",
                        Output::Stderr => "stderr",
                    };
                    lines.push((output, time, bytes));
                }
            }
            Way::Daemon => {
                let options = LogsOptions {
                    follow: view.follow,
                    stdout: view.output != Some(Output::Stderr),
                    stderr: view.output != Some(Output::Stdout),
                    since: view.since_s,
                    until: view.until_s,
                    timestamps: true,
                    tail: view.tail.map_or("all".into(), |tail| tail.to_string()),
                };
                let mut pieces = self.rig.docker.logs(container, Some(options));
                while let Some(piece) = timeout(HANG, pieces.next()).await.unwrap() {
                    let (output, bytes) = match piece.map_err(of_daemon)? {
                        LogOutput::StdErr { message } => ("stderr", message),
                        LogOutput::StdOut { message } | LogOutput::Console { message } => {
                            ("stdout", message)
                        }
                        LogOutput::StdIn { .. } => panic!("input comes back"),
                    };
                    let space = bytes.iter().position(|byte| *byte == b' ').unwrap();
                    let time = String::from_utf8(bytes[..space].to_vec()).unwrap();
                    lines.push((output, time, bytes[space + 1..].to_vec()));
                }
            }
        }
        let line = |(output, time, bytes): (_, _, Vec<u8>)| {
            (output, time, bytes.escape_ascii().to_string())
        };
        Ok(lines.into_iter().map(line).collect())
    }
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_logs_are_the_same() {
    with(async |rig| {
        let maker = rig.maker();
        // The pause puts the end into another second.
        let script = r"i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo line $i; echo err $i >&2; done
            printf '\000\377\n'; printf 'carriage\r\n\n'; seq -s, 9000; sleep 2; echo last";
        let id = maker.run(maker.spec("log", &["sh", "-c", script])).await;
        maker.over(&id).await;
        let silent = maker.run(maker.spec("silent", &["true"])).await;
        maker.over(&silent).await;
        let last = maker
            .log(
                &id,
                View {
                    tail: Some(1),
                    ..View::default()
                },
            )
            .await
            .unwrap();
        let second = humantime::parse_rfc3339(&last[0].1).unwrap();
        let second = second.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let second = i32::try_from(second).unwrap();
        rig.script(async |side| {
            let view = View::default();
            let all = side.log(&id, view).await.unwrap();
            assert!(all.len() > 400, "{}", all.len());
            for one in &all {
                side.same("line", one);
            }
            let followed = View {
                follow: true,
                ..view
            };
            side.same(
                "followed to its end",
                side.log(&id, followed).await.unwrap() == all,
            );
            for tail in [0, 1, 2, 7, 100, 100_000] {
                let view = View {
                    tail: Some(tail),
                    ..view
                };
                side.same("tail", side.log(&id, view).await.unwrap());
            }
            for output in [Output::Stdout, Output::Stderr] {
                let view = View {
                    output: Some(output),
                    ..view
                };
                let one = side.log(&id, view).await.unwrap();
                assert!(!one.is_empty() && one.len() < all.len());
                side.same("one output", one);
            }
            let since = View {
                since_s: second,
                ..view
            };
            let last = side.log(&id, since).await.unwrap();
            assert_eq!(last.len(), 1, "{last:?}");
            side.same("since", last);
            let since = View {
                since_s: second + 3600,
                ..view
            };
            side.same("since later", side.log(&id, since).await.unwrap());
            let until = View {
                until_s: second,
                ..view
            };
            let first = side.log(&id, until).await.unwrap();
            assert_eq!(first.len(), all.len() - 1);
            side.same("until", first);
            side.same("silent", side.log(&silent, view).await.unwrap());
            let missing = side.log("hub-no-such", view).await.unwrap_err();
            side.expect("missing", missing.class, &Class::Missing);
        })
        .await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_logs_of_terminals_are_the_same() {
    with(async |rig| {
        let maker = rig.maker();
        let mut spec = maker.spec("tty", &["sh", "-c", "echo out; echo err >&2; seq 50"]);
        spec.theirs["Tty"] = serde_json::json!(true);
        let id = maker.run(spec).await;
        maker.over(&id).await;
        rig.script(async |side| {
            let all = side.log(&id, View::default()).await.unwrap();
            assert_eq!(all.len(), 52, "{all:?}");
            side.same("all", all);
            let tail = View {
                tail: Some(3),
                ..View::default()
            };
            side.same("tail", side.log(&id, tail).await.unwrap());
        })
        .await;
    })
    .await;
}

/// What an event says: time, type, action, id, attributes.
type Event = (i64, String, String, String, Vec<(String, String)>);

/// The events of `filters` between two times, in nanoseconds since 1970 UTC.
async fn events(side: &Side<'_>, from: u128, to: u128, filters: &[(&str, &str)]) -> Vec<Event> {
    let mut events = Vec::new();
    match side.way {
        Way::Hub => {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            let mut records = side.rig.client.watch(Events {
                nodes: vec![NODE.into()],
                since: Some(from.to_string()),
                until: Some(to.to_string()),
                filters: filters.iter().map(owned).collect(),
                ..Events::default()
            });
            while let Some(one) = record(&mut records).await.unwrap() {
                assert_eq!(one.node, NODE);
                match one.record {
                    EventRecord::Event {
                        time_ns,
                        kind,
                        action,
                        id,
                        attributes,
                        ..
                    } => {
                        let attributes = attributes.into_iter().collect();
                        events.push((time_ns, kind, action, id, attributes));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        Way::Daemon => {
            let time = |ns: u128| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
            let mut by_key = HashMap::<String, Vec<String>>::new();
            for (key, value) in filters {
                by_key
                    .entry((*key).into())
                    .or_default()
                    .push((*value).into());
            }
            let options = EventsOptions {
                since: Some(time(from)),
                until: Some(time(to)),
                filters: Some(by_key),
            };
            let mut stream = side.rig.docker.events(Some(options));
            while let Some(one) = timeout(HANG, stream.next()).await.unwrap() {
                let one = one.unwrap();
                let actor = one.actor.unwrap();
                let mut attributes: Vec<_> = actor.attributes.unwrap().into_iter().collect();
                attributes.sort();
                events.push((
                    one.time_nano.unwrap(),
                    one.typ.unwrap().to_string(),
                    one.action.unwrap(),
                    actor.id.unwrap(),
                    attributes,
                ));
            }
        }
    }
    events
}

fn now() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos()
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_events_are_the_same() {
    with(async |rig| {
        let maker = rig.maker();
        let from = now();
        let volume = maker.named("volume");
        maker.ensure_volume(&volume).await.unwrap();
        let mut spec = maker.spec(
            "events",
            &["sh", "-c", "trap 'exit 3' TERM; echo; sleep 3600 & wait"],
        );
        spec.theirs["Labels"] = serde_json::json!({rig.named("label"): "x=y"});
        let id = maker.run(spec).await;
        maker.ready(&id).await;
        let docker = &rig.docker;
        docker.pause_container(&id).await.unwrap();
        docker.unpause_container(&id).await.unwrap();
        let options = RenameContainerOptionsBuilder::new();
        let options = options.name(&maker.named("renamed")).build();
        docker.rename_container(&id, options).await.unwrap();
        docker
            .restart_container(&id, None::<RestartContainerOptions>)
            .await
            .unwrap();
        docker
            .kill_container(&id, None::<KillContainerOptions>)
            .await
            .unwrap();
        maker.over(&id).await;
        assert_eq!(maker.remove(&id, true).await, Ok(Change::Changed));
        assert_eq!(maker.remove_volume(&volume).await, Ok(Change::Changed));
        let to = now();
        rig.script(async |side| {
            let of_container = events(side, from, to, &[("container", &id)]).await;
            assert!(of_container.len() >= 10, "{of_container:?}");
            for event in &of_container {
                side.same("event", event);
            }
            let label = rig.named("label");
            for filters in [
                &[("label", &*label)][..],
                &[("label", &*format!("{label}=x=y"))],
                &[("label", &*format!("{label}=z"))],
                &[("container", &*maker.named("events"))],
                &[("container", &*maker.named("renamed"))],
                &[("container", &id), ("event", "die")],
                &[("container", &id), ("event", "die"), ("event", "start")],
                &[("container", &id), ("type", "container")],
                &[("container", &id), ("type", "volume")],
                &[("volume", &volume)],
                &[("volume", &volume), ("type", "volume"), ("event", "create")],
                &[("image", &rig.image), ("label", &label), ("event", "start")],
                &[("container", "hub-no-such")],
            ] {
                let found = events(side, from, to, filters).await;
                side.same(&format!("{filters:?}"), found);
            }
            let one = of_container[2].0.unsigned_abs().into();
            let later = events(side, one, to, &[("container", &id)]).await;
            side.same("from one on", later);
            let before = events(side, from, one, &[("container", &id)]).await;
            side.same("up to one", before);
        })
        .await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_statistics_are_the_same() {
    with(async |rig| {
        let maker = rig.maker();
        let mut spec = maker.spec("idle", &["sh", "-c", "sleep 3600 & echo; wait"]);
        spec.theirs["HostConfig"]["Memory"] = serde_json::json!(64 << 20);
        let id = maker.run(spec).await;
        maker.ready(&id).await;
        let stopped = maker.create(maker.idle("stopped")).await.unwrap();
        rig.script(async |side| {
            for (container, running) in [(&id, true), (&stopped, false)] {
                let (name, processes, limit, processor) = match side.way {
                    Way::Hub => {
                        let container = container.clone();
                        let found = side.ask(&stats::Get { container }).await.unwrap().unwrap();
                        assert_eq!(&found.id, if running { &id } else { &stopped });
                        assert!(found.memory <= found.memory_limit);
                        assert_eq!(found.network_rx + found.network_tx, 0);
                        (found.name, found.pids, found.memory_limit, found.cpu_ns)
                    }
                    Way::Daemon => {
                        let options = StatsOptionsBuilder::new().stream(false).build();
                        let mut looks = side.rig.docker.stats(container, Some(options));
                        let found = looks.next().await.unwrap().unwrap();
                        let (memory, cpu) = (found.memory_stats, found.cpu_stats.unwrap());
                        let pids = found.pids_stats.and_then(|pids| pids.current);
                        let total = cpu.cpu_usage.and_then(|usage| usage.total_usage);
                        (
                            found.name.unwrap()[1..].to_owned(),
                            pids.unwrap_or(0),
                            memory.and_then(|memory| memory.limit).unwrap_or(0),
                            total.unwrap_or(0),
                        )
                    }
                };
                assert_eq!(processes > 0, running);
                // It sleeps: what it has used it has used.
                side.same("use", (name, processes, limit, processor));
            }
            let none = match side.way {
                Way::Hub => {
                    let container = "hub-no-such".into();
                    side.ask(&stats::Get { container }).await.unwrap().is_none()
                }
                Way::Daemon => {
                    let options = StatsOptionsBuilder::new().stream(false).build();
                    let mut looks = side.rig.docker.stats("hub-no-such", Some(options));
                    let refusal = of_daemon(looks.next().await.unwrap().unwrap_err());
                    refusal.class == Class::Missing
                }
            };
            side.expect("missing", none, &true);
        })
        .await;
        // Followed, it is one record after the other, and ends with the container.
        let mut records = rig.client.watch(hub::client::records::FollowStats {
            node: NODE.into(),
            container: id.clone(),
        });
        let first = record(&mut records).await.unwrap().unwrap();
        let second = record(&mut records).await.unwrap().unwrap();
        assert_eq!((first.cpu_percent, &first.id), (None, &id));
        assert!(second.cpu_percent.is_some() && second.system_cpu_ns > first.system_cpu_ns);
        rig.docker
            .kill_container(&id, None::<KillContainerOptions>)
            .await
            .unwrap();
        let rest = async { while record(&mut records).await.unwrap().is_some() {} };
        timeout(HANG + Duration::from_secs(1), rest).await.unwrap();
    })
    .await;
}
