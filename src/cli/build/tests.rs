#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use clap::Parser as _;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Request, Response};
use http_body_util::Empty;
use hub_server::api::{ApiToken, channel};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{self, Message};

use super::super::{Cli, Command};
use super::*;
use crate::archive::read::{Item, Reader};
use crate::client::{Client, PIECE};

fn arguments(line: &str) -> BuildArgs {
    let cli = Cli::try_parse_from(format!("hub build {line}").split(' ')).unwrap();
    let Command::Build(arguments) = cli.command else {
        panic!("not a build")
    };
    arguments
}

#[test]
fn arguments_become_a_build() {
    let here = |name: &str| (name == "HERE").then(|| "here".to_owned());
    let line = "shop-4 . -t a:1 -t b --target dev --build-arg A=1=2 --build-arg HERE \
                --build-arg GONE --label x=y --label z --no-cache --pull \
                --platform linux/arm64 -o out.tar";
    let arguments = arguments(line);
    assert_eq!((&*arguments.node, &*arguments.path), ("shop-4", "."));
    let build = arguments
        .build(Some("sub/Dockerfile".into()), here)
        .unwrap();
    let text = |text: &str| text.to_owned();
    let expected = Build {
        dockerfile: Some(text("sub/Dockerfile")),
        tags: vec![text("a:1"), text("b")],
        target: Some(text("dev")),
        build_args: [
            (text("A"), Some(text("1=2"))),
            (text("HERE"), Some(text("here"))),
            (text("GONE"), None),
        ]
        .into(),
        labels: [(text("x"), text("y")), (text("z"), String::new())].into(),
        no_cache: true,
        pull: true,
        platform: Some(text("linux/arm64")),
        output: true,
        ..Build::default()
    };
    assert!(build == expected, "{build:?}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let wrong = arguments("n . --build-arg =x").build(None, |_| None);
    assert!(matches!(wrong, Err(BuildError::NoArgument)));
    for line in [
        "n",
        "n . -o a --load here",
        "n . --load there",
        "n . --label =x",
        "n . --dry-run -o a",
    ] {
        let line = format!("hub build {line}");
        assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
    }
}

#[test]
fn exit_codes_tell_whose_fault_it_was() {
    let ended = |kind| BuildError::Ended(Box::new(Problem::new(kind, "no"))).code();
    assert_eq!(ended(Kind::BuildFailed), 1);
    assert_eq!(ended(Kind::OutcomeUnknown), 125);
    let refused = |kind| {
        let problem = Box::new(Problem::new(kind, "no"));
        BuildError::Client(ClientError::Refused(problem)).code()
    };
    for kind in [
        Kind::BuildFailed,
        Kind::InvalidRequest,
        Kind::Forbidden,
        Kind::Unsupported,
        Kind::RegistryDenied,
    ] {
        assert_eq!((refused(kind), ended(kind)), (1, 1), "{kind:?}");
    }
    for kind in [
        Kind::NodeAway,
        Kind::NoSuchNode,
        Kind::NodeBusy,
        Kind::RuntimeUnavailable,
        Kind::Unauthorized,
    ] {
        assert_eq!(refused(kind), 125, "{kind:?}");
    }
    let gone = ContextError::NoDockerfile("Dockerfile".into());
    assert_eq!(
        (
            BuildError::Context(gone).code(),
            BuildError::NoArgument.code()
        ),
        (1, 2)
    );
}

/// The names and contents of what a context sends.
async fn sent(context: context::Context) -> Vec<(String, String)> {
    let (notices, _) = mpsc::channel(16);
    let mut stream = Bytestream::of(context.source, notices).unwrap();
    let mut reader = Reader::default();
    let mut files: Vec<(String, String)> = Vec::new();
    while let Some(bytes) = stream.next().await.unwrap() {
        reader.push(bytes);
        while let Some(item) = reader.next().unwrap() {
            match item {
                Item::Entry(entry) => files.push((shown(&entry.name), String::new())),
                Item::Data(data) => {
                    let (_, text) = files.last_mut().unwrap();
                    text.push_str(&String::from_utf8_lossy(&data));
                }
                Item::End => {}
            }
        }
    }
    reader.finish().unwrap();
    files
}

fn names(files: &[(String, String)]) -> Vec<&str> {
    files.iter().map(|(name, _)| name.as_str()).collect()
}

async fn find(path: &Path, file: Option<&Path>) -> Result<context::Context, ContextError> {
    let file = file.map(|file| file.to_str().unwrap());
    context::Context::find(path.to_str().unwrap(), file).await
}

#[tokio::test]
async fn a_directory_is_sent_by_its_rules() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let write = |name: &str, text: &str| fs::write(root.join(name), text).unwrap();
    let missing = find(root, None).await.err().unwrap();
    assert!(
        matches!(missing, ContextError::NoDockerfile(_)),
        "{missing}"
    );
    write("Dockerfile", "FROM a");
    write("other", "FROM b");
    write("log", "");
    write(".dockerignore", "*\n!other");
    let found = find(root, None).await.unwrap();
    assert_eq!(found.dockerfile, None);
    assert_eq!(
        names(&sent(found).await),
        [".dockerignore", "Dockerfile", "other"]
    );
    // The rules of a Dockerfile go before those of the directory.
    write("other.dockerignore", "log");
    let found = find(root, Some(&root.join("other"))).await.unwrap();
    assert_eq!(found.dockerfile.as_deref(), Some("other"));
    let expected = [".dockerignore", "Dockerfile", "other", "other.dockerignore"];
    assert_eq!(names(&sent(found).await), expected);
    write(".dockerignore", "a\n[");
    let wrong = find(root, None).await.err().unwrap();
    assert!(
        wrong.to_string().contains(".dockerignore, line 2"),
        "{wrong}"
    );
}

