//! Requests: a cursor over bytes, a count of attempts, and in the end a report.

use super::attempt::{Attempt, End, Stage};
use super::denied::DENIED;
use super::handover::Handover;
use super::lane::{Blame, Lane, Phase};
use super::line::Class;
use super::merge::Role;
use super::{Chooser, Event, Orchestrator, Peer, Reason, Request, is_nil};
use crate::failover::Failover;
use crate::plan::Plan;
use crate::queue::{Link, Linked, Queue};
use crate::report::{Local, Remote, Report, Status, Unbegun};
use crate::table::Row;
use crate::time::Instant;
use crate::units::{BatchId, PeerId, PlanId, RailId, Rate, RequestId, SegmentRef, TransportId};
use crate::work::{Cause, Op, Place};

/// Why core did not take a request. Nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum SubmitError {
    /// The plan was never installed here, or has been retired. One whose peer has been forgotten is still known by its last id:
    /// requests for it are taken, and end as those did that the peer had then.
    PlanMissing,
    /// The batch was never opened, or is sealed or taken.
    BatchMissing,
    /// There is no free row. Retry after the next [`Event::RequestDone`].
    Full,
    /// It names no bytes.
    Empty,
    /// It ends past the largest offset.
    Overflow,
}

/// What became of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Cancelled {
    /// It will end as soon as what is posted has ended.
    Marked,
    /// It has ended already.
    AlreadyEnded,
    /// The id means nothing any more.
    Stale,
}

/// Whom and what a request is about, as its plan has it.
struct Target {
    peer: PeerId,
    local: SegmentRef,
    remote: SegmentRef,
}

impl Target {
    /// Of a plan whose peer has been forgotten.
    const NONE: Self = Self {
        peer: PeerId(u16::MAX),
        local: SegmentRef(0),
        remote: SegmentRef(0),
    };

    fn of(plan: &Plan) -> Self {
        Self {
            peer: plan.peer,
            local: plan.local,
            remote: plan.remote,
        }
    }
}

const SHUT_DOWN: Ending = Ending {
    status: Status::ShutDown,
    cause: Cause::ShutDown,
};

/// How a request is going to end, other than well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Ending {
    pub(super) status: Status,
    pub(super) cause: Cause,
}

/// What is told of a request beside its bytes; those that had arrived by then are.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Told {
    pub(super) status: Status,
    pub(super) cause: Option<Cause>,
    local: Local,
    remote: Remote,
}

/// A row of the requests' table; opaque.
///
/// There may be many of them, so none has a gap.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RequestRow {
    pub(super) peer: PeerId,
    pub(super) plan: PlanId,
    /// The row of its batch, which lives until the report.
    pub(super) batch: u32,
    pub(super) tag: u64,
    pub(super) op: Op,
    /// Where it stands among its peer's requests: in which line, and which class there.
    pub(super) line: u8,
    pub(super) class: Class,
    /// Where it belongs.
    pub(super) home: Class,
    /// Slices that it may bind yet where it has moved up to.
    pub(super) turn: u8,
    local_segment: SegmentRef,
    remote_segment: SegmentRef,
    local_offset: u64,
    remote_offset: u64,
    pub(super) length: u64,
    /// Bytes bound so far, from the front.
    pub(super) cursor: u64,
    /// Bytes that arrived before the report, each counted once.
    pub(super) acked_bytes: u64,
    /// Slices to be sent again.
    pub(super) waiting: Queue<0>,
    /// Attempts that name it.
    pub(super) held: u32,
    /// Those of them whose fence has been given up.
    pub(super) lost: u32,
    pub(super) submitted_at: Instant,
    /// The deadline. Once ending: when its posted attempts' lanes are fenced.
    pub(super) due: Instant,
    pub(super) ending: Option<Ending>,
    told: Option<Told>,
    taken: bool,
    pub(super) handover: Handover,
    pub(super) failover: Failover,
    /// A switch of transports that has not been told: from which rank.
    pub(super) switched_from: Option<u8>,
    pub(super) role: Role,
    /// One for each queue that it can be in at a time: its peer's line, those that switched, that have bytes to bind,
    /// and that ended.
    pub(super) links: [Link; 4],
}

const _: () = assert!(size_of::<Row<RequestRow>>() <= 176);

