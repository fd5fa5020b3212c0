//! What containers use: the daemon's counters as people read them.

use bollard::models::{ContainerBlkioStatEntry, ContainerCpuStats, ContainerStatsResponse};
use bollard::query_parameters::StatsOptionsBuilder;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use hub_protocol::kind::call::container::State;
use hub_protocol::kind::call::stats::{Get, Stats};
use hub_protocol::kind::{Failure, FailureCode};

use super::error::failure;
use super::names::bare;
use super::time::is_never;
use super::{Calls, find, names};

impl Calls<'_> {
    /// Shows what a container uses: two looks, a second apart.
    pub async fn stats_get(&self, call: Get) -> Result<Option<Stats>, Failure> {
        // The daemon leaves the id out of what it says of one that does not run.
        let Some(container) = self.inspect(&call.container).await? else {
            return Ok(None);
        };
        let id = container.id.unwrap_or_default();
        let options = StatsOptionsBuilder::new().stream(false).build();
        let docker = self.engine.docker();
        let mut looks = docker.stats(&id, Some(options));
        let look = find(async { looks.next().await.transpose() })
            .await?
            .flatten();
        Ok(look.map(|look| Stats {
            id,
            name: bare(&container.name.unwrap_or_default()).to_owned(),
            ..stats(&look)
        }))
    }

    /// What a container uses, about once a second until it stops.
    ///
    /// # Errors
    /// It is not there, or does not run.
    pub(crate) async fn stats_follow(
        &self,
        container: &str,
    ) -> Result<BoxStream<'static, Result<Stats, Failure>>, Failure> {
        let call = State {
            container: container.into(),
        };
        let refused = match self.container_state(call).await? {
            None => Some((FailureCode::NO_SUCH_CONTAINER, "is not there")),
            Some(state) if !state.running => Some((FailureCode::NOT_RUNNING, "does not run")),
            Some(_) => None,
        };
        let name = match (refused, names::container(container)) {
            (None, Some(name)) => name,
            (refused, _) => {
                let (code, why) = refused.unwrap_or((FailureCode::INVALID, "can't be"));
                return Err(Failure::new(code, format!("container {container} {why}")));
            }
        };
        let options = StatsOptionsBuilder::new().stream(true).build();
        let looks = self.engine.docker().stats(name, Some(options));
        // Of one that does not run the daemon goes on to say so every second.
        let looks = looks.take_while(|look| {
            let runs = match look {
                Ok(look) => !is_never(look.read.as_deref().unwrap_or_default()),
                Err(_) => true,
            };
            std::future::ready(runs)
        });
        let stats = |look: Result<_, _>| look.map(|look| stats(&look)).map_err(|e| failure(&e));
        Ok(looks.map(stats).boxed())
    }
}

fn stats(look: &ContainerStatsResponse) -> Stats {
    let cpu = look.cpu_stats.as_ref();
    let pids = look.pids_stats.as_ref().and_then(|pids| pids.current);
    let (memory, memory_cache, memory_limit) = memory(look);
    let networks = || look.networks.iter().flat_map(|all| all.values());
    let blocks = look.blkio_stats.as_ref();
    let blocks = blocks.and_then(|all| all.io_service_bytes_recursive.as_deref());
    let blocks = blocks.unwrap_or_default();
    Stats {
        id: look.id.clone().unwrap_or_default(),
        name: bare(look.name.as_deref().unwrap_or_default()).to_owned(),
        time: look.read.clone().unwrap_or_default(),
        cpu_percent: cpu_percent(look),
        cpu_ns: cpu.map_or(0, used),
        system_cpu_ns: cpu.and_then(|cpu| cpu.system_cpu_usage).unwrap_or(0),
        cpus: cpu.map_or(0, cpus),
        memory,
        memory_cache,
        memory_limit,
        network_rx: networks().filter_map(|one| one.rx_bytes).sum(),
        network_tx: networks().filter_map(|one| one.tx_bytes).sum(),
        block_read: block_bytes(blocks, "read"),
        block_write: block_bytes(blocks, "write"),
        pids: pids.unwrap_or(0),
    }
}

fn used(cpu: &ContainerCpuStats) -> u64 {
    let usage = cpu.cpu_usage.as_ref();
    usage.and_then(|usage| usage.total_usage).unwrap_or(0)
}

fn cpus(cpu: &ContainerCpuStats) -> u64 {
    let each = || cpu.cpu_usage.as_ref()?.percpu_usage.as_ref();
    match cpu.online_cpus {
        // Old daemons do not say.
        None | Some(0) => each().map_or(0, |each| each.len() as u64),
        Some(cpus) => cpus.into(),
    }
}

/// Its share of what the machine's processors did since the look before, where one is a hundred.
fn cpu_percent(look: &ContainerStatsResponse) -> Option<f64> {
    if is_never(look.read.as_deref().unwrap_or_default()) {
        return Some(0.0);
    }
    let (now, before) = (look.cpu_stats.as_ref()?, look.precpu_stats.as_ref()?);
    let system_before = before.system_cpu_usage.filter(|usage| *usage != 0)?;
    let system = now.system_cpu_usage?.saturating_sub(system_before);
    let own = used(now).saturating_sub(used(before));
    if system == 0 {
        return Some(0.0);
    }
    #[expect(clippy::cast_precision_loss, reason = "a percentage of nanoseconds")]
    let percent = own as f64 / system as f64 * cpus(now) as f64 * 100.0;
    Some(percent)
}

