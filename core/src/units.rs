//! Speeds and identifiers.

use core::fmt;
use core::num::NonZeroU64;

use crate::time::Duration;

/// A speed, kept as fixed-point nanoseconds per byte so that the time for some bytes is a multiply and
/// a shift.
///
/// 24 fractional bits: 400 GB/s is 41,943 units (precise to 2.4e-5), one byte a second still fits.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(from = "u64", into = "u64")
)]
pub struct Rate {
    /// Nanoseconds per byte, times 2^24. A smaller number is a faster rail.
    cost: NonZeroU64,
}

const FRACTION_BITS: u32 = 24;
const NANOS_PER_SEC: u64 = 1_000_000_000;
/// A span up to this many nanoseconds (18 minutes) keeps its fractional bits within 64.
const SPAN_NARROW: u64 = 1 << (64 - FRACTION_BITS);

/// `span << 24` divided by `divisor`. Saturates.
const fn divided(span: u64, divisor: NonZeroU64) -> u64 {
    if span < SPAN_NARROW {
        // One instruction instead of a library call; nearly always taken.
        return (span << FRACTION_BITS) / divisor.get();
    }
    saturated(((span as u128) << FRACTION_BITS) / divisor.get() as u128)
}

impl Rate {
    /// The slowest rate that can be said: about one byte in 18 minutes.
    pub const SLOWEST: Self = Self {
        cost: NonZeroU64::MAX,
    };

    /// From bytes per second; 0 is [`Self::SLOWEST`].
    pub const fn from_bytes_per_sec(bytes_per_sec: u64) -> Self {
        match NonZeroU64::new(bytes_per_sec) {
            Some(divisor) => Self::from_bits(divided(NANOS_PER_SEC, divisor)),
            None => Self::SLOWEST,
        }
    }

    /// From bits per second, as links are sold.
    pub const fn from_bits_per_sec(bits_per_sec: u64) -> Self {
        Self::from_bytes_per_sec(bits_per_sec / 8)
    }

    /// The rate that moves `bytes` in `span`; [`Self::SLOWEST`] for no bytes.
    pub const fn from_bytes_in(bytes: u64, span: Duration) -> Self {
        match NonZeroU64::new(bytes) {
            Some(divisor) => Self::from_bits(divided(span.as_nanos(), divisor)),
            None => Self::SLOWEST,
        }
    }

    /// In bytes per second, rounded down.
    pub const fn bytes_per_sec(self) -> u64 {
        divided(NANOS_PER_SEC, self.cost)
    }

    /// How long `bytes` take. Saturates.
    pub const fn time_for(self, bytes: u64) -> Duration {
        match bytes.checked_mul(self.cost.get()) {
            // Nearly always: what takes less than 18 minutes.
            Some(product) => Duration::from_nanos(product >> FRACTION_BITS),
            None => self.long_time_for(bytes),
        }
    }

    #[cold]
    const fn long_time_for(self, bytes: u64) -> Duration {
        Duration::from_nanos(saturated(
            (bytes as u128 * self.cost.get() as u128) >> FRACTION_BITS,
        ))
    }

    /// How many bytes pass in `span`. Saturates.
    pub const fn bytes_in(self, span: Duration) -> u64 {
        divided(span.as_nanos(), self.cost)
    }

    /// `numerator / denominator` times as fast. A zero on either side gives [`Self::SLOWEST`].
    pub const fn scaled(self, numerator: u64, denominator: u64) -> Self {
        if numerator == 0 || denominator == 0 {
            return Self::SLOWEST;
        }
        Self::from_cost(self.cost.get() as u128 * denominator as u128 / numerator as u128)
    }

    /// The faster of the two.
    pub const fn max(self, other: Self) -> Self {
        if self.cost.get() <= other.cost.get() {
            self
        } else {
            other
        }
    }

    /// The slower of the two.
    pub const fn min(self, other: Self) -> Self {
        if self.cost.get() >= other.cost.get() {
            self
        } else {
            other
        }
    }

    /// As one word, for an atomic.
    pub const fn to_bits(self) -> u64 {
        self.cost.get()
    }

    /// The inverse of [`Self::to_bits`]; 0, which is nobody's, counts as 1.
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            cost: match NonZeroU64::new(bits) {
                Some(cost) => cost,
                None => NonZeroU64::MIN,
            },
        }
    }

    const fn from_cost(cost: u128) -> Self {
        Self::from_bits(saturated(cost))
    }
}

const fn saturated(value: u128) -> u64 {
    if value > u64::MAX as u128 {
        u64::MAX
    } else {
        value as u64
    }
}

#[cfg(feature = "serde")]
impl From<u64> for Rate {
    fn from(bits: u64) -> Self {
        Self::from_bits(bits)
    }
}

#[cfg(feature = "serde")]
impl From<Rate> for u64 {
    fn from(rate: Rate) -> Self {
        rate.to_bits()
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B/s", self.bytes_per_sec())
    }
}

