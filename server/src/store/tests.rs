//! The conformance suite for every kind of SQLite store, and what is particular to files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures_util::FutureExt as _;
use hub_ledger::exposure::Settings;
use hub_ledger::{
    Access, Exposure, ExposureId, ExposureToken, ExposureTokenHash, JoinTokenHash, NewExposure,
    NewToken, Protocol, Replica, Timestamp,
};
use hub_protocol::target::Target;
use hub_protocol::{Deployment, NodeId};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::conformance::{DEPLOYMENT, suite};
use super::executor::MAX_WAITING;
use super::{CaRecord, Execution, Store, StoreError};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_123);

mod in_memory_on_a_thread {
    use super::*;

    async fn fresh() -> Store {
        Store::in_memory(Execution::Thread, DEPLOYMENT)
            .await
            .unwrap()
    }
    suite!(fresh);
}

mod in_memory_inline {
    use super::*;

    async fn fresh() -> Store {
        Store::in_memory(Execution::Inline, DEPLOYMENT)
            .await
            .unwrap()
    }
    suite!(fresh);
}

mod in_a_file_on_a_thread {
    use super::*;

    /// The file has no name any more once this returns; SQLite goes on with what is open.
    async fn fresh() -> Store {
        let (_directory, path) = place();
        open(&path).await.unwrap()
    }
    suite!(fresh);
}

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hub.db");
    (directory, path)
}

async fn open(path: &Path) -> Result<Store, StoreError> {
    Store::open(path, Execution::Thread, DEPLOYMENT).await
}

fn token(byte: u8) -> JoinTokenHash {
    JoinTokenHash([byte; 32])
}

#[tokio::test]
async fn what_is_committed_is_there_after_a_restart() {
    let (_directory, path) = place();
    let store = open(&path).await.unwrap();
    store
        .create_token(token(1), NewToken::default(), NOW)
        .await
        .unwrap();
    store.close().await.unwrap();
    assert!(
        !path.with_extension("db-wal").exists(),
        "closing leaves one file"
    );

    let other = Deployment::from_bytes([1; 16]);
    let store = Store::open(&path, Execution::Inline, other).await.unwrap();
    assert_eq!(
        store.deployment(),
        DEPLOYMENT,
        "an old ledger keeps its deployment"
    );
    let again = store.create_token(token(1), NewToken::default(), NOW).await;
    assert!(matches!(again, Err(StoreError::Internal(_))), "{again:?}");
}

