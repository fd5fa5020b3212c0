//! Strangers at a real endpoint, over loopback.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::sync::Mutex;

use hub_ledger::{NewToken, Registration, Timestamp};
use hub_protocol::enroll::JoinToken;
use hub_protocol::session::Platform;
use hub_protocol::{Deployment, Incarnation};
use hub_quic::endpoint::UdpNetwork;
use hub_quic::tls::{
    Credentials, HUB_NAME, ShownPins, TrustBundle, enrollment_client, system_time, verify_node,
};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::*;
use crate::ca::CaOptions;
use crate::secret::HubSecret;
use crate::store::Execution;

struct Hub {
    store: Store,
    ca: Arc<Ca>,
    endpoint: Endpoint,
    serving: tokio::task::JoinHandle<()>,
}

impl Hub {
    async fn start(config: EnrollConfig) -> Self {
        let deployment = Deployment::from_bytes([1; 16]);
        let store = Store::in_memory(Execution::Inline, deployment)
            .await
            .unwrap();
        let (clock, secret) = (Clock::system(), HubSecret::from_bytes([2; 32]));
        let options = CaOptions::default();
        let ca = Ca::load_or_create(&store, &secret, &options, clock.now())
            .await
            .unwrap();
        let ca = Arc::new(ca);
        let identity = ca.sign_hub(&[], clock.now()).unwrap();
        let credentials = Credentials::new(identity.chain, identity.key).unwrap();
        let certificate = HubCertificate::new(credentials).unwrap();
        let local = (Ipv4Addr::LOCALHOST, 0).into();
        let endpoint = listen(
            &UdpNetwork::default(),
            local,
            &certificate,
            system_time(),
            &config,
        )
        .unwrap();
        let serving = serve(endpoint.clone(), store.clone(), clock, ca.clone(), config);
        Self {
            store,
            ca,
            endpoint,
            serving: tokio::spawn(serving),
        }
    }

    async fn token(&self, seed: u8, uses: u32) -> JoinToken {
        self.token_of(
            seed,
            NewToken {
                uses,
                ..NewToken::default()
            },
            Clock::system().now(),
        )
        .await
    }

    async fn token_of(&self, seed: u8, new: NewToken, created: Timestamp) -> JoinToken {
        let hash = Token::from_bytes([seed; 32]).join_hash();
        self.store.create_token(hash, new, created).await.unwrap();
        JoinToken::from_bytes([seed; 32])
    }

    async fn connect(&self) -> Result<Connection, ConnectionError> {
        let udp = UdpNetwork::default();
        let transport = Transport::enrollment(0, MAX_RESPONSE as u32);
        let pin = self.ca.fingerprint();
        let tls = enrollment_client(pin, ShownPins::default(), system_time()).unwrap();
        let config = endpoint::client_config(&udp, tls, &transport);
        let local = (Ipv4Addr::LOCALHOST, 0).into();
        let dialler = endpoint::dialler(&udp, local, &transport).unwrap();
        let address = self.endpoint.local_addr().unwrap();
        dialler
            .connect_with(config, address, HUB_NAME)
            .unwrap()
            .await
    }

    async fn send(&self, request: &[u8]) -> Vec<u8> {
        let connection = self.connect().await.unwrap();
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        // A hub that has read enough stops the stream.
        let _ = send.write_all(request).await;
        let _ = send.finish();
        receive.read_to_end(MAX_RESPONSE).await.unwrap()
    }

    async fn ask(&self, request: &JoinRequest) -> JoinResponse {
        JoinResponse::decode(&self.send(&request.encode()).await).unwrap()
    }

    async fn joined(&self, request: &JoinRequest) -> Joined {
        match self.ask(request).await {
            JoinResponse::Joined(joined) => *joined,
            JoinResponse::Refused(refused) => panic!("{refused}"),
        }
    }

    async fn refused(&self, request: &JoinRequest) -> Refused {
        match self.ask(request).await {
            JoinResponse::Refused(refused) => refused,
            JoinResponse::Joined(joined) => panic!("{joined:?}"),
        }
    }
}

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ED25519).unwrap()
}

fn request(token: &JoinToken, name: &str, key: &KeyPair) -> JoinRequest {
    let csr = CertificateParams::default().serialize_request(key).unwrap();
    JoinRequest {
        version: enroll::VERSION,
        token: token.clone(),
        csr: Der(csr.der().to_vec()),
        name: Some(name.parse().unwrap()),
        platform: Platform::default(),
    }
}

