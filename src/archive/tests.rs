#![allow(clippy::unwrap_used)]

//! What Docker's own client sends of the same trees.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use tokio::net::UnixListener;
use tokio::process::Command;

use super::ignore::Rules;
use super::pack::{Owner, Packer};
use super::read::{EntryKind, Item, Reader};
use super::walk::{Fate, WalkError, walk};

/// What an archive holds: by name the kind, with a link's target or a file's bytes, and the mode.
type Listing = BTreeMap<Vec<u8>, (String, u32)>;

fn listing(archive: Bytes) -> Listing {
    let mut reader = Reader::default();
    reader.push(archive);
    let mut listing = Listing::new();
    let mut last = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        match item {
            Item::Entry(entry) => {
                let kind = match entry.kind {
                    EntryKind::File(size) => format!("file of {size} "),
                    kind => format!("{kind:?}"),
                };
                last = entry.name.to_vec();
                assert!(listing.insert(last.clone(), (kind, entry.mode)).is_none());
            }
            Item::Data(data) => {
                let (kind, _) = listing.get_mut(&last).unwrap();
                kind.push_str(&String::from_utf8_lossy(&data));
            }
            Item::End => {}
        }
    }
    listing
}

const NAMES: [&str; 14] = [
    "a", "b", "ab", "foo", "bar", "x.go", "y.go", ".x", "keep", "d e", "ü", "a.b", "7", "[c]",
];

/// Fills a directory: files, links of both kinds, directories, some of them empty.
fn grow(random: &mut Pcg64Mcg, root: &Path, directory: &str, depth: u32, files: &mut Vec<String>) {
    for name in NAMES {
        if random.random_range(0..10) < 6 {
            continue;
        }
        let path = format!("{directory}{name}");
        let at = root.join(&path);
        match random.random_range(0..10) {
            0..4 if depth < 3 => {
                fs::create_dir(&at).unwrap();
                grow(random, root, &format!("{path}/"), depth + 1, files);
                let mode = [0o755, 0o700, 0o1777][random.random_range(0..3)];
                fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
            }
            4 => {
                let targets = [".", "..", "nowhere", "/etc/passwd", "foo/bar", name];
                symlink(targets[random.random_range(0..targets.len())], &at).unwrap();
            }
            5 if !files.is_empty() => {
                let first = &files[random.random_range(0..files.len())];
                fs::hard_link(root.join(first), &at).unwrap();
            }
            _ => {
                fs::write(&at, &path).unwrap();
                let mode = [0o644, 0o600, 0o755, 0o4711][random.random_range(0..4)];
                fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
                files.push(path);
            }
        }
    }
}

const PARTS: [&str; 26] = [
    "*",
    "**",
    "**",
    "?",
    "*.go",
    "a*",
    "[a-c]",
    "[^a]",
    "[^b]*",
    "\\a",
    "\\[c\\]",
    "f?o",
    "**foo",
    "b**",
    ".",
    "..",
    "",
    "Dockerfile",
    ".dockerignore",
    "*e*",
    "\\d",
    "a.?",
    "[",
    "[a-c]*",
    "{a}",
    "^a",
];

fn ignore_file(random: &mut Pcg64Mcg) -> String {
    let mut file = String::new();
    if random.random_range(0..20) == 0 {
        file.push('\u{feff}');
    }
    for _ in 0..random.random_range(0..7) {
        file.push_str(["", "", "", "", " ", "#", "/", "./", "\t"][random.random_range(0..9)]);
        if random.random_range(0..3) == 0 {
            file.push_str(["!", "! ", "!/"][random.random_range(0..3)]);
        }
        for part in 0..random.random_range(1..4) {
            if part > 0 {
                file.push('/');
            }
            let name = match random.random_range(0..10) {
                // A malformed one spoils the whole file: seldom.
                0..4 => match PARTS[random.random_range(0..PARTS.len())] {
                    "[" if random.random_range(0..8) > 0 => "*",
                    part => part,
                },
                _ => NAMES[random.random_range(0..NAMES.len())],
            };
            file.push_str(name);
        }
        file.push_str(["", "", "", "/", " ", "\r"][random.random_range(0..6)]);
        file.push('\n');
    }
    file
}

/// What we send of a directory; nothing where its rules are refused.
fn ours(root: &Path, judge_as_20_10: bool) -> Option<Listing> {
    let mut rules = Rules::parse(&fs::read(root.join(".dockerignore")).unwrap()).ok()?;
    rules.always_send(".dockerignore").ok()?;
    rules.always_send("Dockerfile").ok()?;
    if judge_as_20_10 && rules.any_is_malformed() {
        return None;
    }
    let mut bytes = Vec::new();
    let mut out = |piece: Bytes| {
        bytes.extend(piece);
        Ok(())
    };
    let mut packer = Packer::new(Owner::Root, &mut out);
    let visited = walk(root, &rules, &mut |found| {
        let sent = if judge_as_20_10 {
            !rules.ignored_as_by_20_10(&super::ignore::as_text(found.path))
        } else {
            matches!(found.fate, Fate::Sent(_))
        };
        if sent {
            packer.add(found.path, found.file, found.metadata)
        } else {
            Ok(())
        }
    });
    match visited {
        Err(WalkError::Rule(_)) => return None,
        visited => visited.unwrap(),
    }
    packer.finish().unwrap();
    Some(listing(bytes.into()))
}

