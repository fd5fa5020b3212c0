//! Real handshakes over loopback, each with one thing wrong.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::time::Duration;

use quinn::{Connection, ConnectionError};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PublicKeyData,
    SignatureAlgorithm, SubjectPublicKeyInfo, date_time_ymd,
};
use rustls::pki_types::{PrivatePkcs8KeyDer, UnixTime};

use super::*;
use crate::endpoint::{self, Handshakes, Transport, UdpNetwork};
use hub_protocol::NodeId;

/// 2030-06-01; the certificates of these tests run from 2030 to 2031.
const NOW: u64 = 1_906_502_400;

#[derive(Debug)]
struct At(u64);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0)))
    }
}

pub(crate) fn now() -> Arc<dyn TimeProvider> {
    Arc::new(At(NOW))
}

pub(crate) struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "test CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    fn certificate(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    fn fingerprint(&self) -> Fingerprint {
        spki_fingerprint(self.0.der()).unwrap()
    }

    pub(crate) fn trust(&self) -> TrustBundle {
        TrustBundle::new(vec![self.certificate()]).unwrap()
    }

    fn sign(&self, leaf: &Leaf, key: &impl PublicKeyData) -> CertificateDer<'static> {
        leaf.params().signed_by(key, &self.0).unwrap().der().clone()
    }

    /// Credentials as they come, unchecked: tests show wrong ones to the other side.
    pub(crate) fn issue(&self, leaf: &Leaf) -> Credentials {
        self.issue_for(leaf, &PKCS_ED25519)
    }

    fn issue_for(&self, leaf: &Leaf, algorithm: &'static SignatureAlgorithm) -> Credentials {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let chain = vec![self.sign(leaf, &key), self.certificate()];
        Credentials::new(chain, pkcs8(&key)).unwrap()
    }

    pub(crate) fn hub(&self) -> HubCertificate {
        HubCertificate::new(self.issue(&Leaf::hub())).unwrap()
    }
}

fn pkcs8(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(key.serialize_der()).into()
}

fn node_id() -> NodeId {
    NodeId::from_bytes([7; 16])
}

pub(crate) struct Leaf {
    common_name: String,
    names: Vec<String>,
    usages: Vec<ExtendedKeyUsagePurpose>,
    is_ca: bool,
    until: i32,
}

impl Leaf {
    pub(crate) fn node() -> Self {
        Self {
            common_name: node_id().to_string(),
            names: vec![node_name(&node_id())],
            usages: vec![ExtendedKeyUsagePurpose::ClientAuth],
            is_ca: false,
            until: 2031,
        }
    }

    fn hub() -> Self {
        Self {
            common_name: "hub".to_owned(),
            names: vec![HUB_NAME.to_owned(), "hub.example".to_owned()],
            usages: vec![ExtendedKeyUsagePurpose::ServerAuth],
            ..Self::node()
        }
    }

    fn params(&self) -> CertificateParams {
        let mut params = CertificateParams::new(self.names.clone()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, self.common_name.as_str());
        params.extended_key_usages.clone_from(&self.usages);
        params.not_before = date_time_ymd(2030, 1, 1);
        params.not_after = date_time_ymd(self.until, 1, 1);
        params.serial_number = Some(vec![0, 0x80, 1].into());
        if self.is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        params
    }
}

/// The server's and the client's end of one attempt. A client learns of a refusal only after its
/// own handshake is done, so its end counts as made only if the server's is.
async fn connect(
    server: Arc<QuicServerConfig>,
    client: Arc<QuicClientConfig>,
) -> (
    Result<Connection, ConnectionError>,
    Result<Connection, ConnectionError>,
) {
    let (udp, local) = (UdpNetwork::default(), (Ipv4Addr::LOCALHOST, 0).into());
    let transport = Transport::enrollment(1, 4096);
    let config = endpoint::server_config(&udp, server, &transport, &Handshakes::default());
    let listener = endpoint::listener(&udp, local, &transport, config).unwrap();
    let dialler = endpoint::dialler(&udp, local, &transport).unwrap();
    let config = endpoint::client_config(&udp, client, &transport);
    let address = listener.local_addr().unwrap();
    let connecting = dialler.connect_with(config, address, HUB_NAME).unwrap();
    let (accepted, connected) = tokio::join!(
        async { listener.accept().await.unwrap().accept()?.await },
        connecting
    );
    match (accepted, connected) {
        (Err(refused), Ok(connection)) => (Err(refused), Err(connection.closed().await)),
        ends => ends,
    }
}

