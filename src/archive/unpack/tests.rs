#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::super::header::{END, Kind, Member, padding};
use super::super::ignore::Rules;
use super::super::pack::{Owner, Packer};
use super::super::walk::walk;
use super::*;

/// An archive of members with their bytes.
fn archive(members: &[(&str, Kind<'_>, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, kind, data) in members {
        let member = Member {
            name: name.as_bytes(),
            kind: *kind,
            mode: 0o6755,
            uid: 1_000_690_000,
            gid: 5,
            mtime: 1_000_000_000,
        };
        member.encode(&mut bytes);
        bytes.extend(*data);
        bytes.resize(bytes.len() + padding(data.len() as u64), 0);
    }
    bytes.extend(END);
    bytes
}

fn file(data: &'static [u8]) -> (Kind<'static>, &'static [u8]) {
    (Kind::File(data.len() as u64), data)
}

fn unpack(at: &Path, options: Options, bytes: &[u8]) -> Result<u64, UnpackError> {
    let mut unpacker = Unpacker::new(at, options).unwrap();
    for piece in bytes.chunks(700) {
        unpacker.push(Bytes::copy_from_slice(piece))?;
    }
    unpacker.finish()
}

fn asked(asked: &str, becomes: Option<&str>) -> Options {
    Options {
        asked: Some(asked.into()),
        becomes: becomes.map(Into::into),
        ..Options::default()
    }
}

/// A directory to unpack into, beside things that must stay as they are.
struct Place {
    root: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("here")).unwrap();
        fs::create_dir(root.path().join("outside")).unwrap();
        fs::write(root.path().join("outside/secret"), b"untouched").unwrap();
        Self { root }
    }

    fn here(&self) -> std::path::PathBuf {
        self.root.path().join("here")
    }

    /// Whether nothing outside has changed, and no leftover stands inside.
    fn is_intact(&self) {
        let names = |path: &Path| {
            let mut names: Vec<_> = fs::read_dir(path)
                .unwrap()
                .map(|e| e.unwrap().file_name())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(self.root.path()), ["here", "outside"]);
        let outside = self.root.path().join("outside");
        assert_eq!(names(&outside), ["secret"]);
        assert_eq!(fs::read(outside.join("secret")).unwrap(), b"untouched");
        let leftovers = names(&self.here()).into_iter();
        let leftovers: Vec<_> = leftovers
            .filter(|n| n.as_bytes().starts_with(b".hub-cp-"))
            .collect();
        assert!(leftovers.is_empty(), "{leftovers:?}");
    }
}

