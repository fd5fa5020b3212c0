//! What to show registries: what the user says, or what `docker login` stored on this machine, in
//! its file or with a helper.
//!
//! ```text
//! ~/.docker/config.json: auths ---------------------------> Credentials
//!                        credHelpers, credsStore --> docker-credential-X get
//! ```
//!
//! As docker does it, but for builds: docker hands its daemon all logins there are. A node is
//! somebody else's machine more often, so it gets those that the build names, as far as that can be
//! seen from here.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use hub_protocol::kind::call::image::Credentials;
use serde::Deserialize;

use super::CliError;
use super::show::clean;

/// Docker's own registry, by its host and as `docker login` stores it.
const DOCKER_HUB: (&str, &str) = ("index.docker.io", "https://index.docker.io/v1/");

/// What a helper calls the user where the secret is an identity token.
const TOKEN_USER: &str = "<token>";

/// What to show a registry.
#[derive(Debug, Args)]
pub(super) struct RegistryArgs {
    /// The registry's user; what docker login stored here without
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    /// Read the registry's password from standard input, not from HUB_REGISTRY_PASSWORD
    #[arg(long, requires = "username")]
    password_stdin: bool,
}

impl RegistryArgs {
    /// The credentials for an image: those that were given, or those that docker has for its
    /// registry.
    pub(super) fn credentials(&self, image: &str) -> Result<Option<Credentials>, CliError> {
        let Some(username) = self.username.clone() else {
            return Ok(DockerConfig::here().for_host(registry(image), &ask_helper));
        };
        let password = if self.password_stdin {
            let mut password = io::read_to_string(io::stdin())
                .map_err(|error| CliError::Usage(format!("cannot read the password: {error}")))?;
            password.truncate(password.trim_end_matches(['\r', '\n']).len());
            password
        } else {
            std::env::var("HUB_REGISTRY_PASSWORD").map_err(|_| {
                CliError::Usage(
                    "--username needs a password: in HUB_REGISTRY_PASSWORD, or with \
                     --password-stdin from standard input"
                        .into(),
                )
            })?
        };
        Ok(Some(Credentials {
            username,
            password,
            ..Credentials::default()
        }))
    }
}

/// The logins for a build, by registry. `texts` is all that can name a registry: those whose host
/// stands nowhere in it are left out. Without any, as with an archive that is sent as it is, they
/// are all there are.
pub(super) fn for_build(texts: Option<&[&str]>) -> BTreeMap<String, Credentials> {
    DockerConfig::here().for_build(texts, &ask_helper)
}

/// What matters here of docker's file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DockerConfig {
    auths: BTreeMap<String, Auth>,
    #[serde(rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(rename = "credsStore")]
    store: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: String,
    identitytoken: String,
}

/// Secret.
impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth").finish_non_exhaustive()
    }
}

/// Asks a helper, by its name without `docker-credential-`, to do something with what is written to
/// it; gives what it prints.
type Ask<'a> = &'a dyn Fn(&str, &str, &str) -> Result<Vec<u8>, String>;

impl DockerConfig {
    /// The user's; without a file, or with one that is not docker's, there are no logins.
    fn here() -> Self {
        let directory = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
        let home = || std::env::home_dir().map(|home| home.join(".docker"));
        let path = directory.or_else(home).map(|at| at.join("config.json"));
        let file = path.and_then(|path| std::fs::read(path).ok());
        file.map(|file| Self::parse(&file)).unwrap_or_default()
    }

    fn parse(file: &[u8]) -> Self {
        serde_json::from_slice(file).unwrap_or_default()
    }

    /// The login for a registry's host. A helper that fails is said on standard error: the
    /// registry may want none.
    fn for_host(&self, wanted: &str, ask: Ask<'_>) -> Option<Credentials> {
        let written = |key: &&String| host(key) == wanted;
        let stored = self.auths.keys().find(written);
        let helper = self.helpers.keys().find(written);
        let server = helper.or(stored).map_or_else(
            || match wanted {
                host if host == DOCKER_HUB.0 => DOCKER_HUB.1,
                host => host,
            },
            String::as_str,
        );
        let helper = match helper {
            Some(key) => &self.helpers[key],
            None => &self.store,
        };
        if !helper.is_empty() {
            match get(helper, server, ask) {
                Ok(None) => {}
                Ok(found) => return found,
                Err(why) => {
                    let text = format!(
                        "docker-credential-{} gives no login for {}: {}; going on without",
                        clean(helper),
                        clean(wanted),
                        clean(&why)
                    );
                    super::fail(&text, 0);
                }
            }
        }
        self.auths.get(stored?)?.credentials(stored?)
    }

