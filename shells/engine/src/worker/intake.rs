//! What a worker takes in: it begins in core, and what core never had is ended here.

use polyrail_core::orchestrator::{Request, SubmitError};
use polyrail_core::report::{Report, Status};
use polyrail_core::time::Instant;
use polyrail_core::units::{BatchId, RequestId};
use polyrail_core::work::Cause;

use super::Loop;
use crate::intake::{End, Rest, refused};
use crate::post::{Arrival, Submission};
use crate::rows::RowId;

/// Submissions taken in one round.
const TAKE_MAX: usize = 256;

/// A worker's intake: there is one kind of room, that in core, and each batch is one of core's once it has been opened there.
/// Of each request that has begun there is its position.
pub(super) type Intake = crate::intake::Intake<(), Option<BatchId>, (u32, RequestId)>;

/// Why a request did not begin.
enum Refusal {
    Core(SubmitError),
    ShuttingDown,
}

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
            self.withdraw(&rest, Status::DeadlineExceeded, Cause::DeadlineExceeded);
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
        if self.intake.is_denied(row, plan) {
            self.refuse(tag, Status::Failed, Cause::RemoteAccess);
            if last {
                self.core.seal_batch(batch);
            }
            return true;
        }
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
            Ok(id) => {
                self.handover.note(arrival);
                self.intake.note(row, (position as u32, id));
            }
            Err(Refusal::Core(SubmitError::Full)) => {
                if position == 0 {
                    self.core.seal_batch(batch);
                    self.core.take_batch(batch);
                    self.intake.batch(row).map(Option::take);
                }
                return false;
            }
            // Only a lost peer's plans go while somebody still submits to them.
            Err(Refusal::Core(SubmitError::PlanMissing)) => {
                let status = match self.lost.knew(request.plan) {
                    true => Status::PeerLost,
                    false => Status::Failed,
                };
                self.refuse(tag, status, Cause::PeerGone);
            }
            Err(Refusal::Core(error)) => {
                log::error!("core refused a request that was checked: {error:?}");
                self.refuse(tag, Status::Failed, Cause::LocalProtection);
            }
            Err(Refusal::ShuttingDown) => self.refuse(tag, Status::ShutDown, Cause::ShutDown),
        }
        if last {
            self.core.seal_batch(batch);
        }
        true
    }

    fn submit_to_core(&mut self, now: Instant, request: &Request) -> Result<RequestId, Refusal> {
        if self.ending.at.is_some() {
            return Err(Refusal::ShuttingDown);
        }
        let mut result = self.core.submit(now, request);
        if result == Err(SubmitError::PlanMissing) {
            // The plan was sent before the submission, but commands were looked at before it came.
            self.commands(now);
            result = self.core.submit(now, request);
        }
        result.map_err(Refusal::Core)
    }

    /// A batch as core knows it. `None`: core has no row for it now.
    fn open_batch(&mut self, row: RowId) -> Option<BatchId> {
        let batch = self.intake.batch(row)?;
        if batch.is_none() {
            *batch = self.core.open_batch(row.tag(0));
        }
        *batch
    }

    /// Ends a request that core never had.
    fn refuse(&mut self, tag: u64, status: Status, cause: Cause) {
        self.report(tag, refused(status, cause));
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
    fn withdraw(&mut self, rest: &Rest, status: Status, cause: Cause) {
        let Rest { row, batch, from } = rest;
        self.post.note_rest(batch, *from, refused(status, cause));
        match self.intake.batch(*row).copied().flatten() {
            Some(batch) => self.core.seal_batch(batch),
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
                        self.withdraw(&rest, Status::ShutDown, Cause::ShutDown);
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
            self.withdraw(&rest, Status::Cancelled, Cause::Cancelled);
        }
        self.handover.cancel(row);
        for (_, id) in self.intake.requests(row) {
            self.core.cancel(now, *id);
        }
    }

    /// What is told of a request that core has ended so.
    ///
    /// Where the owner of the far memory does not give it any more, each further request would cost a lane: all of a batch that
    /// go there end like the first one.
    pub(super) fn told(&mut self, now: Instant, tag: u64, report: Report) -> Report {
        let (row, position) = RowId::from_tag(tag);
        let is_refusal =
            report.status == Status::Failed && report.cause == Some(Cause::RemoteAccess);
        if !is_refusal && report.status != Status::Cancelled {
            return report;
        }
        let Some(plan) = self.intake.plan(row, position) else {
            return report;
        };
        if is_refusal && self.intake.deny(row, plan) {
            for (position, id) in self.intake.requests(row) {
                if self.intake.plan(row, *position as usize) == Some(plan) {
                    self.core.cancel(now, *id);
                }
            }
        }
        if is_refusal || !self.intake.is_denied(row, plan) {
            return report;
        }
        Report {
            status: Status::Failed,
            cause: Some(Cause::RemoteAccess),
            ..report
        }
    }
}
