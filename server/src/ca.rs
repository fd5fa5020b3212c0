//! The certificate authority: who is a node and who is the hub.
//!
//! ```text
//! ledger --certificate + sealed key--> Ca <--hub's secret
//!                                       |--sign_node: request of a node -> client certificate
//!                                       |--sign_hub:  names of the hub  -> chain + key
//!                                       `--sign_site: names of its data plane -> chain + key
//! ```
//!
//! The CA is made once per deployment and lives in the ledger, its key sealed under the hub's
//! secret (`seal`). Every node pins its fingerprint, so it is never made anew: whatever does not
//! fit together is an error that stops the start. A copy of the certificate, for people, stands in
//! a file; it also proves that there was a CA if the ledger is lost.
//!
//! What a request says about itself is ignored, except its key: names, purposes and times of every
//! certificate are the hub's.

mod key;
mod seal;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hub_ledger::{NewCertificate, Serial, Timestamp};
use hub_protocol::{Deployment, Fingerprint, NodeId};
use hub_quic::tls::certificate::{self, CertificateError};
use hub_quic::tls::{HUB_NAME, key_fingerprint, node_name};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
    PublicKeyData as _, SanType, SerialNumber, SubjectPublicKeyInfo,
};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::files;
use crate::secret::HubSecret;
use crate::store::{CaRecord, Store, StoreError};
use key::CaKey;
pub use key::SignatureLength;

/// How long a CA is valid: ten years.
pub const CA_VALIDITY: Duration = Duration::from_secs(3652 * 86_400);
/// How long a node's certificate is valid unless configured: 30 days.
pub const NODE_VALIDITY: Duration = Duration::from_secs(30 * 86_400);
/// How long a hub's certificate is valid: 30 days. It is made anew at half of that.
pub const HUB_VALIDITY: Duration = Duration::from_secs(30 * 86_400);
/// How long before its making a certificate is valid, for peers whose clocks are behind.
pub const BACKDATED: Duration = Duration::from_secs(3600);
/// The largest certificate request, in bytes. One with a key of an accepted kind takes a tenth.
pub const MAX_REQUEST: usize = 8 * 1024;

/// How the CA is to be used.
#[derive(Debug, Clone, Default)]
pub struct CaOptions {
    /// Where the copy of its certificate stands: a PEM file that everybody may read.
    pub mirror: Option<PathBuf>,
    /// How long its signatures are.
    pub signature_length: SignatureLength,
}

/// Why the hub has no CA and must not start. Unless noted, trying again does not help.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The ledger. Trying again helps if it is busy.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The sealed key does not open.
    #[error(
        "the CA's key in the ledger does not open: the hub's secret is not the one that it was \
         sealed with, or the record was moved or damaged. Start with the secret of this ledger"
    )]
    WrongSecret,
    /// The key is not that of the certificate.
    #[error(
        "the CA's key in the ledger is not that of its certificate; restore the ledger from a \
         backup"
    )]
    Mismatch,
    /// The certificate is none that a hub made for a CA.
    #[error(
        "the CA's certificate in the ledger is unusable ({0}); restore the ledger from a backup"
    )]
    BadCertificate(String),
    /// Its time is over, or has not come.
    #[error(
        "the CA is valid from {not_before} to {not_after}, and now is {now}; is the clock right?"
    )]
    NotValidNow {
        /// Its beginning.
        not_before: Timestamp,
        /// Its end.
        not_after: Timestamp,
        /// What the hub's clock says.
        now: Timestamp,
    },
    /// There was a CA, and the ledger has none.
    #[error(
        "the ledger has no CA, but {0} is left of one: nodes may trust it, so no other is made. \
         Restore the ledger from a backup; to start over without those nodes, use an empty data \
         directory"
    )]
    HalfPresent(String),
    /// The copy is that of another CA.
    #[error(
        "{} is the certificate of another CA than that in the ledger; is this the data directory \
         of this ledger?", .0.display()
    )]
    OtherMirror(PathBuf),
    /// The copy cannot be read or written. Trying again may help.
    #[error("the copy of the CA's certificate, {}: {error}", .path.display())]
    Mirror {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The cryptographic library fails.
    #[error("the CA cannot be made: {0}")]
    Crypto(String),
}

