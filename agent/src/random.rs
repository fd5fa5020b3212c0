//! Where random bytes come from: the system, or a simulation's seed.

use std::sync::Arc;

/// Fills a buffer with random bytes.
pub type Random = Arc<dyn Fn(&mut [u8]) + Send + Sync>;
