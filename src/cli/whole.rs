//! Files that are there when they are whole.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tempfile::NamedTempFile;

use super::exec::pipes::Printer;

/// A file that gets its name once all of it is written, and the mode that any new file has. What is
/// dropped before leaves what had the name before, and nothing else. A path that is no file, a pipe
/// or a device, is written as it is.
pub(super) struct WholeFile {
    printer: Printer,
    kind: Kind,
}

enum Kind {
    Named { path: PathBuf, file: NamedTempFile },
    Special,
}

impl WholeFile {
    /// Begins to write what will be at `path`.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let special = std::fs::metadata(path).is_ok_and(|found| !found.is_file());
        if special {
            let file: File = OpenOptions::new().write(true).open(path)?;
            return Ok(Self {
                printer: Printer::new(&file),
                kind: Kind::Special,
            });
        }
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // The kernel takes away what the umask does not allow.
        let file = tempfile::Builder::new()
            .prefix(".hub-part-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory)?;
        Ok(Self {
            printer: Printer::new(file.as_file()),
            kind: Kind::Named {
                path: path.to_owned(),
                file,
            },
        })
    }

    /// Writes more of it.
    pub(super) async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        self.printer.print(bytes).await
    }

    /// It is whole.
    pub(super) async fn finish(mut self) -> io::Result<()> {
        self.printer.finish().await?;
        if let Kind::Named { path, file } = self.kind {
            file.as_file().sync_all()?;
            file.persist(path).map_err(|error| error.error)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn a_file_has_its_name_when_it_is_whole_and_the_mode_of_any_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image.tar");
        let files = || std::fs::read_dir(directory.path()).unwrap().count();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        std::fs::write(&path, b"old").unwrap();
        let usual = mode(&path);
        let mut file = WholeFile::create(&path).unwrap();
        file.write(Bytes::from_static(b"ne")).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        drop(file);
        assert_eq!(files(), 1, "nothing is left of half a file");
        let mut file = WholeFile::create(&path).unwrap();
        file.write(Bytes::from_static(b"ne")).await.unwrap();
        file.write(Bytes::from_static(b"w")).await.unwrap();
        file.finish().await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!((files(), mode(&path)), (1, usual));
        assert!(WholeFile::create(&directory.path().join("no/image.tar")).is_err());
        assert!(WholeFile::create(directory.path()).is_err());
    }

    #[tokio::test]
    async fn what_is_no_file_is_not_replaced() {
        use std::os::unix::fs::FileTypeExt as _;
        let mut null = WholeFile::create(Path::new("/dev/null")).unwrap();
        null.write(Bytes::from_static(b"gone")).await.unwrap();
        null.finish().await.unwrap();
        let found = std::fs::metadata("/dev/null").unwrap();
        assert!(found.file_type().is_char_device());
    }
}
