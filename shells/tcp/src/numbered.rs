//! Tables by numbers that this process draws itself.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table whose keys are small numbers of our own. Nobody else chooses them, so a multiplication spreads
/// them well enough; the standard library's hash, which withstands chosen keys, costs several times as much.
pub(crate) type Numbered<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Spreads a number over all bits.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio: neighbours land far apart.
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_differ_where_tables_look() {
        let hash = |number: u32| {
            let mut spread = Spread::default();
            spread.write_u32(number);
            spread.finish()
        };
        // Tables take the place from the low bits and a tag from the highest seven.
        let distinct = |bits: fn(u64) -> u64| {
            let mut seen: Vec<u64> = (0..64).map(|number| bits(hash(number))).collect();
            seen.sort_unstable();
            seen.dedup();
            seen.len()
        };
        assert!(distinct(|hash| hash & 63) > 32);
        assert!(distinct(|hash| hash >> 57) > 32);
    }
}
