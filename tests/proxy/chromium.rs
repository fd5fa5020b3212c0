//! The login in a real browser, which is told what to do over its debugging protocol.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use futures_util::{SinkExt as _, StreamExt as _};
use hub_ledger::Access;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::peers::{Target, read_head};
use crate::world::{World, run};

/// A headless Chromium with one page, for which every host is this machine.
struct Browser {
    process: Child,
    _profile: tempfile::TempDir,
    socket: WebSocketStream<TcpStream>,
    session: Option<String>,
    asked: u64,
    events: VecDeque<String>,
}

impl Browser {
    async fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut process = Command::new("chromium")
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
            .args([
                "--disable-sync",
                "--no-proxy-server",
                "--remote-debugging-port=0",
            ])
            .arg("--host-resolver-rules=MAP *.hub.test 127.0.0.1")
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let listening = tokio::task::spawn_blocking(move || {
            let url = lines.by_ref().map_while(Result::ok).find_map(|line| {
                let url = line.strip_prefix("DevTools listening on ")?;
                Some(url.to_owned())
            });
            // Whoever does not read what it says stops it.
            std::thread::spawn(move || lines.for_each(drop));
            url
        });
        let url = listening.await.unwrap().unwrap();
        let address = url.trim_start_matches("ws://").split('/').next().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let (socket, _) = tokio_tungstenite::client_async(&url, stream).await.unwrap();
        let mut browser = Self {
            process,
            _profile: profile,
            socket,
            session: None,
            asked: 0,
            events: VecDeque::new(),
        };
        let page = browser
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach).await;
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        browser.call("Page.enable", json!({})).await;
        browser
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.asked += 1;
        let id = self.asked;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let message = Message::text(message.to_string());
        self.socket.send(message).await.unwrap();
        loop {
            let message = self.next().await;
            if message["id"] == json!(id) {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    async fn next(&mut self) -> Value {
        let message = self.socket.next().await.unwrap().unwrap();
        let message: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
        if let Some(event) = message["method"].as_str() {
            self.events.push_back(event.to_owned());
        }
        message
    }

    /// Waits until the page that comes next is there.
    async fn loaded(&mut self) {
        while self.events.pop_front().as_deref() != Some("Page.loadEventFired") {
            if self.events.is_empty() {
                self.next().await;
            }
        }
    }

    async fn open(&mut self, url: &str) {
        self.events.clear();
        self.call("Page.navigate", json!({"url": url})).await;
        self.loaded().await;
    }

    /// What an expression, or what it promises, comes to.
    async fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({
            "expression": expression, "awaitPromise": true, "returnByValue": true,
        });
        let evaluated = self.call("Runtime.evaluate", params).await;
        assert!(evaluated["exceptionDetails"].is_null(), "{evaluated}");
        evaluated["result"]["value"].clone()
    }

    /// Fills the form in and sends it off, as its reader would.
    async fn send_form(&mut self, secret: &str) {
        self.events.clear();
        let send = format!(
            "for (const field of document.querySelectorAll('[name=secret]')) \
             field.value = '{secret}'; document.querySelector('button').click()"
        );
        self.evaluate(&send).await;
        self.loaded().await;
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A target whose page is the head of its request.
async fn page() -> Target {
    Target::start(|mut stream, _| async move {
        while let Some(head) = read_head(&mut stream).await {
            let seen = head.lines.join("\n");
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{seen}",
                seen.len()
            );
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await
}

#[test]
#[ignore = "needs Chromium"]
fn chromium_logs_in_and_out() {
    run(async {
        let world = World::real(page().await.port).await;
        world.set(|exposure| exposure.access = Access::Login);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!(
            "http://shop.hub.test:{}",
            listener.local_addr().unwrap().port()
        );
        let proxy = world.proxy.clone();
        tokio::spawn(async move { proxy.serve(listener, std::future::pending()).await });

        let mut browser = Browser::start().await;
        browser.open(&format!("{origin}/deep?a=b")).await;
        assert_eq!(browser.evaluate("document.title").await, "Log in");
        let style = "getComputedStyle(document.querySelector('h1')).fontSize";
        assert_eq!(
            browser.evaluate(style).await,
            "24px",
            "its style is allowed"
        );
        browser.send_form("wrong").await;
        let alert = "document.querySelector('[role=alert]').textContent";
        let told = browser.evaluate(alert).await;
        assert!(
            told.as_str().unwrap().contains("not their credential"),
            "{told}"
        );

        browser.send_form(&world.operator).await;
        let place = browser
            .evaluate("location.pathname + location.search")
            .await;
        assert_eq!(place, "/deep?a=b");
        let seen = browser.evaluate("document.body.innerText").await;
        let seen = seen.as_str().unwrap();
        assert!(seen.contains("x-hub-user: operator"), "{seen}");
        assert!(!seen.contains("hub_session"), "{seen}");
        assert_eq!(browser.evaluate("document.cookie").await, "");
        let deleted = "fetch('/x', {method: 'DELETE'}).then(answer => answer.status)";
        assert_eq!(browser.evaluate(deleted).await, 200);

        browser.open(&format!("{origin}/.hub/logout")).await;
        browser.send_form("").await;
        assert_eq!(browser.evaluate("document.title").await, "Log in");
    });
}
