//! How much the delay of a rail varies, and how much passes there at most.
//!
//! A window that covers the least delay is too small where delays vary, and what passes then looks like a slow rail. What
//! slices with a full window take longer in the mean than the quickest of them is no queue that always stands: that would be in
//! the quickest one too. A rail of varying rate shows the same, so it counts only where some slices follow others
//! much faster than in the mean: what is late because of its delay comes in bunches, what is late because the rail is slow
//! does not.

use super::{Delay, Sample};
use crate::time::Duration;
use crate::units::Rate;

/// Spans in a term. What has been seen is remembered for one to two of them.
const TERM_SPANS: u8 = 4;
/// Slices of a term with a full window that say something.
const SLICES_MIN: u32 = 8;
/// A rail on which no slice follows another one so many times as fast as a whole span passes is just slow.
const BUNCHED: u32 = 3;
/// Bytes a second in which rates are kept.
const UNIT: u64 = 1 << 12;

fn units(rate: Rate) -> u32 {
    u32::try_from(rate.bytes_per_sec() / UNIT).unwrap_or(u32::MAX)
}

/// From post to completion.
pub(super) fn took(sample: &Sample) -> Delay {
    Delay::of(sample.seen_at.since(sample.posted_at))
}

/// What some spans in a row have shown.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Term {
    /// Slices that had a full window: the time they took in all, how many, and the least time.
    took: Duration,
    slices: u32,
    least: Delay,
    /// The most that passed in a span, and from one instant at which something was seen to the next.
    most: u32,
    peak: u32,
    /// Once it is over.
    jitter: Delay,
}

impl Term {
    const NEW: Self = Self {
        took: Duration::ZERO,
        slices: 0,
        least: Delay::MAX,
        most: 0,
        peak: 0,
        jitter: Delay::ZERO,
    };

    fn jitter(&self) -> Delay {
        if self.peak < BUNCHED.saturating_mul(self.most) {
            return Delay::ZERO;
        }
        let mean = self.took.divided_by(self.slices.into());
        Delay::of(mean.minus(self.least.span()))
    }
}

/// The jitter of a rail's delay.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Jitter {
    /// This term and the one before.
    terms: [Term; 2],
    /// Spans left of this one.
    left: u8,
    mean: Delay,
}

impl Jitter {
    pub(super) const NONE: Self = Self {
        terms: [Term::NEW; 2],
        left: TERM_SPANS,
        mean: Delay::ZERO,
    };

    /// By how much slices take longer in the mean than the quickest of them: the lesser of the last two terms, because one may have
    /// seen the rail change.
    pub(super) fn mean(&self) -> Duration {
        self.mean.span()
    }

    /// The most that has passed in one of the last spans.
    pub(super) fn rate_most(&self) -> Rate {
        let most = self.terms[0].most.max(self.terms[1].most);
        Rate::from_bytes_per_sec(u64::from(most) * UNIT)
    }

    /// So many bytes were seen so long after what was seen before them.
    #[inline]
    pub(super) fn handle_gap(&mut self, bytes: u64, gap: Duration) {
        let peak = units(Rate::from_bytes_in(bytes, gap));
        self.terms[0].peak = self.terms[0].peak.max(peak);
    }

    /// So many slices that had a full window, given the one that took the longest time and the one that took the least.
    #[inline]
    pub(super) fn handle_full(&mut self, longest: &Sample, least: &Sample, count: u64) {
        let (longest, least) = (took(longest), took(least));
        let mean = longest.span().as_nanos().midpoint(least.span().as_nanos());
        let term = &mut self.terms[0];
        term.took += Duration::from_nanos(mean.saturating_mul(count));
        term.slices = term.slices.saturating_add(count as u32);
        term.least = term.least.min(least);
    }

    /// So much has passed in a span.
    pub(super) fn handle_span(&mut self, rate: Rate) {
        let [term, before] = &mut self.terms;
        term.most = term.most.max(units(rate));
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && term.slices >= SLICES_MIN {
            term.jitter = term.jitter();
            self.mean = term.jitter.min(before.jitter);
            self.terms = [Term::NEW, self.terms[0]];
            self.left = TERM_SPANS;
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::time::Instant;

    /// Terms of slices of 64 KiB, of which each is seen so many microseconds after the one before, and took so many.
    fn after(terms: u32, slices: &[(u64, u64)]) -> Jitter {
        const SLICE: u64 = 65_536;
        let mut jitter = Jitter::NONE;
        let mut now = Instant::ZERO + Duration::from_secs(1);
        for _ in 0..terms * u32::from(TERM_SPANS) {
            let began = now;
            for (gap, took) in slices {
                let gap = Duration::from_micros(*gap);
                now = now + gap;
                let sample = Sample {
                    posted_at: Instant::from_nanos(now.as_nanos() - took * 1_000),
                    seen_at: now,
                    ahead_bytes: 2 * SLICE,
                    bytes: SLICE,
                };
                jitter.handle_gap(SLICE, gap);
                jitter.handle_full(&sample, &sample, 1);
            }
            let bytes = SLICE * slices.len() as u64;
            jitter.handle_span(Rate::from_bytes_in(bytes, now.since(began)));
        }
        jitter
    }

    #[test]
    fn only_delays_that_vary_and_bunch_are_jitter() {
        // (name, terms, gaps and times in microseconds, mean)
        type Case = (&'static str, u32, &'static [(u64, u64)], u64);
        let cases: [Case; 5] = [
            ("a constant delay", 3, &[(500, 1_000), (500, 1_000)], 0),
            (
                "a standing queue",
                3,
                &[(900, 3_000), (100, 3_000), (10, 3_000)],
                0,
            ),
            ("bunches", 3, &[(900, 1_800), (50, 200), (50, 1_000)], 800),
            (
                "one term only",
                1,
                &[(900, 1_800), (50, 200), (50, 1_000)],
                0,
            ),
            (
                "a rail that is slow now and then",
                3,
                &[(500, 1_500), (400, 900), (300, 600)],
                0,
            ),
        ];
        for (name, terms, slices, micros) in cases {
            let mean = after(terms, slices).mean();
            assert_eq!(mean, Duration::from_micros(micros), "{name}");
        }
    }

    #[test]
    fn a_change_of_rate_is_no_jitter() {
        // A term that saw both, and one after it in which all is slow.
        let mut jitter = after(1, &[(10, 30), (10, 30), (2_000, 6_000)]);
        let slow = after(2, &[(2_000, 6_000); 3]);
        jitter.terms = [slow.terms[1], jitter.terms[1]];
        jitter.left = 1;
        jitter.handle_span(Rate::SLOWEST);
        assert_eq!(jitter.mean(), Duration::ZERO);
    }

    #[test]
    fn the_most_that_passed_is_forgotten_after_two_terms() {
        let mut jitter = after(1, &[(10, 30); 2]);
        let fast = jitter.rate_most();
        assert_eq!(
            units(fast),
            units(Rate::from_bytes_in(65_536, Duration::from_micros(10)))
        );
        let slow = after(2, &[(1_000, 3_000); 2]);
        jitter.terms[0] = slow.terms[1];
        assert_eq!(jitter.rate_most(), fast);
        jitter.terms[1] = slow.terms[1];
        assert!(units(jitter.rate_most()) < units(fast) / 50);
    }
}
