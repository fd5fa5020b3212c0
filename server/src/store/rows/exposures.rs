//! Rows of exposures and of their replicas.
//!
//! A replica is a row of its own, so that a node's can be found; whatever reads exposures reads both
//! in one statement, a row for each replica, and puts together what belongs together.

use std::net::SocketAddr;

use hub_ledger::exposure::{PreviousToken, Settings};
use hub_ledger::{
    Access, Exposure, ExposureId, ExposureName, ExposureToken, ExposureTokenHash, Protocol,
    Replica, Timestamp,
};
use hub_protocol::target::{Selector, Target, Transport};
use hub_protocol::{NodeId, NodeName};
use rusqlite::types::ValueRef;
use rusqlite::{Params, Row, params};

use super::{Result, Rows, millis, optional_timestamp, text, timestamp, unreadable};

/// An exposure and where its replicas are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The exposure.
    pub exposure: Exposure,
    /// The node of each replica, in their order.
    pub homes: Vec<Home>,
}

/// What carrying a request to a node takes to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: NodeName,
    /// When it was revoked, if it was.
    pub revoked: Option<Timestamp>,
    /// The revision of its list of targets.
    pub revision: u64,
}

/// Columns 0 to 14 are the exposure's, 15 to 19 a replica's.
macro_rules! select {
    ($more:expr, $($rest:expr),*) => {
        concat!(
            "SELECT e.id, e.name, e.token, e.token_expires, e.previous, e.previous_until, \
             e.access, e.protocol, e.listen, e.max_body, e.max_requests, e.max_sessions, e.rate, \
             e.sticky, e.created, r.node, r.transport, r.port, r.container, r.label",
            $more,
            " FROM exposures e JOIN replicas r ON r.exposure = e.id ",
            $($rest,)*
            " ORDER BY e.id, r.position"
        )
    };
}

/// The same with columns 20 to 22 of the replica's node.
macro_rules! locate {
    ($which:literal) => {
        select!(
            ", n.name, n.revoked, n.targets_revision",
            "JOIN nodes n ON n.id = r.node WHERE ",
            $which
        )
    };
}

const LOCATE_NAME: &str = locate!("e.name = ?1");
const LOCATE_TOKEN: &str = locate!("(e.token = ?1 OR e.previous = ?1)");

