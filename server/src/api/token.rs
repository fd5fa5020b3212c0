//! The token that every request to the API carries.
//!
//! It lives in a file of the hub's data directory that its owner alone can read. The client on the
//! same machine reads the same file; on another machine the operator carries it over.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::files;
use crate::secret::Token;

/// The name of the file in the hub's data directory.
pub const FILE_NAME: &str = "api-token";

/// More than the file holds, in bytes.
const MAX_FILE: u64 = 256;

/// The API's bearer token: 43 characters of base64 that need no quoting.
#[derive(Clone)]
pub struct ApiToken(Zeroizing<String>);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum ApiTokenError {
    /// There is no such file.
    #[error("there is no API token at {}", .path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Others than its owner can read the file.
    #[error(
        "the API token {} is open to other users (mode {mode:03o}); run: chmod 600 {}",
        .path.display(), .path.display()
    )]
    OpenToOthers {
        /// The file.
        path: PathBuf,
        /// Its mode, the lowest nine bits.
        mode: u32,
    },
    /// It is not what was ever written there. What it is instead is not said.
    #[error(
        "{} holds no API token: it takes 43 characters of A-Z a-z 0-9 - _; \
         restore it, or remove it and restart the hub for a new one", .path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("the API token {}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

impl ApiToken {
    /// A new one.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn random() -> io::Result<Self> {
        Ok(Self(Token::random()?.to_text()))
    }

    /// Reads it from a file that nobody but its owner can read.
    pub fn load(path: &Path) -> Result<Self, ApiTokenError> {
        let path = path.to_owned();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ApiTokenError::Missing { path });
            }
            Err(error) => return Err(ApiTokenError::Io { path, error }),
        };
        let mode = match file.metadata() {
            Ok(metadata) => metadata.permissions().mode() & 0o777,
            Err(error) => return Err(ApiTokenError::Io { path, error }),
        };
        if mode & 0o077 != 0 {
            return Err(ApiTokenError::OpenToOthers { path, mode });
        }
        let mut text = Zeroizing::new(String::with_capacity(MAX_FILE as usize));
        match file.take(MAX_FILE).read_to_string(&mut text) {
            Ok(_) => match text.trim_ascii_end().parse::<Token>() {
                Ok(token) => Ok(Self(token.to_text())),
                Err(_) => Err(ApiTokenError::Malformed { path }),
            },
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(ApiTokenError::Malformed { path })
            }
            Err(error) => Err(ApiTokenError::Io { path, error }),
        }
    }

    /// Reads it from a file, or creates the file with a new one.
    pub fn load_or_create(path: &Path) -> Result<Self, ApiTokenError> {
        match Self::load(path) {
            Err(ApiTokenError::Missing { path }) => {
                let failed = |error| ApiTokenError::Io {
                    path: path.clone(),
                    error,
                };
                let fresh = Self::random().map_err(failed)?;
                let line = Zeroizing::new(format!("{}\n", *fresh.0));
                if files::create(&path, 0o600, line.as_bytes()).map_err(failed)? {
                    Ok(fresh)
                } else {
                    Self::load(&path)
                }
            }
            other => other,
        }
    }

    /// Its text, for the header of a request.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether this is the token. Takes the same time wherever two of one length differ first.
    pub fn matches(&self, presented: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(presented).into()
    }
}

impl fmt::Debug for ApiToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiToken(…)")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;

    #[test]
    fn is_created_once_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        assert!(matches!(
            ApiToken::load(&path),
            Err(ApiTokenError::Missing { .. })
        ));
        let created = ApiToken::load_or_create(&path).unwrap();
        let loaded = ApiToken::load_or_create(&path).unwrap();
        assert!(loaded.matches(created.expose().as_bytes()));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = ApiToken::load(&path).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_file_of_something_else_is_refused_and_not_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        for content in [&b"hunter2"[..], b"", &[0xff; 43], &[b'a'; 5000]] {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let error = ApiToken::load_or_create(&path).unwrap_err();
            assert!(
                matches!(error, ApiTokenError::Malformed { .. }),
                "{error:?}"
            );
            assert!(!error.to_string().contains("hunter2"));
            assert_eq!(fs::read(&path).unwrap(), content);
        }
    }

    #[test]
    fn only_the_whole_token_matches() {
        let token = ApiToken::random().unwrap();
        let text = token.expose().as_bytes().to_vec();
        assert!(token.matches(&text));
        assert!(!token.matches(&text[..42]));
        assert!(!token.matches(b""));
        let mut other = text.clone();
        other[42] ^= 1;
        assert!(!token.matches(&other));
        assert_eq!(format!("{token:?}"), "ApiToken(…)");
    }
}
