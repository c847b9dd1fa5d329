//! Requests that the caller carries out itself, because none of core's lanes is to.
//!
//! A plan may end with a transport that [hands over](super::Config::hands_over). A request that comes to it, at once or
//! because all before it have failed, is taken out of line. Once nothing of it is under way any more it is handed over, all of it:
//! what has arrived of it need not be one piece. It stays open meanwhile: its deadline, its cancellation and the end of its peer
//! are core's, which then calls it back, and its report and its batch's end follow what the caller says became of it.

use super::request::{Ending, RequestRow};
use super::{Chooser, Event, Orchestrator};
use crate::plan::Plan;
use crate::report::{Local, Remote, Report, Status};
use crate::time::Instant;
use crate::units::{PeerId, PlanId, RequestId};
use crate::work::{Cause, Op, Place, Priority};

/// What there is to carry out of a request that was handed over: all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// Which way.
    pub op: Op,
    /// Its first byte on this side.
    pub local: Place,
    /// Its first byte on the peer's side.
    pub remote: Place,
    /// Bytes.
    pub length: u64,
    /// By when; [`Instant::MAX`]: whenever.
    pub deadline: Instant,
    /// Who goes first.
    pub priority: Priority,
}

/// Whose a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Handover {
    /// Core's.
    No,
    /// The caller's, as soon as nothing of it is under way.
    Leaving,
    /// The caller's, who has not been told yet.
    Due,
    /// The caller's.
    Out,
    /// The caller is to stop, and has not been told yet.
    Recalled,
    /// The caller has been told to stop.
    Stopping,
    /// The caller's no more, but what the caller did may still move on one side or both.
    Unproven(Local, Remote),
}

impl Handover {
    /// Whether it is the caller's or about to be.
    pub(super) fn is_any(self) -> bool {
        self != Self::No
    }

    /// Whether the caller has it, or is to get it.
    pub(super) fn is_out(self) -> bool {
        matches!(
            self,
            Self::Due | Self::Out | Self::Recalled | Self::Stopping
        )
    }

    /// Whether something of it may move although it is over for core.
    pub(super) fn is_unproven(self) -> bool {
        matches!(self, Self::Unproven(..))
    }

    /// What the caller has left open on each side.
    pub(super) fn sides(self) -> (Local, Remote) {
        match self {
            Self::Unproven(local, remote) => (local, remote),
            _ => (Local::Released, Remote::Settled),
        }
    }

    /// What is left once so much is known of it.
    fn left(how: &Report) -> Self {
        match (how.local, how.remote) {
            (Local::Released, Remote::Settled) => Self::No,
            (local, remote) => Self::Unproven(local, remote),
        }
    }
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// How a request ended that was handed over, or what has become known of one that had ended without proof. All of it has
    /// arrived if it `Completed`; else its report says what `how` says, unless it was to end otherwise already. One that is
    /// [`Status::Indeterminate`] may be told of again, until both sides are free; what is then known is [`Event::Settled`].
    /// `false`: it is not the caller's, and this changes nothing.
    pub fn hand_back(&mut self, id: RequestId, how: &Report) -> bool {
        let Some(row) = self.requests.get_mut(id) else {
            return false;
        };
        match row.handover {
            Handover::Out | Handover::Recalled | Handover::Stopping => {}
            Handover::Unproven(..) => return self.hand_back_proof(id, how),
            Handover::No | Handover::Leaving | Handover::Due => return false,
        }
        if how.status == Status::Pending {
            return false;
        }
        debug_assert!(
            row.held == row.lost,
            "the caller has had it while {} were under way",
            row.held - row.lost
        );
        row.handover = Handover::left(how);
        row.acked_bytes = match how.status {
            Status::Completed => row.length,
            _ => how.delivered_bytes.min(row.length).max(row.acked_bytes),
        };
        let is_short = row.acked_bytes < row.length;
        if is_short && row.ending.is_none() {
            let ending = Ending {
                status: match how.status {
                    // Whether it is that is for what is known of both sides to say.
                    Status::Indeterminate => Status::Failed,
                    status => status,
                },
                cause: how.cause.unwrap_or(Cause::Silent),
            };
            self.set_ending(id, ending, Instant::MAX);
        }
        self.ended.remove(&mut self.requests, id.index);
        self.settle_request(id);
        true
    }

    /// What a request is that was handed over; `None`: it was not, was called back, or is over.
    pub fn handed(&self, id: RequestId) -> Option<Handed> {
        let row = self.requests.get(id)?;
        let is_out = row.handover == Handover::Out && row.ending.is_none();
        let (local, remote) = row.places();
        is_out.then_some(Handed {
            op: row.op,
            local,
            remote,
            length: row.length,
            deadline: row.due,
            priority: row.home.priority(),
        })
    }