    fn for_build(&self, texts: Option<&[&str]>, ask: Ask<'_>) -> BTreeMap<String, Credentials> {
        let mut hosts: BTreeSet<String> = self
            .auths
            .keys()
            .chain(self.helpers.keys())
            .map(|key| host(key).to_owned())
            .collect();
        if !self.store.is_empty() {
            // What it can't list it may still give, to those who know what they want.
            let listed = ask(&self.store, "list", "").ok();
            let listed = listed.and_then(|listed| serde_json::from_slice(&listed).ok());
            let listed: BTreeMap<String, String> = listed.unwrap_or_default();
            hosts.extend(listed.keys().map(|key| host(key).to_owned()));
        }
        // Images without a host are Docker's own registry's.
        let named = |host: &String| {
            host == DOCKER_HUB.0
                || texts.is_none_or(|texts| texts.iter().any(|text| text.contains(&**host)))
        };
        let login = |host: String| Some((host.clone(), self.for_host(&host, ask)?));
        hosts.into_iter().filter(named).filter_map(login).collect()
    }
}

impl Auth {
    fn credentials(&self, server: &str) -> Option<Credentials> {
        let pair = BASE64_STANDARD.decode(&self.auth).ok()?;
        let pair = String::from_utf8(pair).ok()?;
        let (username, password) = pair.split_once(':').unwrap_or_default();
        if username.is_empty() && self.identitytoken.is_empty() {
            return None;
        }
        Some(Credentials {
            username: username.to_owned(),
            password: password.trim_end_matches('\0').to_owned(),
            identity_token: self.identitytoken.clone(),
            server: server.to_owned(),
        })
    }
}

/// What a helper has for a server.
fn get(helper: &str, server: &str, ask: Ask<'_>) -> Result<Option<Credentials>, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Given {
        username: String,
        secret: String,
    }
    let printed = match ask(helper, "get", server) {
        Ok(printed) => printed,
        // The one thing that all helpers say in the same words.
        Err(why) if why.contains("credentials not found") => return Ok(None),
        Err(why) => return Err(why),
    };
    // What serde says of it could repeat it.
    let given: Given =
        serde_json::from_slice(&printed).map_err(|_| "what it prints is no login".to_owned())?;
    let mut credentials = Credentials {
        server: server.to_owned(),
        ..Credentials::default()
    };
    if given.username == TOKEN_USER {
        credentials.identity_token = given.secret;
    } else {
        credentials.username = given.username;
        credentials.password = given.secret;
    }
    Ok(Some(credentials))
}

/// Runs a helper. It may ask the user something, so there is no limit to how long it takes: Ctrl-C
/// ends it with us.
fn ask_helper(helper: &str, action: &str, input: &str) -> Result<Vec<u8>, String> {
    let said = |error: io::Error| error.to_string();
    let mut child = Command::new(format!("docker-credential-{helper}"))
        .arg(action)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "there is no such program in PATH".to_owned(),
            _ => said(error),
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that reads nothing has its say all the same.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(said)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    // A failure is told on standard output.
    let why = String::from_utf8_lossy(&output.stdout);
    Err(match why.lines().next() {
        Some(why) if !why.trim().is_empty() => why.trim().to_owned(),
        _ => output.status.to_string(),
    })
}

/// The host of an image's registry, as docker finds it.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => host(first),
        _ => DOCKER_HUB.0,
    }
}

