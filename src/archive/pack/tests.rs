#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::{ffi::OsStr, io::Write as _};

use super::super::ignore::Rules;
use super::super::read::{Entry, EntryKind, Item, Reader};
use super::super::walk::{Fate, WalkError, walk};
use super::*;

/// The archive of a directory, and what was told of things that no archive takes.
fn packed(root: &Path, rules: &Rules) -> Result<(Vec<u8>, Vec<String>), WalkError<PackError>> {
    let mut bytes = Vec::new();
    let mut notices = Vec::new();
    let mut out = |piece: Bytes| {
        assert!(piece.len() <= PIECE);
        bytes.extend(piece);
        Ok(())
    };
    let mut packer = Packer::new(Owner::Root, &mut out);
    walk(root, rules, &mut |found| match found.fate {
        Fate::Sent(_) => packer.add(found.path, found.file, found.metadata),
        Fate::Ignored(_) => Ok(()),
        Fate::Unsendable(kind) => {
            notices.push(format!("{} {kind}", shown(found.path)));
            Ok(())
        }
    })?;
    packer.finish().map_err(WalkError::Visitor)?;
    Ok((bytes, notices))
}

fn entries(bytes: Vec<u8>) -> Vec<(Entry, Vec<u8>)> {
    let mut reader = Reader::default();
    reader.push(bytes.into());
    let mut entries = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        match item {
            Item::Entry(entry) => entries.push((entry, Vec::new())),
            Item::Data(data) => entries.last_mut().unwrap().1.extend(data),
            Item::End => {}
        }
    }
    reader.finish().unwrap();
    entries
}

fn named(root: &Path, rules: &str) -> Vec<String> {
    let (bytes, _) = packed(root, &Rules::parse(rules.as_bytes()).unwrap()).unwrap();
    let names = entries(bytes).into_iter();
    names.map(|(entry, _)| shown(&entry.name)).collect()
}

#[test]
fn a_tree_is_sent_as_it_stands() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    fs::create_dir_all(root.join("b/empty")).unwrap();
    fs::write(root.join("b/two"), [7; 1000]).unwrap();
    fs::hard_link(root.join("b/two"), root.join("z")).unwrap();
    fs::write(root.join("a run"), b"#!/bin/sh\n").unwrap();
    fs::set_permissions(root.join("a run"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(root.join("b/empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    symlink("../b", root.join("b/loop")).unwrap();
    symlink("/nowhere", root.join("dangling")).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"raw\xff")), b"").unwrap();
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    let fifo = Command::new("mkfifo").arg(root.join("fifo")).status();
    let (bytes, notices) = packed(root, &Rules::default()).unwrap();
    if fifo.is_ok_and(|status| status.success()) {
        assert_eq!(notices, ["fifo a FIFO", "socket a socket"]);
    }
    let sent = entries(bytes.clone());
    let by_name: BTreeMap<_, _> = sent
        .iter()
        .map(|(e, data)| (&e.name[..], (e, data)))
        .collect();
    let order: Vec<_> = sent.iter().map(|(entry, _)| &entry.name[..]).collect();
    let expected: [&[u8]; 8] = [
        b"a run",
        b"b/",
        b"b/empty/",
        b"b/loop",
        b"b/two",
        b"dangling",
        b"raw\xff",
        b"z",
    ];
    assert_eq!(order, expected);
    let kind = |name: &[u8]| by_name[name].0.kind.clone();
    assert_eq!(
        kind(b"z"),
        EntryKind::HardLink(Bytes::from_static(b"b/two"))
    );
    assert_eq!(
        kind(b"b/loop"),
        EntryKind::Symlink(Bytes::from_static(b"../b"))
    );
    assert_eq!(
        kind(b"dangling"),
        EntryKind::Symlink(Bytes::from_static(b"/nowhere"))
    );
    assert_eq!(by_name[&b"b/two"[..]].1, &[7; 1000]);
    assert_eq!(by_name[&b"a run"[..]].0.mode, 0o4755);
    assert_eq!(by_name[&b"b/empty/"[..]].0.mode, 0o1777);
    let of = fs::metadata(root.join("z")).unwrap().mtime();
    assert!(
        sent.iter()
            .all(|(entry, _)| (entry.uid, entry.gid) == (0, 0))
    );
    assert_eq!(by_name[&b"b/two"[..]].0.mtime, of);
    let again = packed(root, &Rules::default()).unwrap();
    assert!(bytes == again.0, "the same tree gives the same bytes");
}

#[test]
fn a_link_to_what_stays_at_home_is_sent_whole() {
    for (kept, sent) in [("a", "z"), ("z", "a")] {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), b"same").unwrap();
        fs::hard_link(root.path().join("a"), root.path().join("z")).unwrap();
        let rules = Rules::parse(kept.as_bytes()).unwrap();
        let (bytes, _) = packed(root.path(), &rules).unwrap();
        let [(entry, data)] = &entries(bytes)[..] else {
            panic!()
        };
        assert_eq!(
            (&entry.name[..], &data[..]),
            (sent.as_bytes(), &b"same"[..])
        );
        assert_eq!(entry.kind, EntryKind::File(4));
    }
}

