//! One posting of one slice, from the moment it gets a rail to its completion or fence.

use super::attempts::{Ended, Freed};
use super::lane::{Blame, Phase};
use super::sequence::Sequence;
use super::{Chooser, Orchestrator};
use crate::queue::Link;
use crate::rail::Known;
use crate::rail::chooser::Binding;
use crate::rail::estimate::{Observation, Sample};
use crate::table::NIL;
use crate::time::Instant;
use crate::units::{AttemptId, Epoch, LaneId, PeerId, RailId, RequestId};
use crate::work::{Cause, Completion, Op, Outcome, Place, Work};

/// Where an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Handed out. Ends by a completion or by the lane's fence.
    Posted,
    /// In its lane's queue: has a rail and room on it, not handed out yet.
    Bound,
    /// In its request's queue: to be sent again, on whichever rail can take it.
    Waiting,
    /// Nowhere: the row is free.
    Free,
}

/// What an attempt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// A slice of the request in this row, which lives as long as an attempt names it.
    Slice(u32),
    /// A scratch word that decides about a paused rail.
    HealthProbe,
    /// A scratch slice that looks at an idle rail's speed.
    RateProbe,
    /// A scratch word whose completion covers works that asked for none.
    Cover,
}

/// In place of a request's row. Tables have no such rows.
const HEALTH_PROBE: u32 = NIL;
const RATE_PROBE: u32 = NIL - 1;
const COVER: u32 = NIL - 2;

impl Load {
    const fn pack(self) -> u32 {
        match self {
            Self::Slice(request) => {
                debug_assert!(request < COVER, "a row that no table has");
                request
            }
            Self::HealthProbe => HEALTH_PROBE,
            Self::RateProbe => RATE_PROBE,
            Self::Cover => COVER,
        }
    }

    const fn unpack(word: u32) -> Self {
        match word {
            HEALTH_PROBE => Self::HealthProbe,
            RATE_PROBE => Self::RateProbe,
            COVER => Self::Cover,
            request => Self::Slice(request),
        }
    }
}

/// What is true of an attempt or is not, one bit each; above these bits its stage, and below them its rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Marks(u32);

const STAGE_SHIFT: u32 = 24;
const STAGE_BITS: u32 = 0b11 << STAGE_SHIFT;
const RAIL_BITS: u32 = 0xffff;

impl Marks {
    /// It reads; else it writes.
    const READ: Self = Self(1 << 16);
    /// Its work asks for no completion of its own.
    const QUIET: Self = Self(1 << 17);
    /// Another copy of its slice has arrived.
    pub(super) const DONE: Self = Self(1 << 18);
    /// Its lane's fence has been given up; its request does not wait for it any more.
    pub(super) const LOST: Self = Self(1 << 19);
    /// It is not to be bound to the rail of its sibling, an older copy.
    const APART: Self = Self(1 << 20);
    /// Its slice has had copies.
    const COPIED: Self = Self(1 << 21);
    /// It is a probe.
    const PROBE: Self = Self(1 << 22);
    /// The peer has refused it, unless it is a process that is ending: it stays until its lane's fence says which.
    pub(super) const REFUSED: Self = Self(1 << 23);
    /// Its request has failed for it. It waits for its lane's fence, and counts as not arrived whatever that says.
    pub(super) const FAULTY: Self = Self(1 << 26);
    /// A later one of its lane has completed, where each completes by itself: it is slow, or its completion is lost.
    pub(super) const OVERTAKEN: Self = Self(1 << 27);
    /// Its completion has come, and was of one of these kinds.
    const ANSWERED: Self = Self(Self::REFUSED.0 | Self::FAULTY.0);
    /// What most have none of.
    pub(super) const UNUSUAL: Self = Self(
        Self::DONE.0
            | Self::LOST.0
            | Self::COPIED.0
            | Self::PROBE.0
            | Self::REFUSED.0
            | Self::FAULTY.0,
    );
    /// And what goes to a lane where each work asks for a completion, neither.
    pub(super) const UNUSUAL_OR_QUIET: Self = Self(Self::UNUSUAL.0 | Self::QUIET.0);
    /// None of what goes to a lane has a bit of these once it has been handed out.
    const UNUSUAL_OR_NOT_POSTED: Self = Self(Self::UNUSUAL.0 | STAGE_BITS);

    /// Of a free row.
    pub(super) const FREE: Self = Self(0).at(Stage::Free);

