//! Opening a SQLite file as a ledger: recognised first, then configured, then migrated.
//!
//! A file that is not a ledger, or is one of a newer program, is refused before anything is
//! written to it. The application id in its header says that it is a ledger, `user_version` which
//! schema it has; both change in the transaction that changes the schema.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use hub_protocol::Deployment;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::error::StoreError;

/// "HubL" in the header of every ledger.
const APPLICATION_ID: i64 = 0x4875_624c;

/// Versions, and the scripts that lead to each from the one before.
const MIGRATIONS: &[(i64, &str)] = &[
    (1, include_str!("schema_1.sql")),
    (2, include_str!("schema_2.sql")),
    (3, include_str!("schema_3.sql")),
];

/// The newest schema that this program knows.
pub(super) const SCHEMA: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// How long a statement waits for another connection of the same file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Pages in the write-ahead log at which it is copied back: 4 MiB of 4 KiB pages.
const CHECKPOINT_PAGES: u32 = 1000;

/// What the write-ahead log's file is cut to after that, in bytes.
const WAL_FILE_LIMIT: u32 = 4 << 20;

/// Opens or creates the ledger at `path`. A new one becomes that of `fresh`.
pub(super) fn open(path: &Path, fresh: Deployment) -> Result<(Connection, Deployment), StoreError> {
    prepare_file(path).map_err(|error| StoreError::Io(format!("{}: {error}", path.display())))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // One transaction sees one state, whatever another program that creates the file does meanwhile.
    let transaction = connection.transaction()?;
    recognise(&transaction, path)?;
    drop(transaction);
    use_write_ahead_log(&connection)?;
    let deployment = set_up(&mut connection, path, fresh)?;
    check(&connection)?;
    Ok((connection, deployment))
}

/// A ledger that is gone when its last handle is.
pub(super) fn open_in_memory(fresh: Deployment) -> Result<(Connection, Deployment), StoreError> {
    let mut connection = Connection::open_in_memory()?;
    let deployment = set_up(&mut connection, Path::new(":memory:"), fresh)?;
    Ok((connection, deployment))
}

/// Makes sure that the file exists and that nobody else can read it. SQLite gives the same mode
/// to the files that it puts beside it.
fn prepare_file(path: &Path) -> io::Result<()> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    let permissions = fs::metadata(path)?.permissions();
    if permissions.mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// Refuses what is not a ledger of a known schema. Reads only.
fn recognise(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    let not_a_ledger = |reason| StoreError::NotALedger {
        path: path.to_owned(),
        reason,
    };
    let application = match pragma(connection, "application_id") {
        Err(rusqlite::Error::SqliteFailure(failure, _))
            if failure.code == ErrorCode::NotADatabase =>
        {
            return Err(not_a_ledger("it is not a SQLite file"));
        }
        other => other?,
    };
    let version = pragma(connection, "user_version")?;
    let objects: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (application, version) {
        (0, 0) if objects == 0 => Ok(0),
        (APPLICATION_ID, 1..=SCHEMA) => Ok(version),
        (APPLICATION_ID, 0) => Err(StoreError::Corrupt("it has no schema version".into())),
        (APPLICATION_ID, found) => Err(StoreError::NewerSchema {
            path: path.to_owned(),
            found,
            known: SCHEMA,
        }),
        _ => Err(not_a_ledger("it is a SQLite file of another program")),
    }
}

/// Two programs that turn a new file over to the log at the same time do not wait for each other
/// as they do for everything else: the one that is told "busy" tries again.
fn use_write_ahead_log(connection: &Connection) -> Result<(), StoreError> {
    const PAUSE: Duration = Duration::from_millis(5);
    let mut left = BUSY_TIMEOUT.as_millis() / PAUSE.as_millis();
    loop {
        let set = connection
            .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0));
        match set.map_err(StoreError::from) {
            Ok(mode) if mode == "wal" => break,
            Ok(mode) => {
                return Err(StoreError::Io(format!(
                    "its file system allows no write-ahead log (journal mode {mode})"
                )));
            }
            Err(StoreError::Busy) if left > 0 => {
                left -= 1;
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", WAL_FILE_LIMIT)?;
    Ok(())
}

/// Brings the schema up to date and gives a new ledger its deployment.
fn set_up(
    connection: &mut Connection,
    path: &Path,
    fresh: Deployment,
) -> Result<Deployment, StoreError> {
    // A table that is made anew keeps its rows' dependants; whether all of them still have what they
    // point at is checked below.
    connection.pragma_update(None, "foreign_keys", false)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Asked again under the lock: another program may have migrated it meanwhile.
    let version = recognise(&transaction, path)?;
    for (_, script) in MIGRATIONS.iter().filter(|(number, _)| *number > version) {
        transaction.execute_batch(script)?;
    }
    if version < SCHEMA {
        let dangling = transaction
            .prepare("PRAGMA foreign_key_check")?
            .exists([])?;
        if dangling {
            return Err(StoreError::Corrupt(
                "rows point at rows that are gone".into(),
            ));
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", SCHEMA)?;
    }
    transaction.execute(
        "INSERT OR IGNORE INTO hub (only_row, deployment) VALUES (1, ?1)",
        [fresh.as_bytes()],
    )?;
    let deployment = transaction
        .query_row("SELECT deployment FROM hub", [], |row| row.get(0))
        .map(Deployment::from_bytes)?;
    transaction.commit()?;
    connection.pragma_update(None, "foreign_keys", true)?;
    Ok(deployment)
}

fn check(connection: &Connection) -> Result<(), StoreError> {
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" {
        Ok(())
    } else {
        Err(StoreError::Corrupt(verdict))
    }
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}
