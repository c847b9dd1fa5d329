//! One posting of one slice, from the moment it gets a rail to its completion or fence.

use super::{Orchestrator, is_nil};
use crate::queue::{Link, Linked};
use crate::rail::estimate::{Observation, Sample};
use crate::rail::select::Policy;
use crate::table::NIL;
use crate::time::Instant;
use crate::units::{AttemptId, Epoch, LaneId, RailId, RequestId};
use crate::work::{Cause, Completion, Op, Outcome};

/// Where an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// In its request's queue: to be sent again, on whichever rail can take it.
    Waiting,
    /// In its lane's queue: has a rail and room on it, not handed out yet.
    Bound,
    /// Handed out. Ends by a completion or by the lane's fence.
    Posted,
}

/// What an attempt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// A slice of this request.
    Slice(RequestId),
    /// A scratch word that decides about a paused rail.
    HealthProbe,
    /// A scratch slice that looks at an idle rail's speed.
    RateProbe,
}

/// A row of the attempts' table; opaque.
#[derive(Debug)]
pub struct Attempt {
    pub(super) load: Load,
    pub(super) stage: Stage,
    pub(super) op: Op,
    /// Its rail, once bound.
    pub(super) rail: RailId,
    /// A rail that it is not to be bound to, because an older copy is there.
    pub(super) avoid: Option<RailId>,
    /// Position in the order of its lane's epoch, once posted.
    pub(super) sequence: u32,
    /// Whether its work asked for a completion of its own.
    pub(super) signal: bool,
    /// Bytes from the start of the request.
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) posted_at: Instant,
    /// Bytes in flight on the rail before it.
    pub(super) ahead_bytes: u64,
    /// The next copy of the same slice, in a ring; itself if there is none.
    pub(super) sibling: u32,
    /// Another copy of its slice has arrived.
    pub(super) done: bool,
    /// Its lane's fence has been given up; its request does not wait for it any more.
    pub(super) lost: bool,
    pub(super) link: Link,
}

impl Linked<0> for Attempt {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl Attempt {
    pub(super) fn new(load: Load, op: Op, offset: u64, length: u32) -> Self {
        Self {
            load,
            stage: Stage::Waiting,
            op,
            rail: RailId(0),
            avoid: None,
            sequence: 0,
            signal: true,
            offset,
            length,
            posted_at: Instant::ZERO,
            ahead_bytes: 0,
            sibling: NIL,
            done: false,
            lost: false,
            link: Link::NONE,
        }
    }

