//! The table `[limits]` of the hub's file: what browsers may have at most.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use hub_server::proxy::{Quotas, Rate};
use serde::Deserialize;

/// Limits of the data plane, by the names in docs/expose.md. What is left out is as it says there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections of one client address at once.
    pub client_connections: Option<NonZeroU32>,
    /// Wrong credentials of one client address at once; more in the same rate as by default.
    pub attempts: Option<NonZeroU32>,
    /// Requests under way to one exposure that has no limit of its own.
    pub exposure_requests: Option<NonZeroU32>,
    /// Requests under way to one node.
    pub node_requests: Option<NonZeroU32>,
    /// Seconds in which an upload has to bring something.
    pub upload_idle: Option<NonZeroU64>,
    /// Seconds in which a browser has to take something.
    pub response_idle: Option<NonZeroU64>,
}

impl Limits {
    /// What the hub takes.
    pub fn quotas(self) -> Quotas {
        let quotas = Quotas::default();
        let or = |given: Option<NonZeroU32>, default| given.map_or(default, NonZeroU32::get);
        let seconds = |given: Option<NonZeroU64>, default| {
            given.map_or(default, |seconds| Duration::from_secs(seconds.get()))
        };
        Quotas {
            connections_per_client: or(self.client_connections, quotas.connections_per_client),
            requests_per_exposure: or(self.exposure_requests, quotas.requests_per_exposure),
            requests_per_node: or(self.node_requests, quotas.requests_per_node),
            upload_idle: seconds(self.upload_idle, quotas.upload_idle),
            response_idle: seconds(self.response_idle, quotas.response_idle),
            attempts: Rate {
                burst: self.attempts.unwrap_or(quotas.attempts.burst),
                ..quotas.attempts
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_stays_and_nonsense_is_an_error() {
        let limits: Limits = toml::from_str("upload_idle = 5\nattempts = 3").unwrap();
        let quotas = limits.quotas();
        assert_eq!(quotas.upload_idle, Duration::from_secs(5));
        assert_eq!(quotas.attempts.burst.get(), 3);
        assert_eq!(Limits::default().quotas(), Quotas::default());
        for wrong in ["upload_idle = 0", "node_requests = -1", "requests = 1"] {
            assert!(toml::from_str::<Limits>(wrong).is_err(), "{wrong}");
        }
    }
}
