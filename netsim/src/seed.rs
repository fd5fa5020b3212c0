//! One seed, many consumers: every random stream of a simulation is derived from the simulation's
//! seed and a label, so that adding a consumer never shifts what the others draw.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

/// The seed of the consumer called `label` in the simulation seeded with `seed`.
///
/// The same pair always gives the same 32 bytes; different labels give unrelated ones. This is for
/// simulations: the bytes are predictable and no secret may be made of them.
pub fn derive_seed(seed: u64, label: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    rng(seed, label).fill_bytes(&mut bytes);
    bytes
}

/// The random stream of the consumer called `label`.
pub(crate) fn rng(seed: u64, label: &str) -> Pcg64 {
    let mut hash = Fnv::default();
    hash.write(&seed.to_le_bytes());
    hash.write(label.as_bytes());
    Pcg64::seed_from_u64(hash.0)
}

/// FNV-1a, 64 bits: stable across platforms and releases, which `std`'s hasher does not promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fnv(pub(crate) u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_depend_on_both_the_seed_and_the_label() {
        assert_eq!(derive_seed(1, "hub"), derive_seed(1, "hub"));
        assert_ne!(derive_seed(1, "hub"), derive_seed(2, "hub"));
        assert_ne!(derive_seed(1, "hub"), derive_seed(1, "agent"));
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        let mut hash = Fnv::default();
        hash.write(b"foobar");
        assert_eq!(hash.0, 0x8594_4171_f739_67e8);
    }
}