/// Why a certificate is not signed. Trying again with the same input does not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The request is no PKCS #10 request in DER, or larger than [`MAX_REQUEST`].
    #[error("the certificate request is malformed")]
    MalformedRequest,
    /// The request is not signed with its own key.
    #[error("the certificate request is not signed with the key that it names")]
    UnprovenKey,
    /// The key is of a kind that is not accepted.
    #[error("the key is none of ECDSA P-256, ECDSA P-384 and Ed25519; make one of these")]
    KeyKind,
    /// The CA is not valid at this time.
    #[error("the CA is valid from {not_before} to {not_after} and signs nothing now")]
    CaNotValidNow {
        /// Its beginning.
        not_before: Timestamp,
        /// Its end.
        not_after: Timestamp,
    },
    /// A name of the hub is neither an IP address nor a DNS name.
    #[error("{0:?} is neither an IP address nor a DNS name")]
    Name(String),
    /// The cryptographic library fails.
    #[error("the certificate cannot be signed: {0}")]
    Crypto(String),
}

impl From<rcgen::Error> for SignError {
    fn from(error: rcgen::Error) -> Self {
        Self::Crypto(error.to_string())
    }
}

/// A node's certificate, signed. It leaves the hub once `record` is in the ledger.
#[derive(Debug, Clone)]
pub struct IssuedCertificate {
    /// The certificate.
    pub der: CertificateDer<'static>,
    /// What the ledger is to record of it.
    pub record: NewCertificate,
}

/// A hub's certificate with its key.
#[derive(Debug)]
pub struct HubIdentity {
    /// The certificate and that of the CA, by whose fingerprint a joining node knows the hub.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
    /// When to make the next one: halfway to its end.
    pub renew_at: Timestamp,
    /// Until when it is valid, inclusive.
    pub not_after: Timestamp,
}

/// The certificate authority of a deployment.
pub struct Ca {
    issuer: Issuer<'static, CaKey>,
    certificate: CertificateDer<'static>,
    fingerprint: Fingerprint,
    not_before: Timestamp,
    not_after: Timestamp,
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca")
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

impl Ca {
    /// Opens the CA of this ledger, or makes it if there never was one. Of hubs that make it at
    /// the same time, one wins and the others go on with that one's.
    pub async fn load_or_create(
        store: &Store,
        secret: &HubSecret,
        options: &CaOptions,
        now: Timestamp,
    ) -> Result<Self, CaError> {
        // Looked for before the record: traces that were there first must have had one.
        let trace = trace_of_ca(store, options.mirror.as_deref()).await?;
        let deployment = store.deployment();
        let record = match (store.ca().await?, trace) {
            (Some(record), _) => record,
            (None, Some(trace)) => return Err(CaError::HalfPresent(trace)),
            (None, None) => {
                let fresh = mint(secret, deployment, options.signature_length, now)?;
                store.put_ca_if_absent(fresh).await?
            }
        };
        let ca = Self::open(record, secret, deployment, options.signature_length, now)?;
        if let Some(path) = &options.mirror {
            ca.mirror(path)?;
        }
        Ok(ca)
    }

