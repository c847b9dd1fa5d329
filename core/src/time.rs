//! Instants and durations, in nanoseconds, owned by core.
//!
//! `core` has no clock: every call that needs the time takes it as its first argument. The zero point
//! is the caller's choice (the engine's start, or the start of a simulation).

use core::fmt;
use core::ops::{Add, AddAssign};

/// A point in time: nanoseconds since an arbitrary start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Instant(u64);

impl Instant {
    /// The start.
    pub const ZERO: Self = Self(0);
    /// Later than anything that happens; used as "never".
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A span of time in nanoseconds. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Duration(u64);

impl Duration {
    /// No time.
    pub const ZERO: Self = Self(0);
    /// Longer than anything.
    pub const MAX: Self = Self(u64::MAX);

    /// `nanos` nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// In nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `factor` times as long.
    pub const fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// A `divisor`-th of it; `divisor` 0 counts as 1.
    pub const fn divided_by(self, divisor: u64) -> Self {
        Self(self.0 / if divisor == 0 { 1 } else { divisor })
    }

    /// What is left after taking `other` away, at least zero.
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Duration {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Duration {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl From<core::time::Duration> for Duration {
    fn from(span: core::time::Duration) -> Self {
        Self(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Duration> for core::time::Duration {
    fn from(span: Duration) -> Self {
        Self::from_nanos(span.0)
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&core::time::Duration::from(*self), f)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;

    #[test]
    fn time_never_wraps() {
        assert_eq!(Instant::MAX + Duration::from_secs(1), Instant::MAX);
        assert_eq!(Instant::ZERO.since(Instant::MAX), Duration::ZERO);
        assert_eq!(Duration::from_secs(u64::MAX), Duration::MAX);
        assert_eq!(
            Duration::from_millis(5).minus(Duration::from_secs(1)),
            Duration::ZERO
        );
    }

    quickcheck! {
        fn what_is_added_is_what_has_passed(start: u64, span: u64) -> bool {
            let (start, span) = (Instant(start), Duration(span));
            let end = start + span;
            // Cut short only at the end of time.
            let passed = end.since(start);
            end >= start && (passed == span || end == Instant::MAX && passed < span)
        }

        fn a_part_taken_as_often_is_never_more(span: u64, count: u32) -> bool {
            let (span, count) = (Duration(span), u64::from(count));
            let again = span.divided_by(count).times(count.max(1));
            again <= span && span.minus(again).0 < count.max(1)
        }
    }
}