    const fn at(self, stage: Stage) -> Self {
        Self(self.0 & !STAGE_BITS | (stage as u32) << STAGE_SHIFT)
    }

    const fn on(self, rail: RailId) -> Self {
        Self(self.0 & !RAIL_BITS | rail.0 as u32)
    }
}

const _: () = assert!(Stage::Posted as u32 == 0);

/// A row of the attempts' table; opaque.
///
/// There are many of them, so none has a gap.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Attempt {
    /// How often its row has been used.
    pub(super) generation: u32,
    load: u32,
    pub(super) marks: Marks,
    /// Position in the order of its lane's epoch, once posted.
    pub(super) sequence: Sequence,
    /// Bytes from the start of the request.
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) posted_at: Instant,
    /// Bytes in flight on the rail before it.
    ahead_bytes: u32,
    /// The next copy of the same slice, in a ring; itself if there is none.
    pub(super) sibling: u32,
    /// Its place in its request's queue, on its lane, or among the free rows.
    pub(super) link: Link,
}

const _: () = assert!(size_of::<Attempt>() <= 52);

impl Attempt {
    /// A free row, for the arrays that a caller hands in.
    pub const EMPTY: Self = Self {
        generation: 0,
        load: HEALTH_PROBE,
        marks: Marks::FREE,
        sequence: Sequence::FIRST,
        offset: 0,
        length: 0,
        posted_at: Instant::ZERO,
        ahead_bytes: 0,
        sibling: NIL,
        link: Link::NONE,
    };

    /// Not in a row yet.
    pub(super) fn new(load: Load, op: Op, offset: u64, length: u32) -> Self {
        let reads = if op == Op::Read { Marks::READ.0 } else { 0 };
        let probes = match load {
            Load::Slice(_) => 0,
            Load::HealthProbe | Load::RateProbe | Load::Cover => Marks::PROBE.0,
        };
        Self {
            load: load.pack(),
            marks: Marks(reads | probes).at(Stage::Waiting),
            offset,
            length,
            ..Self::EMPTY
        }
    }

    /// It has a rail, and so have slices behind it, of so many `bytes` with it. There are `ahead_bytes` in flight before it;
    /// what makes it more than 4 GiB together does not count.
    pub(super) fn bind_to(&mut self, rail: RailId, ahead_bytes: u64, bytes: u64) {
        debug_assert!(
            self.stage() == Stage::Waiting,
            "{:?} gets a rail",
            self.stage()
        );
        self.marks = self.marks.at(Stage::Bound).on(rail);
        let ahead_max = u64::from(u32::MAX).saturating_sub(bytes);
        self.ahead_bytes = ahead_bytes.min(ahead_max) as u32;
    }

    /// It in a row of the table, alone of its slice.
    pub(super) fn in_row(self, index: u32, generation: u32, link: Link) -> Self {
        Self {
            generation,
            sibling: index,
            link,
            ..self
        }
    }

    /// Makes it an attempt like another one. Whose row it is, it keeps, and where that is linked.
    #[inline(always)] // see `Flight::post_run`
    pub(super) fn put(&mut self, like: &Self) {
        self.load = like.load;
        self.marks = like.marks;
        self.sequence = like.sequence;
        self.offset = like.offset;
        self.length = like.length;
        self.posted_at = like.posted_at;
        self.ahead_bytes = like.ahead_bytes;
    }

    pub(super) fn stage(&self) -> Stage {
        match self.marks.0 & STAGE_BITS {
            bits if bits == Marks(0).at(Stage::Posted).0 => Stage::Posted,
            bits if bits == Marks(0).at(Stage::Bound).0 => Stage::Bound,
            bits if bits == Marks(0).at(Stage::Waiting).0 => Stage::Waiting,
            _ => Stage::Free,
        }
    }

    /// Its rail, once bound.
    pub(super) fn rail(&self) -> RailId {
        RailId(self.marks.0 as u16)
    }

    pub(super) fn set_stage(&mut self, stage: Stage) {
        use Stage::*;
        debug_assert!(
            matches!(
                (self.stage(), stage),
                (Bound, Posted) | (Posted, Bound) | (Bound | Waiting, Waiting)
            ),
            "{:?} becomes {stage:?}",
            self.stage()
        );
        self.marks = self.marks.at(stage);
    }

