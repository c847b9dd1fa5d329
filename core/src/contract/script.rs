//! Transfers that a runtime is driven through, with what can go wrong on the way.

use core::array;

use super::watch::Watch;
use super::{Checked, Rule};
use crate::orchestrator::Request;
use crate::rail::chooser::{Chooser, Spray};
use crate::report::{Report, Status};
use crate::time::{Duration, Instant};
use crate::units::{LaneId, PlanId, RailId, RequestId};
use crate::work::{Op, Priority};

/// No request takes longer than this to end: all of core's timers together are shorter.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Nor so many turns in which time stands still.
const TURNS_MAX: u32 = 1_000_000;
/// The runtime need not sleep for longer.
const NAP: Duration = Duration::from_millis(1);
/// How long a link stays cut while its request goes on.
const CUT: Duration = Duration::from_millis(20);
/// How long memory is looked at after its request is over.
const AFTERWARDS: Duration = Duration::from_millis(50);
/// How far off the deadline is of the request that is to miss it.
const DEADLINE: Duration = Duration::from_micros(50);
/// Bytes at either end of the memory that no request names, at most.
const MARGIN: u64 = 64;
/// Requests that are under way together.
const PARTS: u64 = 8;
/// Bytes that are looked at together.
const CHUNK: usize = 64;

/// Whose memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The plan's local segment.
    Ours,
    /// Its remote segment.
    Theirs,
}

/// A runtime, as the script needs it.
pub trait Runtime<'a, P = Spray> {
    /// Its core.
    fn core(&mut self) -> &mut Checked<'a, P>;

    /// One turn of the loop: hands in what has happened, drains core, and sleeps until there is something to hand in, core has
    /// a timer, or it is `until`. Takes every request and batch that has ended. Gives the time after that.
    fn turn(&mut self, until: Instant) -> Instant;

    /// Puts bytes into memory, `offset` from the start of the segment.
    fn store(&mut self, side: Side, offset: u64, bytes: &[u8]);

    /// Looks at bytes of memory.
    fn load(&mut self, side: Side, offset: u64, bytes: &mut [u8]);

    /// Makes the link of a rail fail, as if its cable were pulled. `false`: it cannot.
    fn cut(&mut self, rail: RailId) -> bool {
        let _ = rail;
        false
    }

    /// Lets a link that was cut work again.
    fn mend(&mut self, rail: RailId) {
        let _ = rail;
    }

    /// Ends the peer, for good: the runtime finds that out, and says so to core. `false`: it cannot.
    fn end_peer(&mut self) -> bool {
        false
    }
}

/// What a script is about. Nothing else is under way meanwhile, and there is room for a batch and for a request, or better for
/// eight.
#[derive(Clone, Copy, Debug)]
pub struct Script<'s> {
    /// Over which plan. It is installed.
    pub plan: PlanId,
    /// Its rails: each is cut in turn.
    pub rails: &'s [RailId],
    /// Bytes of both segments that the script has for itself, from the start on: some slices for each rail, so that all of
    /// them have something to carry.
    pub bytes: u64,
}

/// How far a script came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// The time at its end.
    pub now: Instant,
    /// Links were cut while something was on them.
    pub cuts: u32,
    /// The peer was ended.
    pub peer_ended: bool,
    /// It came to its end. Else a request could not be made, or has not ended.
    pub is_whole: bool,
}

/// What memory is filled with: each byte tells where it belongs.
#[derive(Clone, Copy)]
struct Pattern(u8);

impl Pattern {
    /// What the first request moves, and what is where it goes.
    const SOURCE: Self = Self(3);
    const TARGET: Self = Self(131);
    /// What is there when it is over.
    const OURS: Self = Self(57);
    const THEIRS: Self = Self(201);

    fn byte(self, place: u64) -> u8 {
        let [low, high, more, ..] = place.to_le_bytes();
        low.wrapping_mul(5) ^ high.wrapping_mul(29) ^ more.wrapping_add(self.0)
    }
}

/// A script under way.
struct Stage<'s, 'a, P> {
    script: &'s Script<'s>,
    runtime: &'s mut dyn Runtime<'a, P>,
    now: Instant,
    cuts: u32,
    peer_ended: bool,
}

impl Script<'_> {
    /// Drives a runtime through transfers either way, many at a time, over links that fail, cancelled, too late, and to a peer
    /// that ends, as far as it can do that. What is wrong is in the core's [verdict](Checked::verdict) afterwards.
    pub fn run<'a, P: Chooser>(&self, now: Instant, runtime: &mut dyn Runtime<'a, P>) -> Ran {
        let mut stage = Stage {
            script: self,
            runtime,
            now,
            cuts: 0,
            peer_ended: false,
        };
        let is_whole = stage.all().is_some();
        stage.ask(|watch| watch.is_calm = false);
        let Stage {
            now,
            cuts,
            peer_ended,
            ..
        } = stage;
        Ran {
            now,
            cuts,
            peer_ended,
            is_whole,
        }
    }
}

