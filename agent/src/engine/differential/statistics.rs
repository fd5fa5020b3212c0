//! Statistics.

use super::*;

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_statistics_are_those_of_the_daemon() {
    with(async |rig| {
        let get = async |container: &str| {
            let container = container.into();
            rig.calls()
                .stats_get(stats::Get { container })
                .await
                .unwrap()
        };
        let busy = Create {
            resources: resources(64 * MIB),
            ..rig.running("busy", &["sh", "-c", "while :; do :; done"])
        };
        let id = rig.create(busy).await;
        let stopped = get(&id).await.unwrap();
        assert_eq!(
            (stopped.cpu_percent, stopped.memory, stopped.pids),
            (Some(0.0), 0, 0)
        );
        assert_eq!((&stopped.id, &stopped.name), (&id, &rig.named("busy")));
        rig.start(&id).await.unwrap();
        let ours = get(&rig.named("busy")).await.unwrap();
        assert!(ours.cpu_percent.unwrap() > 1.0, "{ours:?}");
        assert_eq!((ours.memory_limit, ours.pids), (64 * MIB, 1));
        assert!(ours.memory > 0 && ours.memory < 64 * MIB);
        // Counters go on from there.
        let options = StatsOptionsBuilder::new().stream(false).build();
        let direct = rig.engine.docker().stats(&id, Some(options)).next().await;
        let cpu = direct.unwrap().unwrap().cpu_stats.unwrap();
        assert!(cpu.system_cpu_usage.unwrap() >= ours.system_cpu_ns);
        assert!(cpu.cpu_usage.unwrap().total_usage.unwrap() >= ours.cpu_ns);
        assert_eq!(u64::from(cpu.online_cpus.unwrap()), ours.cpus);
        assert_eq!(get("hub-no-such").await, None);

        let mut looks = rig.calls().stats_follow(&id).await.unwrap();
        let first = timeout(HANG, looks.next()).await.unwrap().unwrap().unwrap();
        assert_eq!((first.cpu_percent, &first.id), (None, &id));
        let second = timeout(HANG, looks.next()).await.unwrap().unwrap().unwrap();
        assert!(second.cpu_percent.is_some() && second.cpu_ns >= first.cpu_ns);
        let docker = rig.engine.docker();
        docker
            .kill_container(&id, None::<KillContainerOptions>)
            .await
            .unwrap();
        let rest = timeout(HANG, looks.collect::<Vec<_>>()).await.unwrap();
        assert!(rest.iter().all(Result::is_ok), "{rest:?}");
        let refused = rig.calls().stats_follow(&id).await.err().unwrap();
        assert_eq!(refused.code, FailureCode::NOT_RUNNING);
        let refused = rig.calls().stats_follow("hub-no-such").await.err().unwrap();
        assert_eq!(refused.code, FailureCode::NO_SUCH_CONTAINER);
    })
    .await;
}
