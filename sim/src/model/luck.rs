//! What goes wrong by chance: drawn from a stream of its own, so that a run without trouble is as it was.

use polyrail_core::work::Cause;

use super::chance::Chance;
use crate::scenario::Trouble;
use crate::setup::Setup;

/// The stream of trouble.
const TROUBLE_STREAM: u64 = 1;

/// Reasons that speak against a lane or its rail.
const OF_LANE: [Cause; 7] = [
    Cause::RetryExceeded,
    Cause::RnrRetryExceeded,
    Cause::Fatal,
    Cause::DeviceDown,
    Cause::Reset,
    Cause::Flushed,
    Cause::Silent,
];
/// Reasons that a work has itself.
const OF_WORK: [Cause; 7] = [
    Cause::LocalProtection,
    Cause::LocalLength,
    Cause::LocalOperation,
    Cause::RemoteAccess,
    Cause::RemoteInvalidRequest,
    Cause::RemoteOperation,
    Cause::BadResponse,
];

/// A side that does not let go of a lane at once takes so much longer than other things that are late: often longer
/// than the peer takes for its part.
pub(super) const HELD_DELAYS: u64 = 16;

/// What becomes of a work's bytes and its completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// It arrives and completes.
    Well,
    /// It fails, and nothing of it arrives.
    Fails(Cause),
    /// It fails although it has arrived.
    FailsThere(Cause),
    /// It fails, and arrives so much later.
    FailsBefore(Cause, u64),
}

/// What becomes of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// It is seen now.
    Kept,
    /// It is never seen.
    Lost,
    /// It is seen so much later.
    Late(u64),
    /// It is seen now, and again so much later.
    Twice(u64),
}

/// What becomes of a post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Take {
    /// All works are taken.
    All,
    /// So many are, and there is room for others that much later, or nobody says so.
    Full(usize, Option<u64>),
    /// So many are, and the next one is refused.
    Rejected(usize, Cause),
    /// So many are, and of the others the first few too; but nobody knows.
    Unknown(usize, usize),
}

/// The dice of a run.
pub(super) struct Luck<'a> {
    table: &'a Trouble,
    spared: &'a [bool],
    until: u64,
    chance: Chance,
}

impl<'a> Luck<'a> {
    pub(super) fn new(setup: &'a Setup) -> Self {
        Self {
            table: &setup.trouble,
            spared: &setup.spared,
            until: (setup.trouble.until_ms * 1_000_000.0) as u64,
            chance: Chance::new(setup.seed, TROUBLE_STREAM),
        }
    }

    /// Whether something that happens once in so many times happens now.
    fn strikes(&mut self, now: u64, one_in: u32) -> bool {
        one_in != 0 && now < self.until && self.chance.below(one_in.into()) == 0
    }

    fn strikes_on(&mut self, now: u64, rail: usize, one_in: u32) -> bool {
        !self.spared[rail] && self.strikes(now, one_in)
    }

    /// Short delays are as likely as long ones.
    pub(super) fn delay(&mut self) -> u64 {
        let longest = (self.table.late_us * 1_000) >> self.chance.below(12);
        1 + self.chance.below(longest)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.chance.below(end)
    }

    fn of_lane(&mut self) -> Cause {
        OF_LANE[self.chance.below(OF_LANE.len() as u64) as usize]
    }

    fn of_work(&mut self) -> Cause {
        OF_WORK[self.chance.below(OF_WORK.len() as u64) as usize]
    }

    pub(super) fn fate(&mut self, now: u64, rail: usize) -> Fate {
        if self.strikes_on(now, rail, self.table.refuse_one_in) {
            return Fate::Fails(self.of_work());
        }
        if !self.strikes_on(now, rail, self.table.error_one_in) {
            return Fate::Well;
        }
        let cause = self.of_lane();
        match self.chance.below(3) {
            0 => Fate::Fails(cause),
            1 => Fate::FailsThere(cause),
            _ => Fate::FailsBefore(cause, self.delay()),
        }
    }

    pub(super) fn word(&mut self, now: u64, rail: usize) -> Word {
        if self.strikes_on(now, rail, self.table.lost_one_in) {
            Word::Lost
        } else if self.strikes_on(now, rail, self.table.late_one_in) {
            Word::Late(self.delay())
        } else if self.strikes_on(now, rail, self.table.twice_one_in) {
            Word::Twice(self.delay())
        } else {
            Word::Kept
        }
    }

