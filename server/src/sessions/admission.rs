//! From Hello to Welcome or Refused. The order: what the certificate says, pure checks, the ledger.

use hub_ledger::certificate::Distrust;
use hub_ledger::node::RegisterRefusal;
use hub_ledger::{Process, Registration, Timestamp};
use hub_protocol::limits::Limits;
use hub_protocol::operation::Role;
use hub_protocol::session::{Control, Hello, Refused, Targets, Welcome, refusal, shown};
use hub_protocol::version::VersionRange;
use hub_protocol::{Deployment, NodeId, NodeName};
use hub_quic::session::{ControlError, ControlReceiver, ControlSender, Session, control};
use hub_quic::tls::PeerIdentity;
use hub_quic::transport::Connection;

use super::Context;
use crate::store::StoreError;

/// Who a connection is from, and why that is believed.
#[derive(Debug)]
pub(super) enum Peer {
    /// A node, by the certificate it showed.
    Certified(PeerIdentity),
    /// The hub's own machine: the connection stays within this process.
    Local(NodeId),
}

impl Peer {
    pub(super) fn node_id(&self) -> NodeId {
        match self {
            Self::Certified(identity) => identity.node_id,
            Self::Local(node) => *node,
        }
    }
}

/// A Hello that was taken.
pub(super) struct Admitted {
    pub(super) session: Session,
    pub(super) welcome: Welcome,
    pub(super) targets: Targets,
    pub(super) name: NodeName,
}

/// Waits for the control stream and the Hello on it.
pub(super) async fn hello(
    connection: &Connection,
) -> Result<(ControlSender, ControlReceiver, Hello), ControlError> {
    let stream = connection.accept().await;
    let (sender, mut receiver) = control(stream.map_err(|e| ControlError::Lost(e.to_string()))?);
    match receiver.receive().await? {
        Control::Hello(hello) => Ok((sender, receiver, *hello)),
        other => Err(ControlError::Malformed(format!(
            "Hello was expected, not {}",
            other.name()
        ))),
    }
}

/// What can be refused without asking the ledger.
fn check(hello: &Hello, ours: Deployment) -> Result<u32, Refused> {
    let refuse = |code: &str, message: String| Refused {
        permanent: true,
        code: code.into(),
        message,
        retry_after_ms: None,
    };
    let version = hello.versions.common(VersionRange::OURS).ok_or_else(|| {
        let (theirs, ours) = (hello.versions, VersionRange::OURS);
        let message = format!(
            "the agent (release {}) speaks versions {} to {} of the protocol, this hub {} to {}; \
             upgrade the older of the two",
            shown(&hello.release),
            theirs.min,
            theirs.max,
            ours.min,
            ours.max,
        );
        refuse(refusal::VERSION, message)
    })?;
    if hello.deployment != ours {
        let message = "the agent joined another deployment; join it anew to use it here";
        return Err(refuse(refusal::FOREIGN_DEPLOYMENT, message.into()));
    }
    Ok(version)
}

/// Registers the agent.
pub(super) async fn admit(
    context: &Context,
    connection: &Connection,
    peer: &Peer,
    hello: &Hello,
) -> Result<Admitted, Refused> {
    let version = check(hello, context.store.deployment())?;
    let process = Process {
        incarnation: hello.incarnation,
        last_generation: hello.last_generation,
    };
    let now = context.clock.now();
    let registered = match peer {
        Peer::Certified(identity) => {
            let registration = Registration {
                node: identity.node_id,
                key: identity.fingerprint,
                process,
            };
            context.store.register(registration, now).await
        }
        Peer::Local(node) => context.store.register_local(*node, process, now).await,
    };
    let registered = registered.map_err(|error| refused(&error))?;
    let targets = context
        .store
        .targets(peer.node_id())
        .await
        .map_err(|error| refused(&error))?;
    let node = registered.node;
    warn_of_clock(hello, now);
    let limits = Limits::default();
    let span = tracing::info_span!("operations", node = %node.name);
    Ok(Admitted {
        session: Session::new(connection.clone(), Role::Hub, limits, hello.limits, span),
        welcome: Welcome {
            version,
            node_id: node.id,
            epoch: node.epoch,
            generation: node.generation,
            clock_ms: now.as_millis(),
            heartbeat_ms: context.config.heartbeat.as_millis() as u64,
            limits,
        },
        targets,
        name: node.name,
    })
}

