//! TLS: certificates, their replacement, and who comes without.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hub_server::tls::{Certificate, Files};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::peers::{Target, ask, fetch, read_head, read_to};
use crate::world::{EXPOSED, World, run};

/// A certificate for [`EXPOSED`] by name, made for the occasion, with its key, both PEM.
pub struct Made {
    pub certificate: String,
    pub key: String,
}

impl Made {
    pub fn new() -> Self {
        let names = ["shop.hub.test", "hub", "127.0.0.1"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        Self {
            certificate: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
        }
    }

    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()
    }

    pub fn served(&self) -> Certificate {
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        Certificate::new(Certificate::certified(vec![self.der()], key).unwrap())
    }

    /// A client that trusts this certificate alone.
    pub fn client(&self, protocols: &[&[u8]]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config
    }

    /// A browser that trusts this certificate alone, connected to the data plane there.
    pub async fn browser(
        &self,
        address: SocketAddr,
        protocols: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let connector = TlsConnector::from(Arc::new(self.client(protocols)));
        let name = ServerName::try_from("shop.hub.test").unwrap();
        connector.connect(name, stream).await
    }
}

#[test]
fn browsers_are_served_over_tls_and_targets_are_told() {
    run(async {
        let target = Target::start(|mut stream, _| async move {
            while let Some(head) = read_head(&mut stream).await {
                assert_eq!(head.all("x-forwarded-proto"), ["https"]);
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
                stream.write_all(answer).await.unwrap();
            }
        })
        .await;
        let made = Made::new();
        let certificate = Arc::new(made.served());
        let world = World::real_with(target.port, |config| {
            config.certificates = Some(certificate.clone());
        })
        .await;
        let address = world.serve().await;
        for protocols in [&[][..], &[&b"http/1.1"[..]]] {
            let mut browser = made.browser(address, protocols).await.unwrap();
            for _ in 0..2 {
                let request = format!("GET / HTTP/1.1\r\nHost: {EXPOSED}.hub.test\r\n\r\n");
                let (head, body) = fetch(&mut browser, &request).await;
                assert_eq!((head.status(), &body[..]), (200, "hi"));
            }
        }
        // Without TLS, by the same port and by another.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = listener.local_addr().unwrap();
        let proxy = world.proxy.clone();
        tokio::spawn(async move {
            let forever = std::future::pending();
            proxy.serve_redirects(listener, 7480, forever).await;
        });
        for (address, location) in [
            (address, "https://shop.hub.test:1/a?b"),
            (other, "https://shop.hub.test:7480/a?b"),
        ] {
            let mut browser = TcpStream::connect(address).await.unwrap();
            let request = "GET /a?b HTTP/1.1\r\nHost: shop.hub.test:1\r\n\r\n";
            let (head, _) = fetch(&mut browser, request).await;
            assert_eq!(head.status(), 308);
            assert_eq!(head.all("location"), [location]);
        }
        let mut browser = made.browser(other, &[]).await.unwrap();
        let request = format!("GET / HTTP/1.1\r\nHost: {EXPOSED}.hub.test\r\n\r\n");
        assert_eq!(fetch(&mut browser, &request).await.0.status(), 200);
    });
}

/// The certificate's files change while a request is under way: it comes to its end, and the
/// connection stays; who comes later sees the new certificate.
#[test]
fn certificates_are_replaced_under_a_request() {
    run(async {
        let (go_on, wait) = mpsc::unbounded_channel::<()>();
        let wait = Arc::new(tokio::sync::Mutex::new(wait));
        let target = Target::start(move |mut stream, _| {
            let wait = wait.clone();
            async move {
                while read_head(&mut stream).await.is_some() {
                    let half = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf";
                    stream.write_all(half).await.unwrap();
                    wait.lock().await.recv().await.unwrap();
                    stream.write_all(b"half").await.unwrap();
                }
            }
        })
        .await;
        let directory = tempfile::tempdir().unwrap();
        let files = Files {
            whose: "the data plane's",
            certificate: directory.path().join("cert.pem"),
            key: directory.path().join("key.pem"),
        };
        let write = |made: &Made| {
            std::fs::write(&files.certificate, &made.certificate).unwrap();
            std::fs::write(&files.key, &made.key).unwrap();
        };
        let (old, new) = (Made::new(), Made::new());
        write(&old);
        let followed = files.clone().load().unwrap();
        let certificate = Arc::new(followed.certificate().clone());
        tokio::spawn(followed.follow(Duration::from_millis(1)));
        let world = World::real_with(target.port, |config| {
            config.certificates = Some(certificate.clone());
        })
        .await;
        let address = world.serve().await;
        let request = format!("GET / HTTP/1.1\r\nHost: {EXPOSED}.hub.test\r\n\r\n");
        let mut browser = old.browser(address, &[]).await.unwrap();
        let mut head = ask(&mut browser, &request).await;
        read_to(&mut browser, &mut head.rest, 4).await;

        write(&new);
        while new.browser(address, &[]).await.is_err() {
            tokio::task::yield_now().await;
        }
        assert!(old.browser(address, &[]).await.is_err());
        go_on.send(()).unwrap();
        read_to(&mut browser, &mut head.rest, 8).await;
        assert_eq!(head.rest, b"halfhalf");
        go_on.send(()).unwrap();
        let (head, body) = fetch(&mut browser, &request).await;
        assert_eq!((head.status(), &body[..]), (200, "halfhalf"));
    });
}