impl Rows<'_> {
    fn put_together(&self, sql: &str, params: impl Params) -> Result<Vec<Exposure>> {
        let mut statement = self.0.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let mut exposures: Vec<Exposure> = Vec::new();
        while let Some(row) = rows.next()? {
            let id = id(row)?;
            if exposures.last().is_none_or(|last| last.id != id) {
                exposures.push(exposure(row)?);
            }
            if let Some(last) = exposures.last_mut() {
                last.replicas.push(replica(row)?);
            }
        }
        Ok(exposures)
    }

    fn located(&self, sql: &str, params: impl Params) -> Result<Vec<Located>> {
        let mut statement = self.0.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let mut all: Vec<Located> = Vec::new();
        while let Some(row) = rows.next()? {
            let id = id(row)?;
            if all.last().is_none_or(|last| last.exposure.id != id) {
                let (exposure, homes) = (exposure(row)?, Vec::new());
                all.push(Located { exposure, homes });
            }
            if let Some(last) = all.last_mut() {
                let replica = replica(row)?;
                last.homes.push(Home {
                    id: replica.node,
                    name: text(row, 20)?,
                    revoked: optional_timestamp(row, 21)?,
                    revision: row.get::<_, i64>(22)?.cast_unsigned(),
                });
                last.exposure.replicas.push(replica);
            }
        }
        Ok(all)
    }

    pub(in crate::store) fn exposures(&self) -> Result<Vec<Exposure>> {
        self.put_together(select!("", ""), [])
    }

    /// Those with a replica on this node, with all of their replicas.
    pub(in crate::store) fn exposures_of(&self, node: NodeId) -> Result<Vec<Exposure>> {
        let sql = select!(
            "",
            "WHERE e.id IN (SELECT exposure FROM replicas WHERE node = ?1)"
        );
        self.put_together(sql, [node.as_bytes()])
    }

    pub(in crate::store) fn exposure(&self, id: ExposureId) -> Result<Option<Exposure>> {
        let sql = select!("", "WHERE e.id = ?1");
        let mut found = self.put_together(sql, [id.0.cast_signed()])?;
        Ok(found.pop())
    }

    pub(in crate::store) fn id_of_exposure_named(
        &self,
        name: &ExposureName,
    ) -> Result<Option<ExposureId>> {
        let sql = "SELECT id FROM exposures WHERE name = ?1";
        self.one(sql, [name.as_str()], id)
    }

    /// Where the hub listens for exposures of this transport.
    pub(in crate::store) fn listeners(
        &self,
        transport: Transport,
    ) -> Result<Vec<(ExposureId, SocketAddr)>> {
        let protocol = match transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        let sql = "SELECT id, listen FROM exposures WHERE protocol = ?1 ORDER BY id";
        self.all(sql, [protocol], |row| Ok((id(row)?, text(row, 1)?)))
    }

    /// All exposures, and where they are.
    pub(in crate::store) fn locate_all(&self) -> Result<Vec<Located>> {
        self.located(locate!("true"), [])
    }

    /// The exposure of this number, and where it is.
    pub(in crate::store) fn locate(&self, id: ExposureId) -> Result<Option<Located>> {
        Ok(self
            .located(locate!("e.id = ?1"), [id.0.cast_signed()])?
            .pop())
    }

    /// The exposure of this name, and where it is.
    pub(in crate::store) fn locate_name(&self, name: &ExposureName) -> Result<Option<Located>> {
        Ok(self.located(LOCATE_NAME, [name.as_str()])?.pop())
    }

    /// The exposure that has a token of this hash, or had it last, and where it is. Whether the token
    /// is good yet is not asked here.
    ///
    /// The hash is looked up in an index, which takes as long as its first bytes are those of others.
    /// Nobody can make use of that: whoever could choose the hash of a token that they don't know,
    /// even its first bytes, could guess the token.
    pub(in crate::store) fn locate_token(
        &self,
        token: ExposureTokenHash,
    ) -> Result<Option<Located>> {
        Ok(self.located(LOCATE_TOKEN, [token.0])?.pop())
    }

    /// How the database goes about the questions that each request asks.
    #[cfg(test)]
    pub(in crate::store) fn plans(&self) -> Result<Vec<Vec<String>>> {
        let plan = |sql: &str| {
            let sql = format!("EXPLAIN QUERY PLAN {sql}");
            self.all(&sql, [rusqlite::types::Null], |row| row.get(3))
        };
        Ok(vec![plan(LOCATE_NAME)?, plan(LOCATE_TOKEN)?])
    }

    pub(in crate::store) fn next_exposure_id(&self) -> Result<ExposureId> {
        let sql = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'exposures'), 0)";
        let last: i64 = self.0.query_row(sql, [], |row| row.get(0))?;
        Ok(ExposureId(last.cast_unsigned() + 1))
    }

    /// Writes down an exposure, with no other replicas than its own.
    pub(in crate::store) fn put_exposure(&self, exposure: &Exposure) -> Result<()> {
        let token = exposure.token.as_ref();
        let previous = token.and_then(|token| token.previous);
        let settings = &exposure.settings;
        self.0.execute(
            "INSERT INTO exposures VALUES \
             (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) \
             ON CONFLICT (id) DO UPDATE SET name = ?2, token = ?3, token_expires = ?4, \
             previous = ?5, previous_until = ?6, access = ?7, protocol = ?8, listen = ?9, \
             max_body = ?10, max_requests = ?11, max_sessions = ?12, rate = ?13, sticky = ?14, \
             created = ?15",
            params![
                exposure.id.0.cast_signed(),
                exposure.name.as_ref().map(ExposureName::as_str),
                token.map(|token| token.hash.0),
                token.and_then(|token| token.expires).map(millis),
                previous.map(|previous| previous.hash.0),
                previous.map(|previous| millis(previous.until)),
                access_name(exposure.access),
                protocol_name(exposure.protocol),
                exposure.listen.map(|address| address.to_string()),
                settings.max_body.map(u64::cast_signed),
                settings.max_requests,
                settings.max_sessions,
                settings.rate,
                settings.sticky,
                millis(exposure.created),
            ],
        )?;
        // One after the other takes the place of what was there: at no time is there none, for an
        // exposure goes with the last of its replicas.
        for (position, replica) in (0_u32..).zip(&exposure.replicas) {
            self.put_replica(exposure.id, position, replica)?;
        }
        self.0.execute(
            "DELETE FROM replicas WHERE exposure = ?1 AND position >= ?2",
            params![exposure.id.0.cast_signed(), exposure.replicas.len() as u32],
        )?;
        Ok(())
    }

    fn put_replica(&self, exposure: ExposureId, position: u32, replica: &Replica) -> Result<()> {
        let Target {
            transport,
            port,
            container,
        } = &replica.target;
        let (name, label) = match container {
            Some(Selector::Name(name)) => (Some(name), None),
            Some(Selector::Label(label)) => (None, Some(label)),
            None => (None, None),
        };
        self.0.execute(
            "INSERT INTO replicas VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
             ON CONFLICT (exposure, position) DO UPDATE SET node = ?3, transport = ?4, port = ?5, \
             container = ?6, label = ?7",
            params![
                exposure.0.cast_signed(),
                position,
                replica.node.as_bytes(),
                match transport {
                    Transport::Tcp => "tcp",
                    Transport::Udp => "udp",
                },
                port,
                name,
                label,
            ],
        )?;
        Ok(())
    }

    pub(in crate::store) fn remove_exposure(&self, id: ExposureId) -> Result<()> {
        self.0
            .execute("DELETE FROM exposures WHERE id = ?1", [id.0.cast_signed()])?;
        Ok(())
    }
}

