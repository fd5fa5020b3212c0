//! The API over real sockets: a hub and an agent in this process, the client library and raw
//! WebSockets against them. [`world`] starts them; commands run as processes of this machine.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    missing_docs,
    unreachable_pub
)]

mod differential;
mod docker;
mod exec;
mod fake;
mod forward;
mod gone;
mod kept;
mod local;
mod resources;
mod stop;
mod tls;
mod wires;
mod world;