fn warn_of_clock(hello: &Hello, now: Timestamp) {
    let skew_ms = hello.clock_ms.abs_diff(now.as_millis());
    if skew_ms > 60_000 {
        tracing::warn!(
            skew_s = skew_ms / 1000,
            "the clocks of agent and hub are far apart"
        );
    }
}

fn refused(error: &StoreError) -> Refused {
    let (permanent, code) = match error {
        StoreError::Register(RegisterRefusal::Superseded { .. }) => (true, refusal::SUPERSEDED),
        StoreError::Register(RegisterRefusal::Distrusted(Distrust::Revoked { .. })) => {
            (true, refusal::REVOKED)
        }
        StoreError::Register(RegisterRefusal::Distrusted(Distrust::Expired { .. })) => {
            (true, refusal::EXPIRED)
        }
        // Time mends it, or whoever sets the hub's clock.
        StoreError::Register(RegisterRefusal::Distrusted(Distrust::NotYetValid { .. })) => {
            return Refused {
                permanent: false,
                code: refusal::TRY_LATER.into(),
                message: error.to_string(),
                retry_after_ms: Some(60_000),
            };
        }
        StoreError::Register(RegisterRefusal::Distrusted(
            Distrust::UnknownNode { .. } | Distrust::UnknownKey { .. },
        )) => (true, refusal::UNKNOWN_IDENTITY),
        // The ledger can't answer: nothing is decided, and what it says is not for agents.
        _ => {
            tracing::error!(%error, "the ledger could not register a node");
            return Refused {
                permanent: false,
                code: refusal::TRY_LATER.into(),
                message: "the hub cannot decide now; try again later".into(),
                retry_after_ms: Some(5_000),
            };
        }
    };
    Refused {
        permanent,
        code: code.into(),
        message: error.to_string(),
        retry_after_ms: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::str::FromStr as _;

    use hub_protocol::Incarnation;
    use hub_protocol::session::Platform;

    use super::*;

    fn hello(min: u32, max: u32) -> Hello {
        Hello {
            versions: VersionRange { min, max },
            deployment: Deployment::from_bytes([1; 16]),
            release: "9.9.9".into(),
            digest: String::new(),
            incarnation: Incarnation::from_bytes([0; 16]),
            last_generation: None,
            clock_ms: 0,
            platform: Platform::default(),
            capabilities: Vec::new(),
            limits: Limits::default(),
        }
    }

    #[test]
    fn strangers_are_told_why() {
        let ours = Deployment::from_bytes([1; 16]);
        assert_eq!(check(&hello(1, 5), ours), Ok(1));
        let refused = check(&hello(7, 9), ours).unwrap_err();
        assert_eq!(
            (refused.code.as_str(), refused.permanent),
            (refusal::VERSION, true)
        );
        assert!(refused.message.contains("9.9.9"), "{refused}");
        let refused = check(&hello(1, 1), Deployment::from_bytes([2; 16])).unwrap_err();
        assert_eq!(refused.code, refusal::FOREIGN_DEPLOYMENT);
    }

    #[test]
    fn only_what_time_does_not_mend_is_permanent() {
        let name = || NodeName::from_str("a").unwrap();
        let day = Timestamp::from_millis(1);
        let distrust = [
            (
                Distrust::NotYetValid {
                    name: name(),
                    from: day,
                },
                refusal::TRY_LATER,
                false,
            ),
            (
                Distrust::Expired {
                    name: name(),
                    expired: day,
                },
                refusal::EXPIRED,
                true,
            ),
            (
                Distrust::Revoked {
                    name: name(),
                    revoked: day,
                },
                refusal::REVOKED,
                true,
            ),
        ];
        for (distrust, code, permanent) in distrust {
            let text = distrust.to_string();
            let refused = refused(&StoreError::Register(distrust.into()));
            assert_eq!((&*refused.code, refused.permanent), (code, permanent));
            assert_eq!(refused.message, text);
        }
        let busy = refused(&StoreError::Busy);
        assert_eq!((&*busy.code, busy.permanent), (refusal::TRY_LATER, false));
    }
}
