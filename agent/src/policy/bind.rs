//! Where a path of the machine really leads.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Whether it is absolute and has no `..`: what is left is read the same by everybody.
pub(super) fn is_plain(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// The path with all links resolved. What is not there yet is taken as it will be made: below the
/// nearest directory that is.
///
/// # Errors
/// Something on the way can't be read, or is a link that leads nowhere, and would be followed once
/// it leads somewhere.
pub(super) fn real(path: &Path) -> io::Result<PathBuf> {
    let mut missing = Vec::new();
    let mut there = path;
    loop {
        match fs::canonicalize(there) {
            Ok(real) => {
                let parts = missing.iter().rev();
                return Ok(parts.fold(real, |path, part| path.join(part)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(there).is_ok() {
                    let what = format!("{} is a link that leads nowhere", there.display());
                    return Err(io::Error::new(io::ErrorKind::NotFound, what));
                }
                let (Some(parent), Some(name)) = (there.parent(), there.file_name()) else {
                    return Err(error);
                };
                missing.push(name);
                there = parent;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn plain_paths() {
        for (path, plain) in [
            ("/", true),
            ("/srv/data", true),
            ("/srv/./data/", true),
            ("//srv", true),
            ("/srv/../etc", false),
            ("/srv/data/..", false),
            ("srv", false),
            ("./srv", false),
            ("", false),
        ] {
            assert_eq!(is_plain(Path::new(path)), plain, "{path}");
        }
    }

    #[test]
    fn links_are_followed_and_what_is_missing_is_taken_as_it_will_be() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(root.join("data/deep")).unwrap();
        symlink("/etc", root.join("data/out")).unwrap();
        symlink("deep", root.join("data/in")).unwrap();
        symlink(root.join("later"), root.join("data/dangling")).unwrap();
        let of = |path: &str| real(&root.join(path));
        assert_eq!(of("data/deep/./x/y").unwrap(), root.join("data/deep/x/y"));
        assert_eq!(of("data/in/x").unwrap(), root.join("data/deep/x"));
        assert_eq!(of("data/out").unwrap(), Path::new("/etc"));
        assert_eq!(
            of("data/out/no-such/x").unwrap(),
            Path::new("/etc/no-such/x")
        );
        assert!(of("data/dangling").is_err() && of("data/dangling/x").is_err());
        // What is no directory has nothing below it.
        fs::write(root.join("file"), "").unwrap();
        assert!(of("file/x").is_err());
    }
}