/// Asserts that the server refuses these credentials in the handshake with this reason, and that
/// the client gets no further than an alert.
async fn refused_by_server(ca: &Ca, client: Arc<QuicClientConfig>, reason: &str) {
    let server = operational_server(&ca.hub(), &ca.trust(), now()).unwrap();
    let (accepted, connected) = connect(server, client).await;
    let error = accepted.expect_err("the server let it in").to_string();
    assert!(error.contains(reason), "{error}");
    let error = connected.expect_err("the client found a session");
    assert!(
        matches!(error, ConnectionError::ConnectionClosed(_)),
        "{error}"
    );
}

/// Asserts that a node refuses a hub that shows these credentials, and for what reason. The hub of
/// this speaks both protocols and lets anyone in.
async fn refused_by_client(hub: &HubCertificate, client: Arc<QuicClientConfig>, reason: &str) {
    let mut server = ServerConfig::builder_with_details(provider(), now())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(hub.clone()));
    server.alpn_protocols = vec![ALPN.to_vec(), ENROLL_ALPN.to_vec()];
    let server = Arc::new(QuicServerConfig::try_from(server).unwrap());
    let (_, connected) = connect(server, client).await;
    let error = connected
        .expect_err("the client took it for a hub")
        .to_string();
    assert!(error.contains(reason), "{error}");
}

/// A node's client configuration that does not check its own credentials.
fn unchecked_client(
    credentials: Option<&Credentials>,
    trust: &TrustBundle,
) -> Arc<QuicClientConfig> {
    let config = ClientConfig::builder_with_details(provider(), now())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(HubVerifier::new(trust.roots.clone()).unwrap()));
    let config = match credentials {
        Some(credentials) => config
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(credentials.0.clone()))),
        None => config.with_no_client_auth(),
    };
    client(config, ALPN).unwrap()
}

fn unchecked_hub(credentials: Credentials) -> HubCertificate {
    HubCertificate(Arc::new(RwLock::new(credentials)))
}

#[tokio::test]
async fn node_and_hub_prove_themselves_to_each_other() {
    let ca = Ca::new();
    for algorithm in [
        &PKCS_ED25519,
        &PKCS_ECDSA_P256_SHA256,
        &PKCS_ECDSA_P384_SHA384,
    ] {
        let node = ca.issue_for(&Leaf::node(), algorithm);
        let server = operational_server(&ca.hub(), &ca.trust(), now()).unwrap();
        let client = operational_client(&node, &ca.trust(), now()).unwrap();
        let (accepted, connected) = connect(server, client).await;
        connected.unwrap();
        let peer = peer_node(&accepted.unwrap()).unwrap();
        assert_eq!(peer.node_id, node_id());
        assert_eq!(
            peer.fingerprint,
            spki_fingerprint(&node.chain()[0]).unwrap()
        );
        assert_eq!(peer.serial, [0x80, 1]);
    }
}

#[tokio::test]
async fn a_bundle_trusts_the_old_and_the_new_ca() {
    let (old, new) = (Ca::new(), Ca::new());
    let both = TrustBundle::new(vec![old.certificate(), new.certificate()]).unwrap();
    let server = operational_server(&new.hub(), &both, now()).unwrap();
    let client = operational_client(&old.issue(&Leaf::node()), &both, now()).unwrap();
    let (accepted, connected) = connect(server, client).await;
    assert_eq!(peer_node(&accepted.unwrap()).unwrap().node_id, node_id());
    connected.unwrap();
}