/// A daemon that keeps the context of the last build, and has nothing else to say.
async fn daemon(listener: UnixListener, context: Arc<Mutex<Option<Bytes>>>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let context = Arc::clone(&context);
        let answer = service_fn(move |request: Request<Incoming>| {
            let context = Arc::clone(&context);
            async move {
                let build = request.method() == Method::POST;
                let build = build && request.uri().path().ends_with("/build");
                // A client that gives up in the middle sent nothing.
                let body = request.into_body().collect().await;
                if let (true, Ok(body)) = (build, body) {
                    *context.lock().unwrap() = Some(body.to_bytes());
                }
                let answer = Response::builder()
                    .header("Api-Version", "1.41")
                    .header("Content-Type", "application/json")
                    .body(Full::new(Bytes::from_static(b"{}")));
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        let connection = hyper::server::conn::http1::Builder::new();
        tokio::spawn(connection.serve_connection(TokioIo::new(stream), answer));
    }
}

/// Which clients are here: program and major version.
async fn clients() -> Vec<(&'static str, u32)> {
    let mut found: Vec<(&str, u32)> = Vec::new();
    for program in ["docker", "/usr/bin/docker"] {
        let version = ["version", "--format", "{{.Client.Version}}"];
        let Ok(output) = Command::new(program).args(version).output().await else {
            continue;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        if let Some(Ok(major)) = text.trim().split('.').next().map(str::parse)
            && found.iter().all(|(_, known)| *known != major)
        {
            found.push((program, major));
        }
    }
    found
}

#[tokio::test]
#[ignore = "needs a docker client"]
async fn docker_itself_sends_the_same() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("docker.sock");
    let context = Arc::new(Mutex::new(None));
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(daemon(listener, Arc::clone(&context)));
    let clients = clients().await;
    if clients.is_empty() {
        println!("not compared: there is no docker client here");
    }
    let cases = if std::env::var_os("HUB_LONG").is_some() {
        1000
    } else {
        200
    };
    for (program, major) in clients {
        let (mut compared, mut refused, mut excluded) = (0, 0, 0);
        let mut differences = String::new();
        for seed in 0..cases {
            let mut random = Pcg64Mcg::seed_from_u64(seed);
            let tree = scratch.path().join(format!("{major}-{seed}"));
            fs::create_dir(&tree).unwrap();
            grow(&mut random, &tree, "", 0, &mut Vec::new());
            fs::write(tree.join("Dockerfile"), b"FROM scratch\n").unwrap();
            fs::write(tree.join(".dockerignore"), ignore_file(&mut random)).unwrap();
            let expected = ours(&tree, false);
            // Older clients differ where ours follows the newer ones.
            if major < 23 && ours(&tree, true) != expected {
                continue;
            }
            *context.lock().unwrap() = None;
            let output = Command::new(program)
                .args(["build", "."])
                .current_dir(&tree)
                .env_clear()
                .env("PATH", std::env::var_os("PATH").unwrap_or_default())
                .env("HOME", scratch.path())
                .env("DOCKER_CONFIG", scratch.path())
                .env("DOCKER_BUILDKIT", "0")
                .env("DOCKER_HOST", format!("unix://{}", socket.display()))
                .stdin(Stdio::null())
                .output()
                .await
                .unwrap();
            let sent = context.lock().unwrap().take().map(listing);
            compared += 1;
            refused += u32::from(sent.is_none());
            excluded += u32::from(sent.as_ref().is_some_and(|sent| sent.len() < 4));
            if sent != expected {
                let (ours, theirs) = (expected.unwrap_or_default(), sent.unwrap_or_default());
                let differs = |name: &&Vec<u8>| ours.get(*name) != theirs.get(*name);
                let names = ours.keys().chain(theirs.keys()).filter(differs);
                let names: Vec<_> = names.map(|name| super::shown(name)).collect();
                let _ = writeln!(
                    differences,
                    "seed {seed}, with {:?}: {} of ours, {} of docker's, differing in {names:?}\n{}",
                    fs::read_to_string(tree.join(".dockerignore")).unwrap(),
                    ours.len(),
                    theirs.len(),
                    String::from_utf8_lossy(&output.stderr),
                );
            }
            fs::remove_dir_all(&tree).unwrap();
        }
        println!(
            "docker {major}: {compared} trees compared, {refused} refused by both, \
             {excluded} nearly empty"
        );
        assert!(differences.is_empty(), "docker {major}\n{differences}");
        assert!(
            compared > cases * 3 / 4,
            "docker {major}: {compared} of {cases}"
        );
    }
}