#[test]
fn ignored_directories_are_entered_only_for_exceptions() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::create_dir_all(root.join("c")).unwrap();
    for file in ["a/b/keep", "a/b/x", "a/y", "c/keep"] {
        fs::write(root.join(file), b"").unwrap();
    }
    assert_eq!(named(root, "*\n!a/b/keep"), ["a/b/keep"]);
    assert_eq!(named(root, "*\n!a/b"), ["a/b/", "a/b/keep", "a/b/x"]);
    assert_eq!(named(root, "*\n!**/keep"), Vec::<String>::new());
    assert_eq!(named(root, "**/keep\na/b"), ["a/", "a/y", "c/"]);
}

/// Names and links of every length that some field does not hold.
fn torture(root: &Path) -> Vec<Vec<u8>> {
    let deep = |length: usize| {
        let mut path = String::new();
        while path.len() + 200 < length {
            path.push_str(&"d".repeat(199));
            path.push('/');
        }
        path.push_str(&"f".repeat(length - path.len()));
        path
    };
    let mut names = vec![];
    for length in [101, 156, 256, 257, 1000, 4000] {
        names.push(deep(length));
    }
    names.push("späte Größe/ünï cödé 日本語".into());
    names.push(" leading and trailing ".into());
    for name in &names {
        let file = root.join(name);
        // Longer than the system takes a path, where the directory's own is long.
        if fs::create_dir_all(file.parent().unwrap()).is_err() {
            continue;
        }
        fs::write(&file, name).unwrap();
    }
    symlink("t".repeat(101), root.join("link101")).unwrap();
    symlink("ü/".repeat(1000), root.join("link3000")).unwrap();
    names.into_iter().map(String::into_bytes).collect()
}

#[test]
fn names_and_targets_of_any_length_arrive() {
    let root = tempfile::Builder::new()
        .prefix("t")
        .rand_bytes(4)
        .tempdir()
        .unwrap();
    let names = torture(root.path());
    let (bytes, _) = packed(root.path(), &Rules::default()).unwrap();
    let sent: BTreeMap<_, _> = entries(bytes.clone())
        .into_iter()
        .map(|(entry, data)| (entry.name.to_vec(), (entry.kind, data)))
        .collect();
    for name in &names {
        assert!(
            sent.get(name).is_some_and(|(_, data)| data == name),
            "{}",
            name.len()
        );
    }
    let target = |name: &str| match &sent[name.as_bytes()].0 {
        EntryKind::Symlink(target) => target.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!((target("link101"), target("link3000")), (101, 3000));
    // What others make of it: one name a line.
    let gnu = filtered(&bytes, "tar", &["--quoting-style=literal", "-tf", "-"]);
    let script = "import sys, tarfile\n\
                  with tarfile.open(fileobj=sys.stdin.buffer, mode='r|') as t:\n  \
                  for m in t: print(m.name + ('/' if m.isdir() else ''))";
    let python = filtered(&bytes, "python3", &["-X", "utf8", "-c", script]);
    for (program, listed) in [("tar", gnu), ("python3", python)] {
        let Some(listed) = listed else {
            println!("not compared: {program} is not here");
            continue;
        };
        let mut listed: Vec<_> = listed.split(|byte| *byte == b'\n').collect();
        listed.retain(|line| !line.is_empty());
        let ours: Vec<_> = entries(bytes.clone())
            .into_iter()
            .map(|(e, _)| e.name)
            .collect();
        assert_eq!(listed, ours, "{program}");
    }
}

/// What a program prints that reads these bytes; nothing where it is not installed.
fn filtered(bytes: &[u8], program: &str, arguments: &[&str]) -> Option<Vec<u8>> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take()?;
    let bytes = bytes.to_vec();
    let writes = thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writes.join().unwrap().unwrap();
    assert!(output.status.success(), "{program}");
    Some(output.stdout)
}

