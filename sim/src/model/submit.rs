//! What submitters do: closed loops.

use polyrail_core::orchestrator::Request;
use polyrail_core::time::Instant;

use super::ledger::Ledger;
use super::{World, plan_id};

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
            return;
        }
        row.submitted_at = now;
        self.history.began_at = self.history.began_at.min(now);
        self.last_report_at = self.last_report_at.max(now);
        let worker = submitter.worker;
        self.workers[worker].inbox.submitters.push(index);
        self.wake(worker as u32, now);
    }

    /// A worker takes a submitter's batch.
    pub(super) fn submit(&mut self, worker: u32, index: u32) {
        let submitter = &self.setup.submitters[index as usize];
        let core = &mut self.workers[worker as usize].core;
        let Some(batch) = core.open_batch(u64::from(index)) else {
            return self
                .ledger
                .violation(self.now, "no row for a batch".to_owned());
        };
        for _ in 0..submitter.batch {
            let number = self.ledger.submitted(submitter.op, submitter.block);
            let offset = Ledger::offset(number);
            let request = Request {
                tag: number,
                plan: plan_id(submitter.plan),
                batch,
                local_offset: offset,
                remote_offset: offset,
                length: submitter.block,
                deadline: Instant::MAX,
                op: submitter.op,
            };
            // One that is refused is never reported, and counts as lost in the end.
            let _ = core.submit(Instant::from_nanos(self.now), &request);
        }
        core.seal_batch(batch);
    }

    pub(super) fn batch_done(&mut self, index: u32, now: u64) {
        let submitter = &self.setup.submitters[index as usize];
        let submitted_at = self.loops[index as usize].submitted_at;
        self.history.batch_ns.push(now - submitted_at);
        let done = &mut self.history.done[index as usize];
        done.batches += 1;
        done.bytes += submitter.block * u64::from(submitter.batch);
        self.submit_next(index, now);
    }
}
