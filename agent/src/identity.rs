//! The identity of a node, and where it is kept.
//!
//! ```text
//! DATA_DIR/identity/          0700
//!   identity.json             0600   everything, or before the join the key alone
//!   lock                      0600   held by the one agent that uses the directory
//! ```
//!
//! All of it is one file, so that there is never a key with another key's certificate: it is
//! written beside itself, synchronised, renamed over the old one, and the directory synchronised.
//! The key is stored before it is used in a request: an agent that dies after the hub spent its
//! token asks again with the same key, and gets the same answer for nothing.
//!
//! Everything here is short, blocking file access, for the start of the process.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use hub_protocol::enroll::{Der, Joined};
use hub_protocol::{Deployment, Fingerprint, NodeId, NodeName};
use hub_quic::tls::{Credentials, TlsError, TrustBundle, certificate, key_fingerprint};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ED25519, PublicKeyData as _};
use rustix::fs::{FlockOperation, flock};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

/// The most bytes of `identity.json` that are read.
const MAX_FILE: u64 = 256 * 1024;

/// The version of the form of `identity.json`.
const VERSION: u32 = 1;

/// Why an identity cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The directory or a file in it cannot be used.
    #[error("cannot {action} {}: {source}; the agent needs a data directory that it can write to", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process holds the lock.
    #[error("another agent uses {}; stop it, or give this one its own data directory", .0.display())]
    InUse(PathBuf),
    /// Others than the owner may read the key.
    #[error(
        "{} can be read by others than its owner (mode {mode:04o}), and the key in it with it: \
         if nobody has, run `chmod 600` on it; else remove it and join again",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file is not what an agent writes.
    #[error("{} is damaged: {reason}; restore it, or remove it and join again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong. It never shows any of the key.
        reason: String,
    },
    /// The file is that of a later release.
    #[error("{} was written by a newer release (form {version}); run that one", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of its form.
        version: u32,
    },
}

impl IdentityError {
    /// Whether the same may succeed later without anyone's doing.
    pub fn retry_helps(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull)
    }
}

/// The key of a node: Ed25519, whose signatures have one size. Never shows in `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeKey {
    pkcs8: Vec<u8>,
    fingerprint: Fingerprint,
}

/// The key cannot be made, read or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the node's key cannot be used: {0}")]
pub struct KeyError(String);

impl NodeKey {
    /// Draws a new key from the system's random source.
    ///
    /// # Errors
    /// [`KeyError`] if that fails.
    pub fn generate() -> Result<Self, KeyError> {
        let pair = KeyPair::generate_for(&PKCS_ED25519).map_err(key_error)?;
        Ok(Self {
            fingerprint: key_fingerprint(&pair.subject_public_key_info()),
            pkcs8: pair.serialize_der(),
        })
    }

    fn from_pkcs8(pkcs8: Vec<u8>) -> Result<Self, KeyError> {
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(
            &PrivatePkcs8KeyDer::from(pkcs8.as_slice()),
            &PKCS_ED25519,
        )
        .map_err(key_error)?;
        Ok(Self {
            fingerprint: key_fingerprint(&pair.subject_public_key_info()),
            pkcs8,
        })
    }

    /// The fingerprint of the public key, which an operator may be asked to compare.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// A certificate request (PKCS #10, DER) with an empty subject: the hub decides on the names.
    ///
    /// # Errors
    /// [`KeyError`] if it cannot be signed.
    pub fn certificate_request(&self) -> Result<Vec<u8>, KeyError> {
        let pkcs8 = PrivatePkcs8KeyDer::from(self.pkcs8.as_slice());
        let pair =
            KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &PKCS_ED25519).map_err(key_error)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .serialize_request(&pair)
            .map(|request| request.der().to_vec())
            .map_err(key_error)
    }

    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.pkcs8.clone()).into()
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeKey")
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

#[allow(clippy::needless_pass_by_value)]
fn key_error(error: rcgen::Error) -> KeyError {
    KeyError(error.to_string())
}

/// What a node is: its key, its certificate, and whom it trusts.
#[derive(Debug, Clone)]
pub struct Identity {
    key: NodeKey,
    joined: Joined,
    credentials: Credentials,
    trust: TrustBundle,
}

/// A certificate does not make an identity with this key.
#[derive(Debug, thiserror::Error)]
pub enum IdentityMismatch {
    /// Certificates or key are unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The certificate names another node.
    #[error("the certificate is that of node {certified}, not of {node}")]
    Node {
        /// Whom the certificate names.
        certified: NodeId,
        /// Who it is said to be for.
        node: NodeId,
    },
}

