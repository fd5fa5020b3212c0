//! The real programs, started as an operator starts them. [`programs`] starts and watches them;
//! nothing here waits by the clock: a line of a log or the end of a process says what is next.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    missing_docs,
    unreachable_pub
)]

mod browser;
mod builds;
mod containers;
mod docker_cli;
mod kept;
mod kills;
mod moments;
mod netns;
mod processes;
mod programs;
mod starts;
mod terminal;
mod torture;
mod wires;
mod witness;