fn access_name(access: Access) -> &'static str {
    match access {
        Access::Public => "public",
        Access::Token => "token",
        Access::Login => "login",
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http => "http",
        Protocol::Http2 => "http2",
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

fn id(row: &Row<'_>) -> Result<ExposureId> {
    Ok(ExposureId(row.get::<_, i64>(0)?.cast_unsigned()))
}

/// The exposure of a row, without its replicas.
fn exposure(row: &Row<'_>) -> Result<Exposure> {
    let hash = |column| -> Result<_> {
        let hash: Option<[u8; 32]> = row.get(column)?;
        Ok(hash.map(ExposureTokenHash))
    };
    let previous = match (hash(4)?, optional_timestamp(row, 5)?) {
        (Some(hash), Some(until)) => Some(PreviousToken { hash, until }),
        _ => None,
    };
    let expires = optional_timestamp(row, 3)?;
    Ok(Exposure {
        id: id(row)?,
        name: optional_text(row, 1)?,
        token: hash(2)?.map(|hash| ExposureToken {
            hash,
            expires,
            previous,
        }),
        access: match row.get_ref(6)?.as_str()? {
            "public" => Access::Public,
            "token" => Access::Token,
            "login" => Access::Login,
            other => return Err(unreadable(6, format!("unknown access {other:?}"))),
        },
        protocol: match row.get_ref(7)?.as_str()? {
            "http" => Protocol::Http,
            "http2" => Protocol::Http2,
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            other => return Err(unreadable(7, format!("unknown protocol {other:?}"))),
        },
        replicas: Vec::new(),
        listen: optional_text(row, 8)?,
        settings: Settings {
            max_body: row.get::<_, Option<i64>>(9)?.map(i64::cast_unsigned),
            max_requests: row.get(10)?,
            max_sessions: row.get(11)?,
            rate: row.get(12)?,
            sticky: row.get(13)?,
        },
        created: timestamp(row, 14)?,
    })
}

fn replica(row: &Row<'_>) -> Result<Replica> {
    let name = row.get::<_, Option<String>>(18)?.map(Selector::Name);
    let label = row.get::<_, Option<String>>(19)?.map(Selector::Label);
    Ok(Replica {
        node: NodeId::from_bytes(row.get(15)?),
        target: Target {
            transport: match row.get_ref(16)?.as_str()? {
                "tcp" => Transport::Tcp,
                "udp" => Transport::Udp,
                other => return Err(unreadable(16, format!("unknown transport {other:?}"))),
            },
            port: row.get(17)?,
            container: name.or(label),
        },
    })
}

fn optional_text<T: std::str::FromStr<Err: std::fmt::Display>>(
    row: &Row<'_>,
    column: usize,
) -> Result<Option<T>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => text(row, column).map(Some),
    }
}
