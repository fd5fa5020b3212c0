//! Joins at a hub that is played by the test, over loopback.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Mutex;

use hub_protocol::enroll::{Der, Joined, refusal};
use hub_protocol::{Deployment, NodeId};
use hub_quic::endpoint::{Handshakes, UdpNetwork};
use hub_quic::tls::{
    Credentials, HUB_NAME, HubCertificate, enrollment_server, node_name, spki_fingerprint,
};
use quinn::Endpoint;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, PKCS_ED25519, PublicKeyData, SubjectPublicKeyInfo,
    date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};

use super::*;

/// 2030-06-01.
const NOW: u64 = 1_906_502_400;

#[derive(Debug)]
struct At(u64);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0)))
    }
}

fn now() -> Arc<dyn TimeProvider> {
    Arc::new(At(NOW))
}

pub(crate) fn node_id() -> NodeId {
    NodeId::from_bytes([7; 16])
}

/// A CA that certifies whatever it is asked to.
pub(crate) struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    fn fingerprint(&self) -> Fingerprint {
        spki_fingerprint(self.0.der()).unwrap()
    }

    fn sign(
        &self,
        names: (&str, &str),
        usage: ExtendedKeyUsagePurpose,
        until: i32,
        key: &impl PublicKeyData,
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec![names.1.to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, names.0);
        params.extended_key_usages = vec![usage];
        params.not_before = date_time_ymd(2030, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params.signed_by(key, &self.0).unwrap().der().clone()
    }

    pub(crate) fn hub(&self) -> HubCertificate {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let leaf = self.sign(
            ("hub", HUB_NAME),
            ExtendedKeyUsagePurpose::ServerAuth,
            2031,
            &key,
        );
        let chain = vec![leaf, self.0.der().clone()];
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        HubCertificate::new(Credentials::new(chain, key).unwrap()).unwrap()
    }

    /// The answer for this key: a node's certificate until the year `until`.
    fn joined_until(&self, key: &impl PublicKeyData, until: i32) -> Joined {
        let id = node_id();
        let names = (id.to_string(), node_name(&id));
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        let leaf = self.sign((&names.0, &names.1), usage, until, key);
        Joined {
            node_id: id,
            name: "shop-4".parse().unwrap(),
            deployment: Deployment::from_bytes([9; 16]),
            chain: vec![Der(leaf.to_vec())],
            trust: vec![Der(self.0.der().to_vec())],
            operational: None,
        }
    }

    pub(crate) fn joined(&self, key: &NodeKey) -> Joined {
        self.joined_until(&public_key(&key.certificate_request().unwrap()), 2031)
    }
}

fn public_key(csr: &[u8]) -> SubjectPublicKeyInfo {
    use x509_parser::prelude::{FromDer as _, X509CertificationRequest};
    let (_, request) = X509CertificationRequest::from_der(csr).unwrap();
    let key = request.certification_request_info.subject_pki.raw;
    SubjectPublicKeyInfo::from_der(key).unwrap()
}

/// What the hub does with a request.
enum Answer {
    /// Says this.
    Say(Vec<u8>),
    /// Closes the connection.
    Hang,
}

/// A hub that answers by a function, and keeps what it was sent.
struct Hub {
    address: HubAddress,
    requests: Arc<Mutex<Vec<JoinRequest>>>,
    handshakes: Arc<Mutex<usize>>,
}

impl Hub {
    fn start(ca: &Ca, answer: impl Fn(&JoinRequest) -> Answer + Send + 'static) -> Self {
        let (udp, transport) = (UdpNetwork::default(), Transport::enrollment(1, 1 << 16));
        let tls = enrollment_server(&ca.hub(), now()).unwrap();
        let config = endpoint::server_config(&udp, tls, &transport, &Handshakes::default());
        let local = (Ipv4Addr::LOCALHOST, 0).into();
        let endpoint = endpoint::listener(&udp, local, &transport, config).unwrap();
        let hub = Self {
            address: endpoint.local_addr().unwrap().into(),
            requests: Arc::default(),
            handshakes: Arc::default(),
        };
        tokio::spawn(serve(
            endpoint,
            answer,
            hub.requests.clone(),
            hub.handshakes.clone(),
        ));
        hub
    }

    fn requests(&self) -> Vec<JoinRequest> {
        self.requests.lock().unwrap().clone()
    }

    fn handshakes(&self) -> usize {
        *self.handshakes.lock().unwrap()
    }

    fn options(&self, pin: Fingerprint) -> JoinOptions {
        JoinOptions {
            hub: self.address.clone(),
            pin,
            token: JoinToken::from_bytes([5; 32]),
            name: Some("shop-4".parse().unwrap()),
            platform: Platform {
                os: "linux".to_owned(),
                ..Platform::default()
            },
        }
    }
}

