//! What must hold in every state, and what a state is.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};

use polyrail_core::orchestrator::Event;
use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::work::{Op, PostBatch};

use super::act::Act;
use super::bench::{Bench, NUMBER_SHIFT, REMOTE, REQUESTS, SLICE_BYTES};

/// A state from which nothing else happens has come right after so many timers.
const TIMERS_TO_REST: u32 = 2_000;

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
            Event::Settled { tag } => {
                let story = &mut self.stories[tag as usize];
                let open = story
                    .reported
                    .take_if(|(released, settled)| !(*released && *settled));
                story.reported = Some((true, true));
                if open.is_none() {
                    self.violated("a request has settled that was not open");
                }
                self.check_proof(tag as usize);
            }
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
        let mut text = Hashed(DefaultHasher::new());
        // Writing into a hash cannot fail.
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
        text.0.finish()
    }

    /// What is wrong here. From a state from which nothing but timers can come, everything must be reported.
    pub(super) fn check(&mut self) -> Option<String> {
        if let Err(violation) = self.core.audit() {
            self.violated(&violation.to_string());
        }
        self.bounds.faults = 0;
        let waits = |act: &Act| *act != Act::Time && !matches!(act, Act::Lands(..));
        if !self.acts().iter().any(waits) {
            self.come_to_rest();
        }
        self.violation.take()
    }

    /// Lets time pass, with nothing going wrong, until all is reported.
    fn come_to_rest(&mut self) {
        for _ in 0..TIMERS_TO_REST {
            if self.stories.iter().all(|story| story.reported.is_some()) {
                return;
            }
            let waits = |act: &Act| *act != Act::Time;
            match self.acts().into_iter().find(waits) {
                Some(act) => self.happens(act),
                None => {
                    self.time();
                    self.drain();
                }
            }
        }
        self.violated("a request is not reported, however long one waits");
    }
}

/// Text that goes nowhere but into a hash.
struct Hashed(DefaultHasher);

impl Write for Hashed {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
