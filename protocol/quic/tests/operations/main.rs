//! Operations over real quinn connections: what two honest sides get, what bounds them, and what a
//! hostile peer, written on bare quinn, can and cannot do.
#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "../support/mod.rs"]
mod support;

mod breach;
mod flow;
mod honest;
mod hostile_agent;
mod hostile_hub;
mod packets;
mod raw;
mod sessions;
