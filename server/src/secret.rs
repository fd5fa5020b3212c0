//! Secrets of the hub: its own, and the tokens it hands out.
//!
//! None of them shows in `Debug`, in an error or in a log. These types wipe their memory when they
//! are dropped; text made of one for a person or a peer is wiped only as long as it is ours. The
//! hub's secret seals the CA's key ([`crate::ca`]); without it the ledger alone cannot sign. Of tokens
//! the ledger knows a hash only, one per kind, so that a token of one kind never passes for one of
//! another.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hub_ledger::{ExposureTokenHash, JoinTokenHash};
use ring::digest::{Context, SHA256};
use ring::hmac;
use zeroize::Zeroizing;

use crate::files;

/// More than any of these files holds, in bytes.
const MAX_FILE: u64 = 1024;

/// The hub's secret: 32 random bytes, 64 hexadecimal digits as text.
#[derive(Clone)]
pub struct HubSecret(Zeroizing<[u8; 32]>);

/// Why there is no secret. Trying again does not help, except with [`SecretError::Io`].
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// There is no such file.
    #[error(
        "the hub's secret {} is missing; put it back from where it is kept: \
         the CA in the ledger cannot be used without it", .path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Others than its owner can read the file.
    #[error(
        "the hub's secret {} is open to other users (mode {mode:03o}); run: chmod 600 {}",
        .path.display(), .path.display()
    )]
    OpenToOthers {
        /// The file.
        path: PathBuf,
        /// Its mode, the lowest nine bits.
        mode: u32,
    },
    /// The file holds something else.
    #[error("{} does not hold the hub's secret: {}", .path.display(), MalformedSecret)]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("the hub's secret {}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// A text that is no secret of a hub. It does not say which text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it takes exactly 64 hexadecimal digits")]
pub struct MalformedSecret;

impl HubSecret {
    /// A new one.
    pub fn random() -> io::Result<Self> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *bytes).map_err(io::Error::other)?;
        Ok(Self(bytes))
    }

    /// The secret made of these bytes, for a simulation that draws everything from one seed.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The secret in this text, which may end with a line break.
    pub fn from_text(text: &str) -> Result<Self, MalformedSecret> {
        let text = text.trim_ascii_end().as_bytes();
        if text.len() != 64 {
            return Err(MalformedSecret);
        }
        let mut bytes = Zeroizing::new([0; 32]);
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(MalformedSecret);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(Self(bytes))
    }

    /// Another secret, for one purpose, that follows from this one and does not give it away.
    pub fn derive(&self, purpose: &[u8]) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.expose());
        let mut derived = [0; 32];
        derived.copy_from_slice(hmac::sign(&key, purpose).as_ref());
        derived
    }

    /// Reads it from a file that nobody but its owner can read.
    pub fn load(path: &Path) -> Result<Self, SecretError> {
        match read(path) {
            Err(SecretError::Io { error, path }) if error.kind() == io::ErrorKind::NotFound => {
                Err(SecretError::Missing { path })
            }
            other => other,
        }
    }

    /// Reads it from a file, or creates the file with a new one. Only for a hub whose ledger has
    /// no CA yet: one that has was sealed with a secret that a new one cannot stand in for.
    pub fn load_or_create(path: &Path) -> Result<Self, SecretError> {
        match Self::load(path) {
            Err(SecretError::Missing { path }) => {
                let failed = |error| SecretError::Io {
                    path: path.clone(),
                    error,
                };
                let fresh = Self::random().map_err(failed)?;
                if files::create(&path, 0o600, fresh.to_text().as_bytes()).map_err(failed)? {
                    Ok(fresh)
                } else {
                    Self::load(&path)
                }
            }
            other => other,
        }
    }

    /// The 32 bytes.
    pub(crate) fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    fn to_text(&self) -> Zeroizing<String> {
        use fmt::Write as _;
        let mut text = Zeroizing::new(String::with_capacity(65));
        for byte in self.0.iter() {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
        text
    }
}

impl fmt::Debug for HubSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HubSecret(…)")
    }
}

fn read(path: &Path) -> Result<HubSecret, SecretError> {
    let malformed = || SecretError::Malformed {
        path: path.to_owned(),
    };
    let failed = |error| SecretError::Io {
        path: path.to_owned(),
        error,
    };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(SecretError::OpenToOthers {
            path: path.to_owned(),
            mode,
        });
    }
    let mut text = Zeroizing::new(String::with_capacity(MAX_FILE as usize));
    match file.take(MAX_FILE).read_to_string(&mut text) {
        Ok(_) => HubSecret::from_text(&text).map_err(|MalformedSecret| malformed()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(malformed()),
        Err(error) => Err(failed(error)),
    }
}

