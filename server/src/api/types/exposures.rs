//! Exposures, as the API says and is told them.

use hub_ledger::exposure::Edit;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Secret;

/// Who gets in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Who knows the name, the URL with the token, or the address.
    #[default]
    Public,
    /// Who shows the token: by the URL that holds it, or on the URL of the name, too.
    Token,
    /// Who is logged in as an operator.
    Login,
}

/// What the targets speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http,
    /// HTTP/2 in the clear, known beforehand.
    Http2,
    /// Bytes of a TCP connection.
    Tcp,
    /// Datagrams.
    Udp,
}

/// Asks for an exposure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewExposure {
    /// The node's name or id.
    pub node: String,
    /// The port on the node, or of the container.
    #[schema(minimum = 1)]
    pub port: u16,
    /// The container of this name, instead of the machine. It is found anew for each connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The container with this label, `KEY` or `KEY=VALUE`, that was started last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Further replicas, any of which can answer: 15 at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_replicas: Vec<NewReplica>,
    /// A name for it: a DNS label that no other exposure has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Who gets in.
    #[serde(default)]
    pub access: Access,
    /// What the targets speak.
    #[serde(default)]
    pub protocol: Protocol,
    /// For TCP and UDP, where the hub listens: `ADDRESS:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Whether it gets a token. Without saying so, it does if it is HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<bool>,
    /// How long the token holds, in seconds; without, until it is revoked. The name does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub expires_s: Option<u64>,
    /// Its limits.
    #[serde(default)]
    pub settings: ExposureSettings,
}

/// Where requests go: one of the places.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewReplica {
    /// The node's name or id.
    pub node: String,
    /// The port on the node, or of the container.
    #[schema(minimum = 1)]
    pub port: u16,
    /// The container of this name, instead of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The container with this label, `KEY` or `KEY=VALUE`, that was started last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// The limits of an exposure. One that is left out is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExposureSettings {
    /// Bytes of a request's body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_099_511_627_776_i64)]
    pub max_body: Option<u64>,
    /// Requests in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 65_536)]
    pub max_requests: Option<u32>,
    /// Sessions that each replica takes at once. A request is one until it is answered, a WebSocket
    /// until it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 65_536)]
    pub max_sessions: Option<u32>,
    /// Requests a second that each client address may begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100_000)]
    pub rate: Option<u32>,
    /// Whether a browser stays with the replica that answered it first.
    #[serde(default)]
    pub sticky: bool,
}

/// An exposure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exposure {
    /// Its number.
    pub id: u64,
    /// The name of its first replica's node.
    pub node: String,
    /// The port of its first replica.
    pub port: u16,
    /// Where its requests go, the first among them.
    pub replicas: Vec<ExposureReplica>,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Who gets in.
    pub access: Access,
    /// What the targets speak.
    pub protocol: Protocol,
    /// For TCP and UDP, where the hub listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Where it does listen: the port that was free, where any would do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listening: Option<String>,
    /// Why it does not listen, if it can't. That is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen_error: Option<String>,
    /// What is known of its token, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<ExposureToken>,
    /// Its limits.
    pub settings: ExposureSettings,
    /// Where it is reached without its token: the URL of its name, its address.
    pub addresses: Vec<String>,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created: String,
}

/// One of the places where an exposure's requests go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExposureReplica {
    /// The node's name.
    pub node: String,
    /// The port on the node, or of the container.
    pub port: u16,
    /// The container's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The container's label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether the node is connected.
    pub connected: bool,
}

/// How long the token of an exposure holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExposureToken {
    /// From when on it holds no longer; without, it holds until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub expires: Option<String>,
    /// Until when the one before it is good, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub previous_until: Option<String>,
}

/// An exposure that was just made, or got a new token, with its URLs: the one that holds the token is
/// shown this once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedExposure {
    /// The exposure.
    #[serde(flatten)]
    pub exposure: Exposure,
    /// Where it is reached; the one with the token comes first.
    #[schema(value_type = Vec<String>)]
    pub urls: Vec<Secret>,
}

/// All exposures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exposures {
    /// Oldest first.
    pub exposures: Vec<Exposure>,
}

