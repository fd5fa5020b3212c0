//! The wire format of Hub and its machines, without I/O.
//!
//! Nothing here reads a socket, a clock or a random source: bytes and times are arguments, frames
//! and decisions are results. `hub-quic` carries it over quinn.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`frame`] | tag, length, payload: the frames of an operation and their decoder |
//! | [`window`] | credit: what a sender may send and a receiver has promised |
//! | [`operation`] | the rules of one operation's stream, for both roles |
//! | [`kind`] | the operations there are: their bodies, messages and outcomes |
//! | [`session`] | the control stream: `Hello`, `Welcome`, `Refused`, heartbeats, targets |
//! | [`flow`] | which packets of UDP flows go next, and which are dropped |
//! | [`target`] | what is connected to behind an agent |
//! | [`priority`] | which streams go first |
//! | [`enroll`] | how a machine becomes a node |
//! | [`version`], [`limits`], [`code`], [`ports`] | negotiation, sizes, codes, default ports |
//! | [`outcome`] | the three answers to anything asked of a node |
//!
//! A new operation starts in [`kind`]; a change of the wire breaks a `golden` test.

pub mod code;
pub mod enroll;
pub mod flow;
pub mod frame;
mod ids;
pub mod kind;
pub mod limits;
pub mod operation;
pub mod outcome;
pub mod ports;
pub mod priority;
pub mod session;
pub mod target;
pub mod varint;
pub mod version;
pub mod window;

pub use ids::{Deployment, Epoch, Fingerprint, Generation, IdError, Incarnation, NodeId, NodeName};
