//! Lanes: opened when they are wanted, suspected when they stand still, fenced when they fail.

use super::attempt::{End, Load, Marks, Stage};
use super::flight::Flight;
use super::peer::Peer;
use super::{LaneAction, Orchestrator, Posting, Reason};
use crate::message::Message;
use crate::queue::{Link, Linked};
use crate::rail::health::{HealthMode, RailState};
use crate::time::{Duration, Instant};
use crate::units::{Epoch, PeerId, RailId};
use crate::work::{Cause, LaneFact, LaneLimits, Op, PostBatch, Scope, Stop, Work};

pub(super) const POST: usize = 0;
pub(super) const ACTION: usize = 1;
pub(super) const MESSAGE: usize = 2;
pub(super) const CHANGED: usize = 3;

/// Copies sent elsewhere when a lane is suspected.
const SUSPECT_COPIES: usize = 4;
/// Progress is expected within this many times the predicted time of the oldest attempt.
const PROGRESS_FACTOR: u64 = 4;
/// And incidents of the recent past double the least patience so many times at most.
const PATIENCE_DOUBLINGS_MAX: u8 = 4;
/// A fence message is repeated at most this many times its first interval apart.
const MESSAGE_INTERVALS_MAX: u64 = 16;
/// But not more often than this, whatever says that it might arrive now.
const REPEAT_MIN: Duration = Duration::from_millis(1);
/// A lane may take at least this long to open for a probe, however short the probe interval.
const PROBE_OPEN_MIN: Duration = Duration::from_millis(50);
/// Bytes of a health probe.
const PROBE_BYTES: u32 = 8;

/// Where a lane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No connection, and nothing in flight.
    Closed,
    /// Asked for at `since`, given up at `by`.
    Opening { since: Instant, by: Instant },
    /// Takes works.
    Open,
    /// Failed; what was posted may still write until both facts are there.
    Fencing(Fence),
}

/// A fence on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fence {
    /// Nobody reads the source or writes this side's memory any more.
    pub(super) local: bool,
    /// No write can reach the peer's memory any more.
    pub(super) remote: bool,
    /// Works known to have arrived, in order.
    delivered: u32,
    /// When reports stop waiting for it.
    pub(super) give_up_at: Instant,
    pub(super) given_up: bool,
    /// When the message last went out.
    asked_at: Instant,
    /// When it goes out again; each time after twice as long.
    resend_at: Instant,
}

/// A row of the lanes' table; opaque.
#[derive(Debug)]
pub struct Lane {
    pub(super) phase: Phase,
    epoch: Epoch,
    limits: LaneLimits,
    /// Attempts bound to it.
    pub(super) flight: Flight,
    /// Bytes of them.
    pub(super) inflight_bytes: u64,
    next_sequence: u32,
    /// The transport said that it has no room.
    full: bool,
    /// Last completion, or the first post after a pause.
    pub(super) progress_at: Instant,
    /// Since when it has stood still, if that has been noticed; its oldest slices were sent elsewhere too.
    /// [`Instant::MAX`]: not noticed.
    suspect_since: Instant,
    /// What its rail was paused for, until that is told.
    pub(super) blamed: Option<Cause>,
    /// Its rail came back because its cooldown is over.
    pub(super) expired: bool,
    /// This worker has claimed the probe of its rail.
    pub(super) probing: bool,
    wants_open: bool,
    wants_fence: bool,
    wants_close: bool,
    /// The epoch to close.
    closing: Epoch,
    links: [Link; 4],
}

const _: () = assert!(size_of::<Lane>() <= 136);

impl<const KIND: usize> Linked<KIND> for Lane {
    fn link(&mut self) -> &mut Link {
        &mut self.links[KIND]
    }
}

