//! Calls about networks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Makes sure that a network is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = EnsureNetwork))]
pub struct Ensure {
    /// Its name.
    pub name: String,
    /// Whether it has no way out. Matters where it is made.
    #[serde(default)]
    pub internal: bool,
    /// Its labels, where it is made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Asks for networks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = ListNetworks))]
pub struct List {
    /// Only names that begin so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// A network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Network {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `bridge`, `host`, `none`, `overlay`, ….
    pub driver: String,
    /// Whether it has no way out.
    pub internal: bool,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// Connects a container to a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = ConnectNetwork))]
pub struct Connect {
    /// The network's name or id.
    pub network: String,
    /// The container's name or id.
    pub container: String,
    /// Further names of the container in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
}

/// Disconnects a container from a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = DisconnectNetwork))]
pub struct Disconnect {
    /// The network's name or id.
    pub network: String,
    /// The container's name or id.
    pub container: String,
    /// Whether to do so even if the container does not answer.
    #[serde(default)]
    pub force: bool,
}

/// Detaches whatever is attached to a network, and removes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = RemoveNetwork))]
pub struct Remove {
    /// The network's name or id.
    pub network: String,
}
