//! Taking submissions in, in order, and what ends them.

use std::collections::VecDeque;

use polyrail_core::orchestrator::{Request, SubmitError};
use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::ring::Entry;
use polyrail_core::time::Instant;
use polyrail_core::units::{BatchId, PlanId, RequestId};
use polyrail_core::work::Cause;

use super::Loop;
use crate::post::Flags;
use crate::rows::RowId;

/// Submissions taken in one round.
const TAKE_MAX: usize = 256;

/// What a worker has taken in.
#[derive(Default)]
pub(super) struct Intake {
    /// Batches by their row with the worker.
    pub(super) open: Vec<OpenBatch>,
    /// A submission that core has no row for now.
    held_back: Option<Entry>,
    /// Commands that wait until what was submitted before them is in core.
    pub(super) endings: VecDeque<Ending>,
}

/// A batch that core knows, or knew.
#[derive(Default)]
pub(super) struct OpenBatch {
    pub(super) row: RowId,
    id: BatchId,
    /// Those that core was asked to take, in order.
    pub(super) requests: Vec<RequestId>,
}

/// Why a request did not begin.
enum Refusal {
    Core(SubmitError),
    ShuttingDown,
}

/// What ends requests.
pub(super) enum Ending {
    Cancel(RowId),
    ShutDown(Instant),
}

impl Loop<'_> {
    pub(super) fn has_submissions(&self) -> bool {
        self.intake.held_back.is_some() || !self.post.ring.is_empty()
    }

    /// Takes submissions; what core has no row for stays in line.
    pub(super) fn submissions(&mut self, now: Instant) -> bool {
        if self.intake.held_back.is_none() && self.post.ring.is_empty() {
            return false;
        }
        let mut busy = false;
        for _ in 0..TAKE_MAX {
            let Some(entry) = self
                .intake
                .held_back
                .take()
                .or_else(|| self.post.ring.pop())
            else {
                break;
            };
            if !self.submit(now, entry) {
                self.intake.held_back = Some(entry);
                break;
            }
            busy = true;
        }
        busy
    }

    /// Hands one submission to core. `false`: there is no row for it now.
    fn submit(&mut self, now: Instant, entry: Entry) -> bool {
        let [
            tag,
            plan,
            local_offset,
            remote_offset,
            length,
            flags,
            deadline,
            _,
        ] = entry;
        let Flags {
            op, last, priority, ..
        } = Flags::from_bits(flags);
        let (row, position) = RowId::from_tag(tag);
        if position == 0 && !self.open_batch(row) {
            return false;
        }
        let Some(batch) = self
            .intake
            .open
            .get(usize::from(row.index))
            .map(|open| open.id)
        else {
            return true;
        };
        let request = Request {
            tag,
            plan: PlanId::from_bits(plan),
            batch,
            local_offset,
            remote_offset,
            length,
            deadline: Instant::from_nanos(deadline),
            priority,
            op,
        };
        match self.submit_to_core(now, &request) {
            Ok(id) => {
                self.handover.note(&entry);
                self.note(row, id);
            }
            Err(Refusal::Core(SubmitError::Full)) => {
                if position == 0 {
                    self.core.seal_batch(batch);
                    self.core.take_batch(batch);
                }
                return false;
            }
            // Only a lost peer's plans go while somebody still submits to them.
            Err(Refusal::Core(SubmitError::PlanMissing)) => {
                let proved = self.lost.knew(request.plan);
                let status = match proved {
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

    fn open_batch(&mut self, row: RowId) -> bool {
        let Some(id) = self.core.open_batch(row.tag(0)) else {
            return false;
        };
        let index = usize::from(row.index);
        if self.intake.open.len() <= index {
            self.intake.open.resize_with(index + 1, OpenBatch::default);
        }
        let open = &mut self.intake.open[index];
        (open.row, open.id) = (row, id);
        open.requests.clear();
        true
    }

    fn note(&mut self, row: RowId, id: RequestId) {
        if let Some(open) = self.intake.open.get_mut(usize::from(row.index)) {
            open.requests.push(id);
        }
    }

    /// Ends a request that core never had.
    fn refuse(&mut self, tag: u64, status: Status, cause: Cause) {
        let report = Report {
            status,
            delivered_bytes: 0,
            cause: Some(cause),
            local: Local::Released,
            remote: Remote::Settled,
        };
        self.post.report(tag, report);
        self.note(RowId::from_tag(tag).0, RequestId::default());
    }

    /// Cancels what is to be cancelled and shuts down. What the program submitted before it asked for that is
    /// in the ring at least, so the ring goes first.
    pub(super) fn endings(&mut self, now: Instant) {
        if self.intake.endings.is_empty() {
            return;
        }
        while self.submissions(now) {}
        for _ in 0..self.intake.endings.len() {
            match self.intake.endings.pop_front() {
                Some(Ending::Cancel(row)) => self.cancel(now, row),
                Some(Ending::ShutDown(at)) => {
                    self.core.shut_down(now);
                    self.ending.at = Some(at);
                }
                None => break,
            }
        }
    }

    fn cancel(&mut self, now: Instant, row: RowId) {
        if self.post.batch(row).is_none() {
            return;
        }
        if self.intake.held_back.is_some() {
            // It may be about this batch, or stand before it in line.
            self.intake.endings.push_back(Ending::Cancel(row));
        }
        self.handover.cancel(row);
        let open = self.intake.open.get(usize::from(row.index));
        let Some(open) = open.filter(|open| open.row == row) else {
            return;
        };
        for id in open.requests.clone() {
            self.core.cancel(now, id);
        }
    }
}