/// What a request is, for whoever counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The transport that it went over last.
    pub transport: Option<TransportId>,
    /// Which way.
    pub op: Op,
    /// Bytes.
    pub length: u64,
    /// When core was given it.
    pub submitted_at: Instant,
}

impl<const KIND: usize> Linked<KIND> for RequestRow {
    fn link(&mut self) -> &mut Link {
        &mut self.links[KIND]
    }
}

impl RequestRow {
    /// Whether bytes of it are still worth moving.
    pub(super) fn wants_bytes(&self) -> bool {
        let is_ours = self.ending.is_none() && self.told.is_none() && !self.handover.is_any();
        is_ours && self.acked_bytes < self.length
    }

    /// How it ends, if its grace time is over.
    fn overdue(&self, now: Instant) -> Option<Ending> {
        let due = self.due;
        self.ending.filter(|_| due <= now && !self.is_reported())
    }

    /// Whether its report has been written.
    pub(super) fn is_reported(&self) -> bool {
        self.told.is_some()
    }

    /// Bytes arrived. What comes after the report changes nothing.
    pub(super) fn acknowledge(&mut self, bytes: u64) {
        if self.told.is_none() {
            self.acked_bytes += bytes;
            let (acked, length) = (self.acked_bytes, self.length);
            debug_assert!(acked <= length, "{acked} bytes of {length}");
        }
    }

    /// Its report, once it is written.
    fn report(&self) -> Option<Report> {
        self.told.map(|told| Report {
            status: told.status,
            delivered_bytes: self.acked_bytes,
            cause: told.cause,
            local: told.local,
            remote: told.remote,
        })
    }

    /// Whether there is a time at which something is to be done about it.
    pub(super) fn is_timed(&self) -> bool {
        let due = self.due;
        due != Instant::MAX || self.ending.is_some()
    }

    /// Whether it is among those with bytes to bind.
    pub(super) fn is_in_line(&self) -> bool {
        let [_, _, link, _] = self.links;
        link.is_queued()
    }

    /// Whether nothing of it can move any more, whoever moves it.
    fn is_over(&self) -> bool {
        self.held == 0 && !self.handover.is_unproven()
    }

    /// Whether its report has been taken.
    pub(super) fn is_taken(&self) -> bool {
        self.taken
    }

    /// Whether something of it is to be told: its report, or what has become known since.
    pub(super) fn has_news(&self) -> bool {
        let [_, _, _, link] = self.links;
        link.is_queued()
    }

    /// Where its first byte is, on both sides.
    pub(super) fn places(&self) -> (Place, Place) {
        let local = Place {
            segment: self.local_segment,
            offset: self.local_offset,
        };
        let remote = Place {
            segment: self.remote_segment,
            offset: self.remote_offset,
        };
        (local, remote)
    }

    /// Whether the end of an attempt may let it be reported or forgotten; what is over is always that.
    pub(super) fn may_be_over(&self) -> bool {
        self.acked_bytes == self.length || self.held == self.lost
    }

    /// Whether there is something to bind.
    pub(super) fn has_unbound(&self) -> bool {
        self.wants_bytes() && (self.cursor < self.length || !self.waiting.is_empty())
    }
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// Takes a request. O(1), whatever its length.
    pub fn submit(&mut self, now: Instant, request: &Request) -> Result<RequestId, SubmitError> {
        let (plan, lost) = match self.plan_to_submit(request.plan) {
            Some(plan) => (Target::of(plan), None),
            None => (Target::NONE, Some(self.lost_plan(request.plan)?)),
        };
        if request.length == 0 {
            return Err(SubmitError::Empty);
        }
        let ends = |offset: u64| offset.checked_add(request.length);
        if ends(request.local_offset).is_none() || ends(request.remote_offset).is_none() {
            return Err(SubmitError::Overflow);
        }
        let is_small = request.length <= u64::from(self.shared.slice_bytes());
        let class = Class::of(request.priority, is_small);
        let row = RequestRow {
            line: 0,
            class,
            home: class,
            turn: 0,
            peer: plan.peer,
            plan: request.plan,
            batch: request.batch.index,
            tag: request.tag,
            op: request.op,
            local_segment: plan.local,
            remote_segment: plan.remote,
            local_offset: request.local_offset,
            remote_offset: request.remote_offset,
            length: request.length,
            cursor: 0,
            acked_bytes: 0,
            waiting: Queue::EMPTY,
            held: 0,
            lost: 0,
            submitted_at: now,
            due: request.deadline,
            ending: None,
            told: None,
            taken: false,
            handover: Handover::No,
            failover: Failover::new(self.best_rank(request.plan)),
            switched_from: None,
            role: Role::Lone,
            links: [Link::NONE; 4],
        };
        match lost {
            None => self.insert_request(now, row, request.batch),
            Some(ending) => self.insert_ended(row, request.batch, ending),
        }
    }