#[tokio::test]
async fn the_hubs_certificate_is_replaced_while_it_runs() {
    let (old, new) = (Ca::new(), Ca::new());
    let hub = old.hub();
    let server = enrollment_server(&hub, now()).unwrap();
    hub.replace(new.issue(&Leaf::hub())).unwrap();
    let client = enrollment_client(new.fingerprint(), ShownPins::default(), now()).unwrap();
    let (accepted, connected) = connect(server, client).await;
    accepted.unwrap();
    connected.unwrap();
    let refused = hub.replace(new.issue(&Leaf::node())).unwrap_err();
    assert!(
        matches!(refused, TlsError::Certificate(CertificateError::Usage(_))),
        "{refused}"
    );
}

#[tokio::test]
async fn the_operational_endpoint_has_no_route_without_a_certificate() {
    let ca = Ca::new();
    refused_by_server(&ca, unchecked_client(None, &ca.trust()), "no certificates").await;
}

#[tokio::test]
async fn a_foreign_ca_is_refused() {
    let (ca, foreign) = (Ca::new(), Ca::new());
    let client = unchecked_client(Some(&foreign.issue(&Leaf::node())), &ca.trust());
    refused_by_server(&ca, client, "BadSignature").await;
}

#[tokio::test]
async fn an_expired_certificate_is_refused_by_the_given_clock() {
    let ca = Ca::new();
    let node = ca.issue(&Leaf::node());
    let late: Arc<dyn TimeProvider> = Arc::new(At(NOW + 366 * 86_400));
    let hub = HubCertificate::new(ca.issue(&Leaf {
        until: 2040,
        ..Leaf::hub()
    }))
    .unwrap();
    let server = operational_server(&hub, &ca.trust(), late).unwrap();
    let client = operational_client(&node, &ca.trust(), now()).unwrap();
    let (accepted, connected) = connect(server, client).await;
    let error = accepted.unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
    connected.unwrap_err();
}

#[tokio::test]
async fn a_hub_certificate_never_passes_for_a_nodes() {
    let ca = Ca::new();
    let hub = ca.issue(&Leaf::hub());
    assert!(operational_client(&hub, &ca.trust(), now()).is_err());
    // Refused for its usage already by the chain check.
    let client = unchecked_client(Some(&hub), &ca.trust());
    refused_by_server(&ca, client, "certificate does not allow extended key usage").await;
}

#[tokio::test]
async fn a_node_certificate_never_passes_for_the_hubs() {
    let ca = Ca::new();
    let node = ca.issue(&Leaf::node());
    assert!(HubCertificate::new(node.clone()).is_err());
    let client = operational_client(&node, &ca.trust(), now()).unwrap();
    refused_by_client(&unchecked_hub(node.clone()), client, "certificate").await;
    let client = enrollment_client(ca.fingerprint(), ShownPins::default(), now()).unwrap();
    refused_by_client(&unchecked_hub(node), client, "certificate").await;
}

#[tokio::test]
async fn leaves_that_rustls_would_take_are_refused_for_their_kind() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let ca = Ca::new();
    let other = node_name(&NodeId::from_bytes([8; 16]));
    let cases = [
        (
            "no usage at all",
            Leaf {
                usages: vec![],
                ..Leaf::node()
            },
            "client authentication",
        ),
        (
            "both usages",
            Leaf {
                usages: vec![ClientAuth, ServerAuth],
                ..Leaf::node()
            },
            "client authentication",
        ),
        (
            "no id",
            Leaf {
                common_name: "shop-4".to_owned(),
                ..Leaf::node()
            },
            "no node id",
        ),
        (
            "another's name",
            Leaf {
                names: vec![other.clone()],
                ..Leaf::node()
            },
            "DNS names",
        ),
        (
            "one name more",
            Leaf {
                names: vec![node_name(&node_id()), other],
                ..Leaf::node()
            },
            "DNS names",
        ),
        (
            "an address more",
            Leaf {
                names: vec![node_name(&node_id()), "10.0.0.1".to_owned()],
                ..Leaf::node()
            },
            "DNS names",
        ),
        (
            "no name",
            Leaf {
                names: vec![],
                ..Leaf::node()
            },
            "DNS names",
        ),
    ];
    for (what, leaf, reason) in cases {
        println!("{what}");
        refused_by_server(
            &ca,
            unchecked_client(Some(&ca.issue(&leaf)), &ca.trust()),
            reason,
        )
        .await;
    }
    let node = ca.issue(&Leaf::node());
    let hubs = [
        (
            "no usage at all",
            Leaf {
                usages: vec![],
                ..Leaf::hub()
            },
        ),
        ("a node's name too", {
            Leaf {
                names: vec![HUB_NAME.to_owned(), node_name(&node_id())],
                ..Leaf::hub()
            }
        }),
    ];
    for (what, leaf) in hubs {
        println!("{what}");
        let client = operational_client(&node, &ca.trust(), now()).unwrap();
        refused_by_client(&unchecked_hub(ca.issue(&leaf)), client, "the certificate").await;
    }
    let client = operational_client(&node, &ca.trust(), now()).unwrap();
    let elsewhere = ca.issue(&Leaf {
        names: vec!["hub.example".to_owned()],
        ..Leaf::hub()
    });
    refused_by_client(&unchecked_hub(elsewhere), client, "not valid for name").await;
}

