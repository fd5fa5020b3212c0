//! Random choices of an endpoint drawn from a seed, so that a simulated run repeats exactly.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig};
use ring::{digest, hkdf, hmac};

/// The length of our connection ids, in bytes, and of the first id that a client makes up for a
/// server (RFC 9000 wants at least 8). The same as `quinn`'s own, so that packets in a simulation
/// have their real sizes.
const CONNECTION_ID: usize = 8;
const INITIAL_CONNECTION_ID: usize = 20;

/// 32 bytes from which all random choices of an endpoint follow. For simulations only: whoever
/// knows the seed can forge resets and tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed([u8; 32]);

impl Seed {
    /// The seed made of these bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Another seed for each label.
    fn derive(&self, label: &[u8]) -> [u8; 32] {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&self.0);
        context.update(label);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(context.finish().as_ref());
        bytes
    }

    pub(super) fn endpoint_config(&self) -> EndpointConfig {
        let reset_key = hmac::Key::new(hmac::HMAC_SHA256, &self.derive(b"reset key"));
        let mut config = EndpointConfig::new(Arc::new(reset_key));
        let ids = Self(self.derive(b"connection ids"));
        config
            .rng_seed(Some(self.derive(b"rng")))
            .cid_generator(move || {
                Box::new(Counter {
                    seed: ids.clone(),
                    next: 0,
                })
            });
        config
    }

    pub(super) fn initial_connection_ids(&self) -> Arc<dyn Fn() -> ConnectionId + Send + Sync> {
        let seed = Self(self.derive(b"initial connection ids"));
        let next = AtomicU64::new(0);
        Arc::new(move || {
            seed.connection_id(next.fetch_add(1, Ordering::Relaxed), INITIAL_CONNECTION_ID)
        })
    }

    pub(super) fn token_key(&self) -> Arc<hkdf::Prk> {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]);
        Arc::new(salt.extract(&self.derive(b"token key")))
    }

    fn connection_id(&self, index: u64, length: usize) -> ConnectionId {
        ConnectionId::new(&self.derive(&index.to_be_bytes())[..length])
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

struct Counter {
    seed: Seed,
    next: u64,
}

impl ConnectionIdGenerator for Counter {
    fn generate_cid(&mut self) -> ConnectionId {
        self.next += 1;
        self.seed.connection_id(self.next, CONNECTION_ID)
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
