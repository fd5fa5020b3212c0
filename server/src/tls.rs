//! Certificates of the hub's TCP listeners, and of HTTP/3.
//!
//! ```text
//! PEM files   --Followed::follow--> Certificate --resolves--> handshakes
//! hub's CA    --replace------------'
//! ```
//!
//! A listener takes whatever resolves certificates for names, which is rustls's
//! [`ResolvesServerCert`]: something that orders them from a public authority fits there as well.
//! Handshakes that begin after a replacement see the new certificate; connections that stand are
//! not touched.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ring::digest::{SHA256, digest};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use zeroize::Zeroizing;

/// How often files are looked at.
pub const LOOK_EVERY: Duration = Duration::from_secs(3);

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing, or is no PEM of its kind.
    #[error("{whose} {what} {}: {reason}", .path.display())]
    File {
        /// Whose it is, as in "the API's".
        whose: &'static str,
        /// What it should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The two do not go together, or the key is of a kind that is not known.
    #[error(
        "{whose} certificate {} and key {} can't be used: {reason}",
        .certificate.display(), .key.display()
    )]
    Unusable {
        /// Whose they are.
        whose: &'static str,
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong with them.
        reason: String,
    },
}

/// A certificate chain with its key, which may be replaced. Clones share it.
#[derive(Clone)]
pub struct Certificate(Arc<RwLock<Arc<CertifiedKey>>>);

impl Certificate {
    /// Starts with this one.
    pub fn new(certified: CertifiedKey) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(certified))))
    }

    /// Makes one of a chain, leaf first, and the leaf's key.
    ///
    /// # Errors
    /// The key is not the leaf's, or of a kind that is not known.
    pub fn certified(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<CertifiedKey, rustls::Error> {
        CertifiedKey::from_der(chain, key, &default_provider())
    }

    /// Puts another one in its place.
    pub fn replace(&self, certified: CertifiedKey) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(certified);
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(
            self.0
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        )
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate(…)")
    }
}

/// TLS 1.2 and 1.3 with certificates from `resolver`, for these protocols, the best first.
pub(crate) fn server_config(
    resolver: Arc<dyn ResolvesServerCert>,
    protocols: &[&[u8]],
) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for them")
        .with_no_client_auth()
        .with_cert_resolver(resolver);
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    config
}

/// The files of a certificate chain and its key, both PEM.
#[derive(Debug, Clone)]
pub struct Files {
    /// Whose they are, for messages, as in "the API's".
    pub whose: &'static str,
    /// The chain's file, the leaf first.
    pub certificate: PathBuf,
    /// The key's file.
    pub key: PathBuf,
}

/// What the files held at one time.
struct Content {
    chain: Vec<CertificateDer<'static>>,
    key: Zeroizing<Vec<u8>>,
    digest: Digest,
}

/// Tells contents apart, and remembers no key.
type Digest = [u8; 32];

impl Files {
    /// Loads what the files hold, which may then be followed.
    ///
    /// # Errors
    /// A file can't be read, is no PEM of its kind, or the two do not go together.
    pub fn load(self) -> Result<Followed, TlsError> {
        let content = self.read()?;
        let loaded = content.digest;
        let certificate = Certificate::new(self.certified(content)?);
        Ok(Followed {
            loaded,
            certificate,
            files: self,
        })
    }

    fn read(&self) -> Result<Content, TlsError> {
        let read = |what, path: &Path| {
            std::fs::read(path).map_err(|error: io::Error| self.wrong(what, path, &error))
        };
        let certificate = read("certificate", &self.certificate)?;
        let chain = CertificateDer::pem_slice_iter(&certificate)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.wrong("certificate", &self.certificate, &error))?;
        if chain.is_empty() {
            let reason = "there is no certificate in it";
            return Err(self.wrong("certificate", &self.certificate, &reason));
        }
        let key = Zeroizing::new(read("key", &self.key)?);
        let both = [hash(&certificate), hash(&key)];
        let digest = hash(both.as_flattened());
        Ok(Content { chain, key, digest })
    }

    fn certified(&self, content: Content) -> Result<CertifiedKey, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(&content.key)
            .map_err(|error| self.wrong("key", &self.key, &error))?;
        Certificate::certified(content.chain, key).map_err(|error| TlsError::Unusable {
            whose: self.whose,
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            reason: error.to_string(),
        })
    }

    fn wrong(&self, what: &'static str, path: &Path, reason: &dyn fmt::Display) -> TlsError {
        TlsError::File {
            whose: self.whose,
            what,
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }
}