    /// It as a work, of a request whose first byte is there on both sides.
    #[inline(always)] // what most works share stays in registers
    pub(super) fn work(&self, id: AttemptId, local: Place, remote: Place, signal: bool) -> Work {
        Work {
            cookie: id.to_bits(),
            op: self.op(),
            local: local.plus(self.offset),
            remote: remote.plus(self.offset),
            length: self.length,
            signal,
        }
    }

    /// Makes it the slice behind itself, on the same lane.
    pub(super) fn advance(&mut self) {
        self.sequence = self.sequence.plus(1);
        self.offset += u64::from(self.length);
        self.ahead_bytes = self.ahead_bytes.wrapping_add(self.length);
    }

    pub(super) fn load(&self) -> Load {
        Load::unpack(self.load)
    }

    /// The row of the request that it is a slice of.
    pub(super) fn request(&self) -> Option<u32> {
        (self.load < COVER).then_some(self.load)
    }

    /// Whether it is a slice of the request in this row.
    pub(super) fn is_of(&self, request: u32) -> bool {
        self.load == request
    }

    /// Whether a completion that a lane tells may be its own.
    fn is_posted_on(&self, rail: RailId) -> bool {
        self.stage() == Stage::Posted && self.rail() == rail && !self.is(Marks::ANSWERED)
    }

    /// Whether it was handed out, is a slice that never had a copy, and its request waits for it.
    pub(super) fn is_usual(&self) -> bool {
        !self.is(Marks::UNUSUAL_OR_NOT_POSTED)
    }

    pub(super) fn op(&self) -> Op {
        if self.is(Marks::READ) {
            Op::Read
        } else {
            Op::Write
        }
    }

    /// Whether its work asks for a completion of its own.
    pub(super) fn signal(&self) -> bool {
        !self.is(Marks::QUIET)
    }

    pub(super) fn set_signal(&mut self, signal: bool) {
        self.marks.0 = self.marks.0 & !Marks::QUIET.0 | if signal { 0 } else { Marks::QUIET.0 };
    }

    pub(super) fn ahead_bytes(&self) -> u64 {
        u64::from(self.ahead_bytes)
    }

    /// What its completion, seen at `at`, shows of the rail.
    fn sample(&self, at: Instant) -> Sample {
        self.timing().seen(at)
    }

    /// When it was handed out, and behind what.
    pub(super) fn timing(&self) -> Timing {
        Timing {
            posted_at: self.posted_at,
            ahead_bytes: self.ahead_bytes,
            length: self.length,
        }
    }

    /// The one behind it in its queue; [`NIL`]: none.
    pub(super) fn next(&self) -> u32 {
        let link = self.link;
        link.next()
    }

    /// The one before it; [`NIL`]: none.
    pub(super) fn previous(&self) -> u32 {
        let link = self.link;
        link.previous()
    }

    pub(super) fn is(&self, mark: Marks) -> bool {
        self.marks.0 & mark.0 != 0
    }

    pub(super) fn mark(&mut self, mark: Marks) {
        self.marks.0 |= mark.0;
    }
}

/// When an attempt was handed out, and behind what.
#[derive(Clone, Copy)]
pub(super) struct Timing {
    posted_at: Instant,
    ahead_bytes: u32,
    pub(super) length: u32,
}

impl Timing {
    /// What the attempt's completion, seen at `at`, shows of the rail.
    fn seen(self, at: Instant) -> Sample {
        Sample {
            posted_at: self.posted_at,
            seen_at: at,
            ahead_bytes: u64::from(self.ahead_bytes),
            bytes: u64::from(self.length),
        }
    }
}

/// Completions of one lane, one after the other.
struct Run {
    lane: (LaneId, Epoch),
    /// What the last of them show of the rail.
    seen: Option<Observation>,
    /// Something ended by them whose bytes are given back already.
    ended: bool,
    /// Bytes that are not in flight any more and still count as such.
    released_bytes: u64,
    /// The last of them that left an older work behind, on a lane where works complete in order.
    overtook: Option<Sequence>,
}

impl Run {
    const fn new(lane: (LaneId, Epoch)) -> Self {
        Self {
            lane,
            seen: None,
            ended: false,
            released_bytes: 0,
            overtook: None,
        }
    }

    /// Whether a completion is one of them, and a good one.
    fn goes_on(&self, next: &Completion) -> bool {
        (next.lane, next.epoch) == self.lane && next.outcome == Outcome::Success
    }

