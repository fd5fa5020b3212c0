//! A bare tunnel: TCP spliced to one quinn stream per connection, no framing, no HTTP, with the same
//! provider, transport settings and runtimes.

use std::net::SocketAddr;
use std::sync::Arc;

use hub_quic::endpoint::{self, Handshakes, Transport, UdpNetwork};
use hub_quic::session::windows;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::threads::{LOOPBACK, on_its_own};

/// A bare tunnel to `target`: gives the address to connect to.
pub fn tunnel(target: SocketAddr) -> SocketAddr {
    let certified = rcgen::generate_simple_self_signed(vec!["tunnel".into()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let server_tls = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    let client_tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (front, quic) = on_its_own("tunnel front", move |ready| async move {
        let network = UdpNetwork::default();
        let tls = Arc::new(QuicServerConfig::try_from(server_tls).unwrap());
        let transport = Transport::hub(windows());
        let config = endpoint::server_config(&network, tls, &transport, &Handshakes::default());
        let listener = endpoint::listener(&network, LOOPBACK.into(), &transport, config).unwrap();
        let front = TcpListener::bind(SocketAddr::from(LOOPBACK)).await.unwrap();
        let quic = listener.local_addr().unwrap();
        ready.send((front.local_addr().unwrap(), quic)).unwrap();
        let connection = listener.accept().await.unwrap().await.unwrap();
        loop {
            let (mut tcp, _) = front.accept().await.unwrap();
            let connection = connection.clone();
            tokio::spawn(async move {
                let (send, receive) = connection.open_bi().await.unwrap();
                let _ = copy_bidirectional(&mut tcp, &mut tokio::io::join(receive, send)).await;
            });
        }
    });
    on_its_own("tunnel back", move |ready| async move {
        let network = UdpNetwork::default();
        let tls = Arc::new(QuicClientConfig::try_from(client_tls).unwrap());
        let transport = Transport::agent(windows());
        let config = endpoint::client_config(&network, tls, &transport);
        let dialler = endpoint::dialler(&network, LOOPBACK.into(), &transport).unwrap();
        let connection = dialler
            .connect_with(config, quic, "tunnel")
            .unwrap()
            .await
            .unwrap();
        ready.send(()).unwrap();
        while let Ok((send, receive)) = connection.accept_bi().await {
            tokio::spawn(async move {
                let mut tcp = TcpStream::connect(target).await.unwrap();
                let _ = copy_bidirectional(&mut tcp, &mut tokio::io::join(receive, send)).await;
            });
        }
    });
    front
}
