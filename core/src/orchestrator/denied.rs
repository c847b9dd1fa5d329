//! What the owner of far memory does not give any more: all of a batch that goes there ends like the first request that was told so.
//!
//! Each further one would cost a lane.

use super::request::{Ending, RequestRow};
use super::{Chooser, Orchestrator, Reason};
use crate::report::Status;
use crate::time::Instant;
use crate::units::{BatchId, PlanId, RequestId};
use crate::work::Cause;

/// Pairs of a batch and a plan that are remembered; of those before them the next request has to find out again.
const DENIED_MAX: usize = 16;

/// How they end.
pub(super) const DENIED: Ending = Ending {
    status: Status::Failed,
    cause: Cause::RemoteAccess,
};

/// Batches that have been denied a plan's far memory, the last ones.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Denials {
    known: heapless::Deque<(BatchId, PlanId), DENIED_MAX>,
    /// Requests of them are still open.
    is_due: bool,
}

impl Denials {
    pub(super) const NONE: Self = Self {
        known: heapless::Deque::new(),
        is_due: false,
    };

    pub(super) fn has(&self, batch: BatchId, plan: PlanId) -> bool {
        !self.known.is_empty() && self.known.iter().any(|known| *known == (batch, plan))
    }

    fn add(&mut self, batch: BatchId, plan: PlanId) {
        if self.has(batch, plan) {
            return;
        }
        if self.known.is_full() {
            self.known.pop_front();
        }
        // There is room now.
        let added = self.known.push_back((batch, plan));
        debug_assert!(added.is_ok(), "{} are known", self.known.len());
        self.is_due = true;
    }

    /// A batch is over.
    pub(super) fn forget(&mut self, batch: BatchId) {
        for _ in 0..self.known.len() {
            if let Some(known) = self.known.pop_front().filter(|(of, _)| *of != batch) {
                let _ = self.known.push_back(known);
            }
        }
    }
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// A request has been reported. If its far memory was denied, so it is to the others of its batch.
    pub(super) fn note_denial(&mut self, id: RequestId) {
        let found = self.requests.get(id).filter(|row| row.role.is_submitted());
        let found = found.and_then(|row| Some((self.batches.id_at(row.batch)?, row.plan)));
        if let Some((batch, plan)) = found {
            self.denials.add(batch, plan);
            // They end when time is told next.
            self.arm(Instant::ZERO, Reason::Request);
        }
    }

    /// Ends what is open of batches that were denied something.
    pub(super) fn end_denied(&mut self, now: Instant) {
        if !core::mem::take(&mut self.denials.is_due) {
            return;
        }
        for index in 0..self.requests.capacity() as u32 {
            let is_denied = |row: &RequestRow| {
                let batch = self.batches.id_at(row.batch);
                !row.is_reported() && batch.is_some_and(|batch| self.denials.has(batch, row.plan))
            };
            if self.requests.at(index).is_some_and(is_denied)
                && let Some(id) = self.requests.id_at(index)
            {
                self.end_request(now, id, DENIED);
            }
        }
    }
}
