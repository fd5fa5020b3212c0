//! The agent that runs on a machine nobody can dial.
//!
//! ```text
//! hub-server  <--QUIC--  uplink --streams--> operations --+--> runtime   (Docker, processes)
//!                          |                              +--> targets   (what is exposed here)
//!                          +-- dial, backoff, identity
//! ```
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`agent`] | the agent as one thing: joins, then keeps the uplink |
//! | [`identity`], [`join`] | who this node is, and how it came to be |
//! | [`dial`], [`backoff`] | how the hub is reached, and how often it is tried |
//! | [`uplink`] | the line to the hub: sessions, one after the other |
//! | [`local`] | the same for the hub's own machine, within the hub's process |
//! | [`operations`] | what the hub can ask: one module per kind |
//! | [`engine`] | the Docker Engine of this machine, for all that is not a command |
//! | [`journal`] | what has happened on this node: events that outlast the daemon's memory |
//! | [`policy`] | what this node lets the hub do, whoever asks |
//! | [`runtime`] | what runs commands: Docker's containers or plain processes |
//! | [`targets`] | what the hub has exposed on this node |
//! | [`random`] | where random bytes come from |
//! | [`kill`] | points at which tests kill the agent |

pub mod operations;
pub mod targets;
pub mod uplink;

mod link;

pub mod agent;
pub mod backoff;
pub mod dial;
pub mod engine;
pub mod identity;
pub mod join;
pub mod journal;
pub mod kill;
pub mod local;
pub mod policy;
pub mod random;
pub mod runtime;
