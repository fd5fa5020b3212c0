//! Impaired networks: pure link and NAT models, and a driver for quinn in simulated time.
mod link;
mod nat;
mod network;
mod quinn_seed;
mod quinn_socket;
mod seed;
mod socket;
mod trace;
mod world;

pub use link::{Corruption, GilbertElliott, Link, LinkConfig, LinkDrop, Loss, Verdict, Verdicts};
pub use nat::{Nat, NatConfig, NatDrop, NatKind};
pub use network::Network;
pub use quinn_seed::{seed_client_config, seed_server_config, seeded_endpoint_config};
pub use seed::derive_seed;
pub use socket::{SimSocket, SocketConfig};
pub use trace::{Counts, Event, Record, Trace, TraceMode};
pub use world::{Direction, DropReason, HostId, HostStats, NatId};
