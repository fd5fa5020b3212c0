//! Calls about images.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What to show a registry. Docker's own names of the parts are taken, too.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Credentials {
    /// The user's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// The password, or an access token.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub password: String,
    /// An identity token, instead of name and password.
    #[serde(
        default,
        skip_serializing_if = "String::is_empty",
        alias = "identitytoken"
    )]
    pub identity_token: String,
    /// The registry's address; that of the image without.
    #[serde(
        default,
        skip_serializing_if = "String::is_empty",
        alias = "serveraddress"
    )]
    pub server: String,
}

/// Secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// Asks for all images, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = ListImages))]
pub struct List {}

/// Asks for an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = InspectImage))]
pub struct Inspect {
    /// Its name or id.
    pub image: String,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Image {
    /// `sha256:…`.
    pub id: String,
    /// Its names.
    pub tags: Vec<String>,
    /// The registries' digests of it.
    pub digests: Vec<String>,
    /// When it was made, in seconds since 1970 UTC.
    pub created_s: i64,
    /// Bytes.
    pub size: u64,
}

/// Pulls an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = PullImage))]
pub struct Pull {
    /// Its name; `latest` is meant where it has neither tag nor digest.
    pub image: String,
    /// `os/arch`; the daemon's own without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// What to show the registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<Credentials>,
}

/// An image that was pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Pulled {
    /// `sha256:…`.
    pub id: String,
}

/// Removes an image, or one of its names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = RemoveImage))]
pub struct Remove {
    /// Its name or id.
    pub image: String,
    /// Whether to remove it though containers that do not run or further names use it.
    #[serde(default)]
    pub force: bool,
}
