//! Impaired networks: pure link and NAT models, a driver that runs quinn over them in simulated time,
//! and one that carries the UDP of real programs. The crate knows nothing of what is sent.
//!
//! ```text
//!  quinn endpoint                                                        quinn endpoint
//!        │ AsyncUdpSocket                                                      ▲
//!    SimSocket ── up Link ──▶ [Nat] ──▶ core ──▶ [Nat] ── down Link ──▶ receive queue
//! ```
//!
//! - [`Link`] and [`Nat`] are pure: time is an argument, randomness comes from their own seeded
//!   generators, and they answer at once what becomes of a packet.
//! - A [`Network`] joins them: hosts with addresses, a link up and one down for each, NATs between
//!   hosts and the core. It keeps an agenda of packets ordered by time, then by the order of entry.
//! - One task per network sleeps on tokio's clock until the next entry is due, lets it happen and
//!   wakes the sockets that can read. On a paused runtime time jumps from event to event, and hours
//!   take seconds.
//! - A [`SimSocket`] is what quinn takes in the place of a UDP socket.
//! - A [`Trace`] records what happened to every packet.
//! - A [`Relay`] is a wire between real sockets, with the same links, in real time and without root.
//!
//! ```
//! use std::time::Duration;
//! use hub_netsim::{LinkConfig, NatConfig, NatKind, Network};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut runtime = tokio::runtime::Builder::new_current_thread();
//! runtime.enable_time().start_paused(true).build()?.block_on(async {
//!     let net = Network::new(1);
//!     let hub = net.host("hub", "203.0.113.1");
//!     let nat = NatConfig::new(NatKind::Symmetric);
//!     let agent = net.host_behind_nat("agent", "10.0.0.2", nat, "198.51.100.1");
//!     net.set_links(agent, &LinkConfig::perfect().delay(Duration::from_millis(20)));
//!
//!     let (server, client) = (net.bind(hub, 7443)?, net.bind(agent, 0)?);
//!     client.send_to(server.local_addr(), b"ping")?;
//!     let (from, ping) = server.recv_from().await?;
//!     assert_eq!(from.ip().to_string(), "198.51.100.1");
//!     server.send_to(from, &ping)?;
//!     client.recv_from().await?;
//!
//!     assert_eq!(net.now(), Duration::from_millis(40));
//!     assert_eq!(net.trace().counts().delivered, 2);
//!     Ok(())
//! })
//! # }
//! ```
//!
//! For quinn, hand the socket to `Endpoint::new_with_abstract_socket` with
//! [`seeded_endpoint_config`] and `Arc::new(quinn::TokioRuntime)`, whose clock is tokio's.
//!
//! # The same seed, the same trace
//!
//! Two runs give equal traces if nothing in them is random but what follows from the seed:
//!
//! - **The runtime** is current-thread and was *built* paused. A clock paused later stands at an
//!   arbitrary point between two of the timer's milliseconds.
//! - **The tasks** use `biased` in `select!` and `join!`, iterate over ordered collections, and ask
//!   neither the wall clock nor the system's generator for anything that decides when or how much is
//!   sent. Work on other threads finishes at a time of its own and must not decide that either.
//! - **quinn** draws in five places: its own generator, connection ids and the stateless-reset key
//!   ([`seeded_endpoint_config`]), the key of address tokens and their clock
//!   ([`seed_server_config`]), and a client's first destination ids ([`seed_client_config`]). With
//!   quinn 0.11 the first decides sizes and times, and a run without it never repeats; the others
//!   decide only the content of packets, and are seeded so that nothing rests on that.
//! - **TLS** draws nonces, key shares and session tickets from the system. Nobody can seed those,
//!   and nobody has to, since they have fixed sizes. What has not: ECDSA signatures in DER, which
//!   differ by a byte or two from one signature to the next, in certificates, requests and every
//!   handshake; and DER integers such as serial numbers. QUIC pads most handshake packets, which
//!   hides the difference until one is sent again: rare enough to be taken for a flaky test. Use
//!   Ed25519 keys, or sign again until the length is the wanted one.
//!
//! # What to know about time and size
//!
//! tokio's timers have a resolution of a millisecond, and so has the moment at which an endpoint
//! learns of a packet: it is the next whole millisecond after the arrival. Arrivals themselves, and
//! with them rates, queues and the times in a trace, are exact to the nanosecond.
//!
//! Traces, statistics and receive queues count UDP payload; links count IP packets, 28 bytes more
//! for IPv4 and 48 for IPv6, against their rate and their MTU. Nothing fragments.

mod link;
mod nat;
mod network;
mod quinn_seed;
mod quinn_socket;
mod relay;
mod seed;
mod socket;
mod trace;
mod wire;
mod world;

pub use link::{Corruption, GilbertElliott, Link, LinkConfig, LinkDrop, Loss, Verdict, Verdicts};
pub use nat::{Nat, NatConfig, NatDrop, NatKind};
pub use network::Network;
pub use quinn_seed::{seed_client_config, seed_server_config, seeded_endpoint_config};
pub use relay::Relay;
pub use seed::derive_seed;
pub use socket::{SimSocket, SocketConfig};
pub use trace::{Counts, Event, Record, Trace, TraceMode};
pub use wire::WireCounts;
pub use world::{Direction, DropReason, HostId, HostStats, NatId};
