//! Hub, seen from outside: the client of its API, and what its three programs are made of.
//!
//! ```text
//! bin/hub.rs         -> cli -> client -> API of a hub
//!                        `--> demo       a hub and an agent in this process
//! bin/hub-server.rs  -> settings -> hub_server
//!                       `--> local  the hub's own machine as a node
//! bin/hub-agent.rs   -> settings -> hub_agent
//! ```

pub mod archive;
pub mod cli;
pub mod client;
pub mod demo;
pub mod local;
pub mod settings;
