//! Fences: what proves that nothing of a lane's epoch can move any more, and when it is waited for no more.

use super::attempt::{Attempt, End, Marks};
use super::lane::{Blame, Phase, Wants};
use super::sequence::Sequence;
use super::{Chooser, Orchestrator, Reason};
use crate::message::Message;
use crate::time::{Duration, Instant};
use crate::units::{PeerId, RailId};
use crate::work::{Cause, Op, Scope};

/// A fence message that is not answered is repeated after this part of the usual interval, then after twice as long each time:
/// it may have been lost with what the lane failed of, which may be over soon.
const MESSAGE_INTERVAL_PARTS: u64 = 16;
/// At most this many times the usual interval apart.
const MESSAGE_INTERVALS_MAX: u64 = 16;
/// But not more often than this, whatever says that it might arrive now.
const REPEAT_MIN: Duration = Duration::from_millis(1);

/// A fence on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Fence {
    /// Nobody reads the source or writes this side's memory any more.
    pub(super) local: bool,
    /// No write can reach the peer's memory any more.
    pub(super) remote: bool,
    /// All works before this one are known to have arrived.
    pub(super) delivered: Sequence,
    /// What was posted has been sent elsewhere too, as far as that is worth it.
    pub(super) copied: bool,
    /// When reports stop waiting for it.
    pub(super) give_up_at: Instant,
    pub(super) given_up: bool,
    /// When the message last went out.
    pub(super) asked_at: Instant,
    /// When it goes out again; each time after twice as long.
    pub(super) resend_at: Instant,
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// Ends a lane's epoch. What was posted is sent again elsewhere: reads at once, writes too unless the peer is going to say
    /// which of them it has. What it may still write is waited for by the reports.
    pub(super) fn start_fence(&mut self, now: Instant, rail: RailId, cause: Cause) {
        self.start_fence_for(now, rail, Blame::of(cause));
    }

    /// The same for a lane that has failed by itself.
    pub(super) fn start_fence_for(&mut self, now: Instant, rail: RailId, blame: Blame) {
        let cause = blame.cause;
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
        let asks = self.asks_peer(rail);
        let oldest = self
            .first_posted(rail)
            .and_then(|index| self.attempts.at(index));
        // What was posted before it has ended. Where a lane began would not do: it comes round.
        let delivered = oldest.map_or(Sequence::FIRST, |row| row.sequence);
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        if lane.flight.posted() == 0 {
            lane.close();
        } else {
            debug_assert!(
                !lane.next_sequence.is_before(delivered),
                "the oldest is {delivered:?}, and the next to be posted {:?}",
                lane.next_sequence
            );
            let waits = asks && lane.limits.counts;
            lane.progress_at = now;
            lane.begin_fence(Fence {
                local: false,
                remote: !asks,
                delivered,
                copied: !waits,
                give_up_at,
                given_up: false,
                asked_at: now,
                resend_at: now,
            });
            if asks {
                self.messages.push_back(self.lanes, index);
            }
            self.arm(give_up_at, Reason::Fence);
            if waits {
                self.arm(now + self.config.progress_floor, Reason::Fence);
            }
            self.copy_posted(rail, !waits);
        }
        self.actions.push_back(self.lanes, index);
        self.blame(now, rail, blame);
        self.bind_all();
    }

    /// Takes everything off a lane that was not handed out.
    pub(super) fn clear_lane(&mut self, rail: RailId) {
        self.posts.remove(self.lanes, u32::from(rail.0));
        while let Some(index) = self
            .lanes
            .get(rail.index())
            .and_then(|lane| lane.flight.first_bound())
        {
            self.unbind(index);
        }
    }

    /// Whether a lane's fence needs the peer's answer: for writes, and for what was refused. Any other read writes nothing on the
    /// peer's side, and nobody minds what a probe writes.
    fn asks_peer(&mut self, rail: RailId) -> bool {
        let waits = |row: &Attempt| row.op() == Op::Write || row.is(Marks::REFUSED);
        let mut next = self.first_posted(rail);
        while let Some(index) = next {
            let row = self.attempts.at(index);
            if row.is_some_and(|row| waits(row) && row.request().is_some()) {
                return true;
            }
            next = self.posted_after(rail, index);
        }
        false
    }

    /// Sends copies of what a lane has posted elsewhere: of reads, and of writes if they are to be copied too.
    fn copy_posted(&mut self, rail: RailId, writes: bool) {
        let mut next = self.first_posted(rail);
        while let Some(index) = next {
            let row = self.attempts.at(index);
            if row.is_some_and(|row| writes || row.op() == Op::Read) {
                self.duplicate(index);
            }
            next = self.posted_after(rail, index);
        }
    }

    /// The peer has not said in time which writes of a lane it has: all that were posted are sent elsewhere too.
    fn copy_writes(&mut self, rail: RailId) {
        if let Some(Phase::Fencing(fence)) =
            self.lanes.get_mut(rail.index()).map(|lane| &mut lane.phase)
            && !core::mem::replace(&mut fence.copied, true)
        {
            self.copy_posted(rail, true);
        }
    }

    /// One of the two facts of a fence.
    pub(super) fn fenced(
        &mut self,
        rail: RailId,
        fence: Fence,
        scope: Scope,
        delivered: Option<u32>,
    ) {
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
            delivered: self.delivered(rail, fence.delivered, delivered),
            ..fence
        };
        if let Some(lane) = self.lanes.get_mut(rail.index()) {
            lane.phase = Phase::Fencing(fence);
            if fence.local {
                lane.wants.take(Wants::FENCE);
            }
            debug_assert!(
                lane.flight.bound() == 0,
                "a lane that is fenced takes nothing"
            );
        }
        if fence.local {
            if fence.remote {
                self.all_had_arrived(rail, fence.delivered);
            }
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
        } else {
            self.tell_lost(rail);
        }
    }

    /// More is known of what a lane may still move: of requests that were reported without proof that is told.
    fn tell_lost(&mut self, rail: RailId) {
        let (mut next, mut told) = (self.first_posted(rail), None);
        while let Some(index) = next {
            next = self.posted_after(rail, index);
            let lost = self.attempts.at(index).filter(|row| row.is(Marks::LOST));
            let request = lost.and_then(Attempt::request);
            if let Some(request) = request.filter(|_| request != told) {
                self.tell_more(request);
            }
            told = request.or(told);
        }
    }

    /// Behind which of a lane's works all are known to have arrived, by what was known `before` and what is said now. What is no
    /// part of what was posted is not believed.
    fn delivered(&mut self, rail: RailId, before: Sequence, said: Option<u32>) -> Sequence {
        let lane = self.lanes.get(rail.index());
        let Some((works, behind)) = said.zip(lane.map(|lane| lane.next_sequence)) else {
            return before;
        };
        if !lane.is_some_and(|lane| lane.limits.counts) {
            return before;
        }
        debug_assert!(
            !behind.is_before(before),
            "more has arrived than was posted: up to {before:?} of {behind:?}"
        );
        let said = Sequence::after(works);
        if behind.is_before(said) {
            self.counted.ignored.counts += 1;
            return before;
        }
        if before.is_before(said) { said } else { before }
    }

    /// Ends the attempts of a fenced lane that have nothing more to wait for: reads by the local fact alone,
    /// writes and what was refused by both.
    fn end_posted(&mut self, rail: RailId, fence: Fence) {
        let mut next = self.first_posted(rail);
        while let Some(index) = next {
            next = self.posted_after(rail, index);
            let Some(row) = self.attempts.at(index) else {
                continue;
            };
            let refused = row.is(Marks::REFUSED);
            if fence.remote || row.op() == Op::Read && !refused {
                let written = row.op() == Op::Write && !refused && !row.is(Marks::FAULTY);
                let arrived = written && row.sequence.is_before(fence.delivered);
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
        let after = (before.times(2))
            .max(interval.divided_by(MESSAGE_INTERVAL_PARTS))
            .min(interval_max);
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

    pub(super) fn check_fence(&mut self, now: Instant, rail: RailId, fence: Fence) {
        if !fence.remote {
            if fence.resend_at <= now {
                self.messages.push_back(self.lanes, u32::from(rail.0));
            } else {
                self.arm(fence.resend_at, Reason::Fence);
            }
        }
        if !fence.copied {
            let since = self.lanes.get(rail.index()).map(|lane| lane.progress_at);
            let due = since.map_or(now, |since| since + self.config.progress_floor);
            if due <= now {
                self.copy_writes(rail);
            } else {
                self.arm(due, Reason::Fence);
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

    /// A fence's proof has not come in time. Reports stop waiting for it and say so. What had no copy for want of a row gets one, if
    /// there is a row now.
    fn give_up_fence(&mut self, rail: RailId) {
        self.copy_posted(rail, true);
        if let Some(Phase::Fencing(fence)) =
            self.lanes.get_mut(rail.index()).map(|lane| &mut lane.phase)
        {
            fence.copied = true;
            debug_assert!(!fence.given_up, "it is given up already");
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
            if row.is(Marks::REFUSED) {
                // Nothing of it moves, whoever refused it.
                self.end_attempt(index, End::Ended);
                continue;
            }
            row.mark(Marks::LOST);
            if let Some(request) = self.request_of(index) {
                if let Some(row) = self.requests.get_mut(request) {
                    row.lost += 1;
                    debug_assert!(row.lost <= row.held, "{} lost of {}", row.lost, row.held);
                    self.lost_attempts += 1;
                }
                self.settle_request(request);
            }
        }
        // Who waited for a lane on this rail takes another one.
        self.bind_all();
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
}
