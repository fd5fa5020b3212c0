//! What the certificates of this house must look like, beyond a valid chain.
//!
//! A node's certificate names its node twice (common name and DNS name) and nothing else; a hub's
//! carries [`HUB_NAME`]. Each has exactly one extended key usage and neither is a CA, so no
//! certificate is ever good for both roles. The checks run inside the handshake, after the chain,
//! validity and signature checks of `rustls`, and again when a peer's identity is read.

use hub_protocol::{Fingerprint, NodeId};
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_SIG_ED25519,
};
use x509_parser::prelude::{FromDer as _, SubjectPublicKeyInfo, X509Certificate};

/// The DNS name in every hub certificate, and the server name of every handshake with a hub:
/// agents know a hub by its CA, not by the address they dial.
pub const HUB_NAME: &str = "control.hub.internal";

/// What the DNS names of nodes end with. No hub certificate carries such a name.
const NODE_DOMAIN: &str = ".node.hub.internal";

/// The one DNS name in a node's certificate: `<node id>.node.hub.internal`.
pub fn node_name(node: &NodeId) -> String {
    format!("{node}{NODE_DOMAIN}")
}

/// Why a certificate is not the kind it has to be. Trying again does not help: the peer needs
/// another certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// No X.509 certificate in DER, or one with bytes after it or a repeated extension.
    #[error("the certificate is malformed")]
    Malformed,
    /// The key is of a kind that is not accepted.
    #[error("the certificate's key is none of ECDSA P-256, ECDSA P-384 and Ed25519")]
    KeyKind,
    /// A CA certificate where a node's or a hub's has to be, or the reverse.
    #[error("the certificate must be that of {0}")]
    Authority(&'static str),
    /// The extended key usage is missing, another, or not the only one.
    #[error("the certificate must be for {0} and for nothing else")]
    Usage(&'static str),
    /// The subject is not a single common name that is a node id.
    #[error("the certificate's common name is no node id")]
    CommonName,
    /// The alternative names are not those that the certificate must have.
    #[error("the certificate's DNS names do not fit: {0}")]
    Names(String),
    /// The connection has no certificate of its peer, which is so on the enrollment endpoint.
    #[error("the peer showed no certificate")]
    Missing,
}

/// The node at the other end of a connection, as its certificate proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The node.
    pub node_id: NodeId,
    /// The fingerprint of the key that the certificate binds.
    pub fingerprint: Fingerprint,
    /// The certificate's serial number: big-endian bytes without leading zeros.
    pub serial: Vec<u8>,
}

/// The node whose certificate the peer proved in the handshake of this connection.
///
/// # Errors
/// [`CertificateError::Missing`] for a connection that demanded no certificate. The others cannot
/// happen on a connection made with [`operational_server`](super::operational_server), whose
/// verifier has made the same checks.
pub fn peer_node(connection: &quinn::Connection) -> Result<PeerIdentity, CertificateError> {
    let identity = connection
        .peer_identity()
        .ok_or(CertificateError::Missing)?;
    let chain = identity
        .downcast::<Vec<CertificateDer<'static>>>()
        .map_err(|_| CertificateError::Missing)?;
    node(chain.first().ok_or(CertificateError::Missing)?)
}

/// The fingerprint of the key in this certificate: SHA-256 over its SPKI.
///
/// # Errors
/// [`CertificateError::Malformed`].
pub fn spki_fingerprint(certificate: &CertificateDer<'_>) -> Result<Fingerprint, CertificateError> {
    Ok(key_fingerprint(parse(certificate)?.public_key().raw))
}

/// Checks that this is a node's certificate, and reads it. Says nothing about who signed it and
/// whether it is still valid.
///
/// # Errors
/// What makes it no node's certificate.
pub fn node(certificate: &CertificateDer<'_>) -> Result<PeerIdentity, CertificateError> {
    let certificate = parse(certificate)?;
    leaf(&certificate, "a node")?;
    if purpose(&certificate)? != Some(Purpose::Client) {
        return Err(CertificateError::Usage("client authentication"));
    }
    let mut names = certificate.subject().iter_common_name();
    let node_id = match (names.next(), names.next()) {
        (Some(name), None) => name
            .as_str()
            .ok()
            .and_then(|name| name.parse::<NodeId>().ok()),
        _ => None,
    };
    let node_id = node_id.ok_or(CertificateError::CommonName)?;
    let expected = node_name(&node_id);
    if !matches!(dns_names(&certificate)?.as_slice(), [GeneralName::DNSName(name)] if *name == expected)
    {
        return Err(CertificateError::Names(format!(
            "it must have {expected} and no other"
        )));
    }
    let serial = certificate.raw_serial();
    let zeros = serial.iter().take_while(|byte| **byte == 0).count();
    Ok(PeerIdentity {
        node_id,
        fingerprint: key_fingerprint(certificate.public_key().raw),
        serial: serial[zeros..].to_vec(),
    })
}