/// A 2,048 bit RSA public key.
const RSA: &str = "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA0+JWYZVmwZZX3G+GY07StpOE9gGgHJGo\
tiX95i2VHVoyR2O1nO9fptF4TFWD7ecimnpmenzH9bY2wdZ1eu9ojzfSaNls9aH6bMy70LHcJQ4j2d0LiKKo+EI7Jylrw0OO\
wn8p8AIDfAG1t+E3fcmLrZgPK+ZPhr+w+WudCqRRPPLlOa4CveKSMm6p8QsqCHsKhCUR4LbD66YbJ6LR63iqtgB5CjeqB2gh\
qF+oHZdwVB0SXxqYPvON2wBhKfLD+ApuBQA1apx8kLvBYI3PSW8zxxYJtpr1PhxigzRG7XgTiuLtXePHbdfUC4l6LFU2eC1z\
aVzGopTDGF1O4YBHVDW9SQIDAQAB";

#[tokio::test]
async fn an_rsa_key_is_refused() {
    let ca = Ca::new();
    let rsa = format!("-----BEGIN PUBLIC KEY-----\n{RSA}\n-----END PUBLIC KEY-----\n");
    let rsa = SubjectPublicKeyInfo::from_pem(&rsa).unwrap();
    let certificate = ca.sign(&Leaf::node(), &rsa);
    assert_eq!(
        certificate::node(&certificate),
        Err(CertificateError::KeyKind)
    );
    // It signs with another key, but the verifier looks at the certificate first.
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let key = provider()
        .key_provider
        .load_private_key(pkcs8(&key))
        .unwrap();
    let credentials = Credentials(Arc::new(CertifiedKey::new(vec![certificate], key)));
    let client = unchecked_client(Some(&credentials), &ca.trust());
    refused_by_server(&ca, client, "none of ECDSA").await;
    let schemes = provider()
        .signature_verification_algorithms
        .supported_schemes();
    assert_eq!(schemes.len(), 3, "{schemes:?}");
    assert_eq!(provider().signature_verification_algorithms.all.len(), 5);
}

#[tokio::test]
async fn a_wrong_pin_ends_the_handshake_and_says_what_was_shown() {
    let (ca, pinned) = (Ca::new(), Ca::new());
    let shown = ShownPins::default();
    let client = enrollment_client(pinned.fingerprint(), shown.clone(), now()).unwrap();
    let (accepted, connected) = connect(enrollment_server(&ca.hub(), now()).unwrap(), client).await;
    accepted.unwrap_err();
    let error = connected.unwrap_err().to_string();
    assert!(error.contains(&pinned.fingerprint().to_string()), "{error}");
    assert_eq!(shown.latest(), Some(vec![ca.fingerprint()]));
}

#[tokio::test]
async fn the_pinned_ca_beside_an_attackers_leaf_is_refused() {
    let (ca, attacker) = (Ca::new(), Ca::new());
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let leaf = attacker.sign(&Leaf::hub(), &key);
    let chains = [
        vec![leaf.clone(), ca.certificate()],
        vec![leaf.clone(), attacker.certificate(), ca.certificate()],
        vec![leaf, ca.certificate(), attacker.certificate()],
    ];
    for chain in chains {
        let hub = HubCertificate::new(Credentials::new(chain, pkcs8(&key)).unwrap()).unwrap();
        let client = enrollment_client(ca.fingerprint(), ShownPins::default(), now()).unwrap();
        refused_by_client(&hub, client, "invalid peer certificate").await;
    }
}

