//! The API: JSON over HTTP for operators and programs.
//!
//! ```text
//! TCP, TLS --serve--> token --> routes --> Hub
//!             |                   |-- call -- JSON, or lines --------> operation
//!             |                   |-- exec, docker, .. -- socket ----> operation
//!             |                   `-- files, records -- relay, merge -> operation
//!             `- Client: is it still there? --^
//! ```
//!
//! Every route demands the bearer token of the file `api-token`; beyond loopback there is TLS or no
//! API. Errors are problem documents. The OpenAPI document is made from the code.

mod build;
mod call;
pub mod channel;
mod client;
mod connection;
mod docker;
mod exec;
mod exposures;
mod files;
mod forward;
mod last_word;
mod merge;
pub mod problem;
mod query;
mod records;
pub mod registries;
mod relay;
mod routes;
mod seeing;
mod serve;
mod socket;
mod time;
mod token;
pub mod types;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::net::TcpListener;
use tokio::sync::watch;

pub use files::PATH_STAT_HEADER;
pub use problem::Problem;
pub use routes::document;
pub use serve::{Tls, TlsError};
pub use token::{ApiToken, ApiTokenError, FILE_NAME as TOKEN_FILE};

use crate::hub::Hub;
use crate::proxy::Seeing;

/// Why there is no API.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Its token.
    #[error(transparent)]
    Token(#[from] ApiTokenError),
    /// Its certificate or key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// It would be reachable in clear text from other machines.
    #[error(
        "the API would listen on {address} without TLS, and whoever sees its traffic gets the API \
         token: give a certificate and a key, or listen on 127.0.0.1 or [::1]"
    )]
    Exposed {
        /// Where it would listen.
        address: SocketAddr,
    },
    /// The listener can't be used.
    #[error("the API's listener: {0}")]
    Listener(#[from] io::Error),
}

/// The API of a hub. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Api {
    hub: Hub,
    token: ApiToken,
    tls: Option<Tls>,
    seeing: Seeing,
}

impl Api {
    /// The API of `hub`, with the token in `data_dir`, which is made where it is missing. `tls` are
    /// the files of a certificate chain and its key, both PEM.
    pub fn new(
        hub: Hub,
        data_dir: &Path,
        tls: Option<&(PathBuf, PathBuf)>,
    ) -> Result<Self, ApiError> {
        let token = ApiToken::load_or_create(&data_dir.join(TOKEN_FILE))?;
        let tls = tls
            .map(|(certificate, key)| Tls::load(certificate, key))
            .transpose()?;
        Ok(Self {
            hub,
            token,
            tls,
            seeing: Seeing::default(),
        })
    }

    /// The same, which shows what is seen of a data plane.
    #[must_use]
    pub fn seeing(self, seeing: Seeing) -> Self {
        Self { seeing, ..self }
    }

    /// Serves on `listener` until `stop` holds true or its sender is gone, then lets requests under
    /// way end for five seconds.
    ///
    /// # Errors
    /// The listener is not on loopback, and there is no TLS.
    pub fn serve(
        self,
        listener: TcpListener,
        mut stop: watch::Receiver<bool>,
    ) -> Result<impl Future<Output = ()> + Send + 'static, ApiError> {
        check_exposure(listener.local_addr()?, self.tls.is_some())?;
        let tls = self.tls.clone();
        let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
        Ok(serve::serve(listener, routes::router(self), tls, stopped))
    }
}

/// Whether the API may listen on this address: beyond loopback only with TLS.
pub fn check_exposure(address: SocketAddr, tls: bool) -> Result<(), ApiError> {
    if tls || address.ip().to_canonical().is_loopback() {
        Ok(())
    } else {
        Err(ApiError::Exposed { address })
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod exposure_tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn clear_text_stays_on_the_machine() {
        for address in [
            "127.0.0.1:7445",
            "127.8.0.1:1",
            "[::1]:7445",
            "[::ffff:127.0.0.1]:7445",
        ] {
            assert!(
                check_exposure(address.parse().unwrap(), false).is_ok(),
                "{address}"
            );
        }
        for address in [
            "0.0.0.0:7445",
            "[::]:7445",
            "192.0.2.1:7445",
            "[2001:db8::1]:7445",
        ] {
            let address = address.parse().unwrap();
            assert!(check_exposure(address, true).is_ok());
            let error = check_exposure(address, false).unwrap_err().to_string();
            assert!(
                error.contains(&address.to_string()) && error.contains("TLS"),
                "{error}"
            );
        }
    }
}
