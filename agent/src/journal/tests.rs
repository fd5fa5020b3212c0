//! The watcher against a daemon that breaks off and forgets.

#![allow(clippy::unwrap_used)]

use super::fake::FakeDaemon;
use super::*;

const SECOND: i64 = 1_000_000_000;

fn fixed() -> Random {
    Arc::new(|bytes: &mut [u8]| bytes.fill(7))
}

/// Reads until the journal has nothing more: events by `action id`, gaps by `gap`.
async fn all(journal: &Journal, reader: &mut Reader) -> Vec<String> {
    journal.settle().await;
    let items = journal.read(reader, 100_000);
    let told = items.into_iter().map(|item| match item {
        Item::Event(event, _) => format!("{} {}", event.action, event.id),
        Item::Gap { gap, .. } => {
            let states = gap.states.iter();
            let states = states.map(|state| format!(" {}={}", state.id, state.state));
            format!("gap{}", states.collect::<String>())
        }
        Item::Lagged(count, _) => format!("lagged {count}"),
    });
    told.collect()
}

async fn ready(journal: &Journal) {
    journal.changes().wait_for(|ready| *ready).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_broken_subscription_loses_nothing_that_the_daemon_remembers() {
    let daemon = FakeDaemon::new(SECOND);
    daemon.emit("create", "early");
    let journal = Journal::start(daemon.engine().await, fixed());
    ready(&journal).await;
    let mut reader = journal.reader(Start::Since(0), Filter::default()).unwrap();
    assert_eq!(all(&journal, &mut reader).await, ["gap", "create early"]);
    for round in 0..20 {
        daemon.emit("start", &format!("{round}a"));
        if round % 3 == 0 {
            daemon.go_away(true);
            daemon.emit("die", &format!("{round}b"));
            daemon.go_away(false);
        } else {
            daemon.cut();
        }
        daemon.emit("stop", &format!("{round}c"));
        let mut expected = vec![format!("start {round}a")];
        if round % 3 == 0 {
            expected.push(format!("die {round}b"));
        }
        expected.push(format!("stop {round}c"));
        assert_eq!(all(&journal, &mut reader).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_was_restarted_leaves_a_gap_and_what_there_is() {
    let daemon = FakeDaemon::new(SECOND);
    let journal = Journal::start(daemon.engine().await, fixed());
    ready(&journal).await;
    let mut reader = journal.reader(Start::Now, Filter::default()).unwrap();
    daemon.emit("start", "a");
    assert_eq!(all(&journal, &mut reader).await, ["start a"]);
    daemon.contain("a", "exited");
    daemon.go_away(true);
    daemon.emit("die", "a");
    daemon.restart();
    daemon.go_away(false);
    assert_eq!(all(&journal, &mut reader).await, ["gap a=exited"]);
    // Once more, with an event of the new run before the watcher is back.
    daemon.emit("start", "a");
    assert_eq!(all(&journal, &mut reader).await, ["start a"]);
    daemon.restart();
    daemon.emit("oom", "a");
    assert_eq!(all(&journal, &mut reader).await, ["gap a=exited", "oom a"]);
}

#[tokio::test(start_paused = true)]
async fn more_events_than_the_daemon_remembers_leave_a_gap() {
    let daemon = FakeDaemon::new(SECOND);
    let journal = Journal::start(daemon.engine().await, fixed());
    ready(&journal).await;
    let mut reader = journal.reader(Start::Now, Filter::default()).unwrap();
    daemon.emit("create", "first");
    assert_eq!(all(&journal, &mut reader).await, ["create first"]);
    daemon.go_away(true);
    for number in 0..300 {
        daemon.emit("create", &number.to_string());
    }
    daemon.go_away(false);
    let told = all(&journal, &mut reader).await;
    assert_eq!((told.len(), told[0].as_str()), (257, "gap"));
    assert_eq!(
        (told[1].as_str(), told[256].as_str()),
        ("create 44", "create 299")
    );
}

#[tokio::test(start_paused = true)]
async fn a_cursor_of_an_earlier_run_goes_on_at_its_event() {
    let daemon = FakeDaemon::new(SECOND);
    let journal = Journal::start(daemon.engine().await, fixed());
    ready(&journal).await;
    let mut reader = journal.reader(Start::Now, Filter::default()).unwrap();
    for id in ["a", "b", "c"] {
        daemon.emit("start", id);
    }
    journal.settle().await;
    let items = journal.read(&mut reader, 2);
    let [Item::Event(..), Item::Event(_, cursor)] = items[..] else {
        panic!("{items:?}");
    };
    drop(journal);
    daemon.emit("start", "d");
    let other: Random = Arc::new(|bytes: &mut [u8]| bytes.fill(8));
    let journal = Journal::start(daemon.engine().await, other.clone());
    ready(&journal).await;
    let after = Start::After(cursor);
    let mut reader = journal.reader(after, Filter::default()).unwrap();
    assert_eq!(all(&journal, &mut reader).await, ["start c", "start d"]);
    // What the daemon forgot meanwhile is a gap.
    drop(journal);
    daemon.pass(SECOND);
    daemon.restart();
    daemon.emit("start", "e");
    let journal = Journal::start(daemon.engine().await, other);
    ready(&journal).await;
    let mut reader = journal.reader(after, Filter::default()).unwrap();
    assert_eq!(all(&journal, &mut reader).await, ["gap", "start e"]);
}

#[tokio::test(start_paused = true)]
async fn a_ring_that_went_on_tells_how_many_were_left_out() {
    let daemon = FakeDaemon::new(SECOND);
    let limits = Limits {
        entries: 10,
        bytes: 1 << 20,
    };
    let journal = Journal::with_limits(daemon.engine().await, fixed(), limits);
    ready(&journal).await;
    let mut reader = journal.reader(Start::Now, Filter::default()).unwrap();
    for number in 0..50 {
        daemon.emit("create", &number.to_string());
        journal.settle().await;
    }
    let told = all(&journal, &mut reader).await;
    assert_eq!((told.len(), told[0].as_str()), (11, "lagged 40"));
    assert_eq!(told[1], "create 40");
}