/// The host of a registry that may be written as a URL, as older logins are.
fn host(written: &str) -> &str {
    let host = written.split_once("://").map_or(written, |(_, rest)| rest);
    match host.split('/').next().unwrap_or_default() {
        "docker.io" | "registry-1.docker.io" => DOCKER_HUB.0,
        host => host,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const CONFIG: &[u8] = br#"{"auths":{
        "https://index.docker.io/v1/":{"auth":"bWU6aHVudGVyMg=="},
        "registry.example:5000":{"auth":"","identitytoken":"t"},
        "broken.example":{"auth":"%"},
        "helper.example":{}
    }}"#;

    fn nobody(_: &str, _: &str, _: &str) -> Result<Vec<u8>, String> {
        panic!("there is no helper to ask")
    }

    #[test]
    fn credentials_are_those_of_the_registry() {
        let config = DockerConfig::parse(CONFIG);
        let found = |image| config.for_host(registry(image), &nobody);
        let hub = found("nginx").unwrap();
        assert_eq!((&*hub.username, &*hub.password), ("me", "hunter2"));
        assert_eq!(hub.server, "https://index.docker.io/v1/");
        assert_eq!(found("docker.io/library/nginx"), Some(hub.clone()));
        assert_eq!(found("me/app"), Some(hub));
        let token = found("registry.example:5000/a/b:1").unwrap();
        assert_eq!(token.identity_token, "t");
        for image in ["registry.example/a", "broken.example/a", "helper.example/a"] {
            assert_eq!(found(image), None, "{image}");
        }
        let none = DockerConfig::parse(b"no json");
        assert_eq!(none.for_host(registry("a"), &nobody), None);
        assert!(!format!("{config:?}").contains("bWU6"));
    }

    #[test]
    fn a_helper_is_asked_for_its_registries_and_goes_before_the_file() {
        let config = DockerConfig::parse(
            br#"{"auths":{"https://index.docker.io/v1/":{"auth":"bWU6b2xk"},"gone.example":{}},
                "credHelpers":{"r.example":"cloud","bad.example":"bad"},"credsStore":"store"}"#,
        );
        let ask = |helper: &str, action: &str, input: &str| match (helper, action, input) {
            ("cloud", "get", "r.example") => {
                Ok(br#"{"ServerURL":"r.example","Username":"<token>","Secret":"t"}"#.to_vec())
            }
            ("store", "get", "new.example") => {
                Ok(br#"{"ServerURL":"new.example","Username":"me","Secret":"new"}"#.to_vec())
            }
            ("store", "list", "") => Ok(br#"{"https://new.example/v2/":"me"}"#.to_vec()),
            ("store", "get", "https://index.docker.io/v1/" | "gone.example") => {
                Err("credentials not found in native keychain".into())
            }
            ("bad", "get", "bad.example") => Err("locked".into()),
            asked => panic!("{asked:?}"),
        };
        let token = config.for_host("r.example", &ask).unwrap();
        assert_eq!((&*token.identity_token, &*token.username), ("t", ""));
        let stored = config.for_host("new.example", &ask).unwrap();
        assert_eq!((&*stored.username, &*stored.password), ("me", "new"));
        // What the store does not have may stand in the file, from before there was one.
        let old = config.for_host("index.docker.io", &ask).unwrap();
        assert_eq!(old.password, "old");
        assert_eq!(config.for_host("gone.example", &ask), None);
        assert_eq!(config.for_host("bad.example", &ask), None);
        let all = config.for_build(None, &ask);
        let hosts: Vec<&String> = all.keys().collect();
        assert_eq!(hosts, ["index.docker.io", "new.example", "r.example"]);
    }

    #[test]
    fn a_build_shows_the_registries_that_it_names() {
        let config = DockerConfig::parse(CONFIG);
        let hosts = |texts: Option<&[&str]>| -> Vec<String> {
            config.for_build(texts, &nobody).into_keys().collect()
        };
        let both = ["index.docker.io", "registry.example:5000"];
        assert_eq!(hosts(None), both);
        assert_eq!(hosts(Some(&["FROM nginx"])), both[..1]);
        assert_eq!(hosts(Some(&["FROM registry.example:5000/base"])), both);
        let argument = ["ARG BASE\nFROM $BASE", "registry.example:5000/base:1"];
        assert_eq!(hosts(Some(&argument)), both);
    }

    #[test]
    fn a_helper_that_is_not_there_is_named() {
        let why = ask_helper("hub-test-no-such", "get", "r.example").unwrap_err();
        assert!(why.contains("PATH"), "{why}");
    }
}