/// A token: 32 random bytes; as text 43 characters of base64 that need no quoting in a URL.
#[derive(Clone)]
pub struct Token(Zeroizing<[u8; 32]>);

/// A text that is no token. It does not say which text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is no token: it takes 43 characters of A-Z a-z 0-9 - _")]
pub struct TokenError;

impl Token {
    /// A new one.
    pub fn random() -> io::Result<Self> {
        HubSecret::random().map(|HubSecret(bytes)| Self(bytes))
    }

    /// The token made of these bytes, for a simulation that draws everything from one seed.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Its text, for the one who is to have it.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(URL_SAFE_NO_PAD.encode(*self.0))
    }

    /// What the ledger knows of it as a join token.
    pub fn join_hash(&self) -> JoinTokenHash {
        JoinTokenHash(self.hash(b"hub join token v1"))
    }

    /// What the ledger knows of it as the token of an exposure.
    pub fn exposure_hash(&self) -> ExposureTokenHash {
        ExposureTokenHash(self.hash(b"hub exposure token v1"))
    }

    /// One fast hash is enough: nobody guesses 256 random bits.
    fn hash(&self, kind: &[u8]) -> [u8; 32] {
        let mut context = Context::new(&SHA256);
        context.update(kind);
        context.update(&*self.0);
        let mut hash = [0; 32];
        hash.copy_from_slice(context.finish().as_ref());
        hash
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let mut bytes = Zeroizing::new([0; 33]);
        let text = text.trim_ascii_end();
        match URL_SAFE_NO_PAD.decode_slice(text, &mut *bytes) {
            Ok(32) => {
                let mut token = Self::from_bytes([0; 32]);
                token.0.copy_from_slice(&bytes[..32]);
                Ok(token)
            }
            _ => Err(TokenError),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;

    fn file(content: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        (directory, path)
    }

    #[test]
    fn is_created_once_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        assert!(matches!(
            HubSecret::load(&path),
            Err(SecretError::Missing { .. })
        ));
        let created = HubSecret::load_or_create(&path).unwrap();
        let loaded = HubSecret::load_or_create(&path).unwrap();
        assert_eq!(created.expose(), loaded.expose());
        assert_ne!(created.expose(), HubSecret::random().unwrap().expose());
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_to_string(&path).unwrap().len(), 65);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let content = "a1".repeat(32);
        for mode in [0o640, 0o604, 0o620, 0o601] {
            let (_directory, path) = file(content.as_bytes(), mode);
            let error = HubSecret::load(&path).unwrap_err();
            assert!(matches!(error, SecretError::OpenToOthers { mode: m, .. } if m == mode));
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        let (_directory, path) = file(content.as_bytes(), 0o400);
        assert_eq!(HubSecret::load(&path).unwrap().expose(), &[0xa1; 32]);
    }

    #[test]
    fn what_is_not_64_digits_is_refused_and_not_repeated() {
        let long = "ab".repeat(32) + "0";
        let huge = "ab".repeat(4096);
        let not_hex = "xy".repeat(32);
        let inner_break = format!("{}\n{}", "a".repeat(31), "b".repeat(32));
        for content in ["", "\n", "a1", &long, &huge, &not_hex, &inner_break] {
            let (_directory, path) = file(content.as_bytes(), 0o600);
            let error = HubSecret::load_or_create(&path).unwrap_err();
            assert!(matches!(error, SecretError::Malformed { .. }), "{error:?}");
            assert!(content.len() < 2 || !error.to_string().contains(content));
            assert_eq!(
                fs::read(&path).unwrap(),
                content.as_bytes(),
                "it is left as it is"
            );
        }
        let (_directory, path) = file(&[0xff; 64], 0o600);
        assert!(matches!(
            HubSecret::load(&path),
            Err(SecretError::Malformed { .. })
        ));
    }

    #[test]
    fn debug_shows_nothing() {
        assert_eq!(
            format!("{:?}", HubSecret::from_bytes([0x5a; 32])),
            "HubSecret(…)"
        );
        assert_eq!(format!("{:?}", Token::from_bytes([0x5a; 32])), "Token(…)");
    }

    #[test]
    fn tokens_round_trip_and_their_kinds_differ() {
        let token = Token::random().unwrap();
        let text = token.to_text();
        assert_eq!(text.len(), 43);
        let read: Token = format!("{}\n", *text).parse().unwrap();
        assert_eq!(read.join_hash(), token.join_hash());
        assert_ne!(token.join_hash().0, token.exposure_hash().0);
        assert_ne!(token.join_hash().0, *token.0);
        for wrong in ["", "abc", &"A".repeat(42), &"A".repeat(44), &"+".repeat(43)] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong}");
        }
    }
}
