//! The verifiers that run inside every handshake: `rustls` checks the chain, the dates and the
//! signatures against the trusted CAs, then [`certificate`](super::certificate) checks that the
//! leaf is of the kind that this endpoint speaks to.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use hub_protocol::Fingerprint;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};

use super::certificate;
use super::{TlsError, provider};

/// A reason of ours inside an error of `rustls`, which shows it by `Debug`.
#[derive(thiserror::Error)]
#[error("{0}")]
struct Reason(String);

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn refusal(reason: impl fmt::Display) -> Error {
    let reason = Arc::new(Reason(reason.to_string()));
    Error::InvalidCertificate(CertificateError::Other(OtherError(reason)))
}

/// Lets in whoever proves a valid node certificate, and no one else.
#[derive(Debug)]
pub(super) struct NodeVerifier(Arc<dyn ClientCertVerifier>);

impl NodeVerifier {
    pub(super) fn new(roots: Arc<RootCertStore>) -> Result<Self, TlsError> {
        let chain = WebPkiClientVerifier::builder_with_provider(roots, provider())
            // An agent has one certificate; hints what to choose only tell strangers who we are.
            .clear_root_hint_subjects()
            .build()
            .map_err(|_| TlsError::NoTrust)?;
        Ok(Self(chain))
    }
}

impl ClientCertVerifier for NodeVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now)?;
        certificate::node(end_entity).map_err(refusal)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Speaks only to a hub whose certificate one of the trusted CAs signed.
#[derive(Debug)]
pub(super) struct HubVerifier(Arc<WebPkiServerVerifier>);

impl HubVerifier {
    pub(super) fn new(roots: Arc<RootCertStore>) -> Result<Self, TlsError> {
        WebPkiServerVerifier::builder_with_provider(roots, provider())
            .build()
            .map(Self)
            .map_err(|_| TlsError::NoTrust)
    }
}

impl ServerCertVerifier for HubVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.0.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        certificate::hub(end_entity).map_err(refusal)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The CA fingerprints that a hub showed in handshakes that failed for the pin.
///
/// An error of the handshake is only text once it went through QUIC; this carries what a person
/// has to compare. Clones share their content.
#[derive(Debug, Clone, Default)]
pub struct ShownPins(Arc<Mutex<Option<Vec<Fingerprint>>>>);

impl ShownPins {
    /// The fingerprints of the latest handshake that failed for the pin, none if the hub showed no
    /// CA certificate at all; `None` if no handshake did.
    pub fn latest(&self) -> Option<Vec<Fingerprint>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn replace(&self, shown: Vec<Fingerprint>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
    }
}

/// Speaks only to a hub whose certificate was signed by the CA with the pinned key. The CA's
/// certificate comes with the chain; being in it proves nothing, signing the leaf does.
#[derive(Debug)]
pub(super) struct PinnedVerifier {
    pin: Fingerprint,
    shown: ShownPins,
}

impl PinnedVerifier {
    pub(super) fn new(pin: Fingerprint, shown: ShownPins) -> Self {
        Self { pin, shown }
    }
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let authorities = intermediates
            .iter()
            .filter_map(|certificate| {
                Some((certificate::authority(certificate).ok()?, certificate))
            })
            .collect::<Vec<_>>();
        let Some((_, pinned)) = authorities.iter().find(|(shown, _)| *shown == self.pin) else {
            self.shown
                .replace(authorities.iter().map(|(shown, _)| *shown).collect());
            return Err(refusal(format_args!(
                "the hub showed no CA with the pinned fingerprint {}",
                self.pin
            )));
        };
        let mut roots = RootCertStore::empty();
        roots.add((*pinned).clone().into_owned())?;
        HubVerifier::new(Arc::new(roots))
            .map_err(|error| Error::General(error.to_string()))?
            .verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
