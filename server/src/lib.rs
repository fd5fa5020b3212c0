//! The control plane of Hub.

pub mod ca;
pub mod clock;
pub mod files;
pub mod secret;
pub mod store;