    pub(super) fn request(&self) -> Option<RequestId> {
        match self.load {
            Load::Slice(request) => Some(request),
            Load::HealthProbe | Load::RateProbe => None,
        }
    }
}

/// Completions of one lane, one after the other.
struct Run {
    lane: (LaneId, Epoch),
    /// What the last of them show of the rail.
    seen: Option<Observation>,
    /// Bytes that are not in flight any more and still count as such.
    released_bytes: u64,
}

impl Run {
    const fn new(lane: (LaneId, Epoch)) -> Self {
        Self {
            lane,
            seen: None,
            released_bytes: 0,
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

impl Orchestrator<'_> {
    /// Puts a new attempt into the table; a lone one is its own sibling.
    pub(super) fn new_attempt(&mut self, attempt: Attempt) -> Option<AttemptId> {
        let request = attempt.request();
        let id = self.insert_attempt(attempt)?;
        if let Some(row) = request.and_then(|request| self.requests.get_mut(request)) {
            row.held += 1;
        }
        Some(id)
    }

    /// The same, but the caller counts it in its request.
    pub(super) fn insert_attempt(&mut self, mut attempt: Attempt) -> Option<AttemptId> {
        if is_nil(self.attempts.next_row()) {
            self.evict_lost();
        }
        attempt.sibling = self.attempts.next_row();
        self.attempts.insert(attempt).ok()
    }

    /// A copy of a posted attempt, to be sent elsewhere. None if a copy lives already or there is no row.
    pub(super) fn duplicate(&mut self, index: u32) {
        let Some(row) = self.attempts.at(index) else {
            return;
        };
        let (Some(request), true, false) = (row.request(), row.sibling == index, row.done) else {
            return;
        };
        let (rail, op, offset, length) = (row.rail, row.op, row.offset, row.length);
        if self
            .requests
            .get(request)
            .is_none_or(|row| !row.wants_bytes())
        {
            return;
        }
        let copy = Attempt {
            avoid: Some(rail),
            ..Attempt::new(Load::Slice(request), op, offset, length)
        };
        let Some(copy) = self.new_attempt(copy) else {
            return;
        };
        if let Some(row) = self.attempts.get_mut(copy) {
            row.sibling = index;
        }
        if let Some(row) = self.attempts.at_mut(index) {
            row.sibling = copy.index;
        }
        self.wait_again(request, copy.index);
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
        let row = self.requests.get_mut(request)?;
        row.held -= 1;
        row.lost -= u32::from(attempt.lost);
        if end == End::Delivered && !attempt.done {
            row.acked_bytes += u64::from(attempt.length);
        }
        if end == End::Ended && !attempt.done && alone && row.wants_bytes() {
            let again = Attempt::new(attempt.load, attempt.op, attempt.offset, attempt.length);
            // The row just freed is there for it.
            if let Some(again) = self.new_attempt(again) {
                self.wait_again(request, again.index);
            }
        }
        Some(request)
    }

    /// Takes an attempt off its lane: out of the queue, its bytes out of the rail's in-flight.
    pub(super) fn unlink_from_lane(&mut self, index: u32) {
        let Some(row) = self.attempts.at(index) else {
            return;
        };
        let (stage, rail, length) = (row.stage, row.rail, u64::from(row.length));
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        match stage {
            Stage::Waiting => return,
            Stage::Bound => lane.flight.remove_bound(&mut self.attempts, index),
            Stage::Posted => lane.flight.remove_posted(&mut self.attempts, index),
        }
        lane.inflight_bytes -= length;
        self.release(rail, length);
    }

    /// Gives room on a rail back, for others.
    fn release(&mut self, rail: RailId, bytes: u64) {
        self.shared.release(rail, bytes);
        self.made_room = true;
        match self.shared.peer(rail) {
            Some(peer) => self.bind_again(peer),
            None => self.bindable = true,
        }
    }

    /// Takes an attempt out of the ring of copies; tells the others if the slice has arrived. `true` if no
    /// copy is left.
    fn leave_siblings(&mut self, index: u32, delivered: bool) -> bool {
        let Some((next, rail)) = self.attempts.at(index).map(|row| (row.sibling, row.rail)) else {
            return true;
        };
        if next == index || is_nil(next) {
            return true;
        }
        let mut at = next;
        while let Some(row) = self.attempts.at_mut(at) {
            row.done |= delivered;
            // The copy that it had to keep away from is this one.
            row.avoid = row.avoid.filter(|avoid| *avoid != rail);
            if row.sibling == index {
                row.sibling = next;
                break;
            }
            at = row.sibling;
        }
        false
    }

    fn attempt_bytes(&self, index: u32) -> u64 {
        self.attempts
            .at(index)
            .map_or(0, |row| u64::from(row.length))
    }

    /// Puts an attempt into its request's queue of slices to be sent again, and the request first in line.
    pub(super) fn wait_again(&mut self, request: RequestId, index: u32) {
        if let Some(row) = self.attempts.at_mut(index) {
            row.stage = Stage::Waiting;
        }
        let Some(row) = self.requests.get_mut(request) else {
            return;
        };
        row.waiting.push_back(&mut self.attempts, index);
        let peer = row.peer;
        let length = self.attempt_bytes(index);
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.unbound_bytes += length;
        }
        self.want_to_bind(peer, request.index, true);
    }

    /// Takes an attempt that is bound and not handed out off its lane, to be sent on another.
    pub(super) fn unbind(&mut self, index: u32) {
        self.unlink_from_lane(index);
        let request = self
            .attempts
            .at(index)
            .filter(|row| !row.done)
            .and_then(Attempt::request);
        match request {
            Some(request)
                if self
                    .requests
                    .get(request)
                    .is_some_and(|row| row.wants_bytes()) =>
            {
                self.wait_again(request, index);
            }
            _ => {
                // Nobody wants it any more. It touches nothing, so it just goes.
                if let Some(row) = self.attempts.at_mut(index) {
                    row.stage = Stage::Waiting;
                }
                self.end_attempt(index, End::Ended);
            }
        }
    }

    /// Works that ended.
    pub(super) fn completed(&mut self, now: Instant, completions: &[Completion]) {
        let mut run: Option<Run> = None;
        for completion in completions {
            let lane = (completion.lane, completion.epoch);
            if run.as_ref().is_none_or(|run| run.lane != lane) {
                self.end_run(now, run.take());
                if !self.is_current(completion) {
                    continue;
                }
            }
            let id = AttemptId::from_bits(completion.cookie);
            match completion.outcome {
                Outcome::Success => {
                    let run = run.get_or_insert_with(|| Run::new(lane));
                    self.succeeded(now, id, completion.at.min(now), run);
                }
                Outcome::Error(cause) => {
                    self.end_run(now, run.take());
                    let rail = completion.lane.rail();
                    if self.is_posted_on(rail, id) {
                        self.failed(now, rail, id, cause);
                    }
                }
            }
        }
        self.end_run(now, run);
    }

    /// Whether a completion is of the present epoch of a lane of this worker.
    fn is_current(&self, completion: &Completion) -> bool {
        completion.lane.worker() == self.config.worker
            && self
                .lanes
                .get(completion.lane.rail().index())
                .is_some_and(|lane| lane.epoch() == completion.epoch)
    }

    fn is_posted_on(&self, rail: RailId, id: AttemptId) -> bool {
        let row = self.attempts.get(id);
        row.is_some_and(|row| row.stage == Stage::Posted && row.rail == rail)
    }

    fn succeeded(&mut self, now: Instant, id: AttemptId, at: Instant, run: &mut Run) {
        let rail = run.lane.0.rail();
        if !self.is_posted_on(rail, id) {
            return;
        }
        // In-order transports signal one work for several: everything before it on the lane is done too.
        while let Some(before) = self.first_posted(rail).filter(|first| *first != id.index) {
            if !self.is_before(before, id) {
                break;
            }
            self.arrived(now, before, at, run);
        }
        self.arrived(now, id.index, at, run);
    }

    fn is_before(&self, first: u32, second: AttemptId) -> bool {
        match (self.attempts.at(first), self.attempts.get(second)) {
            (Some(first), Some(second)) => !first.signal && first.sequence < second.sequence,
            _ => false,
        }
    }

    /// A posted attempt's bytes arrived.
    fn arrived(&mut self, now: Instant, index: u32, at: Instant, run: &mut Run) {
        let rail = run.lane.0.rail();
        let Some((id, row)) = self.attempts.entry_mut(index) else {
            return;
        };
        let (length, done) = (u64::from(row.length), row.done);
        let Load::Slice(request) = row.load else {
            let took = at.since(row.posted_at);
            match row.load {
                Load::HealthProbe => self.probe_good(now, rail),
                _ => self.shared.handle_rate_probe(rail, length, took),
            }
            return self.end_attempt(index, End::Delivered);
        };
        let sample = Sample {
            posted_at: row.posted_at,
            seen_at: at,
            ahead_bytes: row.ahead_bytes,
            bytes: length,
        };
        let is_usual = row.sibling == index && !row.lost;
        let joined = run.seen.as_mut().is_some_and(|seen| seen.add(sample));
        if !joined && let Some(seen) = run.seen.replace(Observation::new(sample)) {
            self.shared.handle_observation(rail, &seen);
        }
        if self.config.policy == Policy::Documented {
            let config = &self.config.documented;
            self.shared.learn_bandwidth(rail, config, sample);
        }
        if !is_usual {
            return self.end_attempt(index, End::Delivered);
        }
        // By far the most usual: a slice without copies, on a lane that is open.
        if let Some(lane) = self.lanes.get_mut(rail.index()) {
            lane.flight.remove_posted(&mut self.attempts, index);
            lane.inflight_bytes -= length;
        }
        run.released_bytes += length;
        self.attempts.remove(id);
        let Some(row) = self.requests.get_mut(request) else {
            return;
        };
        row.held -= 1;
        if !done {
            row.acked_bytes += length;
        }
        if row.may_be_over() {
            self.settle_request(request);
        }
    }

    /// All of a run of completions of one lane have been counted.
    fn end_run(&mut self, now: Instant, run: Option<Run>) {
        let Some(run) = run else {
            return;
        };
        let rail = run.lane.0.rail();
        if run.released_bytes > 0 {
            self.release(rail, run.released_bytes);
        }
        if let Some(seen) = run.seen {
            self.shared.handle_observation(rail, &seen);
            self.rail_succeeded(rail);
        }
        self.lane_progressed(now, rail);
        if let Some(peer) = self.shared.peer(rail) {
            self.heard(now, peer);
        }
    }

    fn failed(&mut self, now: Instant, rail: RailId, id: AttemptId, cause: Cause) {
        let Some(row) = self.attempts.get(id) else {
            return;
        };
        let request = row.request();
        // That a write failed or was flushed does not prove that nothing of it is still on its way: it waits
        // for the fence as its neighbours do, and a copy goes elsewhere at once.
        let may_still_land = row.op == Op::Write && request.is_some() && !cause.is_callers();
        if let Some(request) = request.filter(|_| cause.is_callers()) {
            self.fail_request(now, request, cause);
        }
        self.fault(rail, id.index, cause);
        if !may_still_land {
            // Before the fence, so that it is not taken for an orphan.
            self.end_attempt(id.index, End::Ended);
        }
        self.start_fence(now, rail, cause);
    }

    /// Takes the first slice that waits to be sent again out of its request's queue.
    pub(super) fn pop_waiting(&mut self, request: RequestId) -> Option<u32> {
        let row = self.requests.get_mut(request)?;
        let index = row.waiting.pop_front(&mut self.attempts)?;
        let peer = row.peer;
        let length = self.attempt_bytes(index);
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.unbound_bytes -= length;
        }
        Some(index)
    }

    /// Frees one attempt that only a late event still waits for, so that a peer that never comes back
    /// cannot fill the table.
    fn evict_lost(&mut self) {
        let evictable = |row: &Attempt| {
            let fenced = self
                .lanes
                .get(row.rail.index())
                .is_some_and(|lane| lane.is_locally_fenced());
            let request = row.request().and_then(|request| self.requests.get(request));
            row.lost && fenced && request.is_some_and(|request| request.is_reported())
        };
        let Some((id, _)) = self.attempts.iter().find(|(_, row)| evictable(row)) else {
            return;
        };
        if let Some(request) = self.remove_attempt(id.index, End::Ended) {
            self.forget_if_over(request);
        }
    }
}