/// Checks that this is a hub's certificate. Says nothing about who signed it and whether it is
/// still valid.
///
/// # Errors
/// What makes it no hub's certificate.
pub fn hub(certificate: &CertificateDer<'_>) -> Result<(), CertificateError> {
    let certificate = parse(certificate)?;
    leaf(&certificate, "a hub")?;
    if purpose(&certificate)? != Some(Purpose::Server) {
        return Err(CertificateError::Usage("server authentication"));
    }
    let names = dns_names(&certificate)?;
    let of_node = |name: &GeneralName<'_>| matches!(name, GeneralName::DNSName(name) if name.to_ascii_lowercase().ends_with(NODE_DOMAIN));
    if !names.contains(&GeneralName::DNSName(HUB_NAME)) || names.iter().any(of_node) {
        return Err(CertificateError::Names(format!(
            "it must have {HUB_NAME} and none of a node"
        )));
    }
    Ok(())
}

/// Checks that this is a CA certificate with a key of an accepted kind, and returns the key's
/// fingerprint.
///
/// # Errors
/// What makes it no CA certificate.
pub fn authority(certificate: &CertificateDer<'_>) -> Result<Fingerprint, CertificateError> {
    let certificate = parse(certificate)?;
    if !certificate.is_ca() {
        return Err(CertificateError::Authority("a CA"));
    }
    key_kind(certificate.public_key())?;
    Ok(key_fingerprint(certificate.public_key().raw))
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, CertificateError> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        _ => Err(CertificateError::Malformed),
    }
}

fn leaf(certificate: &X509Certificate<'_>, role: &'static str) -> Result<(), CertificateError> {
    if certificate.is_ca() {
        return Err(CertificateError::Authority(role));
    }
    key_kind(certificate.public_key())
}

/// The fingerprint of a public key, given as the DER of its SPKI.
pub fn key_fingerprint(spki: &[u8]) -> Fingerprint {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, spki).as_ref());
    Fingerprint::from_digest(bytes)
}

fn key_kind(key: &SubjectPublicKeyInfo<'_>) -> Result<(), CertificateError> {
    let algorithm = &key.algorithm;
    let curve = || {
        algorithm
            .parameters
            .as_ref()
            .and_then(|parameters| parameters.as_oid().ok())
    };
    let accepted = if algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
        curve().is_some_and(|curve| curve == OID_EC_P256 || curve == OID_NIST_EC_P384)
    } else {
        algorithm.algorithm == OID_SIG_ED25519
    };
    if accepted {
        Ok(())
    } else {
        Err(CertificateError::KeyKind)
    }
}

#[derive(PartialEq)]
enum Purpose {
    Client,
    Server,
}

/// The purpose, if there is exactly one and it is one of ours. `rustls` takes a certificate
/// without extended key usage for one that is good for all.
fn purpose(certificate: &X509Certificate<'_>) -> Result<Option<Purpose>, CertificateError> {
    let usage = certificate
        .extended_key_usage()
        .map_err(|_| CertificateError::Malformed)?;
    let Some(usage) = usage.map(|extension| extension.value) else {
        return Ok(None);
    };
    let others = usage.any
        || usage.code_signing
        || usage.email_protection
        || usage.time_stamping
        || usage.ocsp_signing
        || !usage.other.is_empty();
    Ok(match (usage.client_auth, usage.server_auth, others) {
        (true, false, false) => Some(Purpose::Client),
        (false, true, false) => Some(Purpose::Server),
        _ => None,
    })
}

fn dns_names<'a>(
    certificate: &'a X509Certificate<'a>,
) -> Result<Vec<GeneralName<'a>>, CertificateError> {
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| CertificateError::Malformed)?;
    Ok(names
        .map(|extension| extension.value.general_names.clone())
        .unwrap_or_default())
}
