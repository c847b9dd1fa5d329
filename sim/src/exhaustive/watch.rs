//! What must hold in every state, and what a state is.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};

use polyrail_core::orchestrator::Event;
use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::time::Duration;
use polyrail_core::work::{Op, PostBatch};

use super::act::Answer;
use super::bench::{Bench, NUMBER_SHIFT, REMOTE, REQUESTS, SLICE_BYTES};

/// Within this of the last sign of life of the peer all is reported: core's `fence_timeout`, as the bench has it.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// A shell that has nothing to do looks this much late, which saves timers.
const LOOK: Duration = Duration::from_millis(100);

impl Bench<'_> {
    pub(super) fn check_works(&mut self, batch: &PostBatch) {
        for work in batch
            .works
            .iter()
            .filter(|work| work.remote.segment == REMOTE)
        {
            let number = (work.remote.offset >> NUMBER_SHIFT) as usize;
            if self.stories[number].reported.is_some() {
                self.violated("a work of a request that was reported is posted");
            }
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::RequestDone { request, tag } => match self.core.take(request) {
                Some(report) => self.reported(tag as usize, &report),
                None => self.violated("a request that has ended has no report"),
            },
            Event::BatchDone { batch, .. } => {
                self.batches_done += 1;
                let report = self.core.take_batch(batch);
                let all = self.stories.iter().all(|story| story.reported.is_some());
                if self.batches_done > 1 || !all || report.is_none() {
                    self.violated("the batch ended twice, or before its requests");
                }
            }
            Event::Settled { tag, local, remote } => {
                let now = (local == Local::Released, remote == Remote::Settled);
                let before = self.stories[tag as usize].reported.replace(now);
                let is_news = before.is_some_and(|(released, settled)| {
                    before != Some(now) && now.0 >= released && now.1 >= settled
                });
                if !is_news {
                    self.violated("a request has settled that was not open");
                }
                self.check_proof(tag as usize);
            }
            // No transport of the bench hands over.
            Event::HandedOver { .. } | Event::CalledBack { .. } => {}
            Event::RailChanged { .. }
            | Event::PeerChanged { .. }
            | Event::Failover { .. }
            | Event::WakeWorker { .. } => {}
        }
    }

    fn reported(&mut self, number: usize, report: &Report) {
        let whole = (1 << REQUESTS[number].1) - 1;
        let landed = self.stories[number].landed;
        let delivered = u64::from(landed.count_ones()) * u64::from(SLICE_BYTES);
        let (released, settled) = (
            report.local == Local::Released,
            report.remote == Remote::Settled,
        );
        if self.stories[number]
            .reported
            .replace((released, settled))
            .is_some()
        {
            self.violated("a request was reported twice");
        }
        if report.status == Status::Completed && landed != whole {
            self.violated("a request was reported complete with bytes missing");
        }
        if report.delivered_bytes > delivered
            || (report.status == Status::Indeterminate) == (released && settled)
            || report.status == Status::Pending
        {
            self.violated("a report lies");
        }
        self.check_proof(number);
    }

    /// What a report says of memory is so: nothing on the way can touch it any more.
    fn check_proof(&mut self, number: usize) {
        let Some((released, settled)) = self.stories[number].reported else {
            return;
        };
        let mut wrong = false;
        for line in &self.lines {
            let own = line
                .flights
                .iter()
                .filter(|row| row.request() == Some(number));
            for flight in own {
                let writes = flight.work.op == Op::Write;
                let is_over = flight.landed || flight.gone;
                wrong |= settled && writes && !is_over && flight.epoch > line.fenced;
                wrong |= released && flight.pending && flight.epoch > line.let_go;
            }
        }
        if wrong {
            self.violated("a report says that nothing moves, and something does");
        }
    }

    /// The state, down to the last field.
    pub(super) fn hash(&self) -> u64 {
        // As one text: a hash of many small pieces takes longer.
        let mut text = String::with_capacity(1 << 14);
        // Writing into it cannot fail.
        let _ = write!(
            text,
            "{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}",
            self.core,
            self.bounds,
            self.lines,
            self.stories,
            self.last,
            self.posting.as_ref().map(|(_, batch)| batch),
            self.now,
            (self.batches_done, self.peer_gone, self.shut_down)
        );
        let mut hash = DefaultHasher::new();
        hash.write(text.as_bytes());
        hash.finish()
    }

    /// What is wrong here. If the peer is never heard again from here on, everything must be reported in time; which is
    /// not looked at again where it is `known`.
    pub(super) fn check(&mut self, known: bool) -> Option<String> {
        if let Err(violation) = self.core.audit() {
            self.violated(&violation.to_string());
        }
        if !known {
            self.fall_silent();
        }
        self.violation.take()
    }

    /// The peer is never heard again, and nothing else is said either: only timers are left. A shell that looks late finds
    /// all reported at the latest when the bound is over.
    fn fall_silent(&mut self) {
        let end = self.now + SILENCE_MAX;
        while self.stories.iter().any(|story| story.reported.is_none()) {
            if self.posting.is_some() {
                self.answers(Answer::All);
            } else if self.now < end {
                let due = self.core.poll_timeout().map_or(end, |(due, _)| due);
                self.now = due.max(self.now + LOOK).min(end);
                self.core.handle_timeout(self.now);
            } else {
                return self.violated("the peer is silent, and a request is not reported in time");
            }
            self.drain();
        }
    }
}