/// Changes an exposure. What is left out stays; `null` takes away what may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditExposure {
    /// Its name.
    #[serde(default, skip_serializing_if = "Edit::is_keep")]
    #[schema(value_type = Option<String>)]
    pub name: Edit<Option<String>>,
    /// Who gets in.
    #[serde(default, skip_serializing_if = "Edit::is_keep")]
    #[schema(value_type = Access, required = false)]
    pub access: Edit<Access>,
    /// What the targets speak: the other version of HTTP.
    #[serde(default, skip_serializing_if = "Edit::is_keep")]
    #[schema(value_type = Protocol, required = false)]
    pub protocol: Edit<Protocol>,
    /// Where its requests go: all of the places.
    #[serde(default, skip_serializing_if = "Edit::is_keep")]
    #[schema(value_type = Vec<NewReplica>, required = false)]
    pub replicas: Edit<Vec<NewReplica>>,
    /// For TCP and UDP, where the hub listens.
    #[serde(default, skip_serializing_if = "Edit::is_keep")]
    #[schema(value_type = String, required = false)]
    pub listen: Edit<String>,
    /// Its limits.
    #[serde(default)]
    pub settings: EditSettings,
}

/// Changes limits. What is left out stays; `null` switches a limit off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditSettings {
    /// Bytes of a request's body.
    #[serde(default, skip_serializing_if = "Edit::is_keep")]
    #[schema(value_type = Option<u64>)]
    pub max_body: Edit<Option<u64>>,
    /// Requests in flight.
    #[serde(default, skip_serializing_if = "Edit::is_keep")]
    #[schema(value_type = Option<u32>)]
    pub max_requests: Edit<Option<u32>>,
    /// Sessions that each replica takes at once.
    #[serde(default, skip_serializing_if = "Edit::is_keep")]
    #[schema(value_type = Option<u32>)]
    pub max_sessions: Edit<Option<u32>>,
    /// Requests a second that each client address may begin.
    #[serde(default, skip_serializing_if = "Edit::is_keep")]
    #[schema(value_type = Option<u32>)]
    pub rate: Edit<Option<u32>>,
    /// Whether a browser stays with the replica that answered it first.
    #[serde(default, skip_serializing_if = "Edit::is_keep")]
    #[schema(value_type = bool, required = false)]
    pub sticky: Edit<bool>,
}

/// Asks for a new token in the place of the one that there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateToken {
    /// How long it holds, in seconds. Left out: as long as the old one. `null`: until it is revoked.
    #[serde(default, skip_serializing_if = "Edit::is_keep")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 315_360_000)]
    pub expires_s: Edit<Option<u64>>,
    /// How long the old one is good yet, in seconds: 30 days at most.
    #[serde(default)]
    #[schema(maximum = 2_592_000)]
    pub grace_s: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_was_asked_for_before_is_understood() {
        let old = r#"{"node":"shop-4","port":8080,"name":"shop"}"#;
        let new: NewExposure = serde_json::from_str(old).unwrap();
        let expected = NewExposure {
            node: "shop-4".into(),
            port: 8080,
            name: Some("shop".into()),
            ..NewExposure::default()
        };
        assert_eq!(new, expected);
    }

    #[test]
    fn in_a_change_null_is_another_thing_than_nothing() {
        let edit: EditExposure =
            serde_json::from_str(r#"{"name":null,"settings":{"rate":null,"max_body":5}}"#).unwrap();
        assert_eq!(edit.name, Edit::Set(None));
        assert_eq!(edit.settings.rate, Edit::Set(None));
        assert_eq!(edit.settings.max_body, Edit::Set(Some(5)));
        assert!(edit.access.is_keep() && edit.settings.max_requests.is_keep());
        let again = serde_json::to_value(&edit).unwrap();
        let said = serde_json::json!({"name": null, "settings": {"rate": null, "max_body": 5}});
        assert_eq!(again, said);
        for wrong in [
            r#"{"access":null}"#,
            r#"{"nam":"a"}"#,
            r#"{"settings":{"x":1}}"#,
        ] {
            assert!(
                serde_json::from_str::<EditExposure>(wrong).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_token_holds_as_long_as_the_old_one_if_nothing_is_said() {
        let rotate = |text| serde_json::from_str::<RotateToken>(text).unwrap();
        assert_eq!(rotate("{}"), RotateToken::default());
        assert_eq!(rotate(r#"{"expires_s":null}"#).expires_s, Edit::Set(None));
    }
}