#[test]
fn a_tree_comes_out_as_it_went_in() {
    let source = tempfile::tempdir().unwrap();
    let root = source.path();
    fs::create_dir_all(root.join("d/closed")).unwrap();
    fs::write(root.join("d/closed/a"), vec![3; 100_000]).unwrap();
    fs::hard_link(root.join("d/closed/a"), root.join("d/b")).unwrap();
    fs::write(root.join("d/empty"), b"").unwrap();
    fs::write(root.join(os(b"raw\xff")), b"r").unwrap();
    symlink("closed/a", root.join("d/link")).unwrap();
    symlink("/absolute", root.join("d/absolute")).unwrap();
    fs::set_permissions(root.join("d/closed"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(root.join("d/b"), fs::Permissions::from_mode(0o640)).unwrap();
    let mut bytes = Vec::new();
    let mut out = |piece: Bytes| {
        bytes.extend(piece);
        Ok(())
    };
    let mut packer = Packer::new(Owner::Source, &mut out);
    walk(root, &Rules::default(), &mut |found| {
        packer.add(found.path, found.file, found.metadata)
    })
    .unwrap();
    packer.finish().unwrap();
    let place = Place::new();
    let here = place.here();
    assert_eq!(unpack(&here, Options::default(), &bytes).unwrap(), 8);
    assert_eq!(fs::read(here.join("d/closed/a")).unwrap(), vec![3; 100_000]);
    let ino = |path: &str| fs::metadata(here.join(path)).unwrap().ino();
    assert_eq!(ino("d/closed/a"), ino("d/b"));
    assert_eq!(
        fs::read_link(here.join("d/link")).unwrap(),
        Path::new("closed/a")
    );
    assert_eq!(
        fs::read_link(here.join("d/absolute")).unwrap(),
        Path::new("/absolute")
    );
    assert_eq!(fs::read(here.join(os(b"raw\xff"))).unwrap(), b"r");
    for path in ["d", "d/closed", "d/b", "d/empty"] {
        let (a, b) = (
            root.join(path).metadata().unwrap(),
            here.join(path).metadata().unwrap(),
        );
        assert_eq!((a.mode(), a.mtime()), (b.mode(), b.mtime()), "{path}");
    }
    fs::set_permissions(root.join("d/closed"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(here.join("d/closed"), fs::Permissions::from_mode(0o755)).unwrap();
    place.is_intact();
}

#[test]
fn what_was_asked_for_gets_the_name_that_was_wanted() {
    let (kind, data) = file(b"x");
    let bytes = archive(&[
        ("app", Kind::Directory, b""),
        ("app/f", kind, data),
        ("app/g", Kind::HardLink(b"app/f"), b""),
    ]);
    let place = Place::new();
    unpack(&place.here(), asked("app", Some("new")), &bytes).unwrap();
    assert_eq!(fs::read(place.here().join("new/g")).unwrap(), b"x");
    unpack(&place.here(), asked("app", None), &bytes).unwrap();
    assert_eq!(fs::read(place.here().join("app/f")).unwrap(), b"x");
    let contents = archive(&[(".", Kind::Directory, b""), ("./f", kind, data)]);
    let options = Options {
        becomes: Some(b"fresh".to_vec()),
        ..Options::default()
    };
    unpack(&place.here(), options, &contents).unwrap();
    assert_eq!(fs::read(place.here().join("fresh/f")).unwrap(), b"x");
    // What was there keeps its looks; what was made has those of the archive, less set-uid.
    fs::set_permissions(place.here(), fs::Permissions::from_mode(0o700)).unwrap();
    unpack(&place.here(), Options::default(), &contents).unwrap();
    assert_eq!(fs::metadata(place.here()).unwrap().mode() & 0o7777, 0o700);
    assert_eq!(
        fs::metadata(place.here().join("f")).unwrap().mode() & 0o7777,
        0o755
    );
    let error = unpack(&place.here(), asked("other", None), &bytes)
        .unwrap_err()
        .to_string();
    assert!(error.contains("not within what was asked for"), "{error}");
}

#[test]
fn nothing_is_written_outside() {
    let (kind, data) = file(b"evil");
    let climbing = Kind::Symlink(b"../outside");
    let away = Kind::Symlink(b"/tmp");
    #[allow(clippy::type_complexity)]
    let cases: Vec<(&str, Vec<(&str, Kind<'_>, &[u8])>)> = vec![
        ("absolute", vec![("/tmp/hub-evil", kind, data)]),
        (".. in it", vec![("../outside/secret", kind, data)]),
        (".. in it", vec![("a/../../outside/secret", kind, data)]),
        (".. in it", vec![("..", Kind::Directory, b"")]),
        (
            "leads out",
            vec![("l", climbing, b""), ("l/secret", kind, data)],
        ),
        (
            "leads out",
            vec![("a/l", Kind::Symlink(b"b/../../../outside"), b"")],
        ),
        (
            "stands in its path",
            vec![("l", away, b""), ("l/hub-evil", kind, data)],
        ),
        (
            "stands in its path",
            vec![("l", Kind::Symlink(b"."), b""), ("l/x", kind, data)],
        ),
        (
            "comes twice",
            vec![("l", away, b""), ("l", Kind::Directory, b"")],
        ),
        (
            "stands in its path",
            vec![("f", kind, data), ("f/x", kind, data)],
        ),
        ("stands in its path", vec![("there", Kind::Directory, b"")]),
        ("stands in its path", vec![("there/secret", kind, data)]),
        ("did not write", vec![("h", Kind::HardLink(b"there"), b"")]),
        (
            "did not write",
            vec![("h", Kind::HardLink(b"nowhere"), b"")],
        ),
        (
            "did not write",
            vec![("l", away, b""), ("h", Kind::HardLink(b"l"), b"")],
        ),
        (
            ".. in it",
            vec![("h", Kind::HardLink(b"../outside/secret"), b"")],
        ),
        ("absolute", vec![("h", Kind::HardLink(b"/etc/passwd"), b"")]),
        ("comes twice", vec![("f", kind, data), ("./f", kind, data)]),
        (
            "comes twice",
            vec![("d", Kind::Directory, b""), ("d//", Kind::Directory, b"")],
        ),
        (
            "a directory stands there",
            vec![("d/x", kind, data), ("d", kind, data)],
        ),
        ("replace what it is unpacked into", vec![(".", kind, data)]),
    ];
    for (expected, members) in cases {
        let place = Place::new();
        symlink("../outside", place.here().join("there")).unwrap();
        let bytes = archive(&members);
        let error = unpack(&place.here(), Options::default(), &bytes).expect_err(expected);
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        place.is_intact();
        assert!(!Path::new("/tmp/hub-evil").exists());
    }
}

#[test]
fn what_stands_in_a_files_place_is_replaced_and_not_written_through() {
    let place = Place::new();
    symlink("../outside/secret", place.here().join("f")).unwrap();
    fs::hard_link(
        place.root.path().join("outside/secret"),
        place.here().join("g"),
    )
    .unwrap();
    let (kind, data) = file(b"new");
    let bytes = archive(&[
        ("f", kind, data),
        ("g", kind, data),
        ("l", Kind::Symlink(b"f"), b""),
    ]);
    unpack(&place.here(), Options::default(), &bytes).unwrap();
    unpack(&place.here(), Options::default(), &bytes).unwrap();
    for name in ["f", "g"] {
        assert_eq!(fs::read(place.here().join(name)).unwrap(), b"new");
        assert!(!place.here().join(name).is_symlink());
    }
    place.is_intact();
}

#[test]
fn devices_are_refused_and_half_files_are_not_left() {
    for (flag, expected) in [
        (b'3', "character device"),
        (b'4', "block device"),
        (b'6', "FIFO"),
    ] {
        let (kind, data) = file(b"");
        let mut bytes = archive(&[("dev", kind, data)]);
        let end = bytes.len() - END.len();
        let header = &mut bytes[end - 512..end];
        header[156] = flag;
        let sum = super::super::header::checksum((&*header).try_into().unwrap());
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let place = Place::new();
        let error = unpack(&place.here(), Options::default(), &bytes)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
        place.is_intact();
    }
    let place = Place::new();
    let (kind, data) = file(&[1; 3000]);
    let bytes = archive(&[("f", kind, data)]);
    unpack(&place.here(), Options::default(), &bytes[..2000]).unwrap_err();
    assert!(!place.here().join("f").exists());
    place.is_intact();
}

#[test]
fn quotas_hold() {
    let (kind, data) = file(&[1; 600]);
    let bytes = archive(&[("a", kind, data), ("b", kind, data)]);
    let place = Place::new();
    let limited = |max_bytes, max_entries| {
        let options = Options {
            max_bytes,
            max_entries,
            ..Options::default()
        };
        let unpacked = unpack(&place.here(), options, &bytes);
        unpacked.map_err(|error| error.to_string())
    };
    assert_eq!(limited(1200, 2), Ok(2));
    assert_eq!(
        limited(1199, 2),
        Err("the archive holds more than 1199 bytes".into())
    );
    assert_eq!(
        limited(1200, 1),
        Err("the archive holds more than 1 entries".into())
    );
}

#[test]
fn owners_are_kept_where_that_was_wanted() {
    if !rustix::process::geteuid().is_root() {
        println!("not shown: only root gives files away");
        return;
    }
    let (kind, data) = file(b"x");
    let bytes = archive(&[
        ("d", Kind::Directory, b""),
        ("d/f", kind, data),
        ("l", Kind::Symlink(b"f"), b""),
    ]);
    let place = Place::new();
    let options = Options {
        owners: true,
        ..Options::default()
    };
    unpack(&place.here(), options, &bytes).unwrap();
    for name in ["d", "d/f", "l"] {
        let metadata = fs::symlink_metadata(place.here().join(name)).unwrap();
        assert_eq!(
            (metadata.uid(), metadata.gid()),
            (1_000_690_000, 5),
            "{name}"
        );
    }
    assert_eq!(
        fs::metadata(place.here().join("d/f")).unwrap().mode() & 0o7777,
        0o6755
    );
}
