//! A real browser opens a page behind an agent and does what applications do: scripts, images, a
//! stream of events, a WebSocket, an upload with progress, a cookie. The page tells its server.

use std::convert::Infallible;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures_util::StreamExt as _;
use rcgen::PublicKeyData as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::house::{DOMAIN, House};

/// Longer than a browser takes on a machine that works.
const PATIENCE: Duration = Duration::from_secs(90);

/// The application behind the agent. What its page tells comes out.
struct Application {
    port: u16,
    told: mpsc::UnboundedReceiver<Value>,
    runtime: tokio::runtime::Runtime,
}

impl Application {
    fn start() -> Self {
        let (tell, told) = mpsc::unbounded_channel();
        let tell = move |body: Bytes| {
            let tell = tell.clone();
            async move { tell.send(serde_json::from_slice(&body).unwrap()).unwrap() }
        };
        let kind = |kind: &'static str, body: &'static str| {
            get(move || async move { ([(header::CONTENT_TYPE, kind)], body) })
        };
        let svg = r#"<svg xmlns="http://www.w3.org/2000/svg" width="37" height="11"/>"#;
        let router = Router::new()
            .route("/", kind("text/html", include_str!("assets/page.html")))
            .route(
                "/script.js",
                kind("text/javascript", "window.loaded = true;"),
            )
            .route("/image.svg", kind("image/svg+xml", svg))
            .route("/events", get(events))
            .route("/socket", get(socket))
            .route("/upload", post(upload))
            .route("/cookie", get(cookie).post(set_cookie))
            .route("/told", post(tell))
            .layer(DefaultBodyLimit::disable());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
        Self {
            port,
            told,
            runtime,
        }
    }

    /// Serves until the page has told.
    fn told(&mut self) -> Value {
        let told = async { tokio::time::timeout(PATIENCE, self.told.recv()).await };
        let told = self.runtime.block_on(told);
        told.expect("the page tells in time").unwrap()
    }
}

/// Five events, each as a chunk of its own.
async fn events() -> impl IntoResponse {
    let events = futures_util::stream::iter(0..5)
        .then(|n| async move { Ok::<_, Infallible>(format!("data: {n}\n\n")) });
    let body = Body::from_stream(events.chain(futures_util::stream::pending()));
    ([(header::CONTENT_TYPE, "text/event-stream")], body)
}

async fn socket(upgrade: WebSocketUpgrade) -> impl IntoResponse {
    upgrade.on_upgrade(|mut socket| async move {
        while let Some(Ok(message)) = socket.recv().await {
            if let Message::Text(_) = message
                && socket.send(message).await.is_err()
            {
                break;
            }
        }
    })
}

async fn upload(body: Body) -> String {
    let mut body = body.into_data_stream();
    let mut bytes = 0;
    while let Some(piece) = body.next().await {
        bytes += piece.unwrap().len();
    }
    bytes.to_string()
}

async fn set_cookie() -> impl IntoResponse {
    [(header::SET_COOKIE, "kept=yes; Path=/; HttpOnly")]
}

async fn cookie(headers: HeaderMap) -> String {
    let cookie = headers.get(header::COOKIE);
    cookie.map_or_else(String::new, |cookie| cookie.to_str().unwrap().to_owned())
}

/// A browser, killed when dropped.
struct Browser {
    child: Child,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn open(url: &str, flags: &[String]) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let child = Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .args(["--disable-sync", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(flags)
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            _profile: profile,
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the page has to tell when all is well.
fn well(protocol: &str) -> Value {
    json!({
        "image": 37,
        "script": true,
        "events": ["0", "1", "2", "3", "4"],
        "socket": [[3, 50_000], 4321, true],
        "upload": [200, "52428800", true],
        "cookie": "kept=yes",
        "protocol": protocol,
    })
}

#[test]
#[ignore = "needs Chromium"]
fn chromium_uses_an_application_over_http_1() {
    let mut application = Application::start();
    let house = House::new();
    let exposed = house.expose("app", application.port, &[]);
    let _browser = Browser::open(&format!("http://{}/", exposed.host), &[]);
    assert_eq!(application.told(), well("http/1.1"));
}

/// A certificate of nobody's for all names of the domain, and what Chromium needs to be told of its
/// key to take it.
fn certificate(dir: &Path) -> String {
    let certified = rcgen::generate_simple_self_signed(vec![format!("*.{DOMAIN}")]).unwrap();
    std::fs::write(dir.join("certificate.pem"), certified.cert.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), certified.signing_key.serialize_pem()).unwrap();
    let hash = ring::digest::digest(
        &ring::digest::SHA256,
        &certified.signing_key.subject_public_key_info(),
    );
    BASE64_STANDARD.encode(hash)
}

fn over_tls(protocol: &str, choose: impl FnOnce(&str) -> String) {
    let dir = tempfile::tempdir().unwrap();
    let key = certificate(dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let mut application = Application::start();
    let house = House::with(&[
        "--proxy-tls-cert",
        &path("certificate.pem"),
        "--proxy-tls-key",
        &path("key.pem"),
    ]);
    let exposed = house.expose("app", application.port, &[]);
    let flags = [
        choose(&exposed.host),
        format!("--ignore-certificate-errors-spki-list={key}"),
        // It would try IPv6 first, and over UDP nothing says that nobody listens there.
        "--host-resolver-rules=MAP * 127.0.0.1".to_owned(),
    ];
    let _browser = Browser::open(&format!("https://{}/", exposed.host), &flags);
    assert_eq!(application.told(), well(protocol));
}

#[test]
#[ignore = "needs Chromium"]
fn chromium_uses_an_application_over_http_2() {
    over_tls("h2", |_| "--disable-quic".to_owned());
}

#[test]
#[ignore = "needs Chromium"]
fn chromium_uses_an_application_over_http_3() {
    over_tls("h3", |host| format!("--origin-to-force-quic-on={host}"));
}