impl Lane {
    /// For the arrays that a caller hands in.
    pub const EMPTY: Self = Self {
        phase: Phase::Closed,
        epoch: Epoch(0),
        limits: LaneLimits {
            works_max: 0,
            work_bytes_max: 0,
        },
        flight: Flight::EMPTY,
        inflight_bytes: 0,
        next_sequence: 0,
        full: false,
        progress_at: Instant::ZERO,
        suspect_since: Instant::MAX,
        blamed: None,
        expired: false,
        probing: false,
        wants_open: false,
        wants_fence: false,
        wants_close: false,
        closing: Epoch(0),
        links: [Link::NONE; 4],
    };

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn is_locally_fenced(&self) -> bool {
        match self.phase {
            Phase::Fencing(fence) => fence.local,
            Phase::Closed => true,
            Phase::Opening { .. } | Phase::Open => false,
        }
    }

    /// Whether it is closed, and nothing is to be done about it any more.
    pub(super) fn is_quiet(&self) -> bool {
        self.phase == Phase::Closed
            && self.flight.len() == 0
            && !(self.wants_open || self.wants_fence || self.wants_close)
    }

    /// Ends its epoch. Nothing is waited for any more, proved or not.
    pub(super) fn close(&mut self) {
        self.phase = Phase::Closed;
        self.closing = self.epoch;
        self.wants_close = true;
    }

    /// Works it can still take; none unless it is open.
    pub(super) fn room_works(&self) -> usize {
        if self.phase != Phase::Open || self.full || self.probing {
            return 0;
        }
        usize::from(self.limits.works_max).saturating_sub(self.flight.len())
    }

    pub(super) fn work_bytes_max(&self) -> u32 {
        self.limits.work_bytes_max.max(1)
    }
}

