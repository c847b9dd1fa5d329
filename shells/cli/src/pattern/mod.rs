//! The bytes that a verified transfer carries.
//!
//! A byte at an absolute offset of a segment is a function of a seed, the number of the sample and that
//! offset alone. So both ends know what must be where without having told each other, and a byte from the
//! wrong place, from an earlier sample or from nowhere shows.

pub(crate) mod memory;

/// The bytes of one sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pattern {
    key: u64,
}

const WORD: usize = size_of::<u64>();

impl Pattern {
    /// The pattern of a sample.
    pub(crate) fn new(seed: u64, sample: u64) -> Self {
        Self {
            key: mix(seed ^ mix(sample)),
        }
    }

    /// The word whose first byte is at `8 × index`.
    fn word(self, index: u64) -> [u8; WORD] {
        mix(self.key.wrapping_add(index.wrapping_mul(GOLDEN))).to_le_bytes()
    }

    /// The byte at an absolute offset, which is what the words amount to.
    #[cfg(test)]
    pub(crate) fn byte(self, absolute: u64) -> u8 {
        self.word(absolute / WORD as u64)[(absolute % WORD as u64) as usize]
    }

    /// Writes what belongs to `absolute` and after it, a word at a time.
    pub(crate) fn write(self, absolute: u64, out: &mut [u8]) {
        let skip = (absolute % WORD as u64) as usize;
        let head = ((WORD - skip) % WORD).min(out.len());
        let (head, words) = out.split_at_mut(head);
        let mut index = absolute / WORD as u64;
        if !head.is_empty() {
            head.copy_from_slice(&self.word(index)[skip..skip + head.len()]);
            index += 1;
        }
        let mut words = words.chunks_exact_mut(WORD);
        for word in &mut words {
            word.copy_from_slice(&self.word(index));
            index = index.wrapping_add(1);
        }
        let tail = words.into_remainder();
        tail.copy_from_slice(&self.word(index)[..tail.len()]);
    }
}

/// 2^64 divided by the golden ratio: consecutive indexes land far from each other.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of `SplitMix64`: every bit of the answer depends on every bit of the question.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_the_pattern_agrees_with_its_bytes() {
        let pattern = Pattern::new(7, 1);
        for absolute in 0..24 {
            for length in 0..24 {
                let mut out = vec![0; length];
                pattern.write(absolute, &mut out);
                let bytes: Vec<u8> = (absolute..).take(length).map(|o| pattern.byte(o)).collect();
                assert_eq!(out, bytes, "{length} bytes at {absolute}");
            }
        }
    }

    #[test]
    fn seed_sample_and_offset_each_change_the_bytes() {
        let window = |seed, sample, absolute| {
            let mut out = [0; 64];
            Pattern::new(seed, sample).write(absolute, &mut out);
            out
        };
        let windows = [
            window(1, 1, 0),
            window(2, 1, 0),
            window(1, 2, 0),
            window(1, 1, 64),
            window(1, 1, 1 << 40),
        ];
        for (i, a) in windows.iter().enumerate() {
            for b in &windows[i + 1..] {
                let equal = a.iter().zip(b).filter(|(a, b)| a == b).count();
                assert!(equal < 8, "{equal} of 64 bytes are equal");
            }
        }
    }
}
