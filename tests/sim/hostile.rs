//! Peers that break the rules, against the whole system: a hostile agent with a real identity
//! against the real hub, and a hostile hub with a real certificate against the real agent.
//!
//! The hostile side is bare quinn, and writes and reads its bytes by hand from the description of
//! the wire ([`raw`]): what our own encoder can't say is what this is about. [`log`] hears what the
//! honest side says of it.

mod agent;
mod certificates;
mod control;
mod demands;
mod hub;
mod log;
mod raw;
mod replaced;
