//! Chance: one seed, many independent streams, integers only.

use oorandom::Rand64;

/// One in fixed point with 16 fraction bits: a stretch of this leaves a time as it is.
pub(crate) const ONE: u32 = 1 << 16;
/// No service is shorter than a tenth of its nominal time.
const STRETCH_MIN: i64 = (ONE / 10) as i64;

/// What chance does to services and delays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Jitter {
    /// Standard deviation of a service time, in percent.
    pub(crate) service_percent: u32,
    /// One slice in so many is an outlier; 0: none.
    pub(crate) outlier_one_in: u32,
    /// An outlier takes so many times as long.
    pub(crate) outlier_factor: u32,
    /// Mean of an exponential extra delay, in percent of the base delay.
    pub(crate) delay_percent: u32,
}

impl Jitter {
    /// By how much the mean service time exceeds the nominal one, in parts per million.
    pub(crate) fn mean_excess_ppm(&self) -> u64 {
        match self.outlier_one_in {
            0 => 0,
            one_in => {
                u64::from(self.outlier_factor.saturating_sub(1)) * 1_000_000 / u64::from(one_in)
            }
        }
    }
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Chance(Rand64);

impl Chance {
    /// The stream of this number under this seed. Streams do not depend on each other, so that the n-th slice
    /// of a rail meets the same luck under every policy.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self(Rand64::new(u128::from(seed) << 64 | u128::from(stream)))
    }

    /// A number below `end`; 0 if that is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        if end == 0 {
            0
        } else {
            self.0.rand_range(0..end)
        }
    }

    /// Whether something that happens once in so many times happens now.
    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// A number between two, both in: small ones are as likely as large ones.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        let doublings = (most / least.max(1)).max(1).ilog2();
        let floor = least << self.below(u64::from(doublings) + 1);
        (floor + self.below(floor + 1)).min(most)
    }

    /// One of these, each as likely.
    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// How much longer than nominal one service takes: normal (as the sum of twelve uniform numbers), with
    /// outliers.
    pub(crate) fn stretch(&mut self, jitter: &Jitter) -> u32 {
        if jitter.service_percent == 0 && jitter.outlier_one_in == 0 {
            return ONE;
        }
        let mut sum = 0;
        for _ in 0..3 {
            let word = self.0.rand_u64();
            sum += (word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48);
        }
        let centred = sum as i64 - 6 * i64::from(u16::MAX);
        let normal = i64::from(ONE) + centred * i64::from(jitter.service_percent) / 100;
        let stretch = normal.max(STRETCH_MIN) as u32;
        if jitter.outlier_one_in != 0 && self.below(u64::from(jitter.outlier_one_in)) == 0 {
            return stretch.saturating_mul(jitter.outlier_factor);
        }
        stretch
    }

    /// An exponential extra delay, for a path of this base delay.
    pub(crate) fn extra_delay(&mut self, jitter: &Jitter, base_ns: u64) -> u64 {
        if jitter.delay_percent == 0 {
            return 0;
        }
        let mean = base_ns as f64 * f64::from(jitter.delay_percent) / 100.0;
        // libm's logarithm is the same on every machine; std's is not.
        let uniform = (self.0.rand_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        (-libm::log(1.0 - uniform) * mean) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JITTER: Jitter = Jitter {
        service_percent: 10,
        outlier_one_in: 1_000,
        outlier_factor: 5,
        delay_percent: 200,
    };

    #[test]
    fn the_mean_of_many_services_is_as_promised() {
        let mut chance = Chance::new(1, 2);
        let count = 200_000;
        let sum: u64 = (0..count).map(|_| u64::from(chance.stretch(&JITTER))).sum();
        let mean_ppm = sum * 1_000_000 / count / u64::from(ONE);
        assert!(
            mean_ppm.abs_diff(1_000_000 + JITTER.mean_excess_ppm()) < 1_500,
            "{mean_ppm}"
        );
        let delay = (0..count)
            .map(|_| chance.extra_delay(&JITTER, 3_000))
            .sum::<u64>()
            / count;
        assert!(delay.abs_diff(6_000) < 60, "{delay}");
    }

    #[test]
    fn streams_are_repeatable_and_different() {
        let draw = |seed, stream| Chance::new(seed, stream).below(u64::MAX);
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }
}
