//! Certificates that are not what they should be, on either side.

use std::sync::Arc;
use std::time::Duration;

use hub_agent::agent::AgentError;
use hub_agent::uplink::UplinkError;
use hub_ledger::Serial;
use hub_protocol::NodeId;
use hub_protocol::code::CloseCode;
use hub_protocol::version::ALPN;
use hub_quic::tls::{self, HubCertificate, TrustBundle};
use hub_server::ca::{Ca, NODE_VALIDITY};
use hub_server::hub::AskError;
use quinn::ConnectionError;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

use super::agent::{Hostile, Node, greet, hello};
use super::hub::{Authority, HostileHub, ca, works};
use super::log::Log;
use super::raw::*;
use crate::world::{World, run};

/// A certificate chain and the key of its first certificate.
type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Takes whatever the other side shows.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ED25519,
            SignatureScheme::ECDSA_NISTP256_SHA256,
        ]
    }
}

fn client(shown: Option<Shown>, alpn: &[u8]) -> Arc<QuicClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody));
    let mut config = match shown {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(QuicClientConfig::try_from(config).unwrap())
}

fn server((chain, key): Shown) -> Arc<QuicServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Arc::new(QuicServerConfig::try_from(config).unwrap())
}

/// A certificate for a node by this CA, and a fresh key.
fn node_by(ca: &Ca, node: NodeId, now: hub_ledger::Timestamp, validity: Duration) -> Shown {
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let request = CertificateParams::default()
        .serialize_request(&key)
        .unwrap();
    let serial = Serial::from_random([5; 16]);
    let issued = ca
        .sign_node(request.der(), node, serial, now, validity)
        .unwrap();
    (
        vec![issued.der],
        PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
    )
}

fn hub_by(ca: &Ca, now: hub_ledger::Timestamp) -> Shown {
    let identity = ca.sign_hub(&["203.0.113.1".into()], now).unwrap();
    (identity.chain, identity.key)
}

/// Whether the connection failed for what the peer thinks of our part in the handshake.
fn is_alert(error: &ConnectionError) -> bool {
    let ConnectionError::ConnectionClosed(close) = error else {
        return false;
    };
    (0x100..0x200).contains(&u64::from(close.error_code))
}

#[test]
fn who_has_no_certificate_of_a_node_does_not_get_past_the_handshake() {
    run(async {
        let world = World::without_records(61).await;
        let node = Node::join(&world, "mallory").await;
        let id = node.identity.node_id();
        let (hub, now) = (world.hub(), world.clock.now());
        let foreign = ca(&world.clock).await;
        let brief = node_by(hub.ca(), id, now, Duration::from_secs(60));
        let self_signed = {
            let name = tls::node_name(&id);
            let made = rcgen::generate_simple_self_signed([name]).unwrap();
            let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
            (vec![made.cert.der().clone()], key.into())
        };
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let good = node_by(hub.ca(), id, now, NODE_VALIDITY);
        for (what, tls) in [
            ("none", client(None, ALPN)),
            ("self-signed", client(Some(self_signed), ALPN)),
            (
                "of another CA",
                client(Some(node_by(&foreign, id, now, NODE_VALIDITY)), ALPN),
            ),
            ("a hub's", client(Some(hub_by(hub.ca(), now)), ALPN)),
            ("another hub's", client(Some(hub_by(&foreign, now)), ALPN)),
            ("expired", client(Some(brief), ALPN)),
            ("for another protocol", client(Some(good), b"hub-enroll/1")),
        ] {
            let address = world.server.bound().agents;
            // The client's part is over before the hub has seen who it is.
            let error = match dial(&node.network, address, tls, transport()).await {
                Ok(connection) => {
                    if let Ok((mut send, _recv)) = connection.open_bi().await {
                        let hello = frame(HELLO, hello(1).as_bytes());
                        let _ = send.write_all(&hello).await;
                    }
                    connection.closed().await
                }
                Err(error) => error,
            };
            assert!(is_alert(&error), "{what}: {error:?}");
        }
        let found = hub.find("mallory").await.unwrap().unwrap();
        assert_eq!(found.epoch.0, 0);
        assert!(hub.sessions().all().is_empty());
    });
}

/// Signed by the CA is not enough: the ledger has to know it.
#[test]
fn a_certificate_that_is_not_in_the_ledger_is_refused() {
    run(async {
        let world = World::without_records(62).await;
        let node = Node::join(&world, "mallory").await;
        let now = world.clock.now();
        for id in [node.identity.node_id(), NodeId::from_bytes([0xee; 16])] {
            let shown = node_by(world.hub().ca(), id, now, NODE_VALIDITY);
            let address = world.server.bound().agents;
            let tls = client(Some(shown), ALPN);
            let connection = dial(&node.network, address, tls, transport())
                .await
                .unwrap();
            let (_send, _reader, (tag, refused)) = greet(&connection, &hello(1)).await;
            assert_eq!(tag, u64::from(REFUSED));
            assert_eq!(refused["code"], "unknown_identity");
            assert_eq!(close_code(&connection).await, 2);
        }
        assert!(world.hub().sessions().all().is_empty());
        Hostile::connect(&world, &node, 1).await;
    });
}