    /// More is known of what the caller did.
    fn hand_back_proof(&mut self, id: RequestId, how: &Report) -> bool {
        let Some(row) = self.requests.get_mut(id) else {
            return false;
        };
        let left = Handover::left(how);
        let is_new = row.handover != left;
        row.handover = left;
        if is_new && row.is_taken() {
            self.ended.push_back(&mut self.requests, id.index);
        }
        true
    }

    /// Whether the requests of a plan at a rank are the caller's.
    pub(super) fn hands_over(&self, plan: &Plan, rank: u8) -> bool {
        let transport = plan.transports.get(usize::from(rank));
        transport.is_some_and(|row| self.config.hands_over == Some(row.transport))
    }

    /// The same, by the number of the plan.
    pub(super) fn is_handed_over(&self, plan: PlanId, rank: u8) -> bool {
        self.plan(plan)
            .is_some_and(|plan| self.hands_over(plan, rank))
    }

    /// A request has come to another transport: whether it is the caller's there. It has left the line then.
    #[inline]
    pub(super) fn leaves(&mut self, now: Instant, id: RequestId) -> bool {
        self.may_hand_over && self.leaves_ours(now, id)
    }

    #[cold]
    fn leaves_ours(&mut self, now: Instant, id: RequestId) -> bool {
        let row = self.requests.get(id).filter(|row| row.wants_bytes());
        let is_its = |row: &RequestRow| self.is_handed_over(row.plan, row.failover.rank());
        if !row.is_some_and(is_its) {
            return false;
        }
        // Nobody is told that: its names go, each for itself.
        let ending = Ending {
            status: Status::Failed,
            cause: Cause::NoRail,
        };
        if self.take_apart(now, id, ending) {
            return true;
        }
        if let Some(row) = self.requests.get_mut(id) {
            row.handover = Handover::Leaving;
        }
        self.drop_unposted(id);
        self.settle_request(id);
        true
    }

    /// All attempts of a request that leaves or has left have ended or are given up. Whether it is the caller's then.
    #[cold]
    pub(super) fn goes_over(&mut self, id: RequestId, complete: bool) -> bool {
        let leaves = |row: &RequestRow| row.handover == Handover::Leaving;
        if !self.requests.get(id).is_some_and(leaves) {
            return false;
        }
        if !complete && self.hand_over(id) {
            return true;
        }
        if let Some(row) = self.requests.get_mut(id) {
            row.handover = Handover::No;
        }
        false
    }

    /// It is not to end: it is the caller's. `false`: what was under way may still move, and the caller is not to move the same.
    fn hand_over(&mut self, id: RequestId) -> bool {
        let may_move = self.open_sides(id) != (Local::Released, Remote::Settled);
        let Some(row) = self.requests.get_mut(id).filter(|_| !may_move) else {
            return false;
        };
        row.handover = Handover::Due;
        self.ended.push_back(&mut self.requests, id.index);
        true
    }

    /// A request that is the caller's is to end.
    pub(super) fn call_back(&mut self, id: RequestId) {
        let Some(row) = self.requests.get_mut(id) else {
            return;
        };
        match row.handover {
            Handover::Leaving => row.handover = Handover::No,
            // The caller never had it.
            Handover::Due => {
                row.handover = Handover::No;
                self.ended.remove(&mut self.requests, id.index);
            }
            Handover::Out => {
                row.handover = Handover::Recalled;
                self.ended.push_back(&mut self.requests, id.index);
            }
            Handover::No | Handover::Recalled | Handover::Stopping | Handover::Unproven(..) => {}
        }
    }

    /// What the caller is to be told of a request that it has or is to get.
    pub(super) fn handover_event(&mut self, request: RequestId) -> Option<Event> {
        let row = self.requests.get_mut(request)?;
        let tag = row.tag;
        match row.handover {
            Handover::Due => {
                row.handover = Handover::Out;
                Some(Event::HandedOver { request, tag })
            }
            Handover::Recalled => {
                row.handover = Handover::Stopping;
                Some(Event::CalledBack { request, tag })
            }
            other => {
                debug_assert!(false, "there is nothing to tell of what is {other:?}");
                None
            }
        }
    }

    /// What is known of requests of a peer that the caller had is waited for no more, where nobody on this side has its memory.
    pub(super) fn drop_handed_back(&mut self, peer: PeerId) {
        for index in 0..self.requests.capacity() as u32 {
            let is_left = |row: &RequestRow| {
                let is_ours = matches!(row.handover, Handover::Unproven(Local::Released, _));
                row.peer == peer && is_ours && row.is_taken()
            };
            if self.requests.at(index).is_some_and(is_left)
                && let Some((id, row)) = self.requests.entry_mut(index)
            {
                row.handover = Handover::No;
                self.forget_if_over(id);
            }
        }
    }
}
