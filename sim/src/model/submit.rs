//! What submitters do: closed loops.

use polyrail_core::batch::BatchReport;
use polyrail_core::orchestrator::{Request, SubmitError};
use polyrail_core::report::{Report, Status};
use polyrail_core::time::Instant;
use polyrail_core::units::BatchId;

use super::agenda::What;
use super::engines::plan_id;
use super::ledger::Ledger;
use super::rest::Failure;
use super::room::Chunk;
use super::{Loop, Span, World};

/// A program whose batch failed tries again after so long, twice as long each time in a row,
const RETRY_NS: u64 = 10_000;
/// up to this. Without it, a loop whose requests fail at once would go round for ever in one instant.
const RETRY_NS_MAX: u64 = 10_000_000;

impl Loop {
    /// There was no room for any of its batch.
    pub(super) fn turned_away(&mut self) {
        self.unserved = true;
        self.ended();
    }

    /// The batch has ended.
    fn ended(&mut self) {
        self.unserved_batches = match self.unserved {
            true => self.unserved_batches.saturating_add(1),
            false => 0,
        };
    }

    /// How long the program waits before it submits again.
    fn retry_ns(&self) -> u64 {
        let doublings = match self.unserved_batches {
            0 => return 0,
            batches => (batches - 1).min((RETRY_NS_MAX / RETRY_NS).ilog2() + 1),
        };
        (RETRY_NS << doublings).min(RETRY_NS_MAX)
    }
}