impl Orchestrator<'_> {
    /// Asks for a lane to be opened under a new epoch.
    pub(super) fn open_lane(&mut self, now: Instant, rail: RailId, by: Instant) {
        let Some(lane) = self
            .lanes
            .get_mut(rail.index())
            .filter(|lane| lane.phase == Phase::Closed)
        else {
            return;
        };
        lane.epoch = Epoch(lane.epoch.0.wrapping_add(1));
        lane.phase = Phase::Opening { since: now, by };
        lane.next_sequence = 0;
        lane.full = false;
        lane.suspect_since = Instant::MAX;
        lane.wants_open = true;
        self.actions.push_back(self.lanes, u32::from(rail.0));
        self.arm(by, Reason::Opening);
    }

    /// Something about a lane of the present epoch.
    pub(super) fn lane_fact(&mut self, now: Instant, rail: RailId, fact: LaneFact) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        match (fact, lane.phase) {
            (LaneFact::Opened { limits }, Phase::Opening { .. }) => self.lane_opened(now, rail, limits),
            (LaneFact::OpenFailed(cause), Phase::Opening { .. }) => self.open_failed(now, rail, cause),
            (LaneFact::Writable, Phase::Open) => {
                lane.full = false;
                self.posts.push_back(self.lanes, u32::from(rail.0));
                self.bind_all();
            }
            (LaneFact::Broken(cause), Phase::Opening { .. }) => self.open_failed(now, rail, cause),
            (LaneFact::Broken(cause), Phase::Open) => self.break_lane(now, rail, cause),
            (LaneFact::Fenced { scope, delivered }, Phase::Fencing(fence)) => {
                self.fenced(rail, fence, scope, delivered);
            }
            // What cannot be fenced now stays unproven; `give_up_at` is what ends the wait.
            (LaneFact::Unfenceable { .. }, _)
            // Late or doubled facts.
            | (LaneFact::Opened { .. } | LaneFact::OpenFailed(_), _)
            | (LaneFact::Writable | LaneFact::Broken(_) | LaneFact::Fenced { .. }, _) => {}
        }
    }

    fn lane_opened(&mut self, now: Instant, rail: RailId, limits: LaneLimits) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        lane.phase = Phase::Open;
        lane.limits = limits;
        lane.progress_at = now;
        if let Some(peer) = self.shared.peer(rail) {
            self.heard(now, peer);
            self.repeat_fences(now, peer);
        }
        if self
            .lanes
            .get(rail.index())
            .is_some_and(|lane| lane.probing)
        {
            let posted = self.post_probe(now, rail, Load::HealthProbe, PROBE_BYTES);
            if !posted {
                // Nothing would ever end the probe: it has failed, and the next one is tried later.
                self.start_fence(now, rail, Cause::Refused);
            }
        }
        self.bind_all();
    }

    /// A lane could not be opened, or not in time.
    pub(super) fn open_failed(&mut self, now: Instant, rail: RailId, cause: Cause) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        lane.close();
        lane.wants_open = false;
        self.actions.push_back(self.lanes, u32::from(rail.0));
        log::debug!("lane {} not opened ({cause})", rail.0);
        // Whatever the cause: a lane that is asked for again at once fails again at once.
        self.blame(now, rail, Cause::Refused);
        self.bind_all();
    }

    /// Puts a probe on a lane, past all windows. `false`: there is no row for it.
    pub(super) fn post_probe(
        &mut self,
        now: Instant,
        rail: RailId,
        load: Load,
        bytes: u32,
    ) -> bool {
        let Some(ahead_bytes) = self.shared.reserve(now, rail, u64::from(bytes), u64::MAX) else {
            return false;
        };
        let probe = super::Attempt::new(load, Op::Write, 0, bytes);
        let Some(id) = self.new_attempt(probe) else {
            self.shared.release(rail, u64::from(bytes));
            return false;
        };
        self.put_on_lane(id.index, rail, ahead_bytes);
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
        row.bind_to(rail, ahead_bytes);
        lane.inflight_bytes += u64::from(row.length);
        lane.flight.bind(&mut self.attempts, index);
        self.posts.push_back(self.lanes, u32::from(rail.0));
    }

    /// Moves bound attempts of a lane into `out`, as works.
    pub(super) fn fill(&mut self, now: Instant, index: u32, out: &mut PostBatch) {
        let rail = RailId(index as u16);
        out.lane = self.lane_id(rail);
        let was_idle = self
            .lanes
            .get(rail.index())
            .is_some_and(|lane| lane.flight.posted() == 0);
        while let Some(unwanted) = self.hand_out(now, rail, out) {
            self.unbind(unwanted);
        }
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        let some_left = !lane.full && lane.flight.bound() > 0;
        if was_idle && !out.works.is_empty() {
            lane.progress_at = now;
            self.arm_progress(rail);
        }
        if some_left {
            self.posts.push_back(self.lanes, index);
        }
    }

    /// Hands out bound attempts, up to one that nobody wants any more.
    fn hand_out(&mut self, now: Instant, rail: RailId, out: &mut PostBatch) -> Option<u32> {
        let lane = self.lanes.get_mut(rail.index())?;
        out.epoch = lane.epoch;
        if lane.phase != Phase::Open || lane.full {
            return None;
        }
        while !out.works.is_full() {
            let index = lane.flight.first_bound()?;
            let (id, row) = self.attempts.entry_mut(index)?;
            let places = match row.load() {
                Load::Slice(request) => {
                    let request = self.requests.at(request);
                    let wanted =
                        request.filter(|request| request.wants_bytes() && !row.is(Marks::DONE));
                    wanted.map(|request| request.places(row.offset))
                }
                Load::HealthProbe | Load::RateProbe => {
                    let peer = self.shared.peer(rail);
                    let row = peer.and_then(|peer| self.peers.get(peer.index()));
                    row.and_then(Peer::scratch)
                }
            };
            let Some((local, remote)) = places else {
                return Some(index);
            };
            row.stage = Stage::Posted;
            row.posted_at = now;
            row.sequence = lane.next_sequence;
            let work = Work {
                cookie: id.to_bits(),
                op: row.op(),
                local,
                remote,
                length: row.length,
                signal: row.signal(),
            };
            let _ = out.works.push(work);
            lane.next_sequence = lane.next_sequence.wrapping_add(1);
            lane.flight.hand_out(&mut self.attempts);
        }
        None
    }

    /// The answer to a post.
    pub(super) fn posted(&mut self, now: Instant, posting: Posting, accepted: usize, stop: Stop) {
        let rail = posting.lane.rail();
        let index = u32::from(rail.0);
        if stop != Stop::Unknown {
            for _ in accepted..posting.count {
                self.take_back(rail);
            }
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

    /// Puts the work handed out last back where it was: it was not taken.
    fn take_back(&mut self, rail: RailId) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        let Some(last) = lane.flight.take_back(&mut self.attempts) else {
            return;
        };
        lane.next_sequence = lane.next_sequence.wrapping_sub(1);
        if let Some(row) = self.attempts.at_mut(last) {
            row.stage = Stage::Bound;
        }
        self.posts.push_back(self.lanes, u32::from(rail.0));
    }

    /// The first work that was not taken was refused.
    fn rejected(&mut self, now: Instant, rail: RailId, cause: Cause) {
        let first = self
            .lanes
            .get(rail.index())
            .and_then(|lane| lane.flight.first_bound());
        let request = first.and_then(|index| self.request_of(index));
        match request {
            Some(request) if cause.is_callers() => self.fail_request(now, request, cause),
            _ => {
                if let Some(first) = first {
                    self.fault(rail, first, cause);
                }
                self.start_fence(now, rail, cause);
            }
        }
    }

    /// A lane is of no use any more. Its oldest attempt is what it stumbled over.
    fn break_lane(&mut self, now: Instant, rail: RailId, cause: Cause) {
        if let Some(oldest) = self.first_posted(rail) {
            self.fault(rail, oldest, cause);
        }
        self.start_fence(now, rail, cause);
    }

    /// Ends a lane's epoch. What was posted is sent again elsewhere at once; what it may still write is waited
    /// for by the reports.
    pub(super) fn start_fence(&mut self, now: Instant, rail: RailId, cause: Cause) {
        let index = u32::from(rail.0);
        let Some(lane) = self
            .lanes
            .get(rail.index())
            .filter(|lane| lane.phase == Phase::Open)
        else {
            return;
        };
        log::debug!(
            "lane {index} epoch {}: fenced ({cause}), {} posted",
            lane.epoch.0,
            lane.flight.posted()
        );
        let give_up_at = self.give_up_at(now, rail);
        self.clear_lane(rail);
        let writes = self.copy_posted(rail);
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        if lane.flight.posted() == 0 {
            lane.close();
        } else {
            lane.wants_fence = true;
            lane.phase = Phase::Fencing(Fence {
                local: false,
                // A read writes nothing on the peer's side, and nobody minds what a probe writes.
                remote: !writes,
                delivered: 0,
                give_up_at,
                given_up: false,
                asked_at: now,
                resend_at: now,
            });
            if writes {
                self.messages.push_back(self.lanes, index);
            }
            self.arm(give_up_at, Reason::Fence);
        }
        self.actions.push_back(self.lanes, index);
        self.blame(now, rail, cause);
        self.bind_all();
    }

    /// The oldest attempt that a lane has handed out.
    pub(super) fn first_posted(&self, rail: RailId) -> Option<u32> {
        self.lanes.get(rail.index())?.flight.first_posted()
    }

    /// The one handed out after `index`.
    fn posted_after(&mut self, rail: RailId, index: u32) -> Option<u32> {
        self.lanes
            .get(rail.index())?
            .flight
            .posted_after(&mut self.attempts, index)
    }

    /// Takes everything off a lane that was not handed out.
    fn clear_lane(&mut self, rail: RailId) {
        self.posts.remove(self.lanes, u32::from(rail.0));
        while let Some(index) = self
            .lanes
            .get(rail.index())
            .and_then(|lane| lane.flight.first_bound())
        {
            self.unbind(index);
        }
    }

    /// Sends copies of what a lane has posted elsewhere. Whether there were writes of user bytes.
    fn copy_posted(&mut self, rail: RailId) -> bool {
        let mut writes = false;
        let mut next = self.first_posted(rail);
        while let Some(index) = next {
            self.duplicate(index);
            let row = self.attempts.at(index);
            writes |= row.is_some_and(|row| row.op() == Op::Write && row.request().is_some());
            next = self.posted_after(rail, index);
        }
        writes
    }

    /// Counts a failure against the rail if it is one, and ends a probe badly.
    fn blame(&mut self, now: Instant, rail: RailId, cause: Cause) {
        let worker = self.config.worker;
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        if core::mem::take(&mut lane.probing) {
            if let Some(health) = self.shared.health(rail) {
                health.handle_probe_bad(worker);
            }
            self.rail_changed(rail);
        } else if cause.counts_against_rail()
            && self.shared.handle_incident(now, rail, self.config.health)
        {
            lane.blamed = Some(cause);
            self.rail_changed(rail);
        }
        self.arm_probe(rail);
    }

    /// The probe of a paused rail came back well.
    pub(super) fn probe_good(&mut self, now: Instant, rail: RailId) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        lane.probing = false;
        if self
            .shared
            .health(rail)
            .is_some_and(|health| health.handle_probe_good(now, self.config.worker))
        {
            self.come_back(rail, false);
        }
        self.bind_all();
    }

    /// A rail takes slices again.
    fn come_back(&mut self, rail: RailId, expired: bool) {
        self.shared.readmit(rail);
        if let Some(lane) = self.lanes.get_mut(rail.index()) {
            lane.expired = expired;
        }
        self.rail_changed(rail);
        self.bind_all();
    }

    /// A lane has carried a slice. In mode `reset` that is a sign of recovery, whoever had paused the rail.
    pub(super) fn rail_succeeded(&mut self, rail: RailId) {
        if matches!(self.config.health, HealthMode::Reset(_))
            && self
                .shared
                .health(rail)
                .is_some_and(|health| health.handle_success())
        {
            self.come_back(rail, false);
        }
    }

    /// One of the two facts of a fence.
    fn fenced(&mut self, rail: RailId, fence: Fence, scope: Scope, delivered: Option<u32>) {
        let fence = match scope {
            Scope::Local => Fence {
                local: true,
                ..fence
            },
            Scope::Remote => Fence {
                remote: true,
                ..fence
            },
        };
        let fence = Fence {
            delivered: fence.delivered.max(delivered.unwrap_or(0)),
            ..fence
        };
        if let Some(lane) = self.lanes.get_mut(rail.index()) {
            lane.phase = Phase::Fencing(fence);
            lane.wants_fence &= !fence.local;
        }
        if fence.local {
            self.end_posted(rail, fence);
        }
        if fence.local && fence.remote {
            let index = u32::from(rail.0);
            self.messages.remove(self.lanes, index);
            if let Some(lane) = self.lanes.get_mut(rail.index()) {
                lane.close();
            }
            self.actions.push_back(self.lanes, index);
            self.arm_probe(rail);
            self.bind_all();
        }
    }

    /// Ends the attempts of a fenced lane that have nothing more to wait for: reads by the local fact alone,
    /// writes by both.
    fn end_posted(&mut self, rail: RailId, fence: Fence) {
        let mut next = self.first_posted(rail);
        while let Some(index) = next {
            next = self.posted_after(rail, index);
            let Some(row) = self.attempts.at(index) else {
                continue;
            };
            if fence.remote || row.op() == Op::Read {
                let arrived = row.op() == Op::Write && row.sequence < fence.delivered;
                self.end_attempt(index, if arrived { End::Delivered } else { End::Ended });
            }
        }
    }

    /// Ends a lane with what a peer that is gone has proved: nothing of it can move on that side any more.
    pub(super) fn remote_ended(&mut self, now: Instant, rail: RailId) {
        self.start_fence(now, rail, Cause::PeerGone);
        if let Some(Phase::Fencing(fence)) = self.lanes.get(rail.index()).map(|lane| lane.phase) {
            self.fenced(rail, fence, Scope::Remote, None);
        }
    }

    /// The message to ask for a lane's fence, if it still is to be asked for.
    pub(super) fn fence_message(&mut self, now: Instant, index: u32) -> Option<Message> {
        let rail = RailId(index as u16);
        let interval = self.config.message_interval;
        let interval_max = interval.times(MESSAGE_INTERVALS_MAX);
        let peer = self.shared.peer(rail)?;
        let lane_id = self.lane_id(rail);
        let lane = self.lanes.get_mut(rail.index())?;
        let Phase::Fencing(fence) = &mut lane.phase else {
            return None;
        };
        if fence.remote {
            return None;
        }
        let before = fence.resend_at.since(fence.asked_at);
        let after = before.times(2).max(interval).min(interval_max);
        fence.asked_at = now;
        fence.resend_at = now + after;
        let (resend_at, epoch) = (fence.resend_at, lane.epoch);
        self.arm(resend_at, Reason::Fence);
        Some(Message::Fence {
            peer,
            lane: lane_id,
            epoch,
        })
    }

    /// A way to a peer has just proved open: what it was asked for and may not have heard is asked again.
    pub(super) fn repeat_fences(&mut self, now: Instant, peer: PeerId) {
        for rail in self.rails_of(peer) {
            let phase = self.lanes.get(rail.index()).map(|lane| lane.phase);
            let unanswered = |fence: Fence| !fence.remote && fence.asked_at + REPEAT_MIN <= now;
            if matches!(phase, Some(Phase::Fencing(fence)) if unanswered(fence)) {
                self.messages.push_back(self.lanes, u32::from(rail.0));
            }
        }
    }

    /// The next thing to do with a lane: end the old before beginning the new.
    pub(super) fn lane_action(&mut self, index: u32) -> Option<LaneAction> {
        let id = self.lane_id(RailId(index as u16));
        let lane = self.lanes.get_mut(index as usize)?;
        if core::mem::take(&mut lane.wants_fence) {
            return Some(LaneAction::Fence {
                lane: id,
                epoch: lane.epoch,
                scope: Scope::Local,
            });
        }
        if core::mem::take(&mut lane.wants_close) {
            let epoch = lane.closing;
            return Some(LaneAction::Close { lane: id, epoch });
        }
        match (core::mem::take(&mut lane.wants_open), lane.phase) {
            (true, Phase::Opening { by, .. }) => Some(LaneAction::Open {
                lane: id,
                epoch: lane.epoch,
                by,
            }),
            _ => None,
        }
    }

    /// A lane moved something.
    pub(super) fn lane_progressed(&mut self, now: Instant, rail: RailId) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        lane.progress_at = now;
        lane.suspect_since = Instant::MAX;
        if core::mem::take(&mut lane.full) {
            self.posts.push_back(self.lanes, u32::from(rail.0));
        }
        self.last_progress = (now, rail);
    }

    /// When a lane is suspected for lack of progress; `None`: nothing is posted.
    pub(super) fn progress_due(&self, rail: RailId) -> Option<Instant> {
        let lane = self.lanes.get(rail.index())?;
        let oldest = self.attempts.at(lane.flight.first_posted()?)?;
        let bytes = oldest
            .ahead_bytes()
            .saturating_add(u64::from(oldest.length));
        let predicted = self.shared.delay_base(rail) + self.shared.rate(rail).time_for(bytes);
        // A rail that keeps being suspected may just be slower than it looks: it is given more time.
        let flaps = self
            .shared
            .health(rail)
            .map_or(0, |health| health.flaps())
            .min(PATIENCE_DOUBLINGS_MAX);
        let floor = self.config.progress_floor.times(1 << flaps);
        let patience = predicted.times(PROGRESS_FACTOR).max(floor);
        Some(lane.progress_at.max(oldest.posted_at) + patience)
    }

    fn arm_progress(&mut self, rail: RailId) {
        if let Some(due) = self.progress_due(rail) {
            self.arm(due, Reason::Progress);
        }
    }

    /// What is due on one lane at `now`; arms what is due later.
    pub(super) fn lane_timers(&mut self, now: Instant, rail: RailId) {
        let Some(lane) = self.lanes.get(rail.index()) else {
            return;
        };
        match lane.phase {
            Phase::Opening { by, .. } if by <= now => self.open_failed(now, rail, Cause::Refused),
            Phase::Opening { by, .. } => self.arm(by, Reason::Opening),
            Phase::Open => self.check_progress(now, rail),
            Phase::Fencing(fence) => self.check_fence(now, rail, fence),
            Phase::Closed => self.check_probe(now, rail),
        }
    }

    /// A lane that said it was full with nothing posted has only `Writable` to wait for. If that is not said,
    /// asks by posting again.
    fn check_full(&mut self, now: Instant, rail: RailId) {
        let Some(lane) = self
            .lanes
            .get_mut(rail.index())
            .filter(|lane| lane.full && lane.flight.posted() == 0)
        else {
            return;
        };
        let due = lane.progress_at + self.config.progress_floor;
        if now < due {
            return self.arm(due, Reason::Progress);
        }
        lane.full = false;
        self.posts.push_back(self.lanes, u32::from(rail.0));
        self.bind_all();
    }

    fn check_progress(&mut self, now: Instant, rail: RailId) {
        self.check_full(now, rail);
        let Some(due) = self.progress_due(rail) else {
            return;
        };
        if now < due {
            return self.arm(due, Reason::Progress);
        }
        let silent = self
            .shared
            .peer(rail)
            .is_some_and(|peer| self.is_silent(peer));
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        if lane.probing {
            return self.start_fence(now, rail, Cause::Silent);
        }
        // A stalled process is not a dead link: nothing moves then, on no lane. But not for ever.
        let stood_since = lane.progress_at;
        let others_moved = self.last_progress.1 != rail && self.last_progress.0 > stood_since;
        let first = lane.suspect_since == Instant::MAX;
        lane.suspect_since = lane.suspect_since.min(stood_since);
        let too_long = now.since(lane.suspect_since) >= self.config.fence_timeout;
        if !first && (others_moved || silent || too_long) {
            let cause = if silent {
                Cause::PeerSilent
            } else {
                Cause::Silent
            };
            return self.break_lane(now, rail, cause);
        }
        // The timer runs anew either way, and the second firing decides.
        lane.progress_at = now;
        if first {
            self.send_oldest_elsewhere(rail);
        }
        self.arm_progress(rail);
    }

    fn send_oldest_elsewhere(&mut self, rail: RailId) {
        let mut next = self.first_posted(rail);
        for _ in 0..SUSPECT_COPIES {
            let Some(index) = next else {
                break;
            };
            self.duplicate(index);
            next = self.posted_after(rail, index);
        }
    }

    fn check_fence(&mut self, now: Instant, rail: RailId, fence: Fence) {
        if !fence.remote {
            if fence.resend_at <= now {
                self.messages.push_back(self.lanes, u32::from(rail.0));
            } else {
                self.arm(fence.resend_at, Reason::Fence);
            }
        }
        if fence.given_up {
            return;
        }
        if fence.give_up_at <= now {
            self.give_up_fence(rail);
        } else {
            self.arm(fence.give_up_at, Reason::Fence);
        }
    }

    /// A fence's proof has not come in time. Reports stop waiting for it and say so.
    fn give_up_fence(&mut self, rail: RailId) {
        if let Some(Phase::Fencing(fence)) =
            self.lanes.get_mut(rail.index()).map(|lane| &mut lane.phase)
        {
            fence.given_up = true;
        }
        let mut next = self.first_posted(rail);
        while let Some(index) = next {
            next = self.posted_after(rail, index);
            let Some(row) = self
                .attempts
                .at_mut(index)
                .filter(|row| !row.is(Marks::LOST))
            else {
                continue;
            };
            row.mark(Marks::LOST);
            if let Some(request) = self.request_of(index) {
                if let Some(row) = self.requests.get_mut(request) {
                    row.lost += 1;
                }
                self.settle_request(request);
            }
        }
    }

    /// When reports stop waiting for a fence that starts now. A peer that has been silent has had part of
    /// its time.
    fn give_up_at(&self, now: Instant, rail: RailId) -> Instant {
        let timeout = self.config.fence_timeout;
        let peer = self
            .shared
            .peer(rail)
            .and_then(|peer| self.peers.get(peer.index()));
        match peer {
            Some(peer) if peer.is_silent() => peer.heard_at() + timeout,
            _ => now + timeout,
        }
    }

    /// A silent peer shortens the waits for its fences.
    pub(super) fn hasten_fence(&mut self, rail: RailId, give_up_at: Instant) {
        if let Some(Phase::Fencing(fence)) =
            self.lanes.get_mut(rail.index()).map(|lane| &mut lane.phase)
        {
            fence.give_up_at = fence.give_up_at.min(give_up_at);
            let at = fence.give_up_at;
            self.arm(at, Reason::Fence);
        }
    }

    /// Probes a paused rail by opening its lane anew, if that is due and nobody else does.
    fn check_probe(&mut self, now: Instant, rail: RailId) {
        let Some(peer) = self.shared.peer(rail).filter(|peer| self.knows(*peer)) else {
            return;
        };
        let Some(health) = self
            .shared
            .health(rail)
            .filter(|health| health.state() == RailState::Paused)
        else {
            return;
        };
        if matches!(self.config.health, HealthMode::Reset(_)) {
            if health.handle_expiry(now) {
                self.come_back(rail, true);
            }
            return self.arm_probe(rail);
        }
        if self.scratch_bytes(peer) == 0 || !health.claim_probe(now, self.config.worker) {
            return self.arm_probe(rail);
        }
        if let Some(lane) = self.lanes.get_mut(rail.index()) {
            lane.probing = true;
        }
        let within = health.probe_interval(now).max(PROBE_OPEN_MIN);
        self.open_lane(now, rail, now + within);
    }

    fn arm_probe(&mut self, rail: RailId) {
        let closed = self
            .lanes
            .get(rail.index())
            .is_some_and(|lane| lane.phase == Phase::Closed);
        if let Some(at) = self
            .shared
            .health(rail)
            .and_then(|health| health.probe_at())
            .filter(|_| closed)
        {
            self.arm(at, Reason::Probe);
        }
    }

    /// Empties the row of a quiet lane, for another rail. Its epochs go on, so that what is still said of the
    /// old rail's means nothing to the new one.
    pub(super) fn free_lane(&mut self, rail: RailId) {
        let index = u32::from(rail.0);
        self.posts.remove(self.lanes, index);
        self.actions.remove(self.lanes, index);
        self.messages.remove(self.lanes, index);
        self.changed_rails.remove(self.lanes, index);
        if let Some(lane) = self.lanes.get_mut(rail.index()) {
            *lane = Lane {
                epoch: lane.epoch,
                ..Lane::EMPTY
            };
        }
    }
}

impl<'a> Orchestrator<'a> {
    /// Rails of a peer that this worker has a lane row for.
    pub(super) fn rails_of(&self, peer: PeerId) -> impl Iterator<Item = RailId> + use<'a> {
        let shared = self.shared;
        (0..self.lanes.len())
            .map(|index| RailId(index as u16))
            .filter(move |rail| shared.peer(*rail) == Some(peer))
    }
}
