//! What is remembered of a rail, in one word.

use super::{FLAP_MEMORY, RailState};
use crate::time::Instant;

/// The word's content: when the state began, and what led to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) state: RailState,
    /// Outages remembered. Mode `reset`: trips.
    pub(super) flaps: u8,
    /// Suspicions remembered that were wrong: it was slow, not silent.
    pub(super) wrongs: u8,
    /// Errors in a row. Paused or probing with some: one more look decides whether the rail is out.
    pub(super) errors: u8,
    /// While probing: by whom. Mode `reset`: errors counted towards the next trip.
    pub(super) worker: u16,
    /// Healthy, or looked at after an error: since the return from the last outage. Else paused and probing: since the
    /// outage began. Mode `reset`: of the last error. Milliseconds, 38 bits.
    pub(super) since_ms: u64,
}

const SINCE_BITS: u32 = 37;
const WRONGS_SHIFT: u32 = 37;
const WORKER_SHIFT: u32 = 40;
const ERRORS_SHIFT: u32 = 60;
const FLAPS_SHIFT: u32 = 56;
/// Outages remembered.
pub(super) const FLAPS_MAX: u8 = 15;
/// Wrong suspicions remembered.
pub(super) const WRONGS_MAX: u8 = 4;
/// The same of a rail that has never carried anything.
pub(super) const WRONGS_UNKNOWN_MAX: u8 = 6;

impl Record {
    /// Of a rail that nothing has ever happened to.
    pub(super) const FRESH: Self = Self {
        state: RailState::Healthy,
        flaps: 0,
        wrongs: 0,
        errors: 0,
        worker: 0,
        since_ms: 0,
    };

    pub(super) const fn pack(self) -> u64 {
        debug_assert!(
            self.flaps <= 0xf && self.wrongs <= 0b111 && self.errors <= 0b11,
            "more is remembered of a rail than there is room for"
        );
        let state = match self.state {
            RailState::Healthy => 0,
            RailState::Paused => 1,
            RailState::Probing => 2,
        };
        state << 62
            | (self.errors as u64 & 0b11) << ERRORS_SHIFT
            | (self.flaps as u64 & 0xf) << FLAPS_SHIFT
            | (self.worker as u64) << WORKER_SHIFT
            | (self.wrongs as u64 & 0b111) << WRONGS_SHIFT
            | self.since_ms & ((1 << SINCE_BITS) - 1)
    }

    pub(super) const fn unpack(word: u64) -> Self {
        let state = match word >> 62 {
            0 => RailState::Healthy,
            1 => RailState::Paused,
            _ => RailState::Probing,
        };
        Self {
            state,
            flaps: (word >> FLAPS_SHIFT & 0xf) as u8,
            errors: (word >> ERRORS_SHIFT & 0b11) as u8,
            worker: (word >> WORKER_SHIFT) as u16,
            wrongs: (word >> WRONGS_SHIFT & 0b111) as u8,
            since_ms: word & ((1 << SINCE_BITS) - 1),
        }
    }

    pub(super) const fn since(self) -> Instant {
        Instant::from_nanos(self.since_ms * 1_000_000)
    }

    /// It is looked at because of an error, and is out only if that says so.
    pub(super) const fn is_doubted(self) -> bool {
        !matches!(self.state, RailState::Healthy) && self.errors > 0
    }

    /// How many of the remembered outages still count after a healthy time.
    pub(super) const fn flaps_left(self, now: Instant) -> u8 {
        self.left(now, self.flaps)
    }

    /// And how many wrong suspicions.
    pub(super) const fn wrongs_left(self, now: Instant) -> u8 {
        self.left(now, self.wrongs)
    }

    const fn left(self, now: Instant, count: u8) -> u8 {
        if self.is_out() {
            return count;
        }
        let forgotten = now.since(self.since()).as_nanos() / FLAP_MEMORY.as_nanos();
        if forgotten >= count as u64 {
            0
        } else {
            count - forgotten as u8
        }
    }

    const fn is_out(self) -> bool {
        !matches!(self.state, RailState::Healthy) && self.errors == 0
    }

    /// The same rail, out from `now` on.
    pub(super) const fn out(self, now: Instant) -> Self {
        let flaps = self.flaps_left(now) + 1;
        Self {
            state: RailState::Paused,
            flaps: if flaps > FLAPS_MAX { FLAPS_MAX } else { flaps },
            wrongs: self.wrongs_left(now),
            errors: 0,
            worker: 0,
            since_ms: now.as_nanos() / 1_000_000,
        }
    }
}