macro_rules! index_type {
    ($(#[$doc:meta])* $name:ident, $int:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub $int);

        impl $name {
            /// The position in its table.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index_type!(
    /// A local network interface, copy engine or disk: its row in the shared tables.
    DeviceId, u16
);
index_type!(
    /// One (local device, remote device) pair of one transport: its row in the shared tables.
    RailId, u16
);
index_type!(
    /// A way to move bytes, as the shell numbers it.
    TransportId, u8
);
index_type!(
    /// Another engine that this one moves bytes to and from.
    PeerId, u16
);
index_type!(
    /// A segment, as the shell numbers it for core and for its transports. Core only carries it.
    SegmentRef, u32
);
index_type!(
    /// A pool of staging slots, as its owner numbers it.
    PoolId, u8
);
index_type!(
    /// The number of a lane that changes when it is fenced or rebuilt. The first is 1.
    Epoch, u32
);

/// One connection or queue pair of one worker on one rail.
///
/// Unique in an engine: the worker's number in the upper half, the rail's in the lower, because a worker
/// has at most one lane on a rail. It travels to the peer in lane set-up and in fences.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LaneId(pub u32);

impl LaneId {
    /// The lane of `worker` on `rail`.
    pub const fn new(worker: u16, rail: RailId) -> Self {
        Self((worker as u32) << 16 | rail.0 as u32)
    }

    /// Which worker owns it.
    pub const fn worker(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Which rail it runs on; also its row in its worker's lane table.
    pub const fn rail(self) -> RailId {
        RailId(self.0 as u16)
    }
}

macro_rules! generational_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// The generation tells a reused row from the one that was meant.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name {
            /// Row in its table.
            pub index: u32,
            /// How often that row has been used.
            pub generation: u32,
        }

        impl $name {
            /// As one word: generation in the upper half.
            pub const fn to_bits(self) -> u64 {
                (self.generation as u64) << 32 | self.index as u64
            }

            /// The inverse of [`Self::to_bits`].
            pub const fn from_bits(bits: u64) -> Self {
                Self { index: bits as u32, generation: (bits >> 32) as u32 }
            }
        }

        impl $crate::table::Id for $name {
            fn new(index: u32, generation: u32) -> Self {
                Self { index, generation }
            }
            fn index(self) -> u32 {
                self.index
            }
            fn generation(self) -> u32 {
                self.generation
            }
        }
    };
}

generational_id!(
    /// An installed plan.
    PlanId
);
generational_id!(
    /// A request inside one worker.
    RequestId
);
generational_id!(
    /// A batch inside one worker.
    BatchId
);
generational_id!(
    /// One posting of one slice. Its bits are the cookie of the work.
    AttemptId
);
generational_id!(
    /// A staged request inside one worker.
    StagedId
);
generational_id!(
    /// One attempt at one stage of a staged request's chunk.
    StageId
);
generational_id!(
    /// One chunk's claim on a peer's staging slots, as the one that asks numbers it.
    Ticket
);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;

    #[test]
    fn rates_convert_both_ways() {
        // (bytes per second, bytes, nanoseconds for them)
        let cases = [
            (25_000_000_000, 65_536, 2_621),
            (50_000_000, 65_536, 1_310_720),
            (1, 3, 3_000_000_000),
        ];
        for (bytes_per_sec, bytes, nanos) in cases {
            let rate = Rate::from_bytes_per_sec(bytes_per_sec);
            let got = rate.time_for(bytes).as_nanos();
            assert!(
                got.abs_diff(nanos) <= nanos / 10_000 + 1,
                "{bytes_per_sec}: {got} ns"
            );
            assert!(rate.bytes_per_sec().abs_diff(bytes_per_sec) <= bytes_per_sec / 20_000 + 1);
        }
    }

    #[test]
    fn extreme_rates_saturate_instead_of_wrapping() {
        assert_eq!(Rate::from_bytes_per_sec(0), Rate::SLOWEST);
        assert_eq!(Rate::SLOWEST.time_for(u64::MAX), Duration::MAX);
        assert_eq!(
            Rate::from_bytes_in(u64::MAX, Duration::ZERO).bytes_in(Duration::MAX),
            u64::MAX
        );
        assert_eq!(Rate::SLOWEST.scaled(0, 1), Rate::SLOWEST);
    }

    #[test]
    fn lane_ids_carry_worker_and_rail() {
        let lane = LaneId::new(3, RailId(517));
        assert_eq!((lane.worker(), lane.rail()), (3, RailId(517)));
    }

    quickcheck! {
        fn bytes_fit_in_the_time_that_they_take(bits: u64, bytes: u64) -> bool {
            let rate = Rate::from_bits(bits);
            let span = rate.time_for(bytes);
            // The time is rounded down, so one more nanosecond is enough, unless it is cut short.
            rate.bytes_in(span) <= bytes
                && (span == Duration::MAX || rate.bytes_in(span + Duration::from_nanos(1)) >= bytes)
        }

        fn the_faster_of_two_is_never_later(first: u64, second: u64, bytes: u64) -> bool {
            let (first, second) = (Rate::from_bits(first), Rate::from_bits(second));
            let (fast, slow) = (first.max(second), first.min(second));
            let pair = [fast.to_bits(), slow.to_bits()];
            let given = [first.to_bits(), second.to_bits()];
            fast.time_for(bytes) <= slow.time_for(bytes)
                && fast.bytes_per_sec() >= slow.bytes_per_sec()
                && (pair == given || pair == [given[1], given[0]])
        }

        fn ids_travel_as_words(index: u32, generation: u32, worker: u16, rail: u16) -> bool {
            let id = AttemptId { index, generation };
            let lane = LaneId::new(worker, RailId(rail));
            AttemptId::from_bits(id.to_bits()) == id
                && (lane.worker(), lane.rail()) == (worker, RailId(rail))
        }
    }
}
