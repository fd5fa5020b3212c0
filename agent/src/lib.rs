//! The agent that runs on a machine nobody can dial.

pub mod runtime;