    /// More of them. Gives what others have shown that were seen at another instant.
    #[inline]
    fn saw(&mut self, more: Observation) -> Option<Observation> {
        let Some(seen) = &mut self.seen else {
            self.seen = Some(more);
            return None;
        };
        if seen.join(&more) {
            None
        } else {
            Some(core::mem::replace(seen, more))
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its bytes arrived.
    Delivered,
    /// It can do nothing more; whether its bytes arrived is not known, and no matter if a copy's did.
    Ended,
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// Puts a new attempt into the table. The last row is kept for slices that are cut again, and for probes of paused rails.
    pub(super) fn new_attempt(&mut self, attempt: Attempt) -> Option<AttemptId> {
        let request = attempt.request();
        debug_assert!(
            request.is_none_or(|request| self.requests.at(request).is_some()),
            "a slice of no request"
        );
        let id = match self.attempts.insert_but_last(attempt) {
            Some(id) => id,
            None => {
                self.evict_lost();
                self.attempts.insert_but_last(attempt)?
            }
        };
        if let Some(row) = request.and_then(|request| self.requests.at_mut(request)) {
            row.held += 1;
        }
        Some(id)
    }

    /// Puts a new attempt into any row that is free, the last one too.
    pub(super) fn last_attempt(&mut self, attempt: Attempt) -> Option<u32> {
        if self.attempts.is_full() {
            self.evict_lost();
        }
        let request = attempt.request();
        debug_assert!(
            request.is_none_or(|request| self.requests.at(request).is_some()),
            "a slice of no request"
        );
        let id = self.attempts.insert(attempt)?;
        if let Some(row) = request.and_then(|request| self.requests.at_mut(request)) {
            row.held += 1;
        }
        Some(id.index)
    }

    /// What older copies of a slice bring does not count any more: this one has to arrive, and may be cut.
    pub(super) fn leave_copies(&mut self, index: u32) {
        let Some(first) = self.attempts.at(index).map(|row| row.sibling) else {
            return;
        };
        let mut at = first;
        while at != index {
            let Some(row) = self.attempts.at_mut(at) else {
                debug_assert!(false, "row {at} is free, and a copy of row {index}");
                break;
            };
            row.mark(Marks::DONE);
            at = row.sibling;
            if at == index {
                row.sibling = first;
            }
        }
        if let Some(row) = self.attempts.at_mut(index) {
            row.sibling = index;
            row.marks.0 &= !Marks::APART.0;
        }
    }

    /// A copy of a posted attempt, to be sent elsewhere. None if there is no row, or another copy may still arrive: one on a lane
    /// that is being fenced does not count, because nothing says that it will.
    pub(super) fn duplicate(&mut self, index: u32) {
        let Some(row) = self.attempts.at(index) else {
            return;
        };
        debug_assert!(row.stage() == Stage::Posted, "a copy of {:?}", row.stage());
        let is_wanted = !row.is(Marks::DONE) && !self.has_copy_under_way(index);
        let (Some(request), true) = (row.request(), is_wanted) else {
            return;
        };
        let mut copy = Attempt::new(row.load(), row.op(), row.offset, row.length);
        copy.mark(Marks::APART);
        copy.mark(Marks::COPIED);
        if self
            .requests
            .at(request)
            .is_none_or(|row| !row.wants_bytes())
        {
            return;
        }
        let Some(copy) = self.new_attempt(copy) else {
            return;
        };
        if let Some(row) = self.attempts.at_mut(index) {
            let others = core::mem::replace(&mut row.sibling, copy.index);
            row.mark(Marks::COPIED);
            if let Some(row) = self.attempts.get_mut(copy) {
                row.sibling = others;
            }
        }
        self.wait_again(request, copy.index);
    }

    /// Whether another copy of an attempt's slice is to be sent, or is on a lane that takes works.
    fn has_copy_under_way(&self, index: u32) -> bool {
        let mut copy = self.attempts.at(index);
        while let Some(next) = copy.map(|row| row.sibling).filter(|next| *next != index) {
            copy = self.attempts.at(next);
            let is_under_way = |row: &Attempt| {
                let lane = self.lanes.get(row.rail().index());
                row.stage() == Stage::Waiting || lane.is_some_and(|lane| lane.phase == Phase::Open)
            };
            if copy.is_some_and(is_under_way) {
                return true;
            }
        }
        false
    }

    /// Ends an attempt, and reports its request if that was the last it waited for.
    pub(super) fn end_attempt(&mut self, index: u32, end: End) {
        if let Some(request) = self.remove_attempt(index, end) {
            self.settle_request(request);
        }
    }

    /// Takes an attempt that is not in its request's queue out of everything. Its slice goes back to be sent
    /// again if it has not arrived and no copy is left. Gives the request, if it was a slice of one.
    pub(super) fn remove_attempt(&mut self, index: u32, end: End) -> Option<RequestId> {
        let id = self.attempts.id_at(index)?;
        self.unlink_from_lane(index);
        let alone = self.leave_siblings(index, end == End::Delivered);
        let attempt = self.attempts.remove(id)?;
        let request = attempt.request()?;
        let (id, row) = self.requests.entry_mut(request)?;
        let done = attempt.is(Marks::DONE);
        debug_assert!(
            row.held > 0,
            "request {request} holds nothing, and something of it ends"
        );
        row.held -= 1;
        row.lost -= u32::from(attempt.is(Marks::LOST));
        let (held, lost) = (row.held, row.lost);
        debug_assert!(lost <= held, "{lost} lost of {held}");
        debug_assert!(
            !attempt.is(Marks::LOST) || self.lost_attempts > 0,
            "none is given up, and one of those ends"
        );
        self.lost_attempts -= u32::from(attempt.is(Marks::LOST));
        if end == End::Delivered && !done {
            row.acknowledge(u64::from(attempt.length));
            row.failover.handle_progress();
        }
        if end == End::Ended && !done && alone && row.wants_bytes() {
            let (load, op) = (attempt.load(), attempt.op());
            let again = Attempt::new(load, op, attempt.offset, attempt.length);
            // The row just freed is there for it.
            let again = self.last_attempt(again);
            debug_assert!(again.is_some(), "the row that was just freed is taken");
            if let Some(again) = again {
                self.wait_again(request, again);
            }
        }
        Some(id)
    }

    /// Takes an attempt off its lane: out of the queue, its bytes out of the rail's in-flight.
    pub(super) fn unlink_from_lane(&mut self, index: u32) {
        let Some(row) = self.attempts.at(index) else {
            return;
        };
        let (stage, rail, length) = (row.stage(), row.rail(), u64::from(row.length));
        let op = row.op();
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        match stage {
            Stage::Waiting | Stage::Free => return,
            Stage::Bound => lane.flight.remove_bound(&mut self.attempts, index),
            Stage::Posted => lane.flight.remove_posted(&mut self.attempts, index),
        }
        lane.released(op, 1, length);
        self.release(rail, length);
    }

    /// Gives room on a rail back, for others.
    fn release(&mut self, rail: RailId, bytes: u64) {
        self.shared.release(rail, bytes);
        let peer = self.shared.peer(rail);
        self.got_room(peer);
    }

    /// There is room on a rail to a peer, and on its device, again.
    #[inline]
    fn got_room(&mut self, peer: Option<PeerId>) {
        self.made_room |= !self.shared.has_one_worker();
        self.bindable = true;
        if self.crowded {
            self.bind_next_peer();
        }
        if let Some(peer) = peer {
            self.bind_again(peer);
        }
    }

    /// Takes an attempt out of the ring of copies; tells the others if the slice has arrived. `true` if no
    /// copy is left.
    fn leave_siblings(&mut self, index: u32, delivered: bool) -> bool {
        let Some(next) = self.attempts.at(index).map(|row| row.sibling) else {
            return true;
        };
        if next == index {
            return true;
        }
        let mut at = next;
        while let Some(row) = self.attempts.at_mut(at) {
            if delivered {
                row.mark(Marks::DONE);
            }
            // The copy that it had to keep away from is this one.
            row.marks.0 &= !Marks::APART.0;
            if row.sibling == index {
                row.sibling = next;
                break;
            }
            at = row.sibling;
        }
        false
    }

    /// The rail that an attempt is not to be bound to, because an older copy is there.
    pub(super) fn avoided(&self, attempt: &Attempt) -> Option<RailId> {
        let sibling = self.attempts.at(attempt.sibling);
        sibling
            .filter(|_| attempt.is(Marks::APART))
            .map(Attempt::rail)
    }

    /// The request that an attempt is a slice of.
    pub(super) fn request_of(&self, attempt: u32) -> Option<RequestId> {
        self.requests.id_at(self.attempts.at(attempt)?.request()?)
    }

    fn attempt_bytes(&self, index: u32) -> u64 {
        self.attempts
            .at(index)
            .map_or(0, |row| u64::from(row.length))
    }

    /// Puts an attempt into its request's queue of slices to be sent again, and the request first in line.
    pub(super) fn wait_again(&mut self, request: u32, index: u32) {
        if let Some(row) = self.attempts.at_mut(index) {
            row.set_stage(Stage::Waiting);
        }
        let length = self.attempt_bytes(index);
        let rejoined = self.rejoin(request, index);
        let Some(row) = self.requests.at_mut(request) else {
            return;
        };
        debug_assert!(
            row.wants_bytes(),
            "request {request} has a slice to send again, and wants no more"
        );
        if !rejoined {
            row.waiting.push_back(&mut self.attempts, index);
        }
        let peer = row.peer;
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.unbound_bytes += length;
        }
        self.want_to_bind(peer, request, true);
    }

    /// Takes an attempt that is bound and not handed out off its lane, to be sent on another.
    pub(super) fn unbind(&mut self, index: u32) {
        debug_assert!(
            (self.attempts.at(index)).is_some_and(|row| row.stage() == Stage::Bound),
            "row {index} is not bound"
        );
        self.unlink_from_lane(index);
        let request = self
            .attempts
            .at(index)
            .filter(|row| !row.is(Marks::DONE))
            .and_then(Attempt::request);
        match request {
            Some(request)
                if self
                    .requests
                    .at(request)
                    .is_some_and(|row| row.wants_bytes()) =>
            {
                self.wait_again(request, index);
            }
            _ => {
                // Nobody wants it any more. It touches nothing, so it just goes.
                if let Some(row) = self.attempts.at_mut(index) {
                    row.set_stage(Stage::Waiting);
                }
                self.end_attempt(index, End::Ended);
            }
        }
    }

    /// Works that ended.
    pub(super) fn completed(&mut self, now: Instant, completions: &[Completion]) {
        let mut rest = completions;
        while let Some((first, behind)) = rest.split_first() {
            if !self.is_current(first.lane, first.epoch) {
                rest = behind;
                continue;
            }
            if let Outcome::Error(cause) = first.outcome {
                let (rail, id) = (first.lane.rail(), AttemptId::from_bits(first.cookie));
                if self.is_posted_on(rail, id) {
                    self.failed(now, rail, id, cause);
                } else {
                    self.counted.ignored.works += 1;
                }
                rest = behind;
                continue;
            }
            let mut run = Run::new((first.lane, first.epoch));
            if let Some(ended) = self.end_answered(first.lane.rail(), rest) {
                debug_assert!(
                    ended.freed.count as usize <= rest.len(),
                    "{} ended by {} completions",
                    ended.freed.count,
                    rest.len()
                );
                self.ended_together(first.at.min(now), &ended, &mut run);
                rest = rest.get(ended.freed.count as usize..).unwrap_or_default();
            }
            if rest.first().is_some_and(|next| run.goes_on(next)) {
                (rest, run) = self.completed_behind(now, rest, run);
            }
            self.end_run(now, &run);
        }
    }

    /// What is left of a run: completions that were seen later than others, or are of another request, or are not usual.
    /// Gives what is behind it.
    #[inline(never)]
    fn completed_behind<'c>(
        &mut self,
        now: Instant,
        mut rest: &'c [Completion],
        mut run: Run,
    ) -> (&'c [Completion], Run) {
        while let Some((next, behind)) = rest.split_first()
            && run.goes_on(next)
        {
            let at = next.at.min(now);
            rest = match self.end_answered(next.lane.rail(), rest) {
                Some(ended) => {
                    self.ended_together(at, &ended, &mut run);
                    rest.get(ended.freed.count as usize..).unwrap_or_default()
                }
                None => {
                    self.succeeded(now, AttemptId::from_bits(next.cookie), at, &mut run);
                    behind
                }
            };
        }
        (rest, run)
    }