#[test]
fn a_sparse_file_of_8_gib_passes_and_is_counted() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("sparse");
    let size = (8 << 30) + 3;
    let mut file = File::create(&path).unwrap();
    file.set_len(size).unwrap();
    io::Seek::seek(&mut file, io::SeekFrom::Start(5 << 30)).unwrap();
    file.write_all(b"an island").unwrap();
    let mut reader = Reader::default();
    let (mut counted, mut island, mut ended) = (0, Vec::new(), false);
    let mut out = |piece: Bytes| {
        reader.push(piece);
        while let Some(item) = reader.next().unwrap() {
            match item {
                Item::Entry(entry) => assert_eq!(entry.kind, EntryKind::File(size)),
                Item::Data(data) => {
                    // Zeros out of the hole are not looked at.
                    if data.as_ptr() != ZEROS.as_ptr() {
                        island.extend(data.iter().filter(|byte| **byte != 0));
                    }
                    counted += data.len() as u64;
                }
                Item::End => ended = true,
            }
        }
        Ok(())
    };
    let mut packer = Packer::new(Owner::Root, &mut out);
    let metadata = fs::symlink_metadata(&path).unwrap();
    packer.add(b"sparse", &path, &metadata).unwrap();
    packer.finish().unwrap();
    assert_eq!(
        (counted, &island[..], ended),
        (size, &b"an island"[..], true)
    );
}

#[test]
fn a_file_that_changes_meanwhile_is_named() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("log");
    let attempt = |change: fn(&Path)| {
        fs::write(&path, vec![1; 3 * PIECE]).unwrap();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let mut pieces = 0;
        let mut out = |_| {
            // After the first piece.
            if pieces == 0 {
                change(&path);
            }
            pieces += 1;
            Ok(())
        };
        let packed = Packer::new(Owner::Root, &mut out).add(b"log", &path, &metadata);
        packed.unwrap_err().to_string()
    };
    let shorter = attempt(|path| {
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(PIECE as u64)
            .unwrap();
    });
    assert!(shorter.starts_with("log became shorter"), "{shorter}");
    let longer = attempt(|path| {
        File::options()
            .append(true)
            .open(path)
            .unwrap()
            .write_all(b"x")
            .unwrap();
    });
    assert!(longer.starts_with("log became longer"), "{longer}");
    // Between the look and the reading.
    let metadata = fs::symlink_metadata(&path).unwrap();
    fs::write(root.path().join("other"), b"").unwrap();
    fs::rename(root.path().join("other"), &path).unwrap();
    let mut out = |_| Ok(());
    let replaced = Packer::new(Owner::Root, &mut out).add(b"log", &path, &metadata);
    assert!(
        replaced
            .unwrap_err()
            .to_string()
            .starts_with("log was replaced")
    );
    fs::remove_file(&path).unwrap();
    symlink("/etc/passwd", &path).unwrap();
    let mut out = |_| Ok(());
    let link = Packer::new(Owner::Root, &mut out).add(b"log", &path, &metadata);
    assert!(
        matches!(link, Err(PackError::Read { .. })),
        "a link is not followed"
    );
}

/// Runs this test's body as a user that may not read everything.
#[test]
fn what_cannot_be_read_is_named_unless_it_is_ignored() {
    const INNER: &str = "HUB_TEST_UNREADABLE";
    if let Some(root) = std::env::var_os(INNER) {
        let packed = |rules: &str| {
            let rules = Rules::parse(rules.as_bytes()).unwrap();
            packed(Path::new(&root), &rules)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        let error = packed("dir").unwrap_err();
        assert!(error.starts_with("cannot read secret: "), "{error}");
        let error = packed("secret").unwrap_err();
        assert!(error.starts_with("cannot read dir: "), "{error}");
        packed("dir\nsecret").unwrap();
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    mode(root.path(), 0o755).unwrap();
    fs::write(root.path().join("secret"), b"").unwrap();
    fs::create_dir(root.path().join("dir")).unwrap();
    mode(&root.path().join("secret"), 0).unwrap();
    mode(&root.path().join("dir"), 0).unwrap();
    let name = module_path!().split_once("::").unwrap().1;
    let mut inner = Command::new(std::env::current_exe().unwrap());
    inner.arg("--exact").arg(format!(
        "{name}::what_cannot_be_read_is_named_unless_it_is_ignored"
    ));
    inner.env(INNER, root.path());
    if rustix::process::geteuid().is_root() {
        use std::os::unix::process::CommandExt as _;
        inner.uid(65534).gid(65534);
    }
    let output = inner.output().unwrap();
    mode(&root.path().join("dir"), 0o755).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[tokio::test]
async fn an_archive_that_a_thread_writes_is_whole_or_in_error() {
    let mut stream = Stream::of(Owner::Root, |packer| packer.add_bytes(b"a", b"xy")).unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await.unwrap() {
        bytes.extend(piece);
    }
    assert_eq!(entries(bytes)[0].1, b"xy");
    let mut stream = Stream::of(Owner::Root, |_| panic!("as a bug would")).unwrap();
    assert!(stream.next().await.is_err());
    // A thread whose archive nobody wants ends by itself.
    let (ends, ended) = tokio::sync::oneshot::channel();
    let stream = Stream::of(Owner::Root, |packer| {
        let endless = loop {
            if let Err(error) = packer.zeros(PIECE as u64) {
                break Err(error);
            }
        };
        let _ = ends.send(());
        endless
    });
    drop(stream);
    ended.await.unwrap();
}