#[tokio::test]
async fn what_is_written_moves_the_revision_before_anybody_knows() {
    let (_directory, path) = place();
    for execution in [Execution::Inline, Execution::Thread] {
        let store = Store::open(&path, execution, DEPLOYMENT).await.unwrap();
        let clone = store.clone();
        let before = clone.revision();
        store.nodes().await.unwrap();
        assert_eq!(clone.revision(), before, "reading moves nothing");
        store.mark_all_away(NOW).await.unwrap();
        assert_eq!(clone.revision(), before + 1);
        // One that is refused may have been written, for all that its caller knows.
        let unknown = store.revoke_node(NodeId::from_bytes([9; 16]), NOW).await;
        assert!(unknown.is_err());
        assert_eq!(clone.revision(), before + 2);
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn only_its_owner_can_read_it() {
    let (directory, path) = place();
    fs::write(&path, b"").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let store = open(&path).await.unwrap();
    store
        .create_token(token(1), NewToken::default(), NOW)
        .await
        .unwrap();
    let files: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(files.len(), 3, "the ledger, its log, and the log's index");
    for file in files {
        assert_eq!(
            file.metadata().unwrap().permissions().mode() & 0o777,
            0o600,
            "{file:?}"
        );
    }
}

#[tokio::test]
async fn commits_are_on_disk_and_the_log_is_bounded() {
    let (_directory, path) = place();
    let store = open(&path).await.unwrap();
    let pragmas = store
        .executor
        .run(|connection| {
            let get = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
            Ok([
                get("synchronous")?,
                get("wal_autocheckpoint")?,
                get("journal_size_limit")?,
                get("foreign_keys")?,
            ])
        })
        .await;
    assert_eq!(pragmas, Ok([2, 1000, 4 << 20, 1]));
    let journal = store
        .executor
        .run(|connection| {
            let mode = connection.pragma_query_value(None, "journal_mode", |row| row.get(0));
            Ok::<String, _>(mode?)
        })
        .await;
    assert_eq!(journal.as_deref(), Ok("wal"));

    // More than ten times what the log may hold, in records as large as the largest of ours.
    for byte in 0..=255 {
        let ca = CaRecord {
            certificate: vec![byte; 100_000],
            sealed_key: vec![byte; 100_000],
        };
        let put = store.write(move |rows| {
            rows.0.execute("DELETE FROM ca", [])?;
            Ok(rows.add_ca(&ca)?)
        });
        put.await.unwrap();
    }
    let log = fs::metadata(path.with_extension("db-wal")).unwrap().len();
    assert!(log <= 5 << 20, "the log has {log} bytes");
}

#[tokio::test]
async fn a_newer_ledger_is_refused_and_left_as_it_is() {
    let (_directory, path) = place();
    open(&path).await.unwrap().close().await.unwrap();
    let newer = super::sqlite::SCHEMA + 1;
    Connection::open(&path)
        .unwrap()
        .pragma_update(None, "user_version", newer)
        .unwrap();
    let before = fs::read(&path).unwrap();
    for execution in [Execution::Thread, Execution::Inline] {
        let error = Store::open(&path, execution, DEPLOYMENT).await.unwrap_err();
        let known = super::sqlite::SCHEMA;
        assert_eq!(
            error,
            StoreError::NewerSchema {
                path: path.clone(),
                found: newer,
                known
            }
        );
        assert!(
            error.to_string().contains("written by a newer hub"),
            "{error}"
        );
    }
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn an_empty_file_is_migrated_from_version_0() {
    let (_directory, path) = place();
    // Empty for SQLite, but not for the file system: a header of version 0 without tables.
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch("CREATE TABLE gone (x); DROP TABLE gone; VACUUM")
        .unwrap();
    connection.close().unwrap();
    assert!(fs::metadata(&path).unwrap().len() > 0);
    open(&path).await.unwrap().close().await.unwrap();

    let connection = Connection::open(&path).unwrap();
    let version: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap();
    let application: i64 = connection
        .pragma_query_value(None, "application_id", |row| row.get(0))
        .unwrap();
    assert_eq!(
        (version, application),
        (
            super::sqlite::SCHEMA,
            i64::from(u32::from_be_bytes(*b"HubL"))
        )
    );
}

#[tokio::test]
async fn a_foreign_file_is_refused_and_left_as_it_is() {
    let (_directory, path) = place();
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch("CREATE TABLE notes (x); INSERT INTO notes VALUES (1)")
        .unwrap();
    connection.close().unwrap();
    let other_program = fs::read(&path).unwrap();
    let poem = "It is a text, long enough to fill the header of a database, and is none.\n";
    for content in [other_program, poem.repeat(20).into_bytes()] {
        fs::write(&path, &content).unwrap();
        let error = open(&path).await.unwrap_err();
        assert!(matches!(error, StoreError::NotALedger { .. }), "{error:?}");
        assert!(!error.retry_helps() && !error.is_refusal());
        assert_eq!(fs::read(&path).unwrap(), content);
    }
}

#[tokio::test]
async fn a_place_that_cannot_be_used_is_named() {
    let (directory, _) = place();
    let error = open(&directory.path().join("missing/hub.db"))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, StoreError::Io(text) if text.contains("missing")),
        "{error:?}"
    );
    let error = open(directory.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Io(_)), "{error:?}");
}

#[tokio::test]
async fn a_damaged_ledger_is_refused() {
    let (_directory, path) = place();
    let store = open(&path).await.unwrap();
    store
        .create_token(token(1), NewToken::default(), NOW)
        .await
        .unwrap();
    store.close().await.unwrap();
    let mut content = fs::read(&path).unwrap();
    // The first page holds the schema; everything behind it is rows and indexes.
    content[4096..].fill(0x55);
    fs::write(&path, &content).unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
}

#[tokio::test]
async fn a_value_that_no_hub_writes_is_an_error_and_no_panic() {
    let (_directory, path) = place();
    let store = open(&path).await.unwrap();
    Connection::open(&path)
        .unwrap()
        .execute_batch(
            "INSERT INTO nodes VALUES (zeroblob(16), 'no node name', zeroblob(32), zeroblob(32), \
             0, 0, 0, NULL, 'away', 0, NULL, NULL, 0, 0)",
        )
        .unwrap();
    let error = store.nodes().await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Corrupt(text) if text.contains("node name")),
        "{error}"
    );
}

/// Many openers of one new file, each with a connection and a thread of its own.
#[tokio::test]
async fn racing_to_create_a_ledger_ends_with_one() {
    let (_directory, path) = place();
    let openers = (1..=8).map(|byte| {
        let fresh = Deployment::from_bytes([byte; 16]);
        tokio::spawn(Store::open(path.clone(), Execution::Thread, fresh))
    });
    let mut deployments = std::collections::BTreeSet::new();
    for opener in openers.collect::<Vec<_>>() {
        deployments.insert(opener.await.unwrap().unwrap().deployment());
    }
    assert_eq!(deployments.len(), 1);
}

