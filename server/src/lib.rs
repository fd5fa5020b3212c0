//! The control plane of Hub.