#[test]
fn a_revoked_node_is_told_so_and_gets_no_operation() {
    run(async {
        let world = World::without_records(63).await;
        let agent = world.agent("honest", 1).await;
        let operation = world.start("honest", &["sleep"], true).await.unwrap();
        let id = world.hub().find("honest").await.unwrap().unwrap().id;
        let node = Node::join(&world, "mallory").await;
        let hostile = Hostile::connect(&world, &node, 1).await;
        let now = world.clock.now();
        for id in [id, node.identity.node_id()] {
            world.hub().store().revoke_node(id, now).await.unwrap();
        }
        // Sessions still stand, as when another hub wrote it. The next who asks ends them.
        for name in ["honest", "mallory"] {
            let asked = world.start(name, &["cat"], true).await;
            assert!(matches!(asked, Err(AskError::Revoked { .. })), "{asked:?}");
        }
        operation.ended().await;
        agent.commands.until_alive(0).await;
        assert_eq!(
            close_code(&hostile.connection).await,
            u64::from(CloseCode::REVOKED.0)
        );
        // The real agent hears it when it dials again, and gives up.
        let ended = agent.task.await.unwrap();
        let Err(AgentError::Uplink(UplinkError::Refused(refused))) = ended else {
            panic!("{ended:?}");
        };
        assert_eq!((&*refused.code, refused.permanent), ("revoked", true));
        // The hostile one comes again and again, opens streams, and waits for what is asked of it.
        for run in 1..4 {
            let connection = node.dial(&world).await;
            let (_send, _reader, (tag, refused)) = greet(&connection, &hello(run)).await;
            assert_eq!(tag, u64::from(REFUSED));
            assert_eq!(
                (&refused["code"], &refused["permanent"]),
                (&"revoked".into(), &true.into())
            );
            let asked = world.start("mallory", &["cat"], true).await;
            assert!(matches!(asked, Err(AskError::Revoked { .. })), "{asked:?}");
            let accepted = connection.accept_bi().await;
            assert!(matches!(
                accepted,
                Err(ConnectionError::ApplicationClosed(_))
            ));
        }
        assert!(world.hub().sessions().all().is_empty());
    });
}

#[test]
fn a_revoked_node_gets_no_requests_of_browsers() {
    run(async {
        let world = World::without_records(64).await;
        let _agent = world.agent("node", 1).await;
        let path = world.expose("node", 80).await;
        let node = world.hub().find("node").await.unwrap().unwrap();
        let status = async || {
            let request = hyper::Request::get(format!("{path}bytes/10/1")).header("host", "x");
            let mut browser = world.browser().await;
            let response = browser.send_request(request.body("".into()).unwrap()).await;
            response.unwrap().status().as_u16()
        };
        assert_eq!(status().await, 200);
        let now = world.clock.now();
        world.hub().store().revoke_node(node.id, now).await.unwrap();
        assert!(world.hub().sessions().get(&node.id).is_some());
        assert_eq!(status().await, 503);
    });
}

#[test]
fn who_has_no_certificate_of_a_hub_never_hears_of_the_node() {
    run(async {
        let log = Log::hear();
        let authority = Authority::new(65).await;
        let foreign = ca(&authority.clock).await;
        let now = authority.clock.now();
        let node = NodeId::from_bytes([0x66; 16]);
        let impostors = [
            ("a node's", node_by(&authority.ca, node, now, NODE_VALIDITY)),
            ("another hub's", hub_by(&foreign, now)),
            (
                "another node's",
                node_by(&foreign, node, now, NODE_VALIDITY),
            ),
        ];
        let agent = authority.agent();
        let mut impostors = impostors.into_iter();
        let endpoint = authority.listen(server(impostors.next().unwrap().1));
        for next in impostors.map(Some).chain([None]) {
            let error = endpoint.accept().await.unwrap().await.unwrap_err();
            assert!(is_alert(&error), "{error:?}");
            if let Some((_, shown)) = next {
                endpoint.set_server_config(Some(quinn::ServerConfig::with_crypto(server(shown))));
            }
        }
        assert!(!log.saying("the handshake failed").is_empty());
        // The agent goes on dialling, and takes the right one.
        let certificate = HubCertificate::new(authority.hub_credentials()).unwrap();
        let trust = TrustBundle::new(vec![authority.ca.certificate_der().clone()]).unwrap();
        let time = Arc::new(authority.clock.clone());
        let right = tls::operational_server(&certificate, &trust, time).unwrap();
        endpoint.set_server_config(Some(quinn::ServerConfig::with_crypto(right)));
        let hub = HostileHub { endpoint, agent };
        works(hub.session().await.accepted(OPEN_CAT).await, 1).await;
    });
}
