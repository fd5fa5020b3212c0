//! Why a call to the API did not succeed.

use std::io;
use std::path::PathBuf;

use hub_server::api::{ApiTokenError, Problem};

use super::connect::Endpoint;

/// What went wrong, where, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL of the API makes no sense.
    #[error(
        "{url:?} is no address of an API: {reason}; it takes http://HOST:PORT or https://HOST:PORT"
    )]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The token can't be had.
    #[error("{0}{hint}", hint = token_hint(.0))]
    Token(#[from] ApiTokenError),
    /// TLS without anything to trust.
    #[error("an https API needs --api-ca FILE (or HUB_API_CA): the certificates to trust, in PEM")]
    NoCa,
    /// The certificates to trust can't be used.
    #[error("the certificates to trust, {}: {reason}", .path.display())]
    Ca {
        /// Their file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The token would cross the network in clear text.
    #[error(
        "{endpoint} is not on this machine, and the API token is not sent in clear text: \
         use https://, or a tunnel to the API's port on loopback"
    )]
    ClearText {
        /// Where it would go.
        endpoint: Endpoint,
    },
    /// Nobody answers.
    #[error("cannot reach the hub's API at {endpoint}: {error}; does hub-server run there?")]
    Connect {
        /// Where.
        endpoint: Endpoint,
        /// What the system says.
        error: io::Error,
    },
    /// The connection broke.
    #[error("the connection to {endpoint} broke: {reason}")]
    Broken {
        /// To where.
        endpoint: Endpoint,
        /// How.
        reason: String,
    },
    /// The hub said no.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// The answer can't be read.
    #[error("the answer of {endpoint} makes no sense: {reason}")]
    Answer {
        /// Whose.
        endpoint: Endpoint,
        /// What is wrong with it.
        reason: String,
    },
    /// The request can't be put into words.
    #[error("{0}")]
    Request(String),
}

fn token_hint(error: &ApiTokenError) -> &'static str {
    match error {
        ApiTokenError::Missing { .. } => {
            "; hub-server makes it as api-token in its data directory: name that file with \
             --token-file or HUB_TOKEN_FILE"
        }
        _ => "",
    }
}

impl ClientError {
    /// The hub's own problem document, if it is one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// Whether the same call may succeed later, and is safe to repeat.
    pub fn retry_helps(&self) -> bool {
        match self {
            Self::Refused(problem) => problem.retry,
            Self::Connect { .. } => true,
            _ => false,
        }
    }
}
