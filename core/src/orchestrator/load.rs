//! What a lane holds and has done, for people: counters that core keeps and never looks at.

use super::lane::{Lane, Phase};
use super::{Chooser, Orchestrator};
use crate::time::Instant;
use crate::units::RailId;

/// Where a lane stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneState {
    /// Asked for, and not open yet.
    Opening,
    /// Takes works.
    Open,
    /// Failed; what was posted may still be under way.
    Fencing,
    /// None: nothing is on it.
    Closed,
}

impl LaneState {
    /// The state in one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Open => "open",
            Self::Fencing => "fencing",
            Self::Closed => "closed",
        }
    }
}

/// A lane at a glance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneLoad {
    /// The rail that it is on.
    pub rail: RailId,
    /// Where it stands.
    pub state: LaneState,
    /// Works bound to it or posted, and not ended.
    pub held_works: u32,
    /// The most that it takes at a time.
    pub limit_works: u16,
    /// Bytes of those that it holds.
    pub held_bytes: u64,
    /// The most works that it has held at a time.
    pub held_works_high: u32,
    /// When works last ended in good order; `None`: none ever has.
    pub completed_at: Option<Instant>,
    /// How often some have, several at a time counting once.
    pub releases: u64,
    /// How many works that was.
    pub released_works: u64,
    /// Since when it takes no more, if so: it holds as many as it may, or its transport says that there is no room.
    pub full_since: Option<Instant>,
}

/// What a lane has done since its rail was installed.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Tally {
    /// Last hand-out; [`Instant::ZERO`]: none.
    pub(super) posted_at: Instant,
    /// Last completion; [`Instant::ZERO`]: none.
    pub(super) completed_at: Instant,
    releases: u64,
    released_works: u64,
    held_works_high: u32,
}

impl Tally {
    pub(super) const NEW: Self = Self {
        posted_at: Instant::ZERO,
        completed_at: Instant::ZERO,
        releases: 0,
        released_works: 0,
        held_works_high: 0,
    };

    /// So many works have ended, beside so many that are still held. No lane holds more than right before that.
    pub(super) fn released(&mut self, count: u32, left: usize) {
        self.held_works_high = self.held_works_high.max(left as u32 + count);
        self.released_works += u64::from(count);
    }

    /// Some works have ended in good order, seen together.
    pub(super) fn completed(&mut self, now: Instant) {
        self.completed_at = now;
        self.releases += 1;
    }
}

impl Lane {
    fn load(&self, rail: RailId) -> LaneLoad {
        let held_works = self.flight.len() as u32;
        let tally = &self.tally;
        let ever = |at: Instant| (at != Instant::ZERO).then_some(at);
        let is_full = self.full || held_works >= u32::from(self.limits.works_max);
        LaneLoad {
            rail,
            state: match self.phase {
                Phase::Closed => LaneState::Closed,
                Phase::Opening { .. } => LaneState::Opening,
                Phase::Open => LaneState::Open,
                Phase::Fencing(_) => LaneState::Fencing,
            },
            held_works,
            limit_works: self.limits.works_max,
            held_bytes: self.inflight_bytes,
            held_works_high: tally.held_works_high.max(held_works),
            completed_at: ever(tally.completed_at),
            releases: tally.releases,
            released_works: tally.released_works,
            // Nothing was added since, and what is full now was not before.
            full_since: (is_full && self.phase.is_open()).then_some(tally.posted_at),
        }
    }
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// The lanes that are there or have ever carried something. Looking changes nothing.
    pub fn lanes(&self) -> impl Iterator<Item = LaneLoad> + '_ {
        let lanes = (0..).zip(self.lanes.iter());
        let loads = lanes.map(|(rail, lane)| lane.load(RailId(rail)));
        loads.filter(|load| load.state != LaneState::Closed || load.releases > 0)
    }
}
