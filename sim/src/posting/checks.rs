//! The book that is kept beside core, what has to hold after every event, and what in the end.

use polyrail_core::send_queue::credit::{Amount, Grant, Snapshot, Standing};
use polyrail_core::send_queue::diagnostics::{Diagnosis, LaneCounts};
use polyrail_core::time::Instant;
use polyrail_core::units::Epoch;

use super::World;
use super::task::TaskId;

fn plus(one: Amount, other: Amount) -> Amount {
    Amount {
        works: one.works + other.works,
        reads: one.reads + other.reads,
    }
}

impl World<'_> {
    /// Credits have been taken.
    pub(super) fn took(&mut self, pair: usize, amount: Amount) {
        let row = &mut self.pairs[pair];
        row.held = plus(row.held, amount);
    }

    /// Credits of this epoch have come back. Of an earlier one they count nothing.
    pub(super) fn gave_back(&mut self, pair: usize, epoch: Epoch, amount: Amount) {
        let row = &mut self.pairs[pair];
        if row.epoch != epoch {
            return;
        }
        let left = (
            row.held.works.checked_sub(amount.works),
            row.held.reads.checked_sub(amount.reads),
        );
        if let (Some(works), Some(reads)) = left {
            row.held = Amount { works, reads };
        } else {
            self.violate(format!(
                "queue pair {pair} gets back credits that nobody had"
            ));
        }
    }

    /// Gives credits back.
    pub(super) fn release(&mut self, pair: usize, grant: Grant) {
        self.gave_back(pair, grant.epoch(), grant.amount());
        self.credits[pair].release(grant);
    }

    /// The admission of a chunk has been used, or given back.
    pub(super) fn unadmit(&mut self, task: TaskId, works: u16) {
        let row = &self.tasks[task as usize];
        let pair = &mut self.pairs[row.pair];
        if pair.epoch == row.admitted.1 {
            pair.admitted_works -= u32::from(works);
        }
    }

    /// Somebody was told that a queue is full.
    pub(super) fn queue_full(
        &mut self,
        pair: usize,
        asked_works: u16,
        required_works: u16,
        at: Snapshot,
        since: u64,
    ) {
        self.history.queue_full_errors += 1;
        if self.history.diagnosis.is_some() {
            return;
        }
        let counters = self.credits[pair].counters();
        if !self.poller.stalled {
            // It looks all the time, and events are made only of looks that find something.
            counters.handle_poll(self.instant(), 0, 0);
        }
        let now = self.instant();
        let pairs = self.pairs.len();
        let diagnosis = Diagnosis {
            now,
            waited: now.since(Instant::from_nanos(since)),
            asked_works,
            required_works,
            at,
            counters: counters.report(),
            records: self.pairs[pair].ledger.len() as u32,
            lanes: LaneCounts {
                worker_lanes: pairs.div_ceil(self.workers.len()) as u16,
                session_lanes: pairs as u16,
                workers: self.workers.len() as u16,
            },
        };
        self.history.diagnosis = Some(diagnosis.to_string());
    }

    /// What must not be has been.
    pub(super) fn violate(&mut self, what: String) {
        self.history.violations += 1;
        let text = format!("{} ns: {what}", self.now);
        self.history.violation.get_or_insert(text);
    }

    /// Time passes.
    pub(super) fn pass(&mut self, until: u64) {
        let loads = self
            .pairs
            .iter()
            .map(|row| u64::from(row.held.works) + u64::from(row.admitted_works));
        let loads: Vec<u64> = loads.collect();
        let (from, span) = (self.now, until - self.now);
        self.now = until;
        let sum: u64 = loads.iter().sum();
        if sum == 0 || span == 0 {
            return;
        }
        let mean = sum as f64 / loads.len() as f64;
        let square = |load: &u64| (*load as f64 - mean) * (*load as f64 - mean);
        let variance = loads.iter().map(square).sum::<f64>() / loads.len() as f64;
        let history = &mut self.history;
        history.spread.0 += libm::sqrt(variance) * span as f64;
        history.spread.1 += span;
        history.depths.hold(from, until, &loads);
    }

    /// What holds at any time.
    pub(super) fn check(&mut self) {
        for pair in 0..self.pairs.len() {
            let at = self.credits[pair].snapshot();
            let row = &self.pairs[pair];
            let told = (at.held, u32::from(at.admitted_works));
            let known = (row.held, row.admitted_works);
            let max = at.max;
            if told != known {
                let text = format!("queue pair {pair}: core has {told:?}, and {known:?} is out");
                return self.violate(text);
            }
            if at.held.works > max.works || at.held.reads > max.reads {
                return self.violate(format!("queue pair {pair} holds {:?} of {max:?}", at.held));
            }
            if !row.has_walk_ins && at.load() > u32::from(max.works) {
                let text = format!(
                    "queue pair {pair}: {} works of {} held and admitted",
                    at.load(),
                    max.works
                );
                return self.violate(text);
            }
        }
    }

    /// What holds when everything is over.
    pub(super) fn rest(&mut self) {
        for (index, caller) in self.callers.iter().enumerate() {
            if !caller.is_at_rest() {
                return self.violate(format!("caller {index} has a call that never ends"));
            }
        }
        for (index, worker) in self.workers.iter().enumerate() {
            if !worker.is_at_rest() {
                return self.violate(format!("worker {index} is not done"));
            }
        }
        if let Some(id) = self.tasks.iter().position(|task| task.answer.is_none()) {
            return self.violate(format!("chunk {id} is never answered"));
        }
        for (pair, credits) in self.credits.iter().enumerate() {
            let report = credits.counters().report();
            self.history.admission_waits += u64::from(report.admission_waits);
            self.history.admission_waited_ns += report.admission_waited.as_nanos();
            let (at, row) = (credits.snapshot(), &self.pairs[pair]);
            let is_over = at.standing != Standing::Terminal || row.ending.over;
            let waiting = credits.waiting() + credits.waiting_for_admission();
            let is_empty = row.ledger.is_empty() && row.posters.is_empty() && row.poster.is_none();
            if at.load() > 0 || waiting > 0 || !credits.is_drained() || !is_empty || !is_over {
                let text = format!("queue pair {pair} is not at rest: {at:?}, {waiting} wait");
                return self.violate(text);
            }
        }
    }
}