fn hash(bytes: &[u8]) -> Digest {
    let mut hash = Digest::default();
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// A certificate that follows its files.
#[derive(Debug, Clone)]
pub struct Followed {
    files: Files,
    certificate: Certificate,
    loaded: Digest,
}

impl Followed {
    /// The certificate as it is now and will be.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Replaces the certificate whenever the files change, for as long as this is polled; they are
    /// looked at so often. Files that can't be used change nothing, and that is logged.
    pub async fn follow(self, every: Duration) -> Infallible {
        let mut watch = Watch::new(self.loaded);
        loop {
            sleep(every).await;
            let files = self.files.clone();
            // Fails only where the runtime ends, and this with it.
            let Ok(read) = spawn_blocking(move || files.read()).await else {
                continue;
            };
            let now = match &read {
                Ok(content) => content.digest,
                Err(error) => hash(error.to_string().as_bytes()),
            };
            if !watch.is_news(now) {
                continue;
            }
            match read.and_then(|content| self.files.certified(content)) {
                Ok(certified) => {
                    self.certificate.replace(certified);
                    let path = self.files.certificate.display();
                    tracing::info!("{} certificate was read anew from {path}", self.files.whose);
                }
                Err(error) => tracing::error!("the certificate in use stays: {error}"),
            }
        }
    }
}

/// Decides what of the files' contents is to be loaded. Pure.
#[derive(Debug)]
struct Watch {
    /// What was loaded, or found unusable, last.
    judged: Digest,
    /// What was there at the last look.
    seen: Digest,
}

impl Watch {
    fn new(loaded: Digest) -> Self {
        Self {
            judged: loaded,
            seen: loaded,
        }
    }

    /// Whether what is there now is to be loaded: it was not yet, and it is as at the look before.
    /// Files that are just being written, one after the other, are let alone.
    fn is_news(&mut self, now: Digest) -> bool {
        let settled = std::mem::replace(&mut self.seen, now) == now;
        settled && std::mem::replace(&mut self.judged, now) != now
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;

    #[test]
    fn contents_are_judged_once_they_have_settled() {
        let [old, half, new] = [[0; 32], [1; 32], [2; 32]];
        let mut watch = Watch::new(old);
        for (now, news) in [
            (old, false),
            (half, false),
            (new, false),
            (new, true),
            (new, false),
            (half, false),
            (new, false),
            (new, false),
            (old, false),
            (old, true),
        ] {
            assert_eq!(watch.is_news(now), news);
        }
    }

    /// Writes a certificate for `name`, and gives it.
    fn write(files: &Files, name: &str) -> CertificateDer<'static> {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        fs::write(&files.certificate, made.cert.pem()).unwrap();
        fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        made.cert.der().clone()
    }

    fn in_use(certificate: &Certificate) -> CertificateDer<'static> {
        certificate.0.read().unwrap().cert[0].clone()
    }

    #[tokio::test(start_paused = true)]
    async fn files_are_followed_and_broken_ones_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files {
            whose: "the test's",
            certificate: directory.path().join("cert.pem"),
            key: directory.path().join("key.pem"),
        };
        let first = write(&files, "first.example");
        let followed = files.clone().load().unwrap();
        let certificate = followed.certificate().clone();
        assert_eq!(in_use(&certificate), first);
        tokio::spawn(followed.follow(LOOK_EVERY));

        let second = write(&files, "second.example");
        while in_use(&certificate) != second {
            sleep(LOOK_EVERY).await;
        }
        fs::write(&files.certificate, "no PEM").unwrap();
        sleep(LOOK_EVERY * 4).await;
        fs::remove_file(&files.key).unwrap();
        sleep(LOOK_EVERY * 4).await;
        assert_eq!(in_use(&certificate), second);
        let third = write(&files, "third.example");
        while in_use(&certificate) != third {
            sleep(LOOK_EVERY).await;
        }
    }
}
