//! Works on their way to a lane: handed out, answered, taken back.

use super::attempt::{End, Load, Marks, Stage};
use super::attempts::Attempts;
use super::lane::{Lane, Phase};
use super::peer::Peer;
use super::request::RequestRow;
use super::sequence::Sequence;
use super::{Attempt, Chooser, Orchestrator, Posting, is_nil};
use crate::rail::spray::Slices;
use crate::send_queue::signal::Amount;
use crate::time::{Duration, Instant};
use crate::units::{AttemptId, RailId};
use crate::work::{Cause, Op, POST_MAX, Place, PostBatch, Stop, Work};

/// Bytes of a health probe.
pub(super) const PROBE_BYTES: u32 = 8;

/// No batch waits for another one's work that takes this long and is no shorter than this: a completion of its own costs less.
const APART: Duration = Duration::from_micros(1);
const APART_BYTES_MIN: u64 = 8 * 1024;

/// Works of a post.
pub(super) type Works = heapless::Vec<Work, POST_MAX>;

/// Slices in a row that were never sent, and get rails and are handed out at once.
pub(super) struct Run<'r> {
    pub(super) now: Instant,
    pub(super) rail: RailId,
    /// Bytes in flight there before them.
    pub(super) ahead_bytes: u64,
    pub(super) slices: Slices,
    /// Their request, whose cursor is where they begin.
    pub(super) request: &'r RequestRow,
    pub(super) row: u32,
}

impl Run<'_> {
    /// The first of them.
    #[inline(always)]
    pub(super) fn attempt(&self) -> Attempt {
        let (load, length) = (Load::Slice(self.row), self.slices.length);
        let mut attempt = Attempt::new(load, self.request.op, self.request.cursor, length);
        attempt.bind_to(self.rail, self.ahead_bytes, self.slices.bytes());
        attempt
    }
}

/// What attempts that are handed out in a row share.
struct Out {
    now: Instant,
    /// Of the next one of them.
    sequence: Sequence,
    /// Where the first byte of their request is, on both sides.
    local: Place,
    remote: Place,
}

impl Out {
    /// Hands out the next one.
    #[inline(always)] // see `Self::all_signalled`
    fn work(&mut self, id: AttemptId, row: &mut Attempt, signal: bool) -> Work {
        row.set_stage(Stage::Posted);
        row.posted_at = self.now;
        row.sequence = self.sequence;
        self.sequence = self.sequence.plus(1);
        row.work(id, self.local, self.remote, signal)
    }

    /// Hands out usual ones that ask for a completion, from `index` on, as long as they are of one request. Gives the one
    /// behind them.
    #[inline(never)] // so that its loop has the registers for itself
    fn all_signalled(
        mut self,
        attempts: &mut Attempts<'_>,
        mut index: u32,
        request: u32,
        works: &mut Works,
    ) -> u32 {
        while works.len() < POST_MAX
            && let Some((id, row)) = attempts.entry_mut(index)
            && row.is_of(request)
            && !row.is(Marks::UNUSUAL_OR_QUIET)
        {
            let _ = works.push(self.work(id, row, true));
            index = row.next();
        }
        index
    }
}

/// Works that are handed out together.
#[derive(Clone, Copy)]
struct Lot {
    /// So many fit the rail's window; of no meaning where each completes by itself.
    window_works: usize,
    /// So many at most.
    works_max: usize,
    /// No batch waits for a work of another one that is as long.
    apart_bytes: u32,
}

impl Lot {
    const ANY: Self = Self {
        window_works: 0,
        works_max: POST_MAX,
        apart_bytes: u32::MAX,
    };
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// Puts a probe on a lane, past all windows. `false`: there is no row for it.
    pub(super) fn post_probe(
        &mut self,
        now: Instant,
        rail: RailId,
        load: Load,
        bytes: u32,
    ) -> bool {
        debug_assert!(bytes > 0, "a probe of no bytes");
        let Some(ahead_bytes) = self.shared.reserve(now, rail, u64::from(bytes), u64::MAX) else {
            return false;
        };
        let probe = Attempt::new(load, Op::Write, 0, bytes);
        let index = match load {
            // Slices that fill the table may wait for just this one.
            Load::HealthProbe => self.last_attempt(probe),
            _ => self.new_attempt(probe).map(|id| id.index),
        };
        let Some(index) = index else {
            self.shared.release(rail, u64::from(bytes));
            return false;
        };
        self.put_on_lane(index, rail, ahead_bytes);
        true
    }