    /// By far the most usual: bytes of slices of one request without copies arrived, seen at one instant, and they are the
    /// first ones on their lane. Takes them off it.
    #[inline(always)] // it is little more than a call
    fn end_answered(&mut self, rail: RailId, answers: &[Completion]) -> Option<Ended> {
        if self.binding_of(rail) == Binding::Shares {
            // It learns from each.
            return None;
        }
        let lane = self.lanes.get_mut(rail.index())?;
        lane.flight.end_answered(&mut self.attempts, answers)
    }

    /// Counts slices that have ended, seen at one instant.
    #[inline(always)] // see `Self::end_run`
    fn ended_together(&mut self, at: Instant, ended: &Ended, run: &mut Run) {
        let rail = run.lane.0.rail();
        let Freed { count, bytes, .. } = ended.freed;
        run.released_bytes += bytes;
        let (first, last) = (ended.first.seen(at), ended.last.seen(at));
        let together = Observation::of_several(first, last, bytes, count.into());
        if let Some(seen) = run.saw(together) {
            self.shared.handle_observation(rail, &seen);
        }
        debug_assert!(
            self.requests.at(ended.request).is_some(),
            "{count} slices of no request have ended"
        );
        if let Some((request, row)) = self.requests.entry_mut(ended.request) {
            if let Some(lane) = self.lanes.get_mut(rail.index()) {
                lane.released(row.op, count, bytes);
            }
            debug_assert!(
                row.held - row.lost >= count,
                "{count} of {} held, {} of them lost",
                row.held,
                row.lost
            );
            debug_assert!(
                !row.is_reported(),
                "bytes of a request arrive that has been reported"
            );
            row.held -= count;
            row.acked_bytes += bytes;
            let (acked, length) = (row.acked_bytes, row.length);
            debug_assert!(acked <= length, "{acked} bytes of {length}");
            row.failover.handle_progress();
            if row.may_be_over() {
                self.settle_request(request);
            }
        }
    }

