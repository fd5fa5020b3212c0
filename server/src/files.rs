//! Files that are whole or absent, whenever the power fails.
//!
//! Both ways write a temporary file beside the target, flush it to disk, give it its name and flush
//! the directory: a reader sees the old content, the new content or none, and never a part.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Creates a file that must not exist yet. `false`: somebody else was faster, and theirs stands.
pub fn create(path: &Path, mode: u32, content: &[u8]) -> io::Result<bool> {
    let temporary = write_temporary(path, mode, content)?;
    // A link fails where a rename would replace the file of whoever was faster.
    let linked = fs::hard_link(&temporary, path);
    fs::remove_file(&temporary)?;
    match linked {
        Ok(()) => sync_directory_of(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a file, whether or not it exists.
pub fn replace(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let temporary = write_temporary(path, mode, content)?;
    if let Err(error) = fs::rename(&temporary, path) {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_directory_of(path)
}

fn write_temporary(path: &Path, mode: u32, content: &[u8]) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let suffix = getrandom::u64().map_err(io::Error::other)?;
    let temporary = path.with_file_name(format!(".{}.{suffix:016x}.tmp", name.display()));
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    Ok(temporary)
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_first_creator_wins_and_nothing_is_left_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert!(create(&path, 0o600, b"first").unwrap());
        assert!(!create(&path, 0o600, b"second").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        replace(&path, 0o600, b"third").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_target_that_cannot_be_named_leaves_nothing_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("directory");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("content"), b"").unwrap();
        assert!(replace(&path, 0o600, b"x").is_err());
        assert!(create(&directory.path().join("missing/file"), 0o600, b"x").is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
