//! Carry one TCP connection.
//!
//! ```text
//! hub                                     agent
//!  | Open{target, grant} -----------------> |  connects to the target, then:
//!  |  <----------------- Accepted | Failed  |
//!  | Data(IN).. End ----------------------> |
//!  |  <--------------- Data(OUT).. End      |
//!  |  <------------------ Done(Ending<()>)  |  once both directions have ended
//! ```
//!
//! Channels and outcome are those of [`transfer`](super::transfer). `End` is TCP's FIN: the other
//! direction goes on. An outcome of `Failed` says that the target's connection broke.

use serde::{Deserialize, Serialize};

use crate::target::{Grant, Target};

/// The body of `Open`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// What to connect to.
    pub target: Target,
    /// By what right.
    pub grant: Grant,
}
