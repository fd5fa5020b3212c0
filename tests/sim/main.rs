//! The whole system in simulated time: real hub, real agents, real quinn, in one thread over an
//! impaired network, with one seed for everything that is random.
//!
//! [`world`] builds it; [`commands`], [`daemon`] and [`pages`] are what runs and what is exposed on its
//! nodes.
//! `HUB_LONG=1` (set by `./test --long`) runs sweeps whole.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    missing_docs,
    unreachable_pub
)]

mod commands;
mod crowd;
mod cycles;
mod daemon;
mod determinism;
mod hostile;
mod kept;
mod outcomes;
mod pages;
mod rebinding;
mod stall;
mod sweep;
mod world;

/// How many of something to do: `short` in every run, `long` in long ones.
fn sized<T>(short: T, long: T) -> T {
    if std::env::var_os("HUB_LONG").is_some() {
        long
    } else {
        short
    }
}