    fn is_posted_on(&self, rail: RailId, id: AttemptId) -> bool {
        let row = self.attempts.get(id);
        row.is_some_and(|row| row.is_posted_on(rail))
    }

    fn succeeded(&mut self, now: Instant, id: AttemptId, at: Instant, run: &mut Run) {
        let rail = run.lane.0.rail();
        let row = self.attempts.get(id);
        let Some(row) = row.filter(|row| row.is_posted_on(rail)) else {
            self.counted.ignored.works += 1;
            return;
        };
        let sequence = row.sequence;
        // In-order transports signal one work for several: everything before it on the lane is done too.
        loop {
            if self.binding_of(rail) != Binding::Shares
                && let Some(lane) = self.lanes.get_mut(rail.index())
                && let Some(ended) = (lane.flight).end_covered(&mut self.attempts, id, sequence)
            {
                self.ended_together(at, &ended, run);
            }
            match self.first_posted(rail).filter(|first| *first != id.index) {
                Some(before) if self.is_before(before, id) => self.arrived(now, before, at, run),
                _ => break,
            }
        }
        if self.is_posted_on(rail, id) {
            self.arrived(now, id.index, at, run);
        }
        if self.first_posted(rail).is_some() {
            run.overtook = Some(sequence);
        }
    }

    /// A work has completed that was not the oldest one of its lane. Where works complete in order, the completion of one that is
    /// older is lost; else it may be.
    #[cold]
    fn handle_overtaking(&mut self, now: Instant, rail: RailId, overtook: Sequence) {
        let covers = self.lanes.get(rail.index()).map(|lane| lane.limits.covers);
        let oldest = self
            .first_posted(rail)
            .and_then(|index| self.attempts.at_mut(index))
            .filter(|oldest| oldest.sequence.is_before(overtook));
        match (oldest, covers) {
            // Waiting would tell nothing more.
            (Some(_), Some(true)) => self.break_lane(now, rail, Cause::Silent),
            (Some(oldest), Some(false)) => oldest.mark(Marks::OVERTAKEN),
            _ => {}
        }
    }