    /// A request that nothing can come of: it has ended, as any other does.
    #[cold]
    fn insert_ended(
        &mut self,
        row: RequestRow,
        batch: BatchId,
        ending: Ending,
    ) -> Result<RequestId, SubmitError> {
        let row = RequestRow {
            cursor: row.length,
            due: Instant::MAX,
            ..row
        };
        let id = self.insert_row(row, batch)?;
        self.set_ending(id, ending, Instant::MAX);
        self.report(id);
        Ok(id)
    }

    /// What of a batch is not to be submitted any more: so many requests are counted as ended, each of which has the report that
    /// this gives. It may be any number, so they have no rows. Not of a batch that is sealed.
    pub fn withdraw(&mut self, batch: BatchId, count: u32, why: Unbegun) -> Report {
        let report = why.report();
        if let Some(row) = self.batches.get_mut(batch) {
            row.batch.withdraw(count, &report);
        }
        report
    }

    /// Whether there is no row for another request, or none for its shares.
    fn is_full(&self) -> bool {
        let row = self.requests.next_row();
        let rows = self.config.policy.share_rows();
        is_nil(row) || rows.is_some_and(|rows| row as usize >= rows)
    }

    fn insert_request(
        &mut self,
        now: Instant,
        row: RequestRow,
        batch: BatchId,
    ) -> Result<RequestId, SubmitError> {
        let (peer, plan, length, deadline) = (row.peer, row.plan, row.length, row.due);
        let id = self.insert_row(row, batch)?;
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.unbound_bytes += length;
        }
        self.timed_requests += u32::from(deadline != Instant::MAX);
        if !self.merge(id) && !self.leaves(now, id) {
            self.assign(now, id);
            self.want_to_bind(peer, id.index, false);
        }
        if deadline != Instant::MAX {
            let row = self.requests.get(id);
            let by = row.and_then(|row| self.begun_by(row)).unwrap_or(deadline);
            self.arm(by, Reason::Request);
        }
        if let Some(ending) = self.refuses(peer, batch, plan) {
            self.end_request(now, id, ending);
        }
        Ok(id)
    }

    /// How a new request ends, if nothing can come of it.
    #[inline(always)]
    fn refuses(&self, peer: PeerId, batch: BatchId, plan: PlanId) -> Option<Ending> {
        if self.is_shut_down {
            return Some(SHUT_DOWN);
        }
        if self.denials.has(batch, plan) {
            return Some(DENIED);
        }
        let status = self.peers.get(peer.index()).and_then(Peer::is_lost_as)?;
        let cause = Cause::PeerGone;
        Some(Ending { status, cause })
    }

    /// A row for a new request, which is counted in its batch.
    #[inline(always)] // else the row is copied once more
    fn insert_row(&mut self, row: RequestRow, batch: BatchId) -> Result<RequestId, SubmitError> {
        if self.is_full() {
            self.evict_ghost();
        }
        if self.is_full() {
            return Err(SubmitError::Full);
        }
        if !self
            .batches
            .get_mut(batch)
            .is_some_and(|batch| batch.batch.add())
        {
            return Err(SubmitError::BatchMissing);
        }
        self.requests.insert(row).map_err(|_| SubmitError::Full)
    }

    /// Stops binding bytes of a request and lets posted attempts end, fencing their lanes after the grace time.
    pub fn cancel(&mut self, now: Instant, id: RequestId) -> Cancelled {
        let Some(row) = self.requests.get(id).filter(|row| !row.taken) else {
            return Cancelled::Stale;
        };
        if row.is_reported() {
            return Cancelled::AlreadyEnded;
        }
        self.end_request(
            now,
            id,
            Ending {
                status: Status::Cancelled,
                cause: Cause::Cancelled,
            },
        );
        Cancelled::Marked
    }

    /// Ends every request with [`Status::ShutDown`], as [`Self::cancel`] ends one, and from now on each as it comes.
    pub fn shut_down(&mut self, now: Instant) {
        self.is_shut_down = true;
        self.end_requests(now, None, SHUT_DOWN);
    }

    /// An open lane has failed by itself; what it stumbled over is `attempt`, if it had any. If that speaks against the rail, the
    /// attempt's request has had a fault; neighbours that fail with it have not.
    pub(super) fn fault(&mut self, rail: RailId, attempt: Option<u32>, cause: Cause) -> Blame {
        let lane = self.lanes.get_mut(rail.index());
        let Some(lane) = lane.filter(|lane| lane.phase == Phase::Open) else {
            return Blame::of(cause);
        };
        // Nobody has lost anything by the end of a lane that nothing was on and nobody waits for.
        let peer = self.shared.peer(rail);
        let is_wanted = || {
            let row = peer.and_then(|peer| self.peers.get(peer.index()));
            row.is_some_and(|row| !row.pending.is_empty())
        };
        if attempt.is_none() && !is_wanted() {
            return Blame::of(cause);
        }
        let blame = lane.end_by_itself(cause);
        let request = attempt.and_then(|index| self.attempts.at(index)?.request());
        if let Some(row) = request.and_then(|index| self.requests.at_mut(index))
            && blame.counts()
        {
            row.failover.handle_fault();
            if blame.is_barren() {
                row.failover.handle_barren(cause);
            }
        }
        blame
    }

    /// Fails a request.
    pub(super) fn fail_request(&mut self, now: Instant, id: RequestId, cause: Cause) {
        let ending = Ending {
            status: Status::Failed,
            cause,
        };
        let of_one = cause.is_callers() || cause == Cause::FailoverLimit;
        if !(of_one && self.take_apart(now, id, ending)) {
            self.end_request(now, id, ending);
        }
    }

    /// Ends all requests, or those of one peer.
    pub(super) fn end_requests(&mut self, now: Instant, peer: Option<PeerId>, ending: Ending) {
        for index in 0..self.requests.capacity() as u32 {
            let of_peer = |row: &RequestRow| peer.is_none_or(|peer| row.peer == peer);
            if self.requests.at(index).is_some_and(of_peer)
                && let Some(id) = self.requests.id_at(index)
            {
                self.end_request(now, id, ending);
            }
        }
    }

    /// The process of a peer has ended: its requests end with that. Also those that it seemed to refuse, unless they have been
    /// reported: its memory went before itself was known to be gone.
    pub(super) fn end_requests_of_gone(&mut self, now: Instant, peer: PeerId) {
        let ending = Ending {
            status: Status::PeerLost,
            cause: Cause::PeerGone,
        };
        for index in 0..self.requests.capacity() as u32 {
            let seemed = |row: &&mut RequestRow| {
                let cause = row.ending.map(|ending| ending.cause);
                row.peer == peer && cause.is_some_and(Cause::is_of_ended_process)
            };
            if let Some(row) = self.requests.at_mut(index).filter(seemed)
                && !row.is_reported()
            {
                row.ending = Some(ending);
            }
        }
        self.end_requests(now, Some(peer), ending);
    }

    pub(super) fn end_request(&mut self, now: Instant, id: RequestId, ending: Ending) {
        let grace_at = now + self.config.cancel_grace;
        // Also one whose bytes are all there, and that waits for copies of them: it does not wait for ever.
        let is_open = |row: &&RequestRow| row.ending.is_none() && !row.is_reported();
        let Some(row) = self.requests.get(id).filter(is_open) else {
            return;
        };
        let role = row.role;
        self.set_ending(id, ending, grace_at);
        self.call_back(id);
        self.arm(grace_at, Reason::Request);
        self.drop_unposted(id);
        self.settle_request(id);
        self.end_transfer_of(now, role, ending);
    }

    /// Drops what a request still had to send: it has enough, or is ending.
    pub(super) fn drop_unposted(&mut self, id: RequestId) {
        self.unassign(id);
        // The others are to know that this worker may have nothing to bind any more.
        self.bind_all();
        let Some(row) = self.requests.get_mut(id) else {
            return;
        };
        debug_assert!(row.cursor <= row.length, "bound past its end");
        debug_assert!(
            !row.wants_bytes(),
            "what is dropped of request {} is wanted",
            id.index
        );
        let (peer, unbound) = (row.peer, row.length - row.cursor);
        row.cursor = row.length;
        if let Some(peer) = self.peers.get_mut(peer.index()) {
            debug_assert!(
                peer.unbound_bytes >= unbound,
                "{unbound} bytes of {} that wait",
                peer.unbound_bytes
            );
            peer.unbound_bytes -= unbound;
        }
        self.leave_line(peer, id.index);
        while let Some(index) = self.pop_waiting(id) {
            self.remove_attempt(index, End::Ended);
        }
        for rail in self.rails_of(peer) {
            let mut next = self
                .lanes
                .get(rail.index())
                .and_then(|lane| lane.flight.first_bound());
            while let Some(index) = next {
                next = self
                    .lanes
                    .get(rail.index())
                    .and_then(|lane| lane.flight.bound_after(&mut self.attempts, index));
                if self
                    .attempts
                    .at(index)
                    .is_some_and(|row| row.is_of(id.index))
                {
                    self.remove_attempt(index, End::Ended);
                }
            }
        }
    }

    /// Reports a request if all that it waits for has ended.
    pub(super) fn settle_request(&mut self, id: RequestId) {
        let Some(row) = self.requests.get(id) else {
            return;
        };
        if row.is_reported() {
            match row.role {
                // What has ended may have been all that was not proved of one side.
                _ if row.held > 0 => self.tell_more(id.index),
                Role::Transfer { .. } => self.end_names(id, false),
                _ if row.taken => self.ended.push_back(&mut self.requests, id.index),
                _ => {}
            }
            return;
        }
        if row.handover.is_out() {
            // Whoever has it says how it ends.
            return;
        }
        let complete = row.acked_bytes == row.length;
        if complete && row.held > row.lost {
            // Copies that nobody needs any more must not be sent; those that were are waited for.
            self.drop_unposted(id);
        }
        let is_over = |row: &&RequestRow| {
            let wants_nothing = complete || row.ending.is_some();
            row.held == row.lost && (wants_nothing || !row.is_in_line())
        };
        let Some(row) = self.requests.get(id).filter(is_over) else {
            return;
        };
        let (peer, is_left) = (row.peer, !complete && row.ending.is_none());
        if row.handover.is_any() && self.goes_over(id, complete) {
            return;
        }
        if is_left {
            // All that is left of it is where nothing is proved, and there was no row for a copy: nothing will ever end it.
            let silent = self.is_silent(peer);
            let cause = if silent {
                Cause::PeerSilent
            } else {
                Cause::Silent
            };
            self.set_ending(
                id,
                Ending {
                    status: Status::Failed,
                    cause,
                },
                Instant::MAX,
            );
        }
        self.report(id);
    }

    /// Makes a request one that is going to end other than well; its lanes are fenced at `due`.
    pub(super) fn set_ending(&mut self, id: RequestId, ending: Ending, due: Instant) {
        if let Some(row) = self.requests.get_mut(id) {
            debug_assert!(
                row.ending.is_none() && !row.is_reported(),
                "request {} is to end twice",
                id.index
            );
            self.timed_requests += u32::from(!row.is_timed());
            row.ending = Some(ending);
            row.due = due;
        }
    }

    /// Writes the report of a request whose every attempt has ended or is lost.
    fn report(&mut self, id: RequestId) {
        self.unassign(id);
        let (local, remote) = self.open_sides(id);
        let is_proved = (local, remote) == (Local::Released, Remote::Settled);
        let silent = self
            .requests
            .get(id)
            .is_some_and(|row| self.is_silent(row.peer));
        let Some(row) = self.requests.get_mut(id) else {
            return;
        };
        let complete = row.acked_bytes == row.length;
        debug_assert!(
            row.held == row.lost && !row.handover.is_out(),
            "request {} is reported, and {} of {} may still move",
            id.index,
            row.held - row.lost,
            row.held
        );
        debug_assert!(
            complete || !is_proved || row.ending.is_some(),
            "request {} ends well, with {} bytes of {}",
            id.index,
            { row.acked_bytes },
            { row.length }
        );
        let (status, cause) = match row.ending {
            _ if !is_proved => {
                let unproven = if silent {
                    Cause::PeerSilent
                } else {
                    Cause::Silent
                };
                (
                    Status::Indeterminate,
                    Some(row.ending.map_or(unproven, |ending| ending.cause)),
                )
            }
            Some(ending) if !complete => (ending.status, Some(ending.cause)),
            Some(_) | None => (Status::Completed, None),
        };
        let told = Told {
            status,
            cause,
            local,
            remote,
        };
        self.tell(id, told);
        if (told.status, told.cause) == (DENIED.status, Some(DENIED.cause)) {
            self.note_denial(id);
        }
    }

    /// Ends a request; what it is told is its report.
    pub(super) fn tell(&mut self, id: RequestId, told: Told) {
        let Some(row) = self.requests.get_mut(id) else {
            return;
        };
        let is_proved = (told.local, told.remote) == (Local::Released, Remote::Settled);
        debug_assert!(row.told.is_none(), "request {} is reported twice", id.index);
        debug_assert!(
            (told.status == Status::Indeterminate) != is_proved,
            "{:?}, and {:?} and {:?}",
            told.status,
            told.local,
            told.remote
        );
        debug_assert!(
            told.status != Status::Completed || row.acked_bytes == row.length,
            "all of request {} has arrived but {} bytes",
            id.index,
            row.length - row.acked_bytes
        );
        debug_assert!(
            (told.status == Status::Completed) == told.cause.is_none(),
            "{:?} for {:?}",
            told.status,
            told.cause
        );
        debug_assert!(
            !row.is_timed() || self.timed_requests > 0,
            "a request with a time that nobody looks at"
        );
        self.timed_requests -= u32::from(row.is_timed());
        let (peer, batch, unbound) = (row.peer, row.batch, row.length - row.cursor);
        row.cursor = row.length;
        row.told = Some(told);
        let (report, is_submitted) = (row.report(), row.role.is_submitted());
        row.taken |= !is_submitted;
        if row.is_in_line() {
            self.leave_line(peer, id.index);
        }
        if unbound > 0
            && let Some(peer) = self.peers.get_mut(peer.index())
        {
            peer.unbound_bytes -= unbound;
        }
        if !is_submitted {
            return self.tell_names(id, told);
        }
        debug_assert!(
            self.batches.at(batch).is_some(),
            "the batch of request {} is gone before it",
            id.index
        );
        self.ended.push_back(&mut self.requests, id.index);
        if self
            .batches
            .at_mut(batch)
            .zip(report)
            .is_some_and(|(row, report)| row.batch.end(&report))
        {
            self.ended_batches.push_back(&mut self.batches, batch);
        }
    }

    /// What may still move on each side for a request.
    #[inline]
    pub(super) fn open_sides(&self, id: RequestId) -> (Local, Remote) {
        let Some(row) = self.requests.get(id) else {
            return (Local::Released, Remote::Settled);
        };
        if row.lost == 0 && !row.handover.is_any() {
            return (Local::Released, Remote::Settled);
        }
        self.sides_left(id, row)
    }

    #[cold]
    fn sides_left(&self, id: RequestId, row: &RequestRow) -> (Local, Remote) {
        let (mut local, mut remote) = row.handover.sides();
        if self.has_local_holder(id) {
            local = Local::Held;
        }
        // A read leaves nothing on the peer's side.
        if row.op == Op::Write && self.has_holder(id, |lane| !lane.is_remotely_fenced()) {
            remote = Remote::Unknown;
        }
        (local, remote)
    }

    /// Whether more is known of both sides of a request than was told.
    pub(super) fn is_news(&self, id: RequestId) -> bool {
        let told = self.requests.get(id).and_then(|row| row.told);
        told.is_some_and(|told| self.open_sides(id) != (told.local, told.remote))
    }

    /// Whether somebody may still read or write this side's memory for a request.
    fn has_local_holder(&self, id: RequestId) -> bool {
        self.has_holder(id, |lane| !lane.is_locally_fenced())
    }

    /// Whether an attempt of a request, some of which are given up, is on a lane that `may_move` it.
    fn has_holder(&self, id: RequestId, may_move: impl Fn(&Lane) -> bool) -> bool {
        let Some(row) = self.requests.get(id).filter(|row| row.lost > 0) else {
            return false;
        };
        let transfer = self.transfer_of(row).unwrap_or(id.index);
        self.attempts.iter().any(|(_, row)| {
            let lane = self.lanes.get(row.rail().index());
            (row.is_of(id.index) || row.is_of(transfer)) && lane.is_none_or(&may_move)
        })
    }

    /// What a row in the queue of the ended means: a report, or the end of a reported one's last attempt.
    pub(super) fn request_event(&mut self, index: u32) -> Option<Event> {
        let id = self.requests.id_at(index)?;
        let row = self.requests.get(id)?;
        let tag = row.tag;
        if row.handover.is_out() {
            return self.handover_event(id);
        }
        debug_assert!(
            row.is_reported(),
            "the end of request {index} is told, and it has none"
        );
        if row.taken {
            let is_over = row.is_over();
            let (local, remote) = self.open_sides(id);
            if is_over {
                self.requests.remove(id);
            } else if let Some(row) = self.requests.get_mut(id) {
                row.told = row.told.map(|told| Told {
                    local,
                    remote,
                    ..told
                });
                // Rows of its attempts are there for others from now on.
                self.bind_all();
            }
            return Some(Event::Settled { tag, local, remote });
        }
        Some(Event::RequestDone { request: id, tag })
    }

    pub(super) fn take_request(&mut self, id: RequestId) -> Option<Report> {
        let row = self.requests.get_mut(id).filter(|row| !row.taken)?;
        let report = row.report()?;
        row.taken = true;
        let over = row.is_over();
        let is_news = report.status == Status::Indeterminate && self.is_news(id);
        self.ended.remove(&mut self.requests, id.index);
        if over && report.status != Status::Indeterminate {
            self.requests.remove(id);
        } else if over || is_news {
            // Its last attempt ended between the report and now, or more is known of it.
            self.ended.push_back(&mut self.requests, id.index);
        } else if report.status == Status::Indeterminate {
            // Rows of its attempts are there for others from now on.
            self.bind_all();
        }
        Some(report)
    }

    /// Frees the row of a request whose report was taken and whose last attempt was evicted.
    pub(super) fn forget_if_over(&mut self, id: RequestId) {
        let over = |row: &&RequestRow| row.taken && row.is_over();
        let Some(row) = self.requests.get(id).filter(over) else {
            return;
        };
        if row.role.is_submitted() {
            debug_assert!(
                !row.is_in_line() && row.is_reported(),
                "request {} is forgotten before its end",
                id.index
            );
            self.ended.remove(&mut self.requests, id.index);
            self.requests.remove(id);
        } else {
            self.end_names(id, true);
        }
    }

    /// Frees the row of one request that was taken and only waits for a late event, if its memory on this side
    /// is free.
    fn evict_ghost(&mut self) {
        let ghost = self.requests.iter().find(|(id, row)| {
            row.taken
                && !row.has_news()
                && !row.is_tied()
                && self.open_sides(*id).0 == Local::Released
        });
        let Some((id, _)) = ghost else {
            return;
        };
        if let Some(row) = self.requests.get_mut(id) {
            row.handover = Handover::No;
        }
        for index in 0..self.attempts.capacity() as u32 {
            if self
                .attempts
                .at(index)
                .is_some_and(|row| row.is_of(id.index))
            {
                self.remove_attempt(index, End::Ended);
            }
        }
        self.forget_if_over(id);
    }

    /// Puts a request among those with bytes to bind, and its peer among those with such requests.
    pub(super) fn want_to_bind(&mut self, peer: PeerId, index: u32, first: bool) {
        debug_assert!(
            (self.requests.at(index)).is_some_and(RequestRow::has_unbound),
            "request {index} is to stand in line for nothing"
        );
        let route = self.route_of(index);
        let (Some(row), Some(route)) = (self.peers.get_mut(peer.index()), route) else {
            return;
        };
        let Some((since, is_urgent)) = self
            .requests
            .at(index)
            .map(|row| (row.submitted_at, row.home.is_urgent()))
        else {
            return;
        };
        if first {
            row.pending.push_first(&mut self.requests, index, route);
        } else {
            row.pending.push(&mut self.requests, index, route, since);
        }
        let before = self.unbound.len();
        if first {
            self.unbound.push_front(&mut self.requests, index);
        } else {
            self.unbound.push_back(&mut self.requests, index);
        }
        self.urgent += u32::from(is_urgent && self.unbound.len() > before);
        debug_assert!(
            self.urgent as usize <= self.unbound.len(),
            "{} are urgent of {}",
            self.urgent,
            self.unbound.len()
        );
        self.bind_again(peer);
        self.ready.push_back(self.peers, u32::from(peer.0));
    }

    /// Takes a request out of those with bytes to bind.
    pub(super) fn leave_line(&mut self, peer: PeerId, index: u32) {
        let Some(row) = self.requests.at(index).filter(|row| row.is_in_line()) else {
            return;
        };
        let is_urgent = row.home.is_urgent();
        if let Some(row) = self.peers.get_mut(peer.index()) {
            let was_there = row.pending.remove(&mut self.requests, index);
            debug_assert!(
                was_there,
                "request {index} is in line, and not in that of its peer"
            );
        }
        let before = self.unbound.len();
        self.unbound.remove(&mut self.requests, index);
        debug_assert!(
            !is_urgent || self.urgent > 0,
            "none is urgent, and one of those leaves"
        );
        self.urgent -= u32::from(is_urgent && self.unbound.len() < before);
    }

    /// Takes a request out of line that has nothing to bind. What it waits for then is its attempts; if none can end any more,
    /// it does.
    pub(super) fn leave_line_for_good(&mut self, peer: PeerId, index: u32) {
        self.leave_line(peer, index);
        if let Some((id, row)) = self.requests.entry_mut(index)
            && row.held == row.lost
        {
            self.settle_request(id);
        }
    }

    /// When a request that has not begun can no longer end in time, by what is in flight on its rails and how fast they are
    /// together. `None`: it has begun, or nothing is before it, and how fast they are is not to be believed without trying.
    fn begun_by(&self, row: &RequestRow) -> Option<Instant> {
        let has_begun = row.cursor > 0 || !row.is_in_line();
        let plan = self.plan(row.plan).filter(|_| !has_begun)?;
        let (mut inflight_bytes, mut bytes_per_sec) = (0_u64, 0_u64);
        for rail in plan.rails(row.failover.rank()).iter() {
            if self.is_healthy(rail.rail) && !self.view().stands_by(rail.rail) {
                inflight_bytes += self.shared.inflight_bytes(rail.rail);
                let rate = self.shared.rate_most(rail.rail).bytes_per_sec();
                bytes_per_sec = bytes_per_sec.saturating_add(rate);
            }
        }
        if inflight_bytes == 0 {
            return None;
        }
        let bytes = inflight_bytes.saturating_add(row.length);
        let takes = Rate::from_bytes_per_sec(bytes_per_sec).time_for(bytes);
        let due = row.due.as_nanos();
        Some(Instant::from_nanos(due.saturating_sub(takes.as_nanos())))
    }

    /// Deadlines and grace times that are due; arms those that are not.
    pub(super) fn request_timers(&mut self, now: Instant) {
        self.end_denied(now);
        if self.timed_requests == 0 {
            return;
        }
        let mut is_overdue = false;
        for index in 0..self.requests.capacity() as u32 {
            let Some(row) = self.requests.at(index).filter(|row| !row.is_reported()) else {
                continue;
            };
            let (due, is_ending) = (row.due, row.ending.is_some());
            let due = match is_ending {
                true => due,
                false => self.begun_by(row).unwrap_or(due),
            };
            if due > now {
                self.arm(due, Reason::Request);
                continue;
            }
            if is_ending {
                is_overdue = true;
            } else if let Some(id) = self.requests.id_at(index) {
                let ending = Ending {
                    status: Status::DeadlineExceeded,
                    cause: Cause::DeadlineExceeded,
                };
                self.end_request(now, id, ending);
            }
        }
        if is_overdue {
            self.fence_lanes_of_overdue(now);
        }
    }

    /// Fences the lanes that still carry something of requests whose grace time is over. One look at each attempt, however many
    /// requests that are: thousands of one deadline held up the answers to these very fences.
    fn fence_lanes_of_overdue(&mut self, now: Instant) {
        for index in 0..self.attempts.capacity() as u32 {
            let posted = |row: &&Attempt| row.stage() == Stage::Posted;
            let Some(attempt) = self.attempts.at(index).filter(posted) else {
                continue;
            };
            let (rail, request) = (attempt.rail(), attempt.request());
            let request = request.and_then(|request| self.requests.at(request));
            if let Some(ending) = request.and_then(|row| row.overdue(now)) {
                self.start_fence(now, rail, ending.cause);
            }
        }
        for index in 0..self.requests.capacity() as u32 {
            if let Some(row) = self.requests.at_mut(index)
                && row.overdue(now).is_some()
            {
                row.due = Instant::MAX;
            }
        }
    }
}