impl<P: Chooser> Stage<'_, '_, P> {
    /// `None`: it cannot go on.
    fn all(&mut self) -> Option<()> {
        // Nothing would be known of requests without it.
        self.ask(|watch| watch.is_calm = true)?;
        self.whole(Op::Write)?;
        self.whole(Op::Read)?;
        self.many()?;
        self.ask(|watch| {
            watch.nothing_is_full();
            watch.is_calm = false;
        })?;
        for rail in self.script.rails {
            self.cut(Op::Write, *rail)?;
            self.cut(Op::Read, *rail)?;
        }
        let cancelled = self.begin(Op::Write, Instant::MAX)?;
        self.until_busy(cancelled, None);
        let now = self.now;
        self.runtime.core().cancel(now, cancelled);
        self.over(Op::Write, cancelled)?;
        let late = self.begin(Op::Write, self.now + DEADLINE)?;
        self.over(Op::Write, late)?;
        let left = self.begin(Op::Write, Instant::MAX)?;
        self.until_busy(left, None);
        self.peer_ended = self.runtime.end_peer();
        self.over(Op::Write, left).map(drop)
    }

    fn tell(&mut self, rule: Rule, number: u64, span: Duration) {
        self.ask(|watch| watch.tell(rule, None, number, span));
    }

    /// Where requests are: all of the memory but its ends.
    fn range(&self) -> (u64, u64) {
        let margin = MARGIN.min(self.script.bytes / 4);
        (margin, self.script.bytes - margin)
    }

    // Memory.

    /// The pieces in which memory is looked at: where they begin, and how long they are.
    fn chunks(&self) -> impl Iterator<Item = (u64, usize)> + use<P> {
        let bytes = self.script.bytes;
        let starts = (0..bytes).step_by(CHUNK);
        starts.map(move |start| (start, (bytes - start).min(CHUNK as u64) as usize))
    }

    fn fill(&mut self, side: Side, pattern: Pattern) {
        for (start, length) in self.chunks() {
            let chunk: [u8; CHUNK] = array::from_fn(|byte| pattern.byte(start + byte as u64));
            self.runtime
                .store(side, start, chunk.get(..length).unwrap_or_default());
        }
    }

    /// Looks whether memory has this pattern in each place.
    fn look(&mut self, rule: Rule, side: Side, pattern: impl Fn(u64) -> Pattern) {
        for (start, length) in self.chunks() {
            let mut chunk = [0; CHUNK];
            let part = chunk.get_mut(..length).unwrap_or_default();
            self.runtime.load(side, start, part);
            let mut bytes = (start..).zip(&*part);
            let wrong = bytes.find(|(place, byte)| **byte != pattern(*place).byte(*place));
            if let Some((place, _)) = wrong {
                return self.tell(rule, place, Duration::ZERO);
            }
        }
    }

    /// Puts what is to be moved where it is moved from.
    fn prepare(&mut self, op: Op) {
        let (source, target) = sides(op);
        self.fill(source, Pattern::SOURCE);
        self.fill(target, Pattern::TARGET);
    }

    /// Looks whether it was moved.
    fn moved(&mut self, op: Op) {
        let (source, target) = sides(op);
        let (start, end) = self.range();
        let arrived = |place| match (start..end).contains(&place) {
            true => Pattern::SOURCE,
            false => Pattern::TARGET,
        };
        self.look(Rule::BytesWrong, target, arrived);
        self.look(Rule::BytesWrong, source, |_| Pattern::SOURCE);
    }

    /// Nothing of any request is under way: looks whether that is so.
    fn afterwards(&mut self) {
        let sides = [(Side::Ours, Pattern::OURS), (Side::Theirs, Pattern::THEIRS)];
        for (side, pattern) in sides {
            self.fill(side, pattern);
        }
        let until = self.now + AFTERWARDS;
        self.turns(|stage| stage.now >= until);
        for (side, pattern) in sides {
            self.look(Rule::TouchedAfterReport, side, |_| pattern);
        }
    }

    // Requests.

    fn submit(&mut self, op: Op, start: u64, end: u64, deadline: Instant) -> Option<RequestId> {
        let batch = self.runtime.core().open_batch(0)?;
        let request = Request {
            tag: 0,
            plan: self.script.plan,
            batch,
            local_offset: start,
            remote_offset: start,
            length: end - start,
            deadline,
            op,
            priority: Priority::Normal,
        };
        let core = self.runtime.core();
        let submitted = core.submit(self.now, &request);
        core.seal_batch(batch);
        submitted.ok()
    }

    /// One request for all of the memory.
    fn begin(&mut self, op: Op, deadline: Instant) -> Option<RequestId> {
        self.prepare(op);
        let (start, end) = self.range();
        let submitted = self.submit(op, start, end, deadline);
        if submitted.is_none() {
            self.not_completed(Status::Pending);
        }
        submitted
    }

    fn not_completed(&mut self, status: Status) {
        self.tell(Rule::NotCompleted, status as u64, Duration::ZERO);
    }