impl Identity {
    /// Puts together what a hub answered and the key that it was asked for. Who signed the
    /// certificate is for the caller to check, with [`verify_node`](hub_quic::tls::verify_node).
    ///
    /// # Errors
    /// [`IdentityMismatch`] if they do not fit each other.
    pub fn new(key: NodeKey, joined: Joined) -> Result<Self, IdentityMismatch> {
        let certificates = |ders: &[Der]| {
            ders.iter()
                .map(|der| CertificateDer::from(der.0.clone()))
                .collect::<Vec<_>>()
        };
        let credentials = Credentials::new(certificates(&joined.chain), key.private_key())?;
        let trust = TrustBundle::new(certificates(&joined.trust))?;
        let leaf = credentials
            .chain()
            .first()
            .ok_or(certificate::CertificateError::Missing);
        let certified = leaf
            .and_then(certificate::node)
            .map_err(TlsError::from)?
            .node_id;
        if certified != joined.node_id {
            return Err(IdentityMismatch::Node {
                certified,
                node: joined.node_id,
            });
        }
        Ok(Self {
            key,
            joined,
            credentials,
            trust,
        })
    }

    /// The node.
    pub fn node_id(&self) -> NodeId {
        self.joined.node_id
    }

    /// Its name.
    pub fn name(&self) -> &NodeName {
        &self.joined.name
    }

    /// The deployment it belongs to.
    pub fn deployment(&self) -> Deployment {
        self.joined.deployment
    }

    /// Its key.
    pub fn key(&self) -> &NodeKey {
        &self.key
    }

    /// Its certificate chain and key, for TLS.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The CAs by which it knows hubs.
    pub fn trust(&self) -> &TrustBundle {
        &self.trust
    }
}

/// What an agent's directory holds.
#[derive(Debug, Clone)]
pub enum State {
    /// Nothing: it has never tried to join.
    Empty,
    /// A key that a join was begun with.
    Key(NodeKey),
    /// The identity of a node.
    Joined(Box<Identity>),
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    /// PKCS #8.
    key: Der,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    joined: Option<Joined>,
}

/// What every form of the file has.
#[derive(Deserialize)]
struct Form {
    version: u32,
}

/// The directory that an identity is kept in, locked for as long as this lives.
#[derive(Debug)]
pub struct IdentityStore {
    directory: PathBuf,
    _lock: File,
}