    fn open(
        record: CaRecord,
        secret: &HubSecret,
        deployment: Deployment,
        length: SignatureLength,
        now: Timestamp,
    ) -> Result<Self, CaError> {
        let certificate = CertificateDer::from(record.certificate);
        let fingerprint = certificate::authority(&certificate).map_err(bad_certificate)?;
        let (public_key, not_before, not_after) = read_authority(&certificate)?;
        let key = seal::unseal(&record.sealed_key, secret, deployment, fingerprint)
            .map_err(|_| CaError::WrongSecret)?;
        let key = CaKey::from_pkcs8(&key, length).map_err(|_| CaError::Mismatch)?;
        if key.subject_public_key_info() != public_key {
            return Err(CaError::Mismatch);
        }
        if now < not_before || now > not_after {
            return Err(CaError::NotValidNow {
                not_before,
                not_after,
                now,
            });
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(bad_certificate)?;
        Ok(Self {
            issuer,
            certificate,
            fingerprint,
            not_before,
            not_after,
        })
    }

    /// Writes the copy if there is none; checks it if there is.
    fn mirror(&self, path: &Path) -> Result<(), CaError> {
        let failed = |error| CaError::Mirror {
            path: path.to_owned(),
            error,
        };
        let pem = self.certificate_pem();
        if !path.exists() && files::create(path, 0o644, pem.as_bytes()).map_err(failed)? {
            return Ok(());
        }
        let copy = fs::read(path).map_err(failed)?;
        match CertificateDer::from_pem_slice(&copy) {
            Ok(copy) if copy == self.certificate => Ok(()),
            _ => Err(CaError::OtherMirror(path.to_owned())),
        }
    }

    /// What nodes pin: SHA-256 over the SPKI of its key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Its certificate, DER.
    pub fn certificate_der(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Its certificate, PEM.
    pub fn certificate_pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    /// Until when it is valid, inclusive.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// Signs a client certificate for `node` over the key of a certificate request (PKCS #10, DER),
    /// valid for `validity` from now on, or until the CA's end if that comes first.
    pub fn sign_node(
        &self,
        request: &[u8],
        node: NodeId,
        serial: Serial,
        now: Timestamp,
        validity: Duration,
    ) -> Result<IssuedCertificate, SignError> {
        let key = proven_key(request)?;
        let name = node_name(&node);
        let names = vec![SanType::DnsName(name.try_into()?)];
        let (mut params, not_before, not_after) = self.leaf(serial, now, validity)?;
        params
            .distinguished_name
            .push(DnType::CommonName, node.to_string());
        params.subject_alt_names = names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let der = CertificateDer::from(params.signed_by(&key, &self.issuer)?);
        // Read back, so that what is recorded is what peers will see.
        let key = certificate::node(&der).map_err(unusable)?.fingerprint;
        let record = NewCertificate {
            serial,
            node,
            key,
            not_before,
            not_after,
        };
        Ok(IssuedCertificate { der, record })
    }

    /// Makes a key for a hub and signs its server certificate, for [`HUB_NAME`] and these names:
    /// IP addresses and DNS names.
    ///
    /// The key is Ed25519, whose signatures all have one length: handshakes of one hub have the
    /// same sizes in every run of a simulation.
    pub fn sign_hub(&self, names: &[String], now: Timestamp) -> Result<HubIdentity, SignError> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut subjects = vec![SanType::DnsName(HUB_NAME.try_into()?)];
        for name in names {
            subjects.push(subject_name(name)?);
        }
        let identity = self.sign_server(&key, HUB_NAME, subjects, now)?;
        certificate::hub(&identity.chain[0]).map_err(unusable)?;
        Ok(identity)
    }

    /// Makes a key for the hub's data plane and signs a certificate for these names: IP addresses
    /// and DNS names, which may begin with `*.`. It cannot pass for the hub's own.
    ///
    /// The key is one of ECDSA P-256, since browsers know no Ed25519.
    pub fn sign_site(&self, names: &[String], now: Timestamp) -> Result<HubIdentity, SignError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut subjects = Vec::new();
        for name in names {
            let plain = name.strip_prefix("*.").unwrap_or(name);
            let subject = subject_name(plain).map_err(|_| SignError::Name(name.clone()))?;
            subjects.push(match subject {
                SanType::DnsName(_) => SanType::DnsName(name.as_str().try_into()?),
                _ if plain != name => return Err(SignError::Name(name.clone())),
                address => address,
            });
        }
        let identity = self.sign_server(&key, "Hub data plane", subjects, now)?;
        match certificate::hub(&identity.chain[0]) {
            Ok(()) => Err(SignError::Name(HUB_NAME.to_owned())),
            Err(_) => Ok(identity),
        }
    }

