//! The TLS of both endpoints and both roles.
//!
//! TLS 1.3 only, with one explicit provider (*ring*), never the process default. Two protocols are
//! told apart by ALPN: [`ALPN`], where both sides prove a certificate in the handshake,
//! and [`ENROLL_ALPN`], where a machine without an identity asks for one and knows the hub by
//! the fingerprint of its CA. Nothing is ever resumed and there is no 0-RTT: every connection runs
//! the verifier. The time that certificates are judged by is an argument ([`TimeProvider`]), so
//! that simulated years pass in tests.
//!
//! Certificates come in as [`Credentials`] and [`TrustBundle`]; out go configurations for
//! [`endpoint`](crate::endpoint). After a handshake, [`peer_node`] says who the peer is.

pub mod certificate;
#[cfg(test)]
pub(crate) mod tests;
mod verify;

use std::fmt;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use hub_protocol::Fingerprint;
use hub_protocol::version::{ALPN, ENROLL_ALPN};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, SignatureVerificationAlgorithm, alg_id::ECDSA_P256,
    alg_id::ECDSA_P384, alg_id::ED25519,
};
use rustls::server::danger::ClientCertVerifier as _;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, RootCertStore, ServerConfig, SignatureScheme};

pub use certificate::{
    CertificateError, HUB_NAME, PeerIdentity, key_fingerprint, node_name, peer_node,
    spki_fingerprint,
};
pub use verify::ShownPins;
use verify::{HubVerifier, NodeVerifier, PinnedVerifier};

/// The most CA certificates in a trust bundle: the current one, its successor and some that are
/// being retired.
pub const MAX_TRUST_BUNDLE: usize = 8;

/// Why a TLS configuration cannot be made. Trying again does not help: the input has to change.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No CA certificate to trust, or too many.
    #[error("a trust bundle takes 1 to {MAX_TRUST_BUNDLE} CA certificates")]
    NoTrust,
    /// A certificate is not of the kind that is needed here.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The private key is unreadable, of a kind that is not accepted, or not the certificate's.
    #[error("the private key does not fit the certificate: {0}")]
    Key(Error),
    /// The certificate is not one that the trusted CAs vouch for now.
    #[error("the trusted CAs do not vouch for the certificate: {0}")]
    Untrusted(Error),
    /// The TLS library refuses what is asked of it.
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

/// The signature algorithms of accepted keys; RSA is not among them.
static ALGORITHMS: LazyLock<Vec<&'static dyn SignatureVerificationAlgorithm>> =
    LazyLock::new(|| {
        let all = ring::default_provider()
            .signature_verification_algorithms
            .all;
        let accepted = [ECDSA_P256, ECDSA_P384, ED25519];
        all.iter()
            .copied()
            .filter(|alg| accepted.contains(&alg.public_key_alg_id()))
            .collect()
    });

type Mapping = (
    SignatureScheme,
    &'static [&'static dyn SignatureVerificationAlgorithm],
);

static SCHEMES: LazyLock<Vec<Mapping>> = LazyLock::new(|| {
    let accepted = [
        SignatureScheme::ECDSA_NISTP256_SHA256,
        SignatureScheme::ECDSA_NISTP384_SHA384,
        SignatureScheme::ED25519,
    ];
    let mapping = ring::default_provider()
        .signature_verification_algorithms
        .mapping;
    mapping
        .iter()
        .copied()
        .filter(|(scheme, _)| accepted.contains(scheme))
        .collect()
});

static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    Arc::new(CryptoProvider {
        signature_verification_algorithms: WebPkiSupportedAlgorithms {
            all: &ALGORITHMS,
            mapping: &SCHEMES,
        },
        ..ring::default_provider()
    })
});

/// The cryptography of every handshake: *ring*, with signatures by ECDSA P-256, ECDSA P-384 and
/// Ed25519 only.
pub fn provider() -> Arc<CryptoProvider> {
    PROVIDER.clone()
}