#[tokio::test]
async fn writers_of_one_file_wait_for_each_other() {
    let (_directory, path) = place();
    let (one, two) = (open(&path).await.unwrap(), open(&path).await.unwrap());
    let write = |store: Store, from: u8| async move {
        for byte in from..from + 50 {
            store
                .create_token(token(byte), NewToken::default(), NOW)
                .await
                .unwrap();
        }
    };
    let (first, second) = (
        tokio::spawn(write(one.clone(), 0)),
        tokio::spawn(write(two, 100)),
    );
    first.await.unwrap();
    second.await.unwrap();
    let count = one.read(|rows| {
        Ok(rows
            .0
            .query_row("SELECT count(*) FROM join_tokens", [], |row| {
                row.get::<_, u32>(0)
            })?)
    });
    assert_eq!(count.await, Ok(100));
}

/// Named in the environment, it is the ledger that a second process of this test writes to.
const LEDGER_OF_CHILD: &str = "HUB_TEST_LEDGER";

#[tokio::test]
async fn writers_in_two_processes_wait_for_each_other() {
    let test = "store::tests::writers_in_two_processes_wait_for_each_other";
    let write = async |path: &Path, from: u8| {
        let store = open(path).await.unwrap();
        for byte in from..from + 50 {
            store
                .create_token(token(byte), NewToken::default(), NOW)
                .await
                .unwrap();
        }
        store
    };
    if let Some(path) = std::env::var_os(LEDGER_OF_CHILD) {
        write(Path::new(&path), 100).await;
        return;
    }
    let (_directory, path) = place();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(LEDGER_OF_CHILD, &path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let store = write(&path, 0).await;
    assert!(child.wait().unwrap().success());
    let count = store.read(|rows| {
        Ok(rows
            .0
            .query_row("SELECT count(*) FROM join_tokens", [], |row| {
                row.get::<_, u32>(0)
            })?)
    });
    assert_eq!(count.await, Ok(100));
}

/// A disk that does not keep up.
#[tokio::test]
async fn a_ledger_for_which_too_much_waits_is_busy() {
    let store = Store::in_memory(Execution::Thread, DEPLOYMENT)
        .await
        .unwrap();
    let (begin, begun) = oneshot::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let mut stuck = Box::pin(store.executor.run(move |_| {
        begin.send(()).unwrap();
        wait.recv().unwrap();
        Ok(())
    }));
    assert!(stuck.as_mut().now_or_never().is_none());
    begun.await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..MAX_WAITING {
        let mut nodes = Box::pin(store.nodes());
        assert!(nodes.as_mut().now_or_never().is_none());
        waiting.push(nodes);
    }
    assert_eq!(store.nodes().await, Err(StoreError::Busy));
    go_on.send(()).unwrap();
    stuck.await.unwrap();
    for nodes in waiting {
        assert_eq!(nodes.await, Ok(vec![]));
    }
    assert_eq!(store.nodes().await, Ok(vec![]));
}

#[tokio::test]
async fn a_ledger_that_is_held_too_long_is_busy() {
    let (_directory, path) = place();
    let store = open(&path).await.unwrap();
    let patience = store.executor.run(|connection| {
        connection.busy_timeout(std::time::Duration::ZERO)?;
        Ok(())
    });
    patience.await.unwrap();
    let holder = Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store
        .create_token(token(1), NewToken::default(), NOW)
        .await
        .unwrap_err();
    assert_eq!(error, StoreError::Busy);
    assert!(error.retry_helps());
    assert_eq!(
        store.nodes().await,
        Ok(vec![]),
        "readers do not wait for a writer"
    );
    holder.execute_batch("COMMIT").unwrap();
    store
        .create_token(token(1), NewToken::default(), NOW)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_decision_that_fails_late_leaves_nothing_behind() {
    let store = Store::in_memory(Execution::Inline, DEPLOYMENT)
        .await
        .unwrap();
    let failed = store.write(|rows| {
        rows.add_ca(&CaRecord {
            certificate: vec![1],
            sealed_key: vec![2],
        })?;
        Err::<(), _>(StoreError::Internal("after the write".into()))
    });
    failed.await.unwrap_err();
    assert_eq!(store.ca().await, Ok(None));
}

/// A ledger of the first schema, as its release left it: everything in it is there afterwards, and
/// what points at a node still does.
#[tokio::test]
async fn a_ledger_of_the_first_schema_is_brought_up_to_date() {
    let (_directory, path) = place();
    let old = Connection::open(&path).unwrap();
    old.execute_batch(include_str!("schema_1.sql")).unwrap();
    old.execute_batch(
        "PRAGMA application_id = 0x4875624c; PRAGMA user_version = 1;
         INSERT INTO hub VALUES (1, zeroblob(16));
         INSERT INTO nodes VALUES (x'01010101010101010101010101010101', 'shop',
             zeroblob(32), zeroblob(32), 1, 5, 2, NULL, 'away', 3, 4, NULL, 6);
         INSERT INTO superseded VALUES (x'01010101010101010101010101010101', zeroblob(16), 4);
         INSERT INTO certificates VALUES (x'02020202020202020202020202020202',
             x'01010101010101010101010101010101', zeroblob(32), 1, 2, 3);
         INSERT INTO exposures VALUES (7, x'01010101010101010101010101010101', 8080, 'x',
             zeroblob(32), 1);",
    )
    .unwrap();
    drop(old);
    let store = open(&path).await.unwrap();
    let nodes = store.nodes().await.unwrap();
    let [node] = &nodes[..] else {
        panic!("{nodes:?}")
    };
    assert!(!node.is_local() && node.key().is_some());
    assert_eq!((node.epoch.0, node.targets_revision), (5, 6));
    assert_eq!(store.exposures().await.unwrap()[0].id.0, 7);
    assert_eq!(
        store.targets(node.id).await.unwrap().targets,
        [Target::tcp(8080)]
    );
    // Foreign keys hold again, and the new table is the one that they speak of.
    let counts = store
        .executor
        .run(|connection| {
            connection.execute("DELETE FROM nodes", [])?;
            let count = |table| {
                let sql = format!("SELECT count(*) FROM {table}");
                connection.query_row(&sql, [], |row| row.get::<_, i64>(0))
            };
            Ok([
                count("superseded")?,
                count("certificates")?,
                count("exposures")?,
            ])
        })
        .await;
    assert_eq!(counts, Ok([0, 0, 0]));
    store.close().await.unwrap();
    assert!(open(&path).await.is_ok(), "it opens again");
}

/// Exposures of the second schema are reached as they were, and the numbers of those that were
/// removed are not given again.
#[tokio::test]
async fn exposures_of_the_second_schema_are_reached_as_before() {
    let (_directory, path) = place();
    let old = Connection::open(&path).unwrap();
    old.execute_batch(include_str!("schema_1.sql")).unwrap();
    old.execute_batch(include_str!("schema_2.sql")).unwrap();
    old.execute_batch(
        "PRAGMA application_id = 0x4875624c; PRAGMA user_version = 2;
         INSERT INTO hub VALUES (1, zeroblob(16));
         INSERT INTO nodes VALUES (x'01010101010101010101010101010101', 'shop', NULL, NULL,
             1, 5, 2, NULL, 'away', 3, 4, NULL, 6, 1);
         INSERT INTO exposures VALUES
             (3, x'01010101010101010101010101010101', 8080, 'web', zeroblob(32), 1000),
             (9, x'01010101010101010101010101010101', 80, NULL, randomblob(32), 2000);
         DELETE FROM exposures WHERE id = 9;",
    )
    .unwrap();
    drop(old);
    let store = open(&path).await.unwrap();
    let hash = ExposureTokenHash([0; 32]);
    let named = store.locate_name("web".parse().unwrap()).await.unwrap();
    let exposure = named.unwrap().exposure;
    let expected = Exposure {
        id: ExposureId(3),
        name: Some("web".parse().unwrap()),
        token: Some(ExposureToken {
            hash,
            expires: None,
            previous: None,
        }),
        access: Access::Public,
        protocol: Protocol::Http,
        replicas: vec![Replica {
            node: NodeId::from_bytes([1; 16]),
            target: Target::tcp(8080),
        }],
        listen: None,
        settings: Settings::default(),
        created: Timestamp::from_millis(1000),
    };
    assert_eq!(exposure, expected);
    let by_token = store.locate_token(hash, NOW).await.unwrap();
    assert_eq!(by_token.unwrap().exposure, expected);
    let new = NewExposure {
        name: Some("other".parse().unwrap()),
        replicas: expected.replicas,
        ..NewExposure::default()
    };
    let next = store.create_exposure(new, NOW).await.unwrap();
    assert_eq!((next.exposure.id.0, next.told[0].targets.revision), (10, 7));
}

/// Each question that a request asks of the ledger is answered by indices alone.
#[tokio::test]
async fn no_request_has_the_whole_ledger_read() {
    let store = Store::in_memory(Execution::Inline, DEPLOYMENT)
        .await
        .unwrap();
    for plan in store.read(|rows| Ok(rows.plans()?)).await.unwrap() {
        assert!(!plan.is_empty());
        for step in plan {
            assert!(!step.contains("SCAN"), "{step}");
        }
    }
}
