//! Where an image goes that comes back: a file, standard output, or the Docker daemon here.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use bytes::Bytes;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};

use super::super::exec::pipes::Printer;
use super::super::whole::WholeFile;

/// Why an image did not get where it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageError {
    #[error("cannot write the image to {}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("cannot write the image to standard output: {0}")]
    Stdout(io::Error),
    #[error("cannot run docker: {0}; --load takes the docker program, in PATH")]
    NoDocker(io::Error),
    #[error("the Docker daemon here does not answer: {0}")]
    NoDaemon(String),
    #[error("docker load failed, with {0}")]
    Load(std::process::ExitStatus),
}

/// Where an image goes.
pub(super) enum Sink {
    Nowhere,
    File {
        path: PathBuf,
        file: WholeFile,
    },
    Stdout(Printer),
    /// `docker load`, once there is something to load.
    Load(Option<Child>),
}

impl Sink {
    /// Writes to a file, or to standard output where the path is `-`.
    pub(super) fn to(path: &Path) -> Result<Self, ImageError> {
        if path == Path::new("-") {
            return Ok(Self::Stdout(Printer::new(&io::stdout())));
        }
        let file = WholeFile::create(path).map_err(|error| ImageError::File {
            path: path.to_owned(),
            error,
        })?;
        Ok(Self::File {
            path: path.to_owned(),
            file,
        })
    }

    /// Loads into the daemon here, which has to answer: better now than after a long build.
    pub(super) async fn load() -> Result<Self, ImageError> {
        let mut version = Command::new("docker");
        version.args(["version", "--format", "{{.Server.Version}}"]);
        let output = version
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await;
        let output = output.map_err(ImageError::NoDocker)?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(ImageError::NoDaemon(text.trim().to_owned()));
        }
        Ok(Self::Load(None))
    }

    /// Whether an image is wanted at all.
    pub(super) fn wants(&self) -> bool {
        !matches!(self, Self::Nowhere)
    }

    /// Takes bytes of the image.
    pub(super) async fn write(&mut self, bytes: Bytes) -> Result<(), ImageError> {
        match self {
            Self::Nowhere => Ok(()),
            Self::File { path, file } => {
                file.write(bytes).await.map_err(|error| ImageError::File {
                    path: path.clone(),
                    error,
                })
            }
            Self::Stdout(printer) => printer.print(bytes).await.map_err(ImageError::Stdout),
            Self::Load(child) => {
                let child = match child {
                    Some(child) => child,
                    None => child.insert(start_load()?),
                };
                let written = match &mut child.stdin {
                    Some(stdin) => stdin.write_all(&bytes).await,
                    None => Ok(()),
                };
                match written {
                    Ok(()) => Ok(()),
                    // Its own words stand on stderr already.
                    Err(_) => match child.wait().await {
                        Ok(status) => Err(ImageError::Load(status)),
                        Err(error) => Err(ImageError::NoDocker(error)),
                    },
                }
            }
        }
    }

    /// The image is whole.
    pub(super) async fn finish(self) -> Result<(), ImageError> {
        match self {
            Self::Nowhere | Self::Load(None) => Ok(()),
            Self::File { path, file } => {
                let finished = file.finish().await;
                finished.map_err(|error| ImageError::File { path, error })
            }
            Self::Stdout(mut printer) => printer.finish().await.map_err(ImageError::Stdout),
            Self::Load(Some(mut child)) => {
                drop(child.stdin.take());
                let status = child.wait().await.map_err(ImageError::NoDocker)?;
                if status.success() {
                    Ok(())
                } else {
                    Err(ImageError::Load(status))
                }
            }
        }
    }
}

/// What it says goes to our stderr: standard output holds the image's id and nothing else. Dropped
/// early it is killed, and the daemon never hears the end of a half image.
fn start_load() -> Result<Child, ImageError> {
    use std::os::fd::AsFd as _;
    let stderr = io::stderr().as_fd().try_clone_to_owned();
    Command::new("docker")
        .args(["load", "--quiet"])
        .stdin(Stdio::piped())
        .stdout(stderr.map_err(ImageError::NoDocker)?)
        .kill_on_drop(true)
        .spawn()
        .map_err(ImageError::NoDocker)
}
