//! Rows of the ledger and their SQL. No rule stands here: rows come out, rows go in.

mod exposures;

use std::fmt::Display;
use std::str::FromStr;

use hub_ledger::token::Purpose;
use hub_ledger::{
    Certificate, JoinToken, JoinTokenHash, Node, Origin, Presence, Serial, Timestamp,
};
use hub_protocol::{Epoch, Fingerprint, Generation, Incarnation, NodeId, NodeName};
use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, OptionalExtension as _, Params, Row, params};

use super::CaRecord;
pub use exposures::{Home, Located};

type Result<T> = rusqlite::Result<T>;

/// The rows, within one transaction.
pub(super) struct Rows<'t>(pub(super) &'t Connection);

const NODE: &str = "SELECT id, name, key, admitted_by, created, epoch, generation, incarnation, \
                    presence, presence_since, last_seen, revoked, targets_revision, local \
                    FROM nodes";
const TOKEN: &str = "SELECT hash, purpose, automatic_approval, created, expires, uses, uses_left \
                     FROM join_tokens";
const CERTIFICATE: &str =
    "SELECT serial, node, key, not_before, not_after, recorded FROM certificates";

impl Rows<'_> {
    fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut statement = self.0.prepare_cached(sql)?;
        statement.query_row(params, read).optional()
    }

    fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut statement = self.0.prepare_cached(sql)?;
        statement.query_map(params, read)?.collect()
    }

    pub(super) fn nodes(&self) -> Result<Vec<Node>> {
        self.all(&format!("{NODE} ORDER BY name"), [], node)
    }

    pub(super) fn connected_nodes(&self) -> Result<Vec<Node>> {
        self.all(
            &format!("{NODE} WHERE presence = 'connected' ORDER BY id"),
            [],
            node,
        )
    }

    pub(super) fn node(&self, id: NodeId) -> Result<Option<Node>> {
        self.one(&format!("{NODE} WHERE id = ?1"), [id.as_bytes()], node)
    }

    pub(super) fn node_named(&self, name: &NodeName) -> Result<Option<Node>> {
        self.one(&format!("{NODE} WHERE name = ?1"), [name.as_str()], node)
    }

    pub(super) fn node_keyed(&self, key: Fingerprint) -> Result<Option<Node>> {
        self.one(&format!("{NODE} WHERE key = ?1"), [key.digest()], node)
    }

    /// The hub's own machine, if it is a node and was not revoked.
    pub(super) fn local_node(&self) -> Result<Option<Node>> {
        let sql = format!("{NODE} WHERE local = 1 AND revoked IS NULL");
        self.one(&sql, [], node)
    }

    pub(super) fn put_node(&self, node: &Node) -> Result<()> {
        let (key, by) = match node.origin {
            Origin::Joined { key, by } => (Some(key), Some(by.0)),
            Origin::Local => (None, None),
        };
        self.0.execute(
            "INSERT INTO nodes VALUES \
             (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
             ON CONFLICT (id) DO UPDATE SET name = ?2, key = ?3, admitted_by = ?4, created = ?5, \
             epoch = ?6, generation = ?7, incarnation = ?8, presence = ?9, presence_since = ?10, \
             last_seen = ?11, revoked = ?12, targets_revision = ?13, local = ?14",
            params![
                node.id.as_bytes(),
                node.name.as_str(),
                key.map(|key| *key.digest()),
                by,
                millis(node.created),
                node.epoch.0.cast_signed(),
                node.generation.0.cast_signed(),
                node.incarnation.as_ref().map(Incarnation::as_bytes),
                match node.presence {
                    Presence::Connected => "connected",
                    Presence::Away => "away",
                },
                millis(node.presence_since),
                node.last_seen.map(millis),
                node.revoked.map(millis),
                node.targets_revision.cast_signed(),
                node.is_local(),
            ],
        )?;
        Ok(())
    }

    pub(super) fn is_superseded(&self, node: NodeId, incarnation: Incarnation) -> Result<bool> {
        self.0.query_row(
            "SELECT EXISTS (SELECT 1 FROM superseded WHERE node = ?1 AND incarnation = ?2)",
            params![node.as_bytes(), incarnation.as_bytes()],
            |row| row.get(0),
        )
    }

    /// Remembers that `incarnation` was superseded at `epoch`, and forgets all but the last `keep`.
    pub(super) fn supersede(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        epoch: Epoch,
        keep: u32,
    ) -> Result<()> {
        self.0.execute(
            "INSERT INTO superseded VALUES (?1, ?2, ?3)",
            params![
                node.as_bytes(),
                incarnation.as_bytes(),
                epoch.0.cast_signed()
            ],
        )?;
        self.0.execute(
            "DELETE FROM superseded WHERE node = ?1 AND incarnation NOT IN (SELECT incarnation \
             FROM superseded WHERE node = ?1 ORDER BY epoch DESC LIMIT ?2)",
            params![node.as_bytes(), keep],
        )?;
        Ok(())
    }

    pub(super) fn token(&self, hash: JoinTokenHash) -> Result<Option<JoinToken>> {
        self.one(&format!("{TOKEN} WHERE hash = ?1"), [hash.0], token)
    }

    pub(super) fn add_token(&self, token: &JoinToken) -> Result<()> {
        let Purpose::Join = token.purpose;
        self.0.execute(
            "INSERT INTO join_tokens VALUES (?1, 'join', ?2, ?3, ?4, ?5, ?6)",
            params![
                token.hash.0,
                token.automatic_approval,
                millis(token.created),
                millis(token.expires),
                token.uses,
                token.uses_left,
            ],
        )?;
        Ok(())
    }

    pub(super) fn set_token_uses(&self, token: &JoinToken) -> Result<()> {
        self.0.execute(
            "UPDATE join_tokens SET uses_left = ?2 WHERE hash = ?1",
            params![token.hash.0, token.uses_left],
        )?;
        Ok(())
    }

    pub(super) fn forget_tokens_expired_before(&self, then: Timestamp) -> Result<()> {
        self.0
            .execute("DELETE FROM join_tokens WHERE expires < ?1", [millis(then)])?;
        Ok(())
    }

    pub(super) fn certificate(&self, serial: Serial) -> Result<Option<Certificate>> {
        self.one(
            &format!("{CERTIFICATE} WHERE serial = ?1"),
            [serial.as_bytes()],
            certificate,
        )
    }

    pub(super) fn certificates_of_key(&self, key: Fingerprint) -> Result<Vec<Certificate>> {
        let sql = format!("{CERTIFICATE} WHERE key = ?1 ORDER BY not_after, serial");
        self.all(&sql, [key.digest()], certificate)
    }

    pub(super) fn add_certificate(&self, certificate: &Certificate) -> Result<()> {
        self.0.execute(
            "INSERT INTO certificates VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![
                certificate.serial.as_bytes(),
                certificate.node.as_bytes(),
                certificate.key.digest(),
                millis(certificate.not_before),
                millis(certificate.not_after),
                millis(certificate.recorded),
            ],
        )?;
        Ok(())
    }

    pub(super) fn forget_certificates_expired_before(
        &self,
        node: NodeId,
        then: Timestamp,
    ) -> Result<()> {
        self.0.execute(
            "DELETE FROM certificates WHERE node = ?1 AND not_after < ?2",
            params![node.as_bytes(), millis(then)],
        )?;
        Ok(())
    }

    pub(super) fn ca(&self) -> Result<Option<CaRecord>> {
        self.one("SELECT certificate, sealed_key FROM ca", [], |row| {
            Ok(CaRecord {
                certificate: row.get(0)?,
                sealed_key: row.get(1)?,
            })
        })
    }

    pub(super) fn add_ca(&self, ca: &CaRecord) -> Result<()> {
        self.0.execute(
            "INSERT INTO ca VALUES (1, ?1, ?2)",
            params![ca.certificate, ca.sealed_key],
        )?;
        Ok(())
    }
}