#[tokio::test]
async fn a_stranger_becomes_a_node_that_sessions_accept() {
    let operational = Some("hub.example:7443".to_owned());
    let hub = Hub::start(EnrollConfig {
        operational,
        ..EnrollConfig::default()
    })
    .await;
    let (token, key) = (hub.token(1, 1).await, key());
    let joined = hub.joined(&request(&token, "shop-4", &key)).await;
    assert_eq!(joined.name.as_str(), "shop-4");
    assert_eq!(joined.deployment, hub.store.deployment());
    assert_eq!(joined.operational.as_deref(), Some("hub.example:7443"));
    let der = |der: &Der| CertificateDer::from(der.0.clone());
    let trust = TrustBundle::new(joined.trust.iter().map(der).collect()).unwrap();
    assert_eq!(trust.fingerprints(), [hub.ca.fingerprint()]);
    let private = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let node = Credentials::new(joined.chain.iter().map(der).collect(), private).unwrap();
    let peer = verify_node(&node, &trust, &*system_time()).unwrap();
    assert_eq!(peer.node_id, joined.node_id);
    let now = Clock::system().now();
    let registration = Registration {
        node: peer.node_id,
        key: peer.fingerprint,
        process: hub_ledger::Process {
            incarnation: Incarnation::from_bytes([1; 16]),
            last_generation: None,
        },
    };
    hub.store.register(registration, now).await.unwrap();
}

#[tokio::test]
async fn the_same_key_asks_again_for_nothing() {
    let hub = Hub::start(EnrollConfig::default()).await;
    let (token, key) = (hub.token(1, 1).await, key());
    let first = hub.joined(&request(&token, "a", &key)).await;
    let second = hub.joined(&request(&token, "a", &key)).await;
    assert_eq!(first.node_id, second.node_id);
    assert_ne!(first.chain, second.chain, "each has a serial of its own");
    assert_eq!(hub.store.nodes().await.unwrap().len(), 1);
}

/// The ledger has admitted the node, and the hub died before it signed.
#[tokio::test]
async fn a_token_that_was_spent_by_a_crash_still_serves_its_key() {
    let hub = Hub::start(EnrollConfig::default()).await;
    let (token, key) = (hub.token(1, 1).await, key());
    let request = request(&token, "a", &key);
    let new_id = NodeId::from_bytes([9; 16]);
    let join = Join {
        token: Token::from_bytes(*token.as_bytes()).join_hash(),
        name: "a".parse().unwrap(),
        key: ca::request_key(&request.csr.0).unwrap(),
        new_id,
    };
    let spent = hub.store.join(join, Clock::system().now()).await.unwrap();
    assert!(matches!(spent.how, JoinedHow::Admitted(token) if token.uses_left == 0));
    assert_eq!(hub.joined(&request).await.node_id, new_id);
}

#[tokio::test]
async fn all_tokens_that_admit_nobody_look_alike() {
    let hub = Hub::start(EnrollConfig::default()).await;
    let spent = hub.token(1, 1).await;
    hub.joined(&request(&spent, "a", &key())).await;
    let an_hour_ago = Clock::system()
        .now()
        .saturating_sub(Duration::from_secs(3600));
    let expired = hub.token_of(2, NewToken::default(), an_hour_ago).await;
    let unknown = JoinToken::from_bytes([3; 32]);
    let mut answers = Vec::new();
    for token in [spent, expired, unknown] {
        answers.push(hub.send(&request(&token, "b", &key()).encode()).await);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    let refused = JoinResponse::decode(&answers[0]).unwrap();
    let JoinResponse::Refused(refused) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(
        (refused.code.as_str(), refused.permanent),
        (refusal::INVALID_TOKEN, true)
    );
}

#[tokio::test]
async fn what_cannot_be_right_is_refused_before_anything_is_spent() {
    let hub = Hub::start(EnrollConfig::default()).await;
    let (token, key) = (hub.token(1, 1).await, key());
    let good = request(&token, "a", &key);

    let mut unproven = good.clone();
    *unproven.csr.0.last_mut().unwrap() ^= 1;
    assert_eq!(hub.refused(&unproven).await.code, refusal::BAD_CSR);
    let no_csr = JoinRequest {
        csr: Der(vec![]),
        ..good.clone()
    };
    assert_eq!(hub.refused(&no_csr).await.code, refusal::BAD_CSR);
    let newer = JoinRequest {
        version: 2,
        ..good.clone()
    };
    assert_eq!(hub.refused(&newer).await.code, refusal::BAD_REQUEST);
    let nameless = JoinRequest {
        name: None,
        ..good.clone()
    };
    assert_eq!(hub.refused(&nameless).await.code, refusal::BAD_REQUEST);
    for garbage in [vec![], b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0xff; 1000]] {
        let answer = JoinResponse::decode(&hub.send(&garbage).await).unwrap();
        let JoinResponse::Refused(refused) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(
            (refused.code.as_str(), refused.permanent),
            (refusal::BAD_REQUEST, true)
        );
    }
    let mut oversize = good.encode();
    oversize.resize(MAX_REQUEST + 1, b' ');
    let answer = JoinResponse::decode(&hub.send(&oversize).await).unwrap();
    let JoinResponse::Refused(refused) = answer else {
        panic!("{answer:?}")
    };
    assert!(refused.message.contains("16384"), "{refused}");

    assert!(hub.store.nodes().await.unwrap().is_empty());
    hub.joined(&good).await;
}