    fn is_before(&self, first: u32, second: AttemptId) -> bool {
        match (self.attempts.at(first), self.attempts.get(second)) {
            (Some(first), Some(second)) => {
                !first.signal()
                    && !first.is(Marks::ANSWERED)
                    && first.sequence.is_before(second.sequence)
            }
            _ => false,
        }
    }

    /// A posted attempt's bytes arrived.
    fn arrived(&mut self, now: Instant, index: u32, at: Instant, run: &mut Run) {
        let rail = run.lane.0.rail();
        let Some(row) = self.attempts.at(index) else {
            return;
        };
        let sample = row.sample(at);
        run.ended = true;
        match row.load() {
            Load::HealthProbe => self.probe_good(now, rail),
            Load::Cover => {}
            Load::RateProbe => {
                let took = at.since(sample.posted_at);
                let bytes = sample.bytes;
                self.shared.handle_rate_probe(now, rail, bytes, took);
            }
            Load::Slice(_) => {
                if let Some(seen) = run.saw(Observation::new(sample)) {
                    self.shared.handle_observation(rail, &seen);
                }
                if self.binding_of(rail) == Binding::Shares {
                    let transport = self.transport_on(rail);
                    self.config.policy.learn(transport, rail, sample);
                }
            }
        }
        self.end_attempt(index, End::Delivered);
    }