    /// Binds an attempt, whose bytes have been reserved, to a rail's lane.
    pub(super) fn put_on_lane(&mut self, index: u32, rail: RailId, ahead_bytes: u64) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        let Some(row) = self.attempts.at_mut(index) else {
            return;
        };
        debug_assert!(
            lane.phase.is_open(),
            "something is bound to a lane that is {:?}",
            lane.phase
        );
        let (op, bytes) = (row.op(), u64::from(row.length));
        row.bind_to(rail, ahead_bytes, bytes);
        lane.flight.bind(&mut self.attempts, index);
        lane.reserved(op, 1, bytes);
        self.posts.push_back(self.lanes, u32::from(rail.0));
    }

    /// Binds more, if the lane that is to post next has few works of those that could share a doorbell. What can be handed
    /// out at once is in `out` then, as [`Self::bind`] says.
    #[inline(never)]
    pub(super) fn gather(&mut self, now: Instant, out: &mut PostBatch) {
        let next = |core: &Self| {
            core.lanes
                .get(core.posts.front()? as usize)
                .map(Lane::gathers)
        };
        while self.bindable && out.works.is_empty() && next(self) == Some(true) {
            let before = self.attempts.len();
            self.bind(now, out);
            if self.attempts.len() == before {
                return;
            }
        }
    }

    /// Moves bound attempts of a lane into `out`, as works.
    pub(super) fn fill(&mut self, now: Instant, index: u32, out: &mut PostBatch) {
        debug_assert!(out.works.is_empty(), "works of another lane");
        let rail = RailId(index as u16);
        out.lane = self.lane_id(rail);
        let Some(lane) = self.lanes.get(rail.index()) else {
            return;
        };
        let was_idle = lane.flight.posted() == 0;
        let mut lot = Lot::ANY;
        if lane.limits.covers {
            lot = Lot {
                window_works: self.window_works(rail),
                works_max: lane.works_at_once(self.bindable),
                apart_bytes: self.apart_bytes(rail),
            };
        }
        while let Some(unwanted) = self.hand_out(now, rail, lot, out) {
            self.unbind(unwanted);
        }
        if out.works.is_empty() && self.cover(now, rail) {
            self.hand_out(now, rail, lot, out);
        }
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        let some_left = !lane.full && lane.flight.bound() > 0;
        if !out.works.is_empty() {
            lane.tally.posted_at = now;
        }
        if was_idle && !out.works.is_empty() {
            lane.progress_at = now;
            self.arm_progress(now, rail);
        }
        if some_left {
            self.posts.push_back(self.lanes, index);
        }
    }

    /// Hands out bound attempts, up to one that nobody wants any more.
    fn hand_out(
        &mut self,
        now: Instant,
        rail: RailId,
        lot: Lot,
        out: &mut PostBatch,
    ) -> Option<u32> {
        loop {
            let lane = self.lanes.get_mut(rail.index())?;
            out.epoch = lane.epoch;
            if lane.phase != Phase::Open || lane.full || out.works.len() >= lot.works_max {
                return None;
            }
            let first = lane.flight.first_bound()?;
            let row = self.attempts.at(first)?;
            if lane.limits.covers || row.is(Marks::UNUSUAL_OR_QUIET) {
                if !self.hand_out_one(now, rail, first, lot, out) {
                    return Some(first);
                }
                continue;
            }
            // Slices in a row are mostly of one request.
            let request = row.request()?;
            let wanted = self.requests.at(request).filter(|row| row.wants_bytes());
            let Some((local, remote)) = wanted.map(RequestRow::places) else {
                return Some(first);
            };
            let like = Out {
                now,
                sequence: lane.next_sequence,
                local,
                remote,
            };
            let before = out.works.len();
            let next = like.all_signalled(&mut self.attempts, first, request, &mut out.works);
            debug_assert!(
                out.works.len() > before,
                "what is first on its lane is not handed out, for ever"
            );
            lane.handed_out(next, (out.works.len() - before) as u32);
            if is_nil(next) {
                return None;
            }
        }
    }

    /// Hands out one bound attempt, the first one of its lane. `false`: nobody wants it any more.
    #[inline(never)]
    fn hand_out_one(
        &mut self,
        now: Instant,
        rail: RailId,
        first: u32,
        lot: Lot,
        out: &mut PostBatch,
    ) -> bool {
        let others_next = self.others_next(first, lot.apart_bytes);
        let Some((lane, (id, row))) = self
            .lanes
            .get_mut(rail.index())
            .zip(self.attempts.entry_mut(first))
        else {
            return false;
        };
        debug_assert!(
            lane.flight.first_bound() == Some(first),
            "not the first of its lane"
        );
        let mut at_once = true;
        let places = match row.load() {
            Load::Slice(request) => {
                let request = self.requests.at(request);
                at_once = request.is_some_and(|request| request.home.is_urgent());
                let wanted =
                    request.filter(|request| request.wants_bytes() && !row.is(Marks::DONE));
                wanted.map(RequestRow::places)
            }
            Load::HealthProbe | Load::RateProbe | Load::Cover => {
                let peer = self.shared.peer(rail);
                let row = peer.and_then(|peer| self.peers.get(peer.index()));
                row.and_then(Peer::scratch)
            }
        };
        let Some((local, remote)) = places else {
            return false;
        };
        let covers = lane.limits.covers;
        // Else each work asks for a completion.
        let signal = !covers || lane.signals(row.op(), lot.window_works, at_once || others_next);
        row.set_signal(signal);
        let mut like = Out {
            now,
            sequence: lane.next_sequence,
            local,
            remote,
        };
        let _ = out.works.push(like.work(id, row, signal));
        lane.handed_out(row.next(), 1);
        true
    }

    /// See [`APART`].
    fn apart_bytes(&self, rail: RailId) -> u32 {
        let bytes = self.shared.rate(rail).bytes_in(APART);
        u32::try_from(bytes.max(APART_BYTES_MIN)).unwrap_or(u32::MAX)
    }

    /// Whether a work of so many bytes that is of another batch comes next on the lane.
    fn others_next(&self, index: u32, apart_bytes: u32) -> bool {
        let row = self.attempts.at(index);
        let next = row.and_then(|row| self.attempts.at(row.next()));
        let Some((row, next)) = row.zip(next.filter(|next| next.length >= apart_bytes)) else {
            return false;
        };
        let batch = |row: &Attempt| Some(self.requests.at(row.request()?)?.batch);
        row.request() != next.request() && batch(row) != batch(next)
    }

    /// The answer to a post that leaves something to do.
    #[cold]
    pub(super) fn posted(&mut self, now: Instant, posting: Posting, accepted: usize, stop: Stop) {
        let rail = posting.lane.rail();
        let index = u32::from(rail.0);
        let accepted = accepted.min(posting.count) as u32;
        // Nothing has been handed out since.
        let behind = self.lanes.get(rail.index()).map(|lane| lane.next_sequence);
        let untaken = posting.count as u32 - accepted;
        let from = behind.unwrap_or(Sequence::FIRST).minus(untaken);
        let some_left = stop != Stop::Unknown && (accepted as usize) < posting.count;
        if !self.is_posting_current(&posting, Phase::is_open) {
            // Something else has been said of the lane while the post was out, and decides about it.
            if some_left && self.is_posting_current(&posting, Phase::is_fencing) {
                self.end_untaken(rail, from);
            }
            return;
        }
        if some_left {
            self.take_back(rail, from);
            self.find_uncovered(rail);
        }
        match stop {
            Stop::All => {}
            Stop::Full => {
                if let Some(lane) = self.lanes.get_mut(rail.index()) {
                    lane.full = true;
                    self.posts.remove(self.lanes, index);
                }
                self.check_full(now, rail);
            }
            Stop::Rejected(cause) => self.rejected(now, rail, cause),
            Stop::Unknown => self.break_lane(now, rail, Cause::Reset),
        }
    }

    /// Works of the usual length that fit a rail's window.
    fn window_works(&self, rail: RailId) -> usize {
        let bytes = self.shared.window_bytes(rail);
        usize::try_from(bytes / u64::from(self.shared.slice_bytes().max(1))).unwrap_or(usize::MAX)
    }

    /// Works that went out and that no signal covers, after a post that took only some.
    fn find_uncovered(&mut self, rail: RailId) {
        let Some(lane) = self
            .lanes
            .get_mut(rail.index())
            .filter(|lane| lane.limits.covers)
        else {
            return;
        };
        let mut uncovered = Amount::default();
        let mut next = lane.flight.last_posted(&mut self.attempts);
        while let Some((index, row)) =
            next.and_then(|index| Some((index, self.attempts.at(index)?)))
            && !row.signal()
        {
            uncovered.works = uncovered.works.saturating_add(1);
            uncovered.reads = uncovered
                .reads
                .saturating_add(u8::from(row.op() == Op::Read));
            next = lane.flight.posted_before(&mut self.attempts, index);
        }
        lane.cadence.handle_partial_post(uncovered);
    }

    /// If a lane has posted works that no signal covers, and nothing to post after them, a scratch word covers them.
    /// Whether it is bound.
    fn cover(&mut self, now: Instant, rail: RailId) -> bool {
        let is_bare = |lane: &&Lane| {
            lane.room_works(Op::Write) > 0
                && lane.flight.bound() == 0
                && lane.cadence.unsignalled().works > 0
        };
        self.lanes.get(rail.index()).filter(is_bare).is_some()
            && self.post_probe(now, rail, Load::Cover, PROBE_BYTES)
    }

    /// Puts the works handed out last, from this place in the order of their lane on, back where they were: they were not taken.
    fn take_back(&mut self, rail: RailId, from: Sequence) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        while let Some(last) = lane.flight.last_posted(&mut self.attempts)
            && let Some(row) = self.attempts.at_mut(last)
            && !row.sequence.is_before(from)
        {
            row.set_stage(Stage::Bound);
            lane.flight.take_back(&mut self.attempts);
        }
        lane.next_sequence = from;
        self.posts.push_back(self.lanes, u32::from(rail.0));
    }

    /// Works from this place in the order of their lane on were not taken, and the lane is being fenced by now: they never
    /// touched anything.
    fn end_untaken(&mut self, rail: RailId, from: Sequence) {
        while let Some(lane) = self.lanes.get(rail.index())
            && let Some(last) = lane.flight.last_posted(&mut self.attempts)
            && self
                .attempts
                .at(last)
                .is_some_and(|row| !row.sequence.is_before(from))
        {
            self.end_attempt(last, End::Ended);
        }
    }

    /// The first work that was not taken was refused.
    fn rejected(&mut self, now: Instant, rail: RailId, cause: Cause) {
        let first = self
            .lanes
            .get(rail.index())
            .and_then(|lane| lane.flight.first_bound());
        let load = first.and_then(|index| Some((index, self.attempts.at(index)?.load())));
        match load {
            Some((index, Load::Slice(_))) if cause.is_callers() => {
                if let Some(request) = self.request_of(index) {
                    self.fail_request(now, request, cause);
                }
            }
            // Nobody needs it, and what is wrong with scratch memory says nothing of the rail.
            Some((index, Load::RateProbe)) if cause.is_callers() => {
                self.end_attempt(index, End::Ended);
            }
            _ => {
                let blame = self.fault(rail, first, cause);
                self.start_fence_for(now, rail, blame);
            }
        }
    }

    /// A lane is of no use any more. Its oldest attempt is what it stumbled over.
    pub(super) fn break_lane(&mut self, now: Instant, rail: RailId, cause: Cause) {
        let lane = self.lanes.get(rail.index());
        let oldest = lane.and_then(|lane| lane.flight.first_posted().or(lane.flight.first_bound()));
        let blame = self.fault(rail, oldest, cause);
        self.start_fence_for(now, rail, blame);
    }

    /// The answer to the post that is out has not come. What became of its works is not known.
    #[cold]
    pub(super) fn give_up_post(&mut self, now: Instant) {
        let Some(posting) = self.posting.take() else {
            return;
        };
        log::warn!(
            "lane {}: a post of {} works was not answered",
            posting.lane.rail().0,
            posting.count
        );
        if self.is_posting_current(&posting, Phase::is_open) {
            self.break_lane(now, posting.lane.rail(), Cause::Silent);
        }
        self.bind_all();
    }

    /// Whether a post's lane still has the epoch that it was for, and stands so.
    fn is_posting_current(&self, posting: &Posting, stands: impl FnOnce(&Phase) -> bool) -> bool {
        let lane = self.lanes.get(posting.lane.rail().index());
        lane.is_some_and(|lane| lane.epoch == posting.epoch && stands(&lane.phase))
    }
}
