//! The ports that Hub's programs listen on, and dial, unless told otherwise.

/// Where agents dial the hub: UDP.
pub const AGENTS: u16 = 7443;

/// Where machines join: UDP.
pub const ENROLLMENT: u16 = 7444;

/// Where operators are served: TCP.
pub const API: u16 = 7445;

/// Where browsers are served: TCP.
pub const BROWSERS: u16 = 7480;