    /// Asks the watch over all calls.
    fn ask<T>(&mut self, what: impl FnOnce(&mut Watch<'_>) -> T) -> Option<T> {
        self.runtime.core().watch.as_mut().map(what)
    }

    fn report(&mut self, id: RequestId) -> Option<Report> {
        self.ask(|watch| watch.report(id)).flatten()
    }

    /// Turns until something is so. `false`: it takes too long.
    fn turns(&mut self, is_so: impl Fn(&mut Self) -> bool) -> bool {
        let give_up = self.now + WAIT_MAX;
        let mut turns = 0;
        while !is_so(self) {
            if self.now >= give_up || turns == TURNS_MAX {
                return false;
            }
            let before = self.now;
            self.now = self.runtime.turn(before + NAP).max(before);
            turns = if self.now > before { 0 } else { turns + 1 };
        }
        true
    }

    /// Turns until a rail has something of the request, any rail if none is said, or it is over.
    fn until_busy(&mut self, id: RequestId, rail: Option<RailId>) -> bool {
        let rails = self.script.rails;
        let until = self.now + CUT;
        self.turns(|stage| {
            stage.is_busy(rail.as_slice())
                || rail.is_none() && stage.is_busy(rails)
                || stage.report(id).is_some()
                || stage.now >= until
        });
        self.report(id).is_none() && rail.is_none_or(|rail| self.is_busy(&[rail]))
    }

    fn is_busy(&mut self, rails: &[RailId]) -> bool {
        let worker = self.runtime.core().worker();
        let mut lanes = rails.iter().map(|rail| LaneId::new(worker, *rail));
        self.ask(|watch| lanes.any(|lane| watch.is_busy(lane))) == Some(true)
    }

    /// Turns until a request has ended.
    fn ended(&mut self, id: RequestId) -> Option<Report> {
        let since = self.now;
        let has_ended = self.turns(|stage| stage.report(id).is_some());
        if !has_ended && self.ask(|watch| watch.is_told(id)) == Some(true) {
            self.tell(Rule::NotTaken, 0, Duration::ZERO);
        } else if !has_ended && self.ask(|watch| watch.has_told(Rule::RowsUsedUp)) == Some(false) {
            self.tell(Rule::NeverEnded, 0, self.now.since(since));
        }
        self.report(id)
    }

    /// Turns until a request for all of the memory has ended, and looks at that.
    fn over(&mut self, op: Op, id: RequestId) -> Option<Report> {
        let report = self.ended(id)?;
        if report.status == Status::Completed {
            self.moved(op);
        }
        if report.is_proved() {
            self.afterwards();
        }
        Some(report)
    }

    /// Nothing came in the way of a request.
    fn completed(&mut self, report: Report) {
        if report.status != Status::Completed {
            self.not_completed(report.status);
        }
    }

    /// One that nothing comes in the way of.
    fn whole(&mut self, op: Op) -> Option<()> {
        let id = self.begin(op, Instant::MAX)?;
        let report = self.over(op, id)?;
        self.completed(report);
        Some(())
    }

    /// Several at a time, by turns this way and that.
    fn many(&mut self) -> Option<()> {
        self.prepare(Op::Write);
        let (start, end) = self.range();
        let length = (end - start) / PARTS;
        let mut ids = heapless::Vec::<RequestId, { PARTS as usize }>::new();
        for part in 0..PARTS {
            let start = start + part * length;
            let op = if part % 2 == 0 { Op::Write } else { Op::Read };
            ids.extend(self.submit(op, start, start + length, Instant::MAX));
        }
        let mut is_good = true;
        for id in &ids {
            let report = self.ended(*id)?;
            self.completed(report);
            is_good &= report.status == Status::Completed;
        }
        let parts = ids.len() as u64;
        for side in [Side::Ours, Side::Theirs].into_iter().filter(|_| is_good) {
            self.look(Rule::BytesWrong, side, |place| {
                let part = place.checked_sub(start).map(|place| place / length.max(1));
                match part.filter(|part| *part < parts) {
                    // What it was moved from.
                    Some(part) if part % 2 == 0 => Pattern::SOURCE,
                    Some(_) => Pattern::TARGET,
                    None if side == Side::Ours => Pattern::SOURCE,
                    None => Pattern::TARGET,
                }
            });
        }
        self.afterwards();
        Some(())
    }

    /// One whose link fails on the way.
    fn cut(&mut self, op: Op, rail: RailId) -> Option<Report> {
        let id = self.begin(op, Instant::MAX)?;
        if self.until_busy(id, Some(rail)) && self.runtime.cut(rail) {
            self.cuts += 1;
            let until = self.now + CUT;
            self.turns(|stage| stage.now >= until || stage.report(id).is_some());
            self.runtime.mend(rail);
        }
        self.over(op, id)
    }
}

/// Where it is moved from, and where to.
fn sides(op: Op) -> (Side, Side) {
    match op {
        Op::Write => (Side::Ours, Side::Theirs),
        Op::Read => (Side::Theirs, Side::Ours),
    }
}
