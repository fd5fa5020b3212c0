//! The certificate of the data plane, and how certificates that the hub signs itself are renewed.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use hub_ledger::Timestamp;
use rustls::server::ResolvesServerCert;
use tokio::time::sleep;

use super::{Config, ProxyTls, StartError};
use crate::ca::{Ca, SignError};
use crate::clock::Clock;
use crate::tls::{Certificate, Files, Followed, LOOK_EVERY};

/// The data plane's certificate, and what keeps it fresh.
pub(super) enum Site {
    /// From files.
    Files(Followed),
    /// Signed by the hub's CA for these names, and due at this time.
    Signed {
        certificate: Certificate,
        names: Vec<String>,
        renew_at: Timestamp,
    },
}

impl Site {
    /// The certificate that the settings name; none if it is served in the clear.
    pub(super) fn open(
        config: &Config,
        ca: &Ca,
        now: Timestamp,
    ) -> Result<Option<Self>, StartError> {
        Ok(Some(match &config.proxy_tls {
            ProxyTls::Off => return Ok(None),
            ProxyTls::Files { certificate, key } => {
                let files = Files {
                    whose: "the data plane's",
                    certificate: certificate.clone(),
                    key: key.clone(),
                };
                Self::Files(files.load()?)
            }
            ProxyTls::HubCa => {
                let names = names(config);
                let (certified, renew_at) = sign(ca, &names, now)?;
                Self::Signed {
                    certificate: Certificate::new(certified),
                    names,
                    renew_at,
                }
            }
        }))
    }

    pub(super) fn certificates(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::new(match self {
            Self::Files(followed) => followed.certificate().clone(),
            Self::Signed { certificate, .. } => certificate.clone(),
        })
    }

    /// Keeps the certificate fresh for as long as this is polled.
    pub(super) async fn keep(self, ca: Arc<Ca>, clock: Clock) {
        match self {
            Self::Files(followed) => match followed.follow(LOOK_EVERY).await {},
            Self::Signed {
                certificate,
                names,
                renew_at,
            } => {
                let renew = |now| {
                    let (certified, next) = sign(&ca, &names, now)?;
                    certificate.replace(certified);
                    Ok::<_, SignError>(next)
                };
                match keep_signed("the data plane's", clock, renew_at, renew).await {}
            }
        }
    }
}

/// All names under which browsers may come.
fn names(config: &Config) -> Vec<String> {
    let mut names = config.advertise.clone();
    if let Some(domain) = &config.domain {
        let domain = domain.split(':').next().unwrap_or_default();
        let domain = domain.trim_end_matches('.').to_ascii_lowercase();
        names.extend([format!("*.{domain}"), domain]);
    }
    names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    names
}

fn sign(
    ca: &Ca,
    names: &[String],
    now: Timestamp,
) -> Result<(rustls::sign::CertifiedKey, Timestamp), SignError> {
    let site = ca.sign_site(names, now)?;
    let certified = Certificate::certified(site.chain, site.key);
    let certified = certified.map_err(|error| SignError::Crypto(error.to_string()))?;
    Ok((certified, site.renew_at))
}

/// Has a certificate made anew when it is due, which is at half its life, for as long as this is
/// polled. `renew` says when the next one is due.
pub(super) async fn keep_signed<E: Display>(
    whose: &str,
    clock: Clock,
    mut renew_at: Timestamp,
    mut renew: impl FnMut(Timestamp) -> Result<Timestamp, E>,
) -> Infallible {
    loop {
        // In steps, so that a clock that is set is noticed.
        let wait = clock.until(renew_at).min(Duration::from_secs(3600));
        if !wait.is_zero() {
            sleep(wait).await;
            continue;
        }
        match renew(clock.now()) {
            Ok(next) => {
                tracing::info!("{whose} certificate was made anew");
                renew_at = next;
            }
            Err(error) => {
                tracing::error!(%error, "{whose} certificate could not be made anew");
                sleep(Duration::from_secs(3600)).await;
            }
        }
    }
}