impl IdentityStore {
    /// Opens `DATA_DIR/identity`, made if it is not there, and takes its lock.
    ///
    /// # Errors
    /// [`IdentityError::Io`] if it cannot be made or written to, [`IdentityError::InUse`] if
    /// another process has it.
    pub fn open(data_dir: &Path) -> Result<Self, IdentityError> {
        let directory = data_dir.join("identity");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(io_error("make the directory", &directory))?;
        let path = directory.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io_error("write", &path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self {
                directory,
                _lock: lock,
            }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(IdentityError::InUse(directory)),
            Err(error) => Err(io_error("lock", &path)(error.into())),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.join("identity.json")
    }

    /// Reads what is stored.
    ///
    /// # Errors
    /// [`IdentityError`]; a damaged or exposed file is never taken for an empty one.
    pub fn load(&self) -> Result<State, IdentityError> {
        let path = self.path();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::Empty),
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let mode = file.metadata().map_err(io_error("read", &path))?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(IdentityError::Exposed { path, mode });
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE)
            .read_to_end(&mut bytes)
            .map_err(io_error("read", &path))?;
        let damaged = |reason: String| IdentityError::Damaged {
            path: path.clone(),
            reason,
        };
        // Only the place: the text of the library's error may hold pieces of the key.
        let malformed = |error: serde_json::Error| {
            damaged(format!(
                "malformed at line {}, column {}",
                error.line(),
                error.column()
            ))
        };
        let Form { version } = serde_json::from_slice(&bytes).map_err(malformed)?;
        if version > VERSION {
            return Err(IdentityError::Newer { path, version });
        }
        let stored = serde_json::from_slice::<Stored>(&bytes).map_err(malformed)?;
        let key = NodeKey::from_pkcs8(stored.key.0).map_err(|error| damaged(error.to_string()))?;
        Ok(match stored.joined {
            None => State::Key(key),
            Some(joined) => State::Joined(Box::new(
                Identity::new(key, joined).map_err(|error| damaged(error.to_string()))?,
            )),
        })
    }

    /// Stores the key that a join begins with, which proves too that an identity can be stored.
    ///
    /// # Errors
    /// [`IdentityError::Io`].
    pub fn save_key(&self, key: &NodeKey) -> Result<(), IdentityError> {
        self.save(&Stored {
            version: VERSION,
            key: Der(key.pkcs8.clone()),
            joined: None,
        })
    }

    /// Stores an identity in the place of what was there.
    ///
    /// # Errors
    /// [`IdentityError::Io`]; what was there before stays.
    pub fn save_identity(&self, identity: &Identity) -> Result<(), IdentityError> {
        self.save(&Stored {
            version: VERSION,
            key: Der(identity.key.pkcs8.clone()),
            joined: Some(identity.joined.clone()),
        })
    }

    fn save(&self, stored: &Stored) -> Result<(), IdentityError> {
        let (path, temporary) = (self.path(), self.directory.join("identity.json.new"));
        let bytes = serde_json::to_vec_pretty(stored)
            .map_err(|error| io_error("write", &path)(error.into()))?;
        // Left by a crash; created anew, so that no other mode than ours is on it.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove", &temporary)(error));
            }
            _ => {}
        }
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        write().map_err(io_error("write", &path))
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    let path = path.to_owned();
    move |source| IdentityError::Io {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::join::tests::Ca;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_key_and_then_an_identity_come_back_as_they_were() {
        let data = tempfile::tempdir().unwrap();
        let store = IdentityStore::open(data.path()).unwrap();
        assert!(matches!(store.load().unwrap(), State::Empty));
        let key = NodeKey::generate().unwrap();
        store.save_key(&key).unwrap();
        let State::Key(stored) = store.load().unwrap() else {
            panic!("no key")
        };
        assert_eq!(stored, key);
        let identity = Identity::new(key.clone(), Ca::new().joined(&key)).unwrap();
        store.save_identity(&identity).unwrap();
        let State::Joined(stored) = store.load().unwrap() else {
            panic!("no identity")
        };
        assert_eq!((&stored.key, &stored.joined), (&key, &identity.joined));
        assert_eq!(mode(&store.directory), 0o700);
        assert_eq!(mode(&store.path()), 0o600);
        assert!(!store.directory.join("identity.json.new").exists());
    }

    #[test]
    fn what_a_crash_left_is_in_nobodys_way() {
        let data = tempfile::tempdir().unwrap();
        let store = IdentityStore::open(data.path()).unwrap();
        let key = NodeKey::generate().unwrap();
        store.save_key(&key).unwrap();
        let left = store.directory.join("identity.json.new");
        fs::write(&left, "half a fi").unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(0o644)).unwrap();
        let State::Key(stored) = store.load().unwrap() else {
            panic!("no key")
        };
        assert_eq!(stored, key);
        store.save_key(&key).unwrap();
        assert_eq!(mode(&store.path()), 0o600);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let data = tempfile::tempdir().unwrap();
        let store = IdentityStore::open(data.path()).unwrap();
        store.save_key(&NodeKey::generate().unwrap()).unwrap();
        for exposed in [0o644, 0o640, 0o604, 0o660] {
            fs::set_permissions(store.path(), fs::Permissions::from_mode(exposed)).unwrap();
            let error = store.load().unwrap_err();
            assert!(matches!(error, IdentityError::Exposed { mode, .. } if mode == exposed));
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn one_agent_has_the_directory() {
        let data = tempfile::tempdir().unwrap();
        let store = IdentityStore::open(data.path()).unwrap();
        let error = IdentityStore::open(data.path()).unwrap_err();
        assert!(matches!(error, IdentityError::InUse(_)), "{error}");
        drop(store);
        IdentityStore::open(data.path()).unwrap();
    }

    #[test]
    fn damage_is_never_taken_for_an_empty_directory() {
        let data = tempfile::tempdir().unwrap();
        let store = IdentityStore::open(data.path()).unwrap();
        let key = NodeKey::generate().unwrap();
        let ca = Ca::new();
        store
            .save_identity(&Identity::new(key.clone(), ca.joined(&key)).unwrap())
            .unwrap();
        let whole = fs::read_to_string(store.path()).unwrap();
        let put = |text: &str| fs::write(store.path(), text).unwrap();
        for cut in (0..whole.len() - 1).step_by(7) {
            put(&whole[..cut]);
            let error = store.load().unwrap_err();
            assert!(
                matches!(error, IdentityError::Damaged { .. }),
                "{cut}: {error}"
            );
        }
        put(&whole.replacen("\"version\": 1", "\"version\": 2", 1));
        assert!(matches!(
            store.load(),
            Err(IdentityError::Newer { version: 2, .. })
        ));
        // Another key beside the certificate.
        let other = NodeKey::generate().unwrap();
        store
            .save(&Stored {
                version: VERSION,
                key: Der(other.pkcs8.clone()),
                joined: Some(ca.joined(&key)),
            })
            .unwrap();
        let error = store.load().unwrap_err();
        assert!(matches!(&error, IdentityError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("does not fit"), "{error}");
    }

    #[test]
    fn neither_debug_nor_errors_show_the_key() {
        use base64::Engine as _;
        let key = NodeKey::generate().unwrap();
        // The seed is at a fixed place of the PKCS #8 form.
        let seed = &key.pkcs8[16..48];
        let secret = base64::engine::general_purpose::STANDARD_NO_PAD.encode(seed);
        let identity = Identity::new(key.clone(), Ca::new().joined(&key)).unwrap();
        let data = tempfile::tempdir().unwrap();
        let store = IdentityStore::open(data.path()).unwrap();
        let broken = format!("{{\"version\": 1, \"key\": \"{secret}!\"}}");
        store.save_key(&key).unwrap();
        fs::write(store.path(), broken).unwrap();
        let error = store.load().unwrap_err();
        let texts = [
            format!("{key:?} {identity:?} {:#?}", State::Key(key.clone())),
            format!("{error} {error:?}"),
        ];
        for text in texts {
            assert!(!text.contains(&secret[..16]), "{text}");
            assert!(
                !text.contains(&format!("{}, {}, {}", seed[0], seed[1], seed[2])),
                "{text}"
            );
        }
    }
}
