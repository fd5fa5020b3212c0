//! What an exposure must be in itself, whatever others there are.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use hub_protocol::target::Selector;

use super::{
    Access, Exposure, MAX_REPLICAS, MAX_SELECTOR, Protocol, Replica, SettingOutOfBounds,
    TokenOutOfBounds,
};

/// Why something is no exposure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misshapen {
    /// Port 0 cannot be connected to.
    #[error("0 is no port to connect to; choose one from 1 to 65535")]
    PortZero,
    /// There is nowhere to go.
    #[error("an exposure needs a replica; name a node and a port")]
    NoReplica,
    /// There are more than there may be.
    #[error(
        "an exposure has {MAX_REPLICAS} replicas at most, not {count}; make another one for the rest"
    )]
    TooManyReplicas {
        /// How many were asked for.
        count: usize,
    },
    /// One replica is there twice.
    #[error("{target} is named twice; each replica counts once")]
    SameReplica {
        /// What it connects to.
        target: String,
    },
    /// No container is called that.
    #[error(
        "no container has the name {name:?}: it takes 1 to {MAX_SELECTOR} of a-z A-Z 0-9 _ . -, \
         and begins with a letter or digit"
    )]
    NotAContainer {
        /// What was asked for, cut short.
        name: String,
    },
    /// No container is labelled that.
    #[error(
        "no container has the label {label:?}: it takes KEY or KEY=VALUE of {MAX_SELECTOR} bytes at \
         most, without control characters"
    )]
    NotALabel {
        /// What was asked for, cut short.
        label: String,
    },
    /// A target is reached in another way than the exposure says.
    #[error("{target} is not what an exposure of {protocol} connects to")]
    OtherTransport {
        /// The target.
        target: String,
        /// What the exposure carries.
        protocol: Protocol,
    },
    /// Nobody could reach it.
    #[error("nobody could reach an exposure without a name and a token; give it one of them")]
    Unreachable,
    /// A token is asked for that nobody has.
    #[error(
        "who gets in by token needs one that is good; rotate the token first, or choose another access"
    )]
    NoToken,
    /// HTTP needs no address of its own.
    #[error(
        "an exposure of {protocol} is reached by its name or token, and has no address to listen on"
    )]
    ListensForHttp {
        /// What it carries.
        protocol: Protocol,
    },
    /// TCP and UDP are reached by address only.
    #[error("an exposure of {protocol} needs an address to listen on, as in 127.0.0.1:5432")]
    NotListening {
        /// What it carries.
        protocol: Protocol,
    },
    /// It has what only HTTP can carry.
    #[error(
        "an exposure of {protocol} has no {what}: nothing in its bytes could tell; leave it out"
    )]
    OnlyForHttp {
        /// What it was to have.
        what: &'static str,
        /// What it carries.
        protocol: Protocol,
    },
    /// It would be another exposure.
    #[error("exposure {0} cannot turn from requests to bytes, or back; make another one")]
    OtherKind(super::ExposureId),
    /// A limit is out of its bounds.
    #[error(transparent)]
    Setting(#[from] SettingOutOfBounds),
    /// A time of the token is out of its bounds.
    #[error(transparent)]
    Token(#[from] TokenOutOfBounds),
}

/// What holds for every exposure at any time.
pub(super) fn check(exposure: &Exposure) -> Result<(), Misshapen> {
    replicas(&exposure.replicas, exposure.protocol)?;
    exposure.settings.check()?;
    let protocol = exposure.protocol;
    match exposure.listen {
        Some(_) if protocol.is_http() => return Err(Misshapen::ListensForHttp { protocol }),
        None if !protocol.is_http() => return Err(Misshapen::NotListening { protocol }),
        _ => {}
    }
    let only_for_http = [
        ("name", exposure.name.is_some()),
        ("token", exposure.token.is_some()),
        (
            "access by token or login",
            exposure.access != Access::Public,
        ),
        ("max_body", exposure.settings.max_body.is_some()),
        ("sticky", exposure.settings.sticky),
    ];
    match only_for_http.into_iter().find(|(_, has)| *has) {
        Some((what, _)) if !protocol.is_http() => Err(Misshapen::OnlyForHttp { what, protocol }),
        _ => Ok(()),
    }
}

/// What holds besides for one that an operator has just made reachable so.
pub(super) fn check_ways_in(exposure: &Exposure) -> Result<(), Misshapen> {
    if !exposure.protocol.is_http() {
        Ok(())
    } else if exposure.name.is_none() && exposure.token.is_none() {
        Err(Misshapen::Unreachable)
    } else if exposure.access == Access::Token && exposure.token.is_none() {
        Err(Misshapen::NoToken)
    } else {
        Ok(())
    }
}

fn replicas(replicas: &[Replica], protocol: Protocol) -> Result<(), Misshapen> {
    match replicas.len() {
        0 => return Err(Misshapen::NoReplica),
        count if count > MAX_REPLICAS => return Err(Misshapen::TooManyReplicas { count }),
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for replica in replicas {
        let target = &replica.target;
        if target.port == 0 {
            return Err(Misshapen::PortZero);
        }
        if let Some(selector) = &target.container {
            check_selector(selector)?;
        }
        if target.transport != protocol.transport() {
            let target = target.to_string();
            return Err(Misshapen::OtherTransport { target, protocol });
        }
        if !seen.insert(replica) {
            let target = target.to_string();
            return Err(Misshapen::SameReplica { target });
        }
    }
    Ok(())
}

fn check_selector(selector: &Selector) -> Result<(), Misshapen> {
    // Anybody may choose the text; an error must not become a way to fill a log.
    let short = |text: &str| text.chars().take(80).collect();
    let fits = |text: &str| (1..=MAX_SELECTOR).contains(&text.len());
    match selector {
        Selector::Name(name) => {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
            let begins = name.starts_with(|first: char| first.is_ascii_alphanumeric());
            if fits(name) && begins && name.bytes().all(allowed) {
                return Ok(());
            }
            Err(Misshapen::NotAContainer { name: short(name) })
        }
        Selector::Label(label) => {
            let named = !label.starts_with('=');
            if fits(label) && named && !label.contains(char::is_control) {
                return Ok(());
            }
            Err(Misshapen::NotALabel {
                label: short(label),
            })
        }
    }
}

/// Whether two listeners of one transport would be in each other's way. An address that stands for
/// all is in the way of each; port 0 is in nobody's.
pub fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let (a, b) = (one.ip().to_canonical(), other.ip().to_canonical());
    // `::` takes IPv4 in, too.
    let covers = |all: IpAddr, ip: IpAddr| all.is_unspecified() && (all.is_ipv6() || ip.is_ipv4());
    one.port() != 0 && one.port() == other.port() && (a == b || covers(a, b) || covers(b, a))
}

#[cfg(test)]
mod tests {
    use hub_protocol::NodeId;
    use hub_protocol::target::{Target, Transport};

    use super::*;
    use crate::exposure::{ExposureId, ExposureToken, ExposureTokenHash, Settings};
    use crate::time::Timestamp;

    fn replica(port: u16) -> Replica {
        Replica {
            node: NodeId::from_bytes([1; 16]),
            target: Target::tcp(port),
        }
    }

    fn web() -> Exposure {
        Exposure {
            id: ExposureId(1),
            name: Some("web".parse().expect("a name")),
            token: None,
            access: Access::Public,
            protocol: Protocol::Http,
            replicas: vec![replica(80)],
            listen: None,
            settings: Settings::default(),
            created: Timestamp::from_millis(0),
        }
    }

    fn database() -> Exposure {
        Exposure {
            name: None,
            protocol: Protocol::Tcp,
            listen: Some(([127, 0, 0, 1], 5432).into()),
            ..web()
        }
    }

    #[test]
    fn requests_have_names_and_bytes_have_an_address() {
        assert_eq!(check(&web()), Ok(()));
        assert_eq!(check(&database()), Ok(()));
        let listens = Exposure {
            listen: database().listen,
            ..web()
        };
        let protocol = Protocol::Http;
        assert_eq!(check(&listens), Err(Misshapen::ListensForHttp { protocol }));
        let deaf = Exposure {
            listen: None,
            ..database()
        };
        let protocol = Protocol::Tcp;
        assert_eq!(check(&deaf), Err(Misshapen::NotListening { protocol }));
        let token = ExposureToken {
            hash: ExposureTokenHash([1; 32]),
            expires: None,
            previous: None,
        };
        let sticky = Settings {
            sticky: true,
            ..Settings::default()
        };
        for (exposure, what) in [
            (
                Exposure {
                    name: web().name,
                    ..database()
                },
                "name",
            ),
            (
                Exposure {
                    token: Some(token),
                    ..database()
                },
                "token",
            ),
            (
                Exposure {
                    access: Access::Login,
                    ..database()
                },
                "access by token or login",
            ),
            (
                Exposure {
                    settings: sticky,
                    ..database()
                },
                "sticky",
            ),
        ] {
            assert_eq!(
                check(&exposure),
                Err(Misshapen::OnlyForHttp { what, protocol })
            );
        }
    }

    #[test]
    fn what_nobody_could_reach_is_refused() {
        assert_eq!(check_ways_in(&web()), Ok(()));
        assert_eq!(check_ways_in(&database()), Ok(()));
        let nameless = Exposure {
            name: None,
            ..web()
        };
        assert_eq!(check_ways_in(&nameless), Err(Misshapen::Unreachable));
        let locked = Exposure {
            access: Access::Token,
            ..web()
        };
        assert_eq!(check_ways_in(&locked), Err(Misshapen::NoToken));
    }

    #[test]
    fn replicas_are_some_and_each_is_another() {
        let with = |replicas| check(&Exposure { replicas, ..web() });
        assert_eq!(with(vec![]), Err(Misshapen::NoReplica));
        assert_eq!(with((1..=16).map(replica).collect()), Ok(()));
        assert_eq!(
            with((1..=17).map(replica).collect()),
            Err(Misshapen::TooManyReplicas { count: 17 })
        );
        assert_eq!(with(vec![replica(0)]), Err(Misshapen::PortZero));
        let twice = with(vec![replica(80), replica(81), replica(80)]);
        assert_eq!(
            twice.expect_err("one is there twice").to_string(),
            "port 80 is named twice; each replica counts once"
        );
        let mut udp = replica(53);
        udp.target.transport = Transport::Udp;
        assert!(matches!(
            with(vec![udp]),
            Err(Misshapen::OtherTransport { .. })
        ));
    }

    #[test]
    fn a_selector_is_what_a_container_can_have() {
        let long = "x".repeat(256);
        for name in ["web", "a.b_c-1", "0", &long[..255]] {
            assert_eq!(
                check_selector(&Selector::Name(name.into())),
                Ok(()),
                "{name}"
            );
        }
        for name in ["", "-a", ".a", "a/b", "a b", "ä", &long] {
            assert!(
                check_selector(&Selector::Name(name.into())).is_err(),
                "{name}"
            );
        }
        for label in ["app", "app=web", "a=", "a=b=c", "com.example/x=ä ö"] {
            assert_eq!(
                check_selector(&Selector::Label(label.into())),
                Ok(()),
                "{label}"
            );
        }
        for label in ["", "=web", "a=\n", &long] {
            assert!(
                check_selector(&Selector::Label(label.into())).is_err(),
                "{label}"
            );
        }
    }

    #[test]
    fn listeners_are_in_each_others_way() {
        let meet = |one: &str, other: &str| {
            let (one, other) = (one.parse().expect(one), other.parse().expect(other));
            assert_eq!(overlap(one, other), overlap(other, one));
            overlap(one, other)
        };
        assert!(meet("127.0.0.1:80", "127.0.0.1:80"));
        assert!(meet("0.0.0.0:80", "127.0.0.1:80"));
        assert!(meet("[::]:80", "127.0.0.1:80"));
        assert!(meet("[::]:80", "[::1]:80"));
        assert!(meet("[::ffff:10.0.0.1]:80", "10.0.0.1:80"));
        assert!(!meet("0.0.0.0:80", "[::1]:80"));
        assert!(!meet("127.0.0.1:80", "127.0.0.2:80"));
        assert!(!meet("127.0.0.1:80", "127.0.0.1:81"));
        assert!(!meet("127.0.0.1:0", "127.0.0.1:0"));
    }
}