/// The wall clock of this machine.
pub fn system_time() -> Arc<dyn TimeProvider> {
    Arc::new(DefaultTimeProvider)
}

/// A certificate chain and the private key of its first certificate. The key never shows in
/// `Debug`.
#[derive(Clone)]
pub struct Credentials(Arc<CertifiedKey>);

impl Credentials {
    /// Takes the chain, leaf first, and the leaf's key.
    ///
    /// # Errors
    /// [`TlsError::Key`] if the key cannot be used or is not the leaf's;
    /// [`TlsError::Certificate`] if there is no leaf.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, TlsError> {
        spki_fingerprint(chain.first().ok_or(CertificateError::Missing)?)?;
        let certified = CertifiedKey::from_der(chain, key, &provider()).map_err(TlsError::Key)?;
        Ok(Self(Arc::new(certified)))
    }

    /// The chain, leaf first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.0.cert
    }

    fn leaf(&self) -> Result<&CertificateDer<'static>, TlsError> {
        Ok(self.0.cert.first().ok_or(CertificateError::Missing)?)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("certificates", &self.0.cert.len())
            .finish_non_exhaustive()
    }
}

/// The CA certificates that a side trusts: at least one, at most [`MAX_TRUST_BUNDLE`].
#[derive(Clone)]
pub struct TrustBundle {
    certificates: Arc<[CertificateDer<'static>]>,
    fingerprints: Arc<[Fingerprint]>,
    roots: Arc<RootCertStore>,
}

impl TrustBundle {
    /// Trusts these CAs.
    ///
    /// # Errors
    /// [`TlsError::NoTrust`] if there are none or too many; [`TlsError::Certificate`] if one of
    /// them is no CA certificate.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TlsError> {
        if !(1..=MAX_TRUST_BUNDLE).contains(&certificates.len()) {
            return Err(TlsError::NoTrust);
        }
        let fingerprints = certificates
            .iter()
            .map(certificate::authority)
            .collect::<Result<Arc<_>, _>>()?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots
                .add(certificate.clone())
                .map_err(|_| CertificateError::Malformed)?;
        }
        Ok(Self {
            certificates: certificates.into(),
            fingerprints,
            roots: Arc::new(roots),
        })
    }

    /// The CA certificates.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// The fingerprints of their keys, in the same order.
    pub fn fingerprints(&self) -> &[Fingerprint] {
        &self.fingerprints
    }
}

impl fmt::Debug for TrustBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TrustBundle")
            .field(&self.fingerprints)
            .finish()
    }
}

/// The hub's certificate, which is replaced while the hub runs. Clones share it; handshakes that
/// begin after a replacement see the new one.
#[derive(Debug, Clone)]
pub struct HubCertificate(Arc<RwLock<Credentials>>);

impl HubCertificate {
    /// Starts with these credentials. The chain should hold the CA's certificate after the
    /// leaf: machines that join find the pinned key there.
    ///
    /// # Errors
    /// [`TlsError::Certificate`] if the leaf is no hub's certificate.
    pub fn new(credentials: Credentials) -> Result<Self, TlsError> {
        certificate::hub(credentials.leaf()?)?;
        Ok(Self(Arc::new(RwLock::new(credentials))))
    }

    /// Replaces the credentials.
    ///
    /// # Errors
    /// [`TlsError::Certificate`] if the leaf is no hub's certificate; the old one stays.
    pub fn replace(&self, credentials: Credentials) -> Result<(), TlsError> {
        certificate::hub(credentials.leaf()?)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = credentials;
        Ok(())
    }

    /// The credentials in use.
    pub fn current(&self) -> Credentials {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl ResolvesServerCert for HubCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current().0)
    }
}