    /// All of a run of completions of one lane have been counted. One that ended nothing is no progress, and no sign of life:
    /// it may be of a work that ended long ago.
    #[inline(always)] // what the run shows goes into arithmetic
    fn end_run(&mut self, now: Instant, run: &Run) {
        let rail = run.lane.0.rail();
        let row = self.shared.known(rail);
        let peer = row.as_ref().and_then(Known::peer);
        if run.released_bytes > 0 {
            if let Some(row) = &row {
                row.release(run.released_bytes);
            }
            self.got_room(peer);
        } else if !run.ended {
            return;
        }
        if let Some(seen) = &run.seen {
            if let Some(row) = &row {
                row.handle_observation(seen);
            }
            self.rail_succeeded(rail);
        }
        self.lane_progressed(now, rail, run.seen.is_some());
        if let Some(peer) = peer {
            self.heard(now, peer);
        }
        if let Some(overtook) = run.overtook {
            self.handle_overtaking(now, rail, overtook);
        }
    }

    fn failed(&mut self, now: Instant, rail: RailId, id: AttemptId, cause: Cause) {
        let Some(row) = self.attempts.get(id) else {
            return;
        };
        let op = row.op();
        let request = self.request_of(id.index);
        // That a write failed or was flushed does not prove that nothing of it is still on its way: it waits
        // for the fence as its neighbours do, whoever's fault it is, and a copy goes elsewhere at once if it is not the caller's.
        let may_still_land = op == Op::Write && request.is_some();
        let blamed = request.filter(|_| cause.is_callers());
        let mark = match blamed {
            Some(_) if cause.is_of_ended_process() => Some(Marks::REFUSED),
            Some(_) if may_still_land => Some(Marks::FAULTY),
            _ => None,
        };
        let blame = match blamed {
            Some(request) => {
                self.fail_request(now, request, cause);
                Blame::of(cause)
            }
            None => self.fault(rail, Some(id.index), cause),
        };
        if let Some(mark) = mark {
            if let Some(row) = self.attempts.get_mut(id) {
                row.mark(mark);
            }
        } else if !may_still_land {
            // Before the fence, so that it is not taken for an orphan.
            self.end_attempt(id.index, End::Ended);
        }
        self.start_fence_for(now, rail, blame);
    }

    /// Takes the first slice that waits to be sent again out of its request's queue.
    pub(super) fn pop_waiting(&mut self, request: RequestId) -> Option<u32> {
        let row = self.requests.get_mut(request)?;
        let index = row.waiting.pop_front(&mut self.attempts)?;
        let peer = row.peer;
        let length = self.attempt_bytes(index);
        if let Some(row) = self.peers.get_mut(peer.index()) {
            debug_assert!(
                row.unbound_bytes >= length,
                "{length} bytes of {} that wait",
                row.unbound_bytes
            );
            row.unbound_bytes -= length;
        }
        Some(index)
    }

    /// Frees one attempt that only a late event still waits for, so that a peer that never comes back
    /// cannot fill the table. What is known of its request is told before.
    #[cold]
    pub(super) fn evict_lost(&mut self) {
        if self.lost_attempts == 0 {
            return;
        }
        let evictable = |row: &Attempt| {
            let fenced = self
                .lanes
                .get(row.rail().index())
                .is_some_and(|lane| lane.is_locally_fenced());
            let request = row.request().and_then(|request| self.requests.at(request));
            let is_reported = request.is_some_and(|request| request.is_reported());
            let has_news = || row.request().is_some_and(|request| self.has_news(request));
            row.is(Marks::LOST) && fenced && is_reported && !has_news()
        };
        let Some((id, _)) = self.attempts.iter().find(|(_, row)| evictable(row)) else {
            return;
        };
        if let Some(request) = self.remove_attempt(id.index, End::Ended) {
            self.forget_if_over(request);
        }
    }
}