    /// Of a post of so many works.
    pub(super) fn take(&mut self, now: u64, rail: usize, works: usize) -> Take {
        let some = |chance: &mut Chance, end: usize| chance.below(end as u64) as usize;
        if self.strikes_on(now, rail, self.table.full_one_in) {
            let said = self.chance.below(4) != 0;
            let taken = some(&mut self.chance, works);
            Take::Full(taken, said.then(|| self.delay()))
        } else if self.strikes_on(now, rail, self.table.rejected_one_in) {
            let cause = match self.table.refuse_one_in {
                0 => self.of_lane(),
                _ if self.chance.below(2) == 0 => self.of_lane(),
                _ => self.of_work(),
            };
            Take::Rejected(some(&mut self.chance, works), cause)
        } else if self.strikes_on(now, rail, self.table.unknown_one_in) {
            let taken = some(&mut self.chance, works);
            let more = some(&mut self.chance, works - taken + 1);
            Take::Unknown(taken, more)
        } else {
            Take::All
        }
    }

    /// Whether what has come is handed in before a post is answered, and whether its lane is found broken then.
    pub(super) fn facts(&mut self, now: u64, rail: usize) -> Option<bool> {
        self.strikes_on(now, rail, self.table.facts_one_in)
            .then(|| self.chance.below(2) == 0)
    }

    /// How many more works than were given are said to be taken.
    pub(super) fn says_more(&mut self, now: u64, rail: usize) -> usize {
        match self.strikes_on(now, rail, self.table.lie_one_in) {
            true => self.chance.below(1_000) as usize,
            false => 0,
        }
    }

    /// Whether a worker is told what cannot be.
    pub(super) fn lies(&mut self, now: u64) -> bool {
        self.strikes(now, self.table.lie_one_in)
    }

    /// Whether a worker is told what could be, and is not.
    pub(super) fn tells_false(&mut self, now: u64) -> bool {
        self.strikes(now, self.table.false_one_in)
    }

    /// Until when such things may be told.
    pub(super) fn false_until(&self) -> u64 {
        match self.table.false_one_in {
            0 => 0,
            _ => self.until,
        }
    }

    /// Whether a lane breaks after a post, and how long after.
    pub(super) fn breaks(&mut self, now: u64, rail: usize) -> Option<u64> {
        self.strikes_on(now, rail, self.table.broken_one_in)
            .then(|| self.delay())
    }

    /// Whether a lane does not open: after how long it does, at last, or says that it does not.
    pub(super) fn unopened(&mut self, now: u64, rail: usize) -> Option<(u64, bool)> {
        self.strikes_on(now, rail, self.table.unopened_one_in)
            .then(|| (self.delay(), self.chance.below(2) == 0))
    }

    /// How much longer than usual this side takes to let go of a lane.
    pub(super) fn held(&mut self, now: u64, rail: usize) -> Option<u64> {
        self.strikes_on(now, rail, self.table.held_one_in)
            .then(|| HELD_DELAYS * self.delay())
    }

    /// Whether a lane's fact is said again, and when.
    pub(super) fn repeated(&mut self, now: u64, rail: usize) -> Option<u64> {
        self.strikes_on(now, rail, self.table.repeated_one_in)
            .then(|| self.delay())
    }

    /// When the copies of a control message arrive, after their usual time.
    pub(super) fn frame(&mut self, now: u64) -> [Option<u64>; 2] {
        if self.strikes(now, self.table.frame_lost_one_in) {
            [None, None]
        } else if self.strikes(now, self.table.frame_late_one_in) {
            [Some(self.delay()), None]
        } else if self.strikes(now, self.table.frame_twice_one_in) {
            [Some(0), Some(self.delay())]
        } else {
            [Some(0), None]
        }
    }

    /// Whether a program cancels a request, and after how long: 1 µs to 33 ms, short or long alike.
    pub(super) fn cancels(&mut self, one_in: u32) -> Option<u64> {
        (one_in != 0 && self.chance.below(one_in.into()) == 0)
            .then(|| 1 << (10 + self.chance.below(16)))
    }

    /// Whether an agent is killed at a heartbeat.
    pub(super) fn agent_crashes(&mut self, now: u64) -> bool {
        self.strikes(now, self.table.agent_crash_one_in)
    }

    /// How long a worker stands still now.
    pub(super) fn stall(&mut self, now: u64) -> Option<u64> {
        self.strikes(now, self.table.stall_one_in)
            .then(|| self.delay())
    }
}