/// Makes the checks that a hub which trusts `trust` makes on these credentials of a node, and says
/// whose they are: what an agent does before it keeps an identity.
///
/// # Errors
/// [`TlsError::Untrusted`] if the certificate is no node's, or its chain does not lead to a CA of
/// `trust` at this time.
pub fn verify_node(
    node: &Credentials,
    trust: &TrustBundle,
    time: &dyn TimeProvider,
) -> Result<PeerIdentity, TlsError> {
    let now = time
        .current_time()
        .ok_or(TlsError::Untrusted(Error::FailedToGetCurrentTime))?;
    let (leaf, intermediates) = node.0.cert.split_first().ok_or(CertificateError::Missing)?;
    NodeVerifier::new(trust.roots.clone())?
        .verify_client_cert(leaf, intermediates, now)
        .map_err(TlsError::Untrusted)?;
    Ok(certificate::node(leaf)?)
}

/// The hub's side of the operational endpoint: lets in nodes that a CA of `trust` certified.
///
/// # Errors
/// [`TlsError::Setup`].
pub fn operational_server(
    certificate: &HubCertificate,
    trust: &TrustBundle,
    time: Arc<dyn TimeProvider>,
) -> Result<Arc<QuicServerConfig>, TlsError> {
    let verifier = Arc::new(NodeVerifier::new(trust.roots.clone())?);
    let config = ServerConfig::builder_with_details(provider(), time)
        .with_protocol_versions(&[&TLS13])
        .map_err(setup)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(certificate.clone()));
    server(config, ALPN)
}

/// The agent's side of the operational endpoint: proves `node` and speaks to a hub that a CA of
/// `trust` certified.
///
/// # Errors
/// [`TlsError::Certificate`] if the credentials are no node's; [`TlsError::Setup`].
pub fn operational_client(
    node: &Credentials,
    trust: &TrustBundle,
    time: Arc<dyn TimeProvider>,
) -> Result<Arc<QuicClientConfig>, TlsError> {
    certificate::node(node.leaf()?)?;
    let config = ClientConfig::builder_with_details(provider(), time)
        .with_protocol_versions(&[&TLS13])
        .map_err(setup)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(HubVerifier::new(trust.roots.clone())?))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(node.0.clone())));
    client(config, ALPN)
}

/// The hub's side of the enrollment endpoint, which asks for no certificate.
///
/// # Errors
/// [`TlsError::Setup`].
pub fn enrollment_server(
    certificate: &HubCertificate,
    time: Arc<dyn TimeProvider>,
) -> Result<Arc<QuicServerConfig>, TlsError> {
    let config = ServerConfig::builder_with_details(provider(), time)
        .with_protocol_versions(&[&TLS13])
        .map_err(setup)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificate.clone()));
    server(config, ENROLL_ALPN)
}

/// A joining machine's side of the enrollment endpoint: speaks to a hub whose certificate was
/// signed by the CA with the fingerprint `pin`. What other fingerprints a hub showed is found in
/// `shown`.
///
/// # Errors
/// [`TlsError::Setup`].
pub fn enrollment_client(
    pin: Fingerprint,
    shown: ShownPins,
    time: Arc<dyn TimeProvider>,
) -> Result<Arc<QuicClientConfig>, TlsError> {
    let config = ClientConfig::builder_with_details(provider(), time)
        .with_protocol_versions(&[&TLS13])
        .map_err(setup)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedVerifier::new(pin, shown)))
        .with_no_client_auth();
    client(config, ENROLL_ALPN)
}

fn server(mut config: ServerConfig, alpn: &[u8]) -> Result<Arc<QuicServerConfig>, TlsError> {
    config.alpn_protocols = vec![alpn.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    QuicServerConfig::try_from(config)
        .map(Arc::new)
        .map_err(|error| TlsError::Setup(error.to_string()))
}

fn client(mut config: ClientConfig, alpn: &[u8]) -> Result<Arc<QuicClientConfig>, TlsError> {
    config.alpn_protocols = vec![alpn.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    QuicClientConfig::try_from(config)
        .map(Arc::new)
        .map_err(|error| TlsError::Setup(error.to_string()))
}

// The signature is what `map_err` calls.
#[allow(clippy::needless_pass_by_value)]
fn setup(error: Error) -> TlsError {
    TlsError::Setup(error.to_string())
}
