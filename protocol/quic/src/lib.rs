//! Operation streams, TLS and endpoints over quinn.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`endpoint`] | everything that quinn is told about transport; the socket is an argument |
//! | [`tls`] | who may talk to whom: certificates, pins, verifiers |
//! | [`transport`] | connections and streams: those of quinn, and those within one process |
//! | `urgent` | a congestion controller under which keystrokes do not wait for bulk |
//! | [`session`] | an authenticated connection, its control stream and its operations |
//! | [`operation`] | one operation on its stream: the task that drives it and its handles |
//! | [`flow`] | the packets of UDP flows: datagrams, and streams for what does not fit |

pub mod endpoint;
pub mod flow;
pub mod operation;
pub mod session;
pub mod tls;
pub mod transport;
mod urgent;