#[tokio::test]
async fn names_and_keys_belong_to_one_node() {
    let hub = Hub::start(EnrollConfig::default()).await;
    let (token, key_of_a) = (hub.token(1, 3).await, key());
    hub.joined(&request(&token, "a", &key_of_a)).await;
    let refused = hub.refused(&request(&token, "a", &key())).await;
    assert_eq!(
        (refused.code.as_str(), refused.permanent),
        (refusal::NAME_TAKEN, true)
    );
    let refused = hub.refused(&request(&token, "b", &key_of_a)).await;
    assert_eq!(refused.code, refusal::KEY_TAKEN);
    let platform = Platform {
        hostname: ".büro 7".to_owned(),
        ..Platform::default()
    };
    let nameless = JoinRequest {
        name: None,
        platform,
        ..request(&token, "x", &key())
    };
    assert_eq!(hub.joined(&nameless).await.name.as_str(), "b-ro-7");
}

#[test]
fn host_names_become_names() {
    let name = |host: &str| host_name(host).map(|name| name.to_string());
    assert_eq!(name("till-4.shop"), Some("till-4.shop".to_owned()));
    assert_eq!(name("-.a/b"), Some("a-b".to_owned()));
    assert_eq!(name(&"x".repeat(99)), Some("x".repeat(64)));
    assert_eq!(name(""), None);
    assert_eq!(name("-"), None);
}

#[tokio::test]
async fn strangers_have_a_budget_of_connections() {
    let hub = Hub::start(EnrollConfig {
        connections: 1,
        ..EnrollConfig::default()
    })
    .await;
    let (token, key) = (hub.token(1, 1).await, key());
    let first = hub.connect().await.unwrap();
    // The first one's place is taken before the second one's handshake begins.
    let (mut send, mut receive) = first.open_bi().await.unwrap();
    let second = hub.connect().await.unwrap();
    let ConnectionError::ApplicationClosed(closed) = second.closed().await else {
        panic!("open")
    };
    assert_eq!(closed.error_code, VarInt::from_u32(CloseCode::BUSY.0));
    send.write_all(&request(&token, "a", &key).encode())
        .await
        .unwrap();
    send.finish().unwrap();
    let answer = JoinResponse::decode(&receive.read_to_end(MAX_RESPONSE).await.unwrap()).unwrap();
    assert!(matches!(answer, JoinResponse::Joined(_)), "{answer:?}");
}

#[tokio::test]
async fn a_stranger_that_says_nothing_is_sent_away() {
    let hub = Hub::start(EnrollConfig::default()).await;
    let silent = hub.connect().await.unwrap();
    tokio::time::pause();
    let ConnectionError::ApplicationClosed(closed) = silent.closed().await else {
        panic!("open")
    };
    assert_eq!(closed.error_code, VarInt::from_u32(CloseCode::TIMED_OUT.0));
}

#[tokio::test]
async fn serving_ends_with_the_endpoint() {
    let hub = Hub::start(EnrollConfig::default()).await;
    let connection = hub.connect().await.unwrap();
    hub.endpoint
        .close(VarInt::from_u32(CloseCode::GOING_AWAY.0), b"");
    hub.serving.await.unwrap();
    connection.closed().await;
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn each_attempt_is_a_line_and_none_holds_a_token() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let hub = Hub::start(EnrollConfig::default()).await;
    let (token, key) = (hub.token(1, 1).await, key());
    let good = request(&token, "a", &key);
    hub.joined(&good).await;
    hub.joined(&good).await;
    hub.refused(&request(&token, "b", &self::key())).await;
    let unknown = JoinToken::from_bytes([0xa5; 32]);
    hub.refused(&request(&unknown, "b", &self::key())).await;
    hub.send(format!("{{\"version\":\"{}\"", token.reveal()).as_bytes())
        .await;
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let attempts: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("hub_server::enroll: join"))
        .collect();
    let expected = [
        "joined",
        "nothing was spent",
        "1 of 1 nodes",
        "is unknown",
        "malformed",
    ];
    assert_eq!(attempts.len(), expected.len(), "{attempts:#?}");
    for (attempt, expected) in attempts.iter().zip(expected) {
        assert!(
            attempt.contains(expected) && attempt.contains("remote=127.0.0.1:"),
            "{attempt}"
        );
    }
    for token in [token, unknown] {
        assert!(
            !text.contains(&token.reveal()[5..]),
            "a token is in the log"
        );
        let bytes = format!("{:?}", &token.as_bytes()[..4]);
        assert!(
            !text.contains(&bytes[1..bytes.len() - 1]),
            "a token is in the log"
        );
    }
}
