//! What a build shows registries that its base images come from.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE;
use bollard::auth::DockerCredentials;
use http::HeaderValue;
use hub_protocol::kind::call::image::Credentials;

use super::super::{images, names};

/// Credentials by registry, as Docker names it.
#[derive(Default)]
pub(in crate::engine) struct Logins(BTreeMap<String, DockerCredentials>);

impl Logins {
    pub(super) fn new(shown: &BTreeMap<String, Credentials>) -> Self {
        let login = |(registry, shown): (&String, &Credentials)| {
            let registry = names::registry(registry);
            let login = images::credentials(shown, registry);
            (registry.to_owned(), login)
        };
        Self(shown.iter().map(login).collect())
    }

    /// Name and secret for a registry. An identity token has no name: whoever asks tells by that.
    pub(in crate::engine) fn of(&self, registry: &str) -> Option<(&str, &str)> {
        let login = self.0.get(names::registry(registry))?;
        if let Some(token) = &login.identitytoken {
            return Some(("", token));
        }
        let [name, secret] = [&login.username, &login.password].map(Option::as_deref);
        Some((name.unwrap_or_default(), secret.unwrap_or_default()))
    }

    /// All of them as the classic builder takes them, in `X-Registry-Config`; `None` without any.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        if self.0.is_empty() {
            return None;
        }
        // Plain texts, and base64 of them: neither step fails.
        let json = serde_json::to_vec(&self.0).ok()?;
        let mut value = HeaderValue::try_from(BASE64_URL_SAFE.encode(json)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_registry_is_found_under_each_of_its_names() {
        let named = |username: &str, password: &str, identity_token: &str| Credentials {
            username: username.into(),
            password: password.into(),
            identity_token: identity_token.into(),
            ..Credentials::default()
        };
        let logins = Logins::new(&BTreeMap::from([
            ("docker.io".into(), named("me", "hunter2", "")),
            (
                "https://r.example:5000/v1/".into(),
                named("x", "y", "token"),
            ),
        ]));
        assert_eq!(logins.of("registry-1.docker.io"), Some(("me", "hunter2")));
        assert_eq!(logins.of("r.example:5000"), Some(("", "token")));
        assert_eq!(logins.of("r.example"), None);
        let header = logins.header().unwrap();
        assert!(header.is_sensitive());
        let json = BASE64_URL_SAFE.decode(header.as_bytes()).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let hub = &json["https://index.docker.io/v1/"];
        assert_eq!(
            (&hub["username"], &hub["password"]),
            (&"me".into(), &"hunter2".into())
        );
        assert_eq!(json["r.example:5000"]["identitytoken"], "token");
        assert_eq!(Logins::default().header(), None);
    }
}
