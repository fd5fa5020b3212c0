//! Operation streams, TLS and endpoints over quinn.
pub mod endpoint;
pub mod tls;