#[tokio::test]
async fn pinning_a_leaf_or_a_certificate_that_is_no_ca_does_not_work() {
    let ca = Ca::new();
    let hub = ca.hub();
    let leaf = spki_fingerprint(&hub.current().chain()[0]).unwrap();
    let client = enrollment_client(leaf, ShownPins::default(), now()).unwrap();
    refused_by_client(&hub, client, "no CA with the pinned").await;
}

#[tokio::test]
async fn the_two_protocols_do_not_mix() {
    let ca = Ca::new();
    let pinned = enrollment_client(ca.fingerprint(), ShownPins::default(), now()).unwrap();
    let node = operational_client(&ca.issue(&Leaf::node()), &ca.trust(), now()).unwrap();
    let ends = [
        (
            operational_server(&ca.hub(), &ca.trust(), now()).unwrap(),
            pinned,
        ),
        (enrollment_server(&ca.hub(), now()).unwrap(), node),
    ];
    for (server, client) in ends {
        let (accepted, connected) = connect(server, client).await;
        let error = accepted.unwrap_err().to_string();
        assert!(error.contains("known protocol"), "{error}");
        connected.unwrap_err();
    }
}

#[test]
fn bundles_hold_cas_and_credentials_match() {
    let ca = Ca::new();
    let node = ca.issue(&Leaf::node());
    assert!(matches!(TrustBundle::new(vec![]), Err(TlsError::NoTrust)));
    assert!(matches!(
        TrustBundle::new(vec![ca.certificate(); 9]),
        Err(TlsError::NoTrust)
    ));
    assert!(matches!(
        TrustBundle::new(vec![node.chain()[0].clone()]),
        Err(TlsError::Certificate(CertificateError::Authority(_)))
    ));
    let stranger = pkcs8(&KeyPair::generate_for(&PKCS_ED25519).unwrap());
    assert!(matches!(
        Credentials::new(node.chain().to_vec(), stranger),
        Err(TlsError::Key(_))
    ));
    assert_eq!(format!("{node:?}"), "Credentials { certificates: 2, .. }");
    let is_ca = ca.issue(&Leaf {
        is_ca: true,
        ..Leaf::node()
    });
    assert_eq!(
        certificate::node(&is_ca.chain()[0]),
        Err(CertificateError::Authority("a node"))
    );
}

#[test]
fn an_agent_makes_the_hubs_checks_itself() {
    let (ca, foreign) = (Ca::new(), Ca::new());
    let node = ca.issue(&Leaf::node());
    assert_eq!(
        verify_node(&node, &ca.trust(), &At(NOW)).unwrap().node_id,
        node_id()
    );
    for (node, trust, now) in [
        (&node, foreign.trust(), NOW),
        (&node, ca.trust(), NOW + 366 * 86_400),
        (&node, ca.trust(), NOW - 366 * 86_400),
        (&ca.issue(&Leaf::hub()), ca.trust(), NOW),
    ] {
        let error = verify_node(node, &trust, &At(now)).unwrap_err();
        assert!(matches!(error, TlsError::Untrusted(_)), "{error}");
    }
}

#[test]
fn garbage_is_no_certificate() {
    let ca = Ca::new();
    let good = ca.issue(&Leaf::node()).chain()[0].to_vec();
    for length in 0..good.len() {
        let cut = CertificateDer::from(good[..length].to_vec());
        assert_eq!(certificate::node(&cut), Err(CertificateError::Malformed));
    }
    let trailing = CertificateDer::from([good.as_slice(), &[0]].concat());
    assert_eq!(
        certificate::node(&trailing),
        Err(CertificateError::Malformed)
    );
    for index in 0..good.len() {
        let mut bent = good.clone();
        bent[index] ^= 0xff;
        // Whatever it now says, reading it must not panic.
        let _ = certificate::node(&CertificateDer::from(bent.clone()));
        let _ = certificate::hub(&CertificateDer::from(bent.clone()));
        let _ = certificate::authority(&CertificateDer::from(bent));
    }
}
