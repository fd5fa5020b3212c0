//! Calls about volumes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Makes sure that a volume is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = EnsureVolume))]
pub struct Ensure {
    /// Its name.
    pub name: String,
    /// Its labels, where it is made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Asks for volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = ListVolumes))]
pub struct List {
    /// Only names that begin so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// What keeps it: `local`.
    pub driver: String,
    /// When it was made, as RFC 3339, if the daemon says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// Removes a volume that no container uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = RemoveVolume))]
pub struct Remove {
    /// Its name.
    pub name: String,
}