/// Memory without the page cache that the kernel would give up first, that cache, and the limit.
fn memory(look: &ContainerStatsResponse) -> (u64, u64, u64) {
    let Some(memory) = &look.memory_stats else {
        return (0, 0, 0);
    };
    let usage = memory.usage.unwrap_or(0);
    let counter = |name: &str| memory.stats.as_ref()?.get(name).copied();
    // The first is of cgroup v1, the second of v2; v1 has one of that name for the group alone.
    let cache = counter("total_inactive_file").or_else(|| counter("inactive_file"));
    let cache = cache.filter(|cache| *cache < usage).unwrap_or(0);
    (usage - cache, cache, memory.limit.unwrap_or(0))
}

fn block_bytes(blocks: &[ContainerBlkioStatEntry], operation: &str) -> u64 {
    let is_it = |entry: &&ContainerBlkioStatEntry| {
        let name = entry.op.as_deref().unwrap_or_default();
        name.eq_ignore_ascii_case(operation)
    };
    blocks
        .iter()
        .filter(is_it)
        .filter_map(|entry| entry.value)
        .sum()
}

#[cfg(test)]
mod unit_tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Stats {
        stats(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn counters_of_cgroup_v1_become_figures() {
        let stats = read(json!({
            "id": "0123", "name": "/web", "read": "2024-01-01T00:00:01Z",
            "cpu_stats": {
                "cpu_usage": {"total_usage": 1_500, "percpu_usage": [700, 800, 0, 0]},
                "system_cpu_usage": 12_000, "online_cpus": 4,
            },
            "precpu_stats": {
                "cpu_usage": {"total_usage": 1_000},
                "system_cpu_usage": 10_000, "online_cpus": 4,
            },
            "memory_stats": {
                "usage": 1_000, "limit": 5_000,
                "stats": {"total_inactive_file": 300, "inactive_file": 200, "cache": 400},
            },
            "networks": {"eth0": {"rx_bytes": 1, "tx_bytes": 2}, "eth1": {"rx_bytes": 10, "tx_bytes": 20}},
            "blkio_stats": {"io_service_bytes_recursive": [
                {"major": 8, "minor": 0, "op": "Read", "value": 5},
                {"major": 8, "minor": 0, "op": "Write", "value": 6},
                {"major": 8, "minor": 16, "op": "Read", "value": 50},
                {"major": 8, "minor": 0, "op": "Total", "value": 11},
            ]},
            "pids_stats": {"current": 3},
        }));
        let expected = Stats {
            id: "0123".into(),
            name: "web".into(),
            time: "2024-01-01T00:00:01Z".into(),
            cpu_percent: Some(100.0),
            cpu_ns: 1_500,
            system_cpu_ns: 12_000,
            cpus: 4,
            memory: 700,
            memory_cache: 300,
            memory_limit: 5_000,
            network_rx: 11,
            network_tx: 22,
            block_read: 55,
            block_write: 6,
            pids: 3,
        };
        assert_eq!(stats, expected);
    }

    #[test]
    fn counters_of_cgroup_v2_become_figures() {
        let stats = read(json!({
            "read": "2024-01-01T00:00:01Z",
            "memory_stats": {"usage": 1_000, "limit": 5_000, "stats": {"inactive_file": 200}},
            "blkio_stats": {"io_service_bytes_recursive": [
                {"op": "read", "value": 5}, {"op": "write", "value": 6},
            ]},
        }));
        assert_eq!((stats.memory, stats.memory_cache), (800, 200));
        assert_eq!((stats.block_read, stats.block_write), (5, 6));
        // More cache than memory is a race between two counters.
        let odd = read(json!({
            "memory_stats": {"usage": 100, "stats": {"inactive_file": 200}},
        }));
        assert_eq!((odd.memory, odd.memory_cache), (100, 0));
    }

    #[test]
    fn the_first_look_has_no_percentage_and_one_that_is_over_has_none_used() {
        let cpu = |used: u64, system: Option<u64>| json!({"cpu_usage": {"total_usage": used}, "system_cpu_usage": system, "online_cpus": 2});
        let percent = |now, before| {
            let look = json!({
                "read": "2024-01-01T00:00:01Z", "cpu_stats": now, "precpu_stats": before,
            });
            read(look).cpu_percent
        };
        assert_eq!(percent(cpu(5, Some(10)), cpu(0, None)), None);
        assert_eq!(percent(cpu(5, Some(10)), cpu(0, Some(0))), None);
        assert_eq!(percent(cpu(5, Some(10)), cpu(5, Some(10))), Some(0.0));
        assert_eq!(percent(cpu(5, Some(20)), cpu(0, Some(10))), Some(100.0));
        // A counter that went back, as after a restart.
        assert_eq!(percent(cpu(1, Some(20)), cpu(5, Some(10))), Some(0.0));
        let stopped = read(json!({"name": "/web", "read": "0001-01-01T00:00:00Z"}));
        assert_eq!((stopped.cpu_percent, stopped.memory), (Some(0.0), 0));
    }
}