    fn sign_server(
        &self,
        key: &KeyPair,
        common_name: &str,
        subjects: Vec<SanType>,
        now: Timestamp,
    ) -> Result<HubIdentity, SignError> {
        let mut serial = [0; 16];
        getrandom::fill(&mut serial).map_err(|error| SignError::Crypto(error.to_string()))?;
        let (mut params, not_before, not_after) =
            self.leaf(Serial::from_random(serial), now, HUB_VALIDITY)?;
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        for subject in subjects {
            if !params.subject_alt_names.contains(&subject) {
                params.subject_alt_names.push(subject);
            }
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let der = CertificateDer::from(params.signed_by(key, &self.issuer)?);
        Ok(HubIdentity {
            chain: vec![der, self.certificate.clone()],
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            renew_at: now.saturating_add(not_after.since(now.max(not_before)) / 2),
            not_after,
        })
    }

    /// What all certificates have in common that this CA signs.
    fn leaf(
        &self,
        serial: Serial,
        now: Timestamp,
        validity: Duration,
    ) -> Result<(CertificateParams, Timestamp, Timestamp), SignError> {
        let (first, last) = (self.not_before, self.not_after);
        if now < first || now > last {
            return Err(SignError::CaNotValidNow {
                not_before: first,
                not_after: last,
            });
        }
        let not_before = now.saturating_sub(BACKDATED).floor_to_second().max(first);
        let not_after = now.saturating_add(validity).floor_to_second().min(last);
        let mut params = params(serial, not_before, not_after);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        Ok((params, not_before, not_after))
    }
}

/// What is left of a CA, apart from its record.
async fn trace_of_ca(store: &Store, mirror: Option<&Path>) -> Result<Option<String>, CaError> {
    if let Some(path) = mirror.filter(|path| path.exists()) {
        return Ok(Some(path.display().to_string()));
    }
    let nodes = store.nodes().await?.len();
    Ok((nodes > 0).then(|| format!("a list of {nodes} nodes")))
}

/// Makes a CA and seals its key.
fn mint(
    secret: &HubSecret,
    deployment: Deployment,
    length: SignatureLength,
    now: Timestamp,
) -> Result<CaRecord, CaError> {
    let failed = |error: &dyn fmt::Display| CaError::Crypto(error.to_string());
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
        .map_err(|error| failed(&error))?;
    let key = CaKey::from_pkcs8(pkcs8.as_ref(), length).map_err(|error| failed(&error))?;
    let mut serial = [0; 16];
    getrandom::fill(&mut serial).map_err(|error| failed(&error))?;
    let mut params = params(
        Serial::from_random(serial),
        now.saturating_sub(BACKDATED).floor_to_second(),
        now.saturating_add(CA_VALIDITY).floor_to_second(),
    );
    // The deployment tells the CAs of several hubs apart where somebody lists them.
    params
        .distinguished_name
        .push(DnType::CommonName, format!("Hub CA of {deployment}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key).map_err(|error| failed(&error))?;
    let fingerprint = certificate::authority(certificate.der()).map_err(bad_certificate)?;
    let sealed_key = seal::seal(pkcs8.as_ref(), secret, deployment, fingerprint)
        .map_err(|error| failed(&error))?;
    Ok(CaRecord {
        certificate: certificate.der().to_vec(),
        sealed_key,
    })
}

fn params(serial: Serial, not_before: Timestamp, not_after: Timestamp) -> CertificateParams {
    let date = |timestamp: Timestamp| {
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(timestamp.as_secs())
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serial_number = Some(SerialNumber::from_slice(serial.as_bytes()));
    params.not_before = date(not_before);
    params.not_after = date(not_after);
    params
}

/// The SPKI of a CA certificate and its times, if it signed itself.
fn read_authority(
    certificate: &CertificateDer<'_>,
) -> Result<(Vec<u8>, Timestamp, Timestamp), CaError> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(bad_certificate)?;
    parsed.verify_signature(None).map_err(bad_certificate)?;
    let validity = parsed.validity();
    let time = |seconds: i64| {
        Timestamp::from_millis(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000))
    };
    Ok((
        parsed.public_key().raw.to_vec(),
        time(validity.not_before.timestamp()),
        time(validity.not_after.timestamp()),
    ))
}

/// The key of a certificate request whose sender proved to hold it.
fn proven_key(request: &[u8]) -> Result<SubjectPublicKeyInfo, SignError> {
    if request.len() > MAX_REQUEST {
        return Err(SignError::MalformedRequest);
    }
    let Ok(([], request)) = X509CertificationRequest::from_der(request) else {
        return Err(SignError::MalformedRequest);
    };
    let key = SubjectPublicKeyInfo::from_der(request.certification_request_info.subject_pki.raw)
        .map_err(|_| SignError::KeyKind)?;
    let accepted = [
        &PKCS_ECDSA_P256_SHA256,
        &PKCS_ECDSA_P384_SHA384,
        &PKCS_ED25519,
    ];
    if !accepted.contains(&key.algorithm()) {
        return Err(SignError::KeyKind);
    }
    request
        .verify_signature()
        .map_err(|_| SignError::UnprovenKey)?;
    Ok(key)
}

/// The fingerprint of the key that a certificate request is for, once its signature proves that the
/// sender holds it: what a join is decided by, before anything is spent or signed.
pub fn request_key(request: &[u8]) -> Result<Fingerprint, SignError> {
    let key = proven_key(request)?.subject_public_key_info();
    Ok(key_fingerprint(&key))
}

fn subject_name(name: &str) -> Result<SanType, SignError> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let unusable = || SignError::Name(name.to_owned());
    rustls::pki_types::DnsName::try_from(name).map_err(|_| unusable())?;
    Ok(SanType::DnsName(name.try_into().map_err(|_| unusable())?))
}

fn bad_certificate(error: impl fmt::Display) -> CaError {
    CaError::BadCertificate(error.to_string())
}

#[allow(clippy::needless_pass_by_value)]
fn unusable(error: CertificateError) -> SignError {
    SignError::Crypto(format!("it came out wrong: {error}"))
}

fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().copied().map(char::from));
        pem.push('\n');
    }
    pem + &format!("-----END {label}-----\n")
}
