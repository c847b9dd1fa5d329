//! Random numbers of one seed: handed in like time, so that a history can be told again.

/// A small generator (SplitMix64: Steele, Lea, Flood, OOPSLA 2014). Not for secrets.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number from 0 up to, not including, 1; the same on every platform.
    pub const fn next_unit(&mut self) -> f64 {
        const STEPS: u64 = 1 << 53;
        (self.next_u64() >> 11) as f64 / STEPS as f64
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;

    #[test]
    fn the_sequence_is_the_published_one() {
        // From the reference program by Vigna, seed 1234567.
        let mut random = Random::new(1_234_567);
        let first = [random.next_u64(), random.next_u64(), random.next_u64()];
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    quickcheck! {
        fn units_stay_below_one(seed: u64) -> bool {
            let mut random = Random::new(seed);
            (0..100).all(|_| (0.0..1.0).contains(&random.next_unit()))
        }
    }
}