#[tokio::test]
async fn a_dockerfile_from_elsewhere_goes_along_and_stays_out_of_the_image() {
    let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(root.path().join("a"), "x").unwrap();
    fs::write(root.path().join(".dockerignore"), "log").unwrap();
    let file = elsewhere.path().join("Dockerfile");
    fs::write(&file, "FROM scratch").unwrap();
    let mut runs = Vec::new();
    for _ in 0..2 {
        let found = find(root.path(), Some(&file)).await.unwrap();
        let name = found.dockerfile.clone().unwrap();
        assert!(name.starts_with(".dockerfile."), "{name}");
        let sent = sent(found).await;
        assert_eq!(names(&sent), [".dockerignore", &*name, "a"]);
        assert_eq!(sent[0].1, format!("log\n{name}\n"));
        assert_eq!(sent[1].1, "FROM scratch");
        runs.push(name);
    }
    assert_eq!(runs[0], runs[1], "the same build finds its cache again");
}

#[tokio::test]
async fn archives_go_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let mut tar = Vec::new();
    let mut out = |piece: Bytes| {
        tar.extend(piece);
        Ok(())
    };
    let mut packer = crate::archive::pack::Packer::new(crate::archive::pack::Owner::Root, &mut out);
    packer.add_bytes(b"Dockerfile", b"FROM a").unwrap();
    packer.finish().unwrap();
    let found = find(&write("a.tar", &tar), Some(Path::new("sub/Dockerfile")))
        .await
        .unwrap();
    assert_eq!(found.dockerfile.as_deref(), Some("sub/Dockerfile"));
    assert_eq!(sent(found).await, [("Dockerfile".into(), "FROM a".into())]);
    for magic in [
        &b"\x1f\x8b\x08\0"[..],
        b"BZh9",
        b"\xfd7zXZ\0",
        b"\x28\xb5\x2f\xfd",
    ] {
        let found = find(&write("a.gz", magic), None).await.unwrap();
        assert!(matches!(found.source, Source::Archive(head, _) if head == magic));
    }
    for text in ["", "FROM busybox\n", &"# a comment\n".repeat(100)] {
        let wrong = find(&write("text", text.as_bytes()), None)
            .await
            .err()
            .unwrap();
        assert!(matches!(wrong, ContextError::NoContext(_)), "{wrong}");
    }
    let wrong = find(Path::new("https://example.org/a.git"), None)
        .await
        .err()
        .unwrap();
    assert!(matches!(wrong, ContextError::Address(_)), "{wrong}");
}

/// A hub of one build: answers the request with what `script` does on the WebSocket.
async fn hub<F: Future<Output = ()> + Send + 'static>(
    script: impl Fn(WebSocketStream<TokioIo<Upgraded>>) -> F + Send + Sync + 'static,
) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let script = Arc::new(script);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let answer = service_fn(move |mut request: Request<Incoming>| {
            let script = Arc::clone(&script);
            async move {
                let key = request.headers()["sec-websocket-key"].clone();
                let upgrade = hyper::upgrade::on(&mut request);
                tokio::spawn(async move {
                    let io = TokioIo::new(upgrade.await.unwrap());
                    script(WebSocketStream::from_raw_socket(io, Role::Server, None).await).await;
                });
                let answer = Response::builder()
                    .status(101)
                    .header("connection", "upgrade")
                    .header("upgrade", "websocket")
                    .header("sec-websocket-protocol", channel::SUBPROTOCOL)
                    .header("sec-websocket-accept", derive_accept_key(key.as_bytes()))
                    .body(Empty::<Bytes>::new());
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        let connection = hyper::server::conn::http1::Builder::new();
        let connection = connection.serve_connection(TokioIo::new(stream), answer);
        let _ = connection.with_upgrades().await;
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    let token = ApiToken::load_or_create(&path).unwrap();
    Client::new(&url, &token, None).unwrap()
}

/// A directory with a file that takes long to send: a gibibyte.
fn large() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("Dockerfile"), "FROM scratch").unwrap();
    let file = fs::File::create(root.path().join("large")).unwrap();
    file.set_len(1 << 30).unwrap();
    root
}