fn node(row: &Row<'_>) -> Result<Node> {
    Ok(Node {
        id: NodeId::from_bytes(row.get(0)?),
        name: text(row, 1)?,
        origin: match (row.get(2)?, row.get(3)?, row.get(13)?) {
            (Some(key), Some(by), false) => Origin::Joined {
                key: Fingerprint::from_digest(key),
                by: JoinTokenHash(by),
            },
            (None, None, true) => Origin::Local,
            _ => {
                return Err(unreadable(
                    13,
                    "a node that is half the hub's own machine".into(),
                ));
            }
        },
        created: timestamp(row, 4)?,
        epoch: Epoch(row.get::<_, i64>(5)?.cast_unsigned()),
        generation: Generation(row.get::<_, i64>(6)?.cast_unsigned()),
        incarnation: row.get::<_, Option<_>>(7)?.map(Incarnation::from_bytes),
        presence: match row.get::<_, String>(8)?.as_str() {
            "connected" => Presence::Connected,
            "away" => Presence::Away,
            other => return Err(unreadable(8, format!("unknown presence {other:?}"))),
        },
        presence_since: timestamp(row, 9)?,
        last_seen: optional_timestamp(row, 10)?,
        revoked: optional_timestamp(row, 11)?,
        targets_revision: row.get::<_, i64>(12)?.cast_unsigned(),
    })
}

fn token(row: &Row<'_>) -> Result<JoinToken> {
    Ok(JoinToken {
        hash: JoinTokenHash(row.get(0)?),
        purpose: match row.get::<_, String>(1)?.as_str() {
            "join" => Purpose::Join,
            other => return Err(unreadable(1, format!("unknown purpose {other:?}"))),
        },
        automatic_approval: row.get(2)?,
        created: timestamp(row, 3)?,
        expires: timestamp(row, 4)?,
        uses: row.get(5)?,
        uses_left: row.get(6)?,
    })
}

fn certificate(row: &Row<'_>) -> Result<Certificate> {
    Ok(Certificate {
        serial: Serial::from_bytes(row.get(0)?)
            .ok_or_else(|| unreadable(0, "a serial that no hub made".into()))?,
        node: NodeId::from_bytes(row.get(1)?),
        key: Fingerprint::from_digest(row.get(2)?),
        not_before: timestamp(row, 3)?,
        not_after: timestamp(row, 4)?,
        recorded: timestamp(row, 5)?,
    })
}

/// Every timestamp fits: it ends with the year 9999.
fn millis(timestamp: Timestamp) -> i64 {
    timestamp.as_millis().cast_signed()
}

fn timestamp(row: &Row<'_>, column: usize) -> Result<Timestamp> {
    let millis: i64 = row.get(column)?;
    let millis = u64::try_from(millis)
        .map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, millis))?;
    Ok(Timestamp::from_millis(millis))
}

fn optional_timestamp(row: &Row<'_>, column: usize) -> Result<Option<Timestamp>> {
    match row.get::<_, Option<i64>>(column)? {
        Some(_) => timestamp(row, column).map(Some),
        None => Ok(None),
    }
}

fn text<T: FromStr<Err: Display>>(row: &Row<'_>, column: usize) -> Result<T> {
    let text: String = row.get(column)?;
    text.parse()
        .map_err(|error: T::Err| unreadable(column, error.to_string()))
}

fn unreadable(column: usize, reason: String) -> rusqlite::Error {
    let reason = FromSqlError::Other(reason.into());
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(reason))
}
