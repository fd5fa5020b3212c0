//! The rules of nodes, join tokens, certificates and exposures, without I/O.
//!
//! **Decide, commit, act.** Every rule is a pure function: it takes the rows it needs, a command
//! and the time, and returns the new rows with their effects, or a typed refusal. A store runs it
//! inside one transaction; only after the commit does anything act on the effects. There is no
//! clock, no randomness and no order of a hash map in here, so that a rule gives one answer only.
//!
//! One module per concept: [`time`], [`node`], [`token`], [`certificate`], [`exposure`].

pub mod certificate;
pub mod exposure;
pub mod node;
pub mod time;
pub mod token;

pub use certificate::{Certificate, Distrust, NewCertificate, RecordRefusal, Serial};
pub use exposure::{
    Access, Exposure, ExposureChange, ExposureId, ExposureName, ExposureRefusal, ExposureToken,
    ExposureTokenHash, NewExposure, Protocol, Replica,
};
pub use node::{
    LocalRefusal, Node, Origin, Presence, Process, RegisterRefusal, Registered, Registration,
    RevokeRefusal,
};
pub use time::Timestamp;
pub use token::{
    CreateTokenRefusal, Join, JoinRefusal, JoinToken, JoinTokenHash, Joined, JoinedHow, NewToken,
    OutsideRefusal,
};
