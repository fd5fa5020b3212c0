//! Versions of the protocol, and how two sides agree on one.

use serde::{Deserialize, Serialize};

/// The version of the protocol that this release speaks best.
pub const CURRENT: u32 = 1;

/// The oldest version that this release still speaks.
pub const OLDEST: u32 = 1;

/// The ALPN name of the operational endpoint.
pub const ALPN: &[u8] = b"hub/1";

/// The ALPN name of the enrollment endpoint.
pub const ENROLL_ALPN: &[u8] = b"hub-enroll/1";

/// Versions that a side speaks, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRange {
    /// The oldest.
    pub min: u32,
    /// The newest.
    pub max: u32,
}

impl VersionRange {
    /// What this release speaks.
    pub const OURS: Self = Self {
        min: OLDEST,
        max: CURRENT,
    };

    /// The newest version that both sides speak.
    pub fn common(self, other: Self) -> Option<u32> {
        let version = self.max.min(other.max);
        (version >= self.min && version >= other.min).then_some(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_wins() {
        let range = |min, max| VersionRange { min, max };
        assert_eq!(range(1, 3).common(range(2, 5)), Some(3));
        assert_eq!(range(2, 5).common(range(1, 3)), Some(3));
        assert_eq!(range(1, 1).common(range(2, 5)), None);
        assert_eq!(range(4, 2).common(range(1, 9)), None);
    }
}
