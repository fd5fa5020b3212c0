//! quinn with its random choices taken from a seed, for runs that must repeat.
//!
//! quinn's own generator is only one of the places where it draws: connection ids, the key for
//! stateless resets, the key for address tokens and the first destination id of a client each have
//! their own. These helpers cover all of them; what remains is TLS, whose random values have fixed
//! sizes as long as signatures do (see the crate's documentation).
//!
//! Seeds are the 32 bytes of [`derive_seed`](crate::derive_seed). Give each endpoint its own: two
//! endpoints with the same seed choose the same connection ids. What comes out is predictable, so it
//! is for simulations only.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use quinn::{
    ClientConfig, ConnectionId, ConnectionIdGenerator, EndpointConfig, ServerConfig, TimeSource,
};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use ring::{hkdf, hmac};
use tokio::time::Instant;

/// An endpoint configuration with quinn's generator, connection ids and reset key from the seed.
pub fn seeded_endpoint_config(seed: [u8; 32]) -> EndpointConfig {
    let mut reset_key = [0; 64];
    stream(seed, "reset key").fill_bytes(&mut reset_key);
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &reset_key)));
    config
        .rng_seed(Some(seed))
        .cid_generator(move || Box::new(SeededIds(stream(seed, "connection ids"))));
    config
}

/// Makes the server's address tokens follow from the seed, and their age from simulated time.
/// To be called within the tokio runtime that simulates.
pub fn seed_server_config(config: &mut ServerConfig, seed: [u8; 32]) {
    let mut token_key = [0; 64];
    stream(seed, "token key").fill_bytes(&mut token_key);
    let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&token_key);
    config
        .token_key(Arc::new(token_key))
        .time_source(Arc::new(SimulatedTime(Instant::now())));
}

/// Makes the first destination connection ids of the client's connections follow from the seed.
/// They are drawn in the order in which the connections are opened.
pub fn seed_client_config(config: &mut ClientConfig, seed: [u8; 32]) {
    let rng = Mutex::new(stream(seed, "first destination ids"));
    config.initial_dst_cid_provider(Arc::new(move || {
        let mut bytes = [0; 20];
        rng.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .fill_bytes(&mut bytes);
        ConnectionId::new(&bytes)
    }));
}

/// A random stream for one purpose; purposes must not share one, or they would shift each other.
fn stream(seed: [u8; 32], purpose: &str) -> Pcg64 {
    let mut hash = crate::seed::Fnv::default();
    hash.write(&seed);
    hash.write(purpose.as_bytes());
    Pcg64::seed_from_u64(hash.0)
}

struct SeededIds(Pcg64);

impl ConnectionIdGenerator for SeededIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.0.next_u64().to_le_bytes())
    }

    fn cid_len(&self) -> usize {
        size_of::<u64>()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Wall time that starts at a fixed date and goes on as the paused clock does.
struct SimulatedTime(Instant);

impl TimeSource for SimulatedTime {
    fn now(&self) -> SystemTime {
        /// 2025-01-01: any date does, as long as it is the same in every run.
        const START: Duration = Duration::from_secs(1_735_689_600);
        SystemTime::UNIX_EPOCH + START + self.0.elapsed()
    }
}
