//! The data plane from browser to target: hub and agent joined by real quinn, over loopback with
//! TCP at both ends, or in simulated time with both ends in memory.
//!
//! [`world`] builds it, [`peers`] are browsers and targets that speak HTTP byte by byte.

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod bodies;
mod broken;
mod chromium;
mod clients;
mod connections;
mod corners;
mod door;
mod hostile;
mod http2;
mod http3;
mod interim;
mod messages;
mod peers;
mod refusals;
mod secured;
mod seeing;
mod serving;
mod silence;
mod smuggling;
mod targets;
mod upgrades;
mod world;
