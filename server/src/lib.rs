//! The control plane of Hub.
//!
//! ```text
//! agents   --QUIC--> sessions --+                    +--> store --> ledger rules
//! strangers -QUIC--> enroll ----+--> hub (the core) -+
//! operators -HTTP--> api -------+                    +--> ca, secret, clock
//! browsers --HTTP--> proxy -----+
//! clients -TCP, UDP-> wires ----+
//! ```
//!
//! [`server`] starts and stops it all; [`hub`] is what can be asked, and of whom.

pub mod api;
pub mod ca;
mod clip;
pub mod clock;
mod counter;
pub mod enroll;
pub mod files;
mod hangup;
pub mod hub;
mod linger;
mod pipe;
pub mod proxy;
#[cfg(test)]
mod scripted;
mod seats;
pub mod secret;
pub mod server;
pub mod sessions;
pub mod store;
pub mod tls;
pub mod wires;

pub use server::{Config, Parts, ProxyTls, Server};