impl World<'_> {
    /// A submitter has its next batch ready, or stops.
    pub(super) fn submit_next(&mut self, index: u32, now: u64) {
        let submitter = &self.setup.submitters[index as usize];
        let done = self.history.done[index as usize].batches;
        let more = submitter.count.is_none_or(|count| done < count) && now < submitter.stops_at;
        let row = &mut self.loops[index as usize];
        if !more {
            if std::mem::take(&mut row.active) {
                self.active -= 1;
            }
            return self.has_no_work(index, now);
        }
        let mut wait_ns = row.retry_ns();
        if submitter.pause_ns > 0 {
            let pause_ns = self.luck.below(submitter.pause_ns);
            if pause_ns > wait_ns {
                wait_ns = pause_ns;
                self.history.done[index as usize].paused_ns += pause_ns;
                self.has_no_work(index, now);
            }
        } else if wait_ns == 0 {
            return self.submits(index, now);
        }
        self.agenda
            .enter(now + wait_ns, What::Submits { submitter: index });
    }

    /// A submitter pauses, or is done.
    fn has_no_work(&mut self, index: u32, now: u64) {
        if std::mem::take(&mut self.loops[index as usize].has_work) {
            self.with_work -= 1;
            self.idle_since = now;
        }
    }

    /// A submitter hands its batch to its worker, once that has room.
    pub(super) fn submits(&mut self, index: u32, now: u64) {
        let submitter = &self.setup.submitters[index as usize];
        if !self.rooms.chunks[index as usize].is_empty() {
            // It was handed over before both ends had agreed.
            self.workers[submitter.worker].inbox.submitters.push(index);
            return self.wake(submitter.worker as u32, now);
        }
        let more = submitter.batch - submitter.batch_min;
        let more = match more {
            0 => 0,
            _ => self.luck.below(u64::from(more) + 1) as u32,
        };
        let row = &mut self.loops[index as usize];
        row.submitted_at = now;
        row.requests = submitter.batch_min + more;
        (row.batch, row.first_offset) = (Loop::IDLE.batch, None);
        if !std::mem::replace(&mut row.has_work, true) {
            if self.with_work == 0 && self.idle_since < now {
                self.history.idle.push((self.idle_since, now));
            }
            self.with_work += 1;
        }
        self.history.began_at = self.history.began_at.min(now);
        self.last_report_at = self.last_report_at.max(now);
        let requests = self.loops[index as usize].requests;
        self.ask(index, requests, now);
    }

    /// A worker takes what it has of a submitter's batch, once both ends agree on what joins them. How many requests.
    pub(super) fn submit(&mut self, worker: u32, index: u32) -> u32 {
        let mut requests = 0;
        if self.rooms.chunks[index as usize].is_empty() {
            return requests;
        }
        if self.waits_for_path(index) {
            self.put_back(index);
            return requests;
        }
        while let Some(chunk) = self.rooms.chunks[index as usize].pop_front() {
            requests += chunk.requests;
            self.submit_chunk(worker, index, chunk);
        }
        requests
    }

    /// The batch of a submitter that is open, or a new one; `None`: there is no row for it.
    fn open_batch(&mut self, worker: u32, index: u32) -> Option<BatchId> {
        let open = self.loops[index as usize].open;
        let core = &mut self.workers[worker as usize].core;
        let batch = open.or_else(|| core.open_batch(u64::from(index)));
        self.loops[index as usize].open = batch;
        batch
    }

    fn submit_chunk(&mut self, worker: u32, index: u32, mut chunk: Chunk) {
        let submitter = &self.setup.submitters[index as usize];
        let plan = chunk.plan;
        let generation = self.workers[worker as usize].generations[plan as usize];
        let Some(batch) = self.open_batch(worker, index) else {
            return self
                .ledger
                .violation(self.now, "no row for a batch".to_owned());
        };
        let mut taken = 0;
        let deadline = match submitter.deadline_ns {
            0 => Instant::MAX,
            within => Instant::from_nanos(self.now + within),
        };
        let row = &self.loops[index as usize];
        let mut first = row.first_offset;
        if submitter.in_a_row && first.is_none() {
            self.ledger
                .lay_in_a_row(submitter.block, u64::from(row.requests));
        }
        for position in 0..chunk.requests {
            let number = self.ledger.submitted(submitter.op, submitter.block, index);
            let mut offset = Ledger::offset(number);
            if submitter.in_a_row {
                let first = *first.get_or_insert(offset);
                let position = self.loops[index as usize].batch.requests + position;
                offset = Ledger::offset_in_row(first, submitter.block, u64::from(position));
            }
            let request = Request {
                tag: number,
                plan: plan_id(plan, generation),
                batch,
                local_offset: offset,
                remote_offset: offset,
                length: submitter.block,
                deadline,
                op: submitter.op,
                priority: submitter.priority.of(number),
            };
            let left = chunk.requests - position;
            self.holds(&mut chunk, number, left);
            let core = &mut self.workers[worker as usize].core;
            match core.submit(Instant::from_nanos(self.now), &request) {
                Ok(request) => {
                    taken += 1;
                    if let Some(after) = self.luck.cancels(submitter.cancel_one_in) {
                        let what = What::Cancels { worker, request };
                        self.agenda.enter(self.now + after, what);
                    }
                }
                Err(SubmitError::Full) => {
                    self.ledger.refused(number);
                    self.lets_go(number);
                }
                // Another answer makes no sense: it is never reported, and counts as lost in the end.
                Err(_) => {}
            }
        }
        let row = &mut self.loops[index as usize];
        row.took(taken, chunk.last);
        (row.taken_at, row.first_offset) = (self.now, first);
        if chunk.last {
            row.open = None;
            self.workers[worker as usize].core.seal_batch(batch);
        }
        self.split_submitted(index, taken);
    }

    /// A request of a submitter's batch has ended.
    pub(super) fn request_done(&mut self, index: u32, number: u64, report: &Report) {
        let row = &mut self.loops[index as usize];
        row.batch.ended += 1;
        row.batch.delivered_bytes += report.delivered_bytes;
        let done = &mut self.history.done[index as usize];
        if report.status == Status::Completed {
            done.good_bytes += report.delivered_bytes;
        } else {
            done.failed_requests += 1;
            row.batch.failed += 1;
            let own = matches!(report.status, Status::Cancelled | Status::DeadlineExceeded);
            row.unserved |= !own;
            self.history.failures.push(Failure {
                submitter: index,
                number,
                status: report.status,
                cause: report.cause,
            });
            // It may have bytes that are never posted.
            let worker = self.setup.submitters[index as usize].worker;
            self.split_disturbed(worker as u32);
        }
    }

    pub(super) fn batch_done(&mut self, index: u32, report: &BatchReport, now: u64) {
        let counted = self.loops[index as usize].batch;
        let status = report.status;
        let good = status == Status::Completed;
        if (BatchReport { status, ..counted }) != *report
            || good != (counted.failed == 0)
            || counted.ended != counted.requests
        {
            let text = format!("a batch was reported as {report:?}, but was {counted:?}");
            self.ledger.violation(now, text);
        }
        let submitter = &self.setup.submitters[index as usize];
        let row = self.loops[index as usize];
        let submitted_at = row.submitted_at;
        // The step in which it was handed over may not be over yet.
        let now = now.max(row.admitted_at);
        self.check_patience(index, now - row.admitted_at);
        self.history.batch_ns.push(now - submitted_at);
        self.history.batch_of.push(index);
        let bytes = submitter.block * u64::from(row.requests);
        let (began_at, ended_at) = (submitted_at, now);
        let span = Span {
            row: index,
            lane: 0,
            began_at,
            ended_at,
            bytes,
            good,
        };
        self.history.traced.batch(span);
        let done = &mut self.history.done[index as usize];
        done.batches += 1;
        done.bytes += report.delivered_bytes;
        let row = &mut self.loops[index as usize];
        // What cannot end in time fails as it is submitted.
        row.unserved |= !good && now == row.taken_at;
        row.ended();
        self.submit_next(index, now);
    }
}