async fn serve(
    endpoint: Endpoint,
    answer: impl Fn(&JoinRequest) -> Answer,
    requests: Arc<Mutex<Vec<JoinRequest>>>,
    handshakes: Arc<Mutex<usize>>,
) {
    while let Some(incoming) = endpoint.accept().await {
        *handshakes.lock().unwrap() += 1;
        let Ok(connection) = incoming.await else {
            continue;
        };
        let Ok((mut send, mut receive)) = connection.accept_bi().await else {
            continue;
        };
        let request = receive.read_to_end(enroll::MAX_REQUEST).await.unwrap();
        let request = JoinRequest::decode(&request).unwrap();
        requests.lock().unwrap().push(request.clone());
        match answer(&request) {
            Answer::Say(bytes) => {
                send.write_all(&bytes).await.unwrap();
                send.finish().unwrap();
                connection.closed().await;
            }
            Answer::Hang => connection.close(VarInt::from_u32(1), b""),
        }
    }
}

fn say(response: &JoinResponse) -> Answer {
    Answer::Say(response.encode())
}

fn admit(ca: &Arc<Ca>) -> impl Fn(&JoinRequest) -> Answer + Send + 'static {
    let ca = ca.clone();
    move |request| {
        let joined = ca.joined_until(&public_key(&request.csr.0), 2031);
        say(&JoinResponse::Joined(Box::new(joined)))
    }
}

struct Agent {
    _data: tempfile::TempDir,
    store: IdentityStore,
}

impl Agent {
    fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        Self {
            store: IdentityStore::open(data.path()).unwrap(),
            _data: data,
        }
    }

    async fn join(&self, options: &JoinOptions) -> Result<Identity, JoinError> {
        join(&self.store, &UdpNetwork::default(), options, now()).await
    }
}

#[tokio::test]
async fn a_machine_joins_once() {
    let ca = Arc::new(Ca::new());
    let hub = Hub::start(&ca, admit(&ca));
    let (agent, options) = (Agent::new(), hub.options(ca.fingerprint()));
    let identity = agent.join(&options).await.unwrap();
    assert_eq!(identity.node_id(), node_id());
    assert_eq!(identity.trust().fingerprints(), [ca.fingerprint()]);
    let [request] = hub.requests().try_into().unwrap();
    assert_eq!(
        (request.token, request.name),
        (options.token.clone(), options.name.clone())
    );
    assert_eq!(request.platform, options.platform);

    let again = agent.join(&options).await.unwrap();
    assert_eq!(again.key(), identity.key());
    assert_eq!(hub.handshakes(), 1, "it has an identity and asked again");
}

