//! What a worker takes in: it begins in core, and what core never had is ended here.

use polyrail_core::orchestrator::{Request, SubmitError};
use polyrail_core::report::{Report, Unbegun};
use polyrail_core::time::Instant;
use polyrail_core::units::{BatchId, RequestId};

use super::Loop;
use crate::intake::{End, Rest};
use crate::post::{Arrival, Submission};
use crate::rows::RowId;

/// Submissions taken in one round.
const TAKE_MAX: usize = 256;

/// A worker's intake: there is one kind of room, that in core, and each batch is one of core's once it has been opened there.
pub(super) type Intake = crate::intake::Intake<(), Option<BatchId>, RequestId>;

impl Loop<'_> {
    pub(super) fn has_submissions(&self) -> bool {
        self.intake.holds_any() || !self.post.ring.is_empty()
    }

    /// Takes submissions; what core has no row for stays in line. Whether any has begun.
    pub(super) fn submissions(&mut self, now: Instant) -> bool {
        if !self.has_submissions() {
            return false;
        }
        self.intake.look_again();
        let mut busy = false;
        for _ in 0..TAKE_MAX {
            let Some(arrival) = self.intake.next(self.post, |_| ()) else {
                break;
            };
            match self.submit(now, &arrival) {
                true => busy = true,
                false => self.intake.hold_back((), &arrival),
            }
        }
        for rest in self.intake.take_overdue(now) {
            self.withdraw(&rest, Unbegun::DeadlineExceeded);
            busy = true;
        }
        busy
    }

    /// Hands one submission to core. `false`: there is no row for it now.
    fn submit(&mut self, now: Instant, arrival: &Arrival) -> bool {
        let Arrival {
            tag,
            row,
            position,
            submission,
            last,
            due,
        } = *arrival;
        let Some(batch) = self.open_batch(row) else {
            return false;
        };
        let Submission {
            plan,
            op,
            local_offset,
            remote_offset,
            length,
            ..
        } = submission;
        let request = Request {
            tag,
            plan,
            batch,
            local_offset,
            remote_offset,
            length,
            deadline: due.deadline,
            priority: due.priority,
            op,
        };
        match self.submit_to_core(now, &request) {
            Ok(id) => self.intake.note(row, id),
            Err(SubmitError::Full) => {
                if position == 0 {
                    self.core.seal_batch(batch);
                    self.core.take_batch(batch);
                    self.intake.batch(row).map(Option::take);
                }
                return false;
            }
            // Only a lost peer's plans go while somebody still submits to them, and core knows the last one of each row.
            Err(SubmitError::PlanMissing) => self.refuse(batch, tag, Unbegun::PlanGone),
            Err(error) => {
                log::error!("core refused a request that was checked: {error:?}");
                self.refuse(batch, tag, Unbegun::Refused);
            }
        }
        if last {
            self.core.seal_batch(batch);
        }
        true
    }

    fn submit_to_core(
        &mut self,
        now: Instant,
        request: &Request,
    ) -> Result<RequestId, SubmitError> {
        let result = self.core.submit(now, request);
        if result != Err(SubmitError::PlanMissing) {
            return result;
        }
        // The plan was sent before the submission, but commands were looked at before it came.
        self.commands(now);
        self.core.submit(now, request)
    }

    /// A batch as core knows it. `None`: core has no row for it now.
    fn open_batch(&mut self, row: RowId) -> Option<BatchId> {
        let batch = self.intake.batch(row)?;
        if batch.is_none() {
            *batch = self.core.open_batch(row.tag(0));
        }
        *batch
    }

    /// Ends a request that core does not take.
    fn refuse(&mut self, batch: BatchId, tag: u64, why: Unbegun) {
        let report = self.core.withdraw(batch, 1, why);
        self.post.requests.count_unbegun(report.status, 1);
        self.report(tag, report);
    }

    /// Notes how a request has ended.
    pub(super) fn report(&self, tag: u64, report: Report) {
        let (row, position) = RowId::from_tag(tag);
        match self.intake.shared(row) {
            Some(batch) => self.post.note(batch, position, report),
            None => self.post.report(tag, report),
        }
    }

    /// Ends what of a batch was held back.
    fn withdraw(&mut self, rest: &Rest, why: Unbegun) {
        let Rest { row, batch, from } = rest;
        let known = self.intake.batch(*row).copied().flatten();
        let count = batch.pieces().saturating_sub(*from) as u32;
        let report = match known {
            Some(known) => self.core.withdraw(known, count, why),
            None => why.report(),
        };
        self.post
            .requests
            .count_unbegun(report.status, count as usize);
        self.post.note_rest(batch, *from, report);
        match known {
            Some(known) => self.core.seal_batch(known),
            None => self.finish(*row),
        }
    }

    /// Cancels what is to be cancelled and shuts down. What the program submitted before it asked for that is
    /// in the ring at least, so the ring goes first.
    pub(super) fn endings(&mut self, now: Instant) {
        if !self.intake.is_asked() {
            return;
        }
        while self.submissions(now) {}
        while let Some(end) = self.intake.next_end() {
            match end {
                End::Cancel(row) => self.cancel(now, row),
                End::ShutDown(at) => {
                    for rest in self.intake.withdraw(None) {
                        self.withdraw(&rest, Unbegun::ShutDown);
                    }
                    self.core.shut_down(now);
                    self.ending.at = Some(at);
                }
            }
        }
    }

    fn cancel(&mut self, now: Instant, row: RowId) {
        if self.post.batch(row).is_none() {
            return;
        }
        for rest in self.intake.withdraw(Some(row)) {
            self.withdraw(&rest, Unbegun::Cancelled);
        }
        for id in self.intake.requests(row) {
            self.core.cancel(now, *id);
        }
    }
}
