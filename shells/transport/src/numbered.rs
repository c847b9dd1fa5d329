//! Tables by numbers and keys that this process draws itself.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table whose keys are numbers of our own, or random. Nobody else chooses them (who looks for others finds nothing,
/// and fills nothing), so a multiplication spreads them well enough; the standard library's hash, which withstands
/// chosen keys, costs several times as much.
pub type Numbered<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Spreads a number over all bits.
#[derive(Clone, Copy, Default, Debug)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.write_u64((*byte).into());
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
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
    use std::hash::Hash;

    use super::*;

    #[test]
    fn neighbours_differ_where_tables_look() {
        fn hash(key: impl Hash) -> u64 {
            let mut spread = Spread::default();
            key.hash(&mut spread);
            spread.finish()
        }
        fn hashes<K: Hash>(key: fn(u32) -> K) -> Vec<u64> {
            (0..64).map(|number| hash(key(number))).collect()
        }
        let kinds = [
            ("numbers", hashes(|number| number)),
            ("pairs of them", hashes(|number| (number / 8, number % 8))),
            ("keys", hashes(|number| u128::from(number).to_le_bytes())),
        ];
        for (name, hashes) in kinds {
            // Tables take the place from the low bits and a tag from the highest seven.
            let distinct = |bits: fn(u64) -> u64| {
                let mut seen: Vec<u64> = hashes.iter().map(|hash| bits(*hash)).collect();
                seen.sort_unstable();
                seen.dedup();
                seen.len()
            };
            assert!(distinct(|hash| hash & 63) > 32, "{name}");
            assert!(distinct(|hash| hash >> 57) > 32, "{name}");
        }
    }
}