#[tokio::test]
async fn the_wrong_hub_never_gets_the_token() {
    let (ca, pinned) = (Arc::new(Ca::new()), Ca::new());
    let hub = Hub::start(&ca, admit(&ca));
    let error = Agent::new()
        .join(&hub.options(pinned.fingerprint()))
        .await
        .unwrap_err();
    let JoinError::WrongPin { shown, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*shown, [ca.fingerprint()]);
    assert!(!error.retry_helps());
    let text = error.to_string();
    for part in [
        "token was not sent",
        &ca.fingerprint().to_string(),
        &pinned.fingerprint().to_string(),
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(hub.handshakes(), 1);
    assert!(hub.requests().is_empty());
}

#[tokio::test]
async fn a_refusal_says_whether_to_come_again() {
    let ca = Ca::new();
    for permanent in [true, false] {
        let refused = Refused {
            permanent,
            code: refusal::INVALID_TOKEN.to_owned(),
            message: "ask for a new one".to_owned(),
            retry_after_ms: Some(2500),
        };
        let hub = Hub::start(&ca, move |_| say(&JoinResponse::Refused(refused.clone())));
        let error = Agent::new()
            .join(&hub.options(ca.fingerprint()))
            .await
            .unwrap_err();
        assert_eq!(error.retry_helps(), !permanent);
        let hint = if permanent { "" } else { "; try again in 3 s" };
        assert_eq!(
            error.to_string(),
            format!("the hub refused the join: ask for a new one{hint}")
        );
    }
}

/// The hub spent the token and the answer is lost; or the agent died before it stored it. Both
/// begin again with the key that was stored before the request.
#[tokio::test]
async fn an_attempt_after_a_lost_answer_has_the_same_key() {
    let ca = Arc::new(Ca::new());
    let lossy = Hub::start(&ca, |_| Answer::Hang);
    let data = tempfile::tempdir().unwrap();
    let attempt = async |options: JoinOptions| {
        // Opened anew each time, as by a new process.
        let store = IdentityStore::open(data.path()).unwrap();
        join(&store, &UdpNetwork::default(), &options, now()).await
    };
    let error = attempt(lossy.options(ca.fingerprint())).await.unwrap_err();
    assert!(matches!(error, JoinError::Lost { .. }), "{error}");
    assert!(error.retry_helps());
    let hub = Hub::start(&ca, admit(&ca));
    let identity = attempt(hub.options(ca.fingerprint())).await.unwrap();
    let key = |hub: &Hub| public_key(&hub.requests()[0].csr.0);
    assert_eq!(key(&lossy), key(&hub));
    assert_eq!(
        public_key(&identity.key().certificate_request().unwrap()),
        key(&hub)
    );
}

#[tokio::test]
async fn answers_that_make_no_identity_are_not_stored() {
    let (ca, foreign) = (Arc::new(Ca::new()), Arc::new(Ca::new()));
    let joined = |until, change: fn(&mut Joined)| {
        let ca = ca.clone();
        move |request: &JoinRequest| {
            let mut joined = ca.joined_until(&public_key(&request.csr.0), until);
            change(&mut joined);
            say(&JoinResponse::Joined(Box::new(joined)))
        }
    };
    let stranger = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let not_its_key = say(&JoinResponse::Joined(Box::new(
        ca.joined_until(&stranger, 2031),
    )));
    let Answer::Say(not_its_key) = not_its_key else {
        unreachable!()
    };
    let hubs: Vec<(Hub, &str)> = vec![
        (
            Hub::start(&ca, |_| Answer::Say(b"{}".to_vec())),
            "cannot read",
        ),
        (
            Hub::start(&ca, |_| Answer::Say(vec![b' '; MAX_RESPONSE + 1])),
            "too long",
        ),
        (
            Hub::start(&ca, move |_| Answer::Say(not_its_key.clone())),
            "does not fit",
        ),
        (
            Hub::start(&ca, admit(&foreign)),
            "does not trust its own CA",
        ),
        (Hub::start(&ca, joined(2030, |_| ())), "check the clock"),
        (
            Hub::start(&ca, joined(2031, |joined| joined.chain.clear())),
            "no identity",
        ),
        (
            Hub::start(&ca, joined(2031, |joined| joined.trust.clear())),
            "no identity",
        ),
        (
            Hub::start(
                &ca,
                joined(2031, |joined| joined.node_id = NodeId::from_bytes([8; 16])),
            ),
            "is that of node",
        ),
    ];
    for (hub, reason) in hubs {
        let agent = Agent::new();
        let error = agent
            .join(&hub.options(ca.fingerprint()))
            .await
            .unwrap_err();
        assert!(error.to_string().contains(reason), "{reason}: {error}");
        assert!(matches!(agent.store.load().unwrap(), State::Key(_)));
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_found_before_the_token_leaves() {
    let ca = Arc::new(Ca::new());
    let hub = Hub::start(&ca, admit(&ca));
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("data");
    std::fs::write(&file, "in the way").unwrap();
    let error = IdentityStore::open(&file).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("data directory that it can write to"),
        "{error}"
    );

    // In the way of the file that an identity is written to.
    let store = IdentityStore::open(data.path()).unwrap();
    std::fs::create_dir_all(data.path().join("identity/identity.json.new/x")).unwrap();
    let options = hub.options(ca.fingerprint());
    let error = join(&store, &UdpNetwork::default(), &options, now())
        .await
        .unwrap_err();
    assert!(
        matches!(error, JoinError::Identity(IdentityError::Io { .. })),
        "{error}"
    );
    assert!(!error.retry_helps());
    assert_eq!(hub.handshakes(), 0);

    // A key that others have read is not used for a join either.
    std::fs::remove_dir_all(data.path().join("identity/identity.json.new")).unwrap();
    store.save_key(&NodeKey::generate().unwrap()).unwrap();
    let path = data.path().join("identity/identity.json");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = join(&store, &UdpNetwork::default(), &options, now())
        .await
        .unwrap_err();
    assert!(
        matches!(error, JoinError::Identity(IdentityError::Exposed { .. })),
        "{error}"
    );
    assert_eq!(hub.handshakes(), 0);
}

#[test]
fn options_do_not_show_the_token() {
    let options = JoinOptions {
        hub: HubAddress::new("hub.example", 7444),
        pin: Fingerprint::from_digest([1; 32]),
        token: JoinToken::from_bytes([5; 32]),
        name: None,
        platform: Platform::default(),
    };
    let text = format!("{options:?}");
    assert!(
        !text.contains("5, 5") && !text.contains(&options.token.reveal()[5..]),
        "{text}"
    );
}