async fn built(client: &Client, root: &Path, sink: Sink) -> Result<String, BuildError> {
    let found = find(root, None).await.unwrap();
    let building = client.build("n", &Build::default()).await.unwrap();
    carry(building, found.source, "n", sink, &mut Screen::new(false)).await
}

async fn say(
    socket: &mut WebSocketStream<TokioIo<Upgraded>>,
    channel: u8,
    data: &[u8],
) -> Result<(), tungstenite::Error> {
    socket
        .send(Message::Binary(channel::encode(channel, data)))
        .await
}

#[tokio::test]
async fn a_build_goes_there_and_its_image_comes_back() {
    let client = hub(async |mut socket| {
        let mut reader = Reader::default();
        let mut names = Vec::new();
        while let Some(Ok(Message::Binary(mut message))) = socket.next().await {
            if message[..] == [channel::CLOSE, 0] {
                break;
            }
            assert_eq!(message.split_to(1)[0], 0);
            reader.push(message);
            while let Some(item) = reader.next().unwrap() {
                if let Item::Entry(entry) = item {
                    names.push(shown(&entry.name));
                }
            }
        }
        reader.finish().unwrap();
        assert_eq!(names, ["Dockerfile"]);
        for piece in [
            &b"{\"type\":\"stream\",\"te"[..],
            b"xt\":\"Step 1/1\\n\"}\n",
        ] {
            say(&mut socket, 2, piece).await.unwrap();
        }
        say(&mut socket, 1, b"an im").await.unwrap();
        say(&mut socket, 1, b"age").await.unwrap();
        let image = Some("sha256:ab".to_owned());
        let word = Finish::Complete { image }.to_json();
        say(&mut socket, channel::STATUS, &word).await.unwrap();
        while let Some(Ok(_)) = socket.next().await {}
    })
    .await;
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("Dockerfile"), "FROM scratch").unwrap();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image.tar");
    let sink = Sink::to(&path).unwrap();
    let image = built(&client, root.path(), sink).await.unwrap();
    assert_eq!(image, "sha256:ab");
    assert_eq!(fs::read(&path).unwrap(), b"an image");
}

#[tokio::test]
async fn an_early_refusal_is_shown_and_stops_the_upload() {
    let (tells, told) = mpsc::channel(1);
    let tells = Arc::new(tells);
    let client = hub(move |mut socket| {
        let tells = Arc::clone(&tells);
        async move {
            socket.next().await.unwrap().unwrap();
            let problem = Problem::new(Kind::BuildFailed, "no such build argument");
            let word = Finish::Failed(Box::new(problem)).to_json();
            say(&mut socket, channel::STATUS, &word).await.unwrap();
            let mut received = 0;
            while let Some(Ok(message)) = socket.next().await {
                received += message.len();
            }
            tells.send(received).await.unwrap();
        }
    })
    .await;
    let mut told = told;
    let root = large();
    let error = built(&client, root.path(), Sink::Nowhere)
        .await
        .unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.code()),
        ("no such build argument", 1)
    );
    let received = told.recv().await.unwrap();
    assert!(received < 64 << 20, "{received}");
}

#[tokio::test]
async fn a_daemon_that_has_had_enough_gets_no_more() {
    let client = hub(async |mut socket| {
        socket.next().await.unwrap().unwrap();
        say(&mut socket, channel::CLOSE, &[0]).await.unwrap();
        let mut received = 0;
        while let Some(Ok(message)) = socket.next().await {
            if message.into_data()[..] == [channel::CLOSE, 0] {
                break;
            }
            received += PIECE;
        }
        let image = (received < 64 << 20).then(|| "sha256:ab".to_owned());
        let word = Finish::Complete { image }.to_json();
        say(&mut socket, channel::STATUS, &word).await.unwrap();
        while let Some(Ok(_)) = socket.next().await {}
    })
    .await;
    let root = large();
    let image = built(&client, root.path(), Sink::Nowhere).await.unwrap();
    assert_eq!(image, "sha256:ab");
}

#[tokio::test]
async fn an_end_without_a_last_word_is_no_image() {
    let client = hub(async |mut socket| {
        say(&mut socket, 1, b"half").await.unwrap();
    })
    .await;
    let root = large();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image.tar");
    let error = built(&client, root.path(), Sink::to(&path).unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.code(), HUB_FAILED, "{error}");
    assert!(!path.exists());
}
