//! The control plane of Hub.

pub mod ca;
pub mod clock;
pub mod files;
pub mod hub;
pub mod secret;
pub mod sessions;
pub mod store;
