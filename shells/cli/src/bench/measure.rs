//! Measuring one cell.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use polyrail::{Op, RailState, RailStatus};

use super::BenchArgs;
use super::cell::Cell;
use crate::calls::cpu_seconds;
use crate::exit::Failure;
use crate::sample::{Absence, Extent, Run};
use crate::session::Session;
use crate::timeline::{Bucket, Recorder};

/// How long batches run before they count.
const WARM_UP: Duration = Duration::from_secs(1);

/// What a cell came to.
#[derive(Debug)]
pub(super) struct Measured {
    /// All threads together.
    pub(super) tally: Tally,
    /// How long it was measured.
    pub(super) elapsed: Duration,
    /// Processor time of this process meanwhile.
    pub(super) cpu_seconds_initiator: f64,
    /// Processor time of the target meanwhile, if it could be asked.
    pub(super) cpu_seconds_target: Option<f64>,
    /// What passed on each rail.
    pub(super) rails: Vec<RailShare>,
    /// What is known of a target that did not answer any more in the end.
    pub(super) absence: Option<Absence>,
    /// The same over time, if asked for.
    pub(super) timeline: Option<Vec<Bucket>>,
}

/// One rail's part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RailShare {
    /// `tcp:LOCAL>REMOTE`.
    pub(super) name: String,
    /// How it stood at the end.
    pub(super) state: RailState,
    /// Bytes acknowledged while it was measured.
    pub(super) bytes: u64,
}

/// What samples add up to.
#[derive(Debug)]
pub(super) struct Tally {
    /// Latencies of samples in nanoseconds.
    pub(super) latencies: Histogram<u64>,
    /// Requests that ended.
    pub(super) requests: u64,
    /// Those that did not complete.
    pub(super) failed: u64,
    /// Bytes a second: each thread's bytes by its time without verification, all threads together.
    pub(super) bytes_per_sec: f64,
    /// Samples whose bytes were all checked and right.
    pub(super) verified: u64,
    /// Samples.
    pub(super) samples: u64,
}

impl Tally {
    /// Of nothing.
    pub(super) fn new() -> Self {
        const HOUR: u64 = 3_600_000_000_000;
        Self {
            latencies: Histogram::new_with_bounds(1, HOUR, 3).expect("constant, valid bounds"),
            requests: 0,
            failed: 0,
            bytes_per_sec: 0.0,
            verified: 0,
            samples: 0,
        }
    }

    fn add(&mut self, other: &Self) {
        self.latencies.add(&other.latencies).expect("equal bounds");
        self.requests += other.requests;
        self.failed += other.failed;
        self.bytes_per_sec += other.bytes_per_sec;
        self.verified += other.verified;
        self.samples += other.samples;
    }
}

/// Measures a cell. With a failure, what it says holds as far as it goes.
pub(super) fn measure(
    session: &Session,
    cell: Cell,
    args: &BenchArgs,
) -> (Measured, Option<Failure>) {
    let run = Run::new(session);
    log::info!("warming up for {cell}");
    let warm_up = phase(&run, cell, args.verify, WARM_UP, None);
    let before = Reading::take(session, true);
    // Last before the timeline begins: who breaks things meanwhile sets their clock by it.
    log::info!("measuring {cell}");
    let mut recorder = args
        .timeline
        .map(|every| Recorder::new(every, Instant::now(), session.rail_bytes()));
    let mut tally = phase(&run, cell, args.verify, args.seconds, recorder.as_mut());
    // What failed before it counted failed all the same.
    tally.failed += warm_up.failed;
    // A target that has been lost is not asked: it would only be waited for.
    let after = Reading::take(session, run.first_failure().is_none());
    let timeline = recorder.map(|recorder| recorder.finish(after.at, after.rail_bytes()));
    let measured = Measured {
        tally,
        elapsed: after.at - before.at,
        cpu_seconds_initiator: after.cpu - before.cpu,
        cpu_seconds_target: before.target_cpu.zip(after.target_cpu).map(|(b, a)| a - b),
        rails: shares(&before.rails, &after.rails),
        absence: run.absence(),
        timeline,
    };
    (measured, run.first_failure())
}

/// The counters at one moment.
struct Reading {
    at: Instant,
    cpu: f64,
    target_cpu: Option<f64>,
    rails: Vec<RailStatus>,
}

impl Reading {
    /// Reads them; those of the target too if it `answers`.
    fn take(session: &Session, answers: bool) -> Self {
        let at = Instant::now();
        let rails = session.rails();
        let cpu = cpu_seconds();
        let ask = || session.owner().cpu_seconds();
        let target_cpu = answers
            .then(ask)
            .transpose()
            .inspect_err(|e| log::warn!("the target's processor time is unknown: {e}"))
            .unwrap_or_default();
        Self {
            at,
            cpu,
            target_cpu,
            rails,
        }
    }

    fn rail_bytes(&self) -> Vec<u64> {
        self.rails.iter().map(|rail| rail.bytes).collect()
    }
}

fn shares(before: &[RailStatus], after: &[RailStatus]) -> Vec<RailShare> {
    let before = before
        .iter()
        .map(|rail| rail.bytes)
        .chain(std::iter::repeat(0));
    after
        .iter()
        .zip(before)
        .map(|(rail, before)| RailShare {
            name: rail.name.clone(),
            state: rail.state,
            bytes: rail.bytes.saturating_sub(before),
        })
        .collect()
}

/// Draws samples on all threads for so long; meanwhile reads the rails' counters when they are due.
fn phase(
    run: &Run<'_>,
    cell: Cell,
    verify: bool,
    length: Duration,
    mut recorder: Option<&mut Recorder>,
) -> Tally {
    let until = Instant::now() + length;
    thread::scope(|scope| {
        let (done, tallies) = channel();
        for thread in 0..cell.threads {
            let done = done.clone();
            scope.spawn(move || {
                let mut sampler = Sampler::new(run, cell, verify, thread);
                sampler.draw_until(until);
                // The receiver waits for all of us.
                let _ = done.send(sampler.tally());
            });
        }
        drop(done);
        let mut total = Tally::new();
        loop {
            // Without a timeline nothing is due; the hour only bounds the wait for those who answer anyway.
            let wait = recorder
                .as_ref()
                .map_or(Duration::from_secs(3600), |recorder| {
                    recorder.due_in(Instant::now())
                });
            match tallies.recv_timeout(wait) {
                Ok(tally) => total.add(&tally),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(recorder) = &mut recorder {
                        recorder.tick(Instant::now(), run.session.rail_bytes());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return total,
            }
        }
    })
}

/// One thread's samples.
struct Sampler<'a> {
    run: &'a Run<'a>,
    cell: Cell,
    verify: bool,
    thread: u64,
    tally: Tally,
    bytes: u64,
    started: Instant,
    verifying: Duration,
}

impl<'a> Sampler<'a> {
    fn new(run: &'a Run<'a>, cell: Cell, verify: bool, thread: u64) -> Self {
        Self {
            run,
            cell,
            verify,
            thread,
            tally: Tally::new(),
            bytes: 0,
            started: Instant::now(),
            verifying: Duration::ZERO,
        }
    }

    /// Draws samples, at least one, unless all are to stop.
    fn draw_until(&mut self, until: Instant) {
        let buffer_bytes = self.run.session.bytes;
        for i in 0.. {
            if self.run.stopped() {
                break;
            }
            let extent = self.cell.extent(buffer_bytes, self.thread, i);
            if let Err(failure) = self.draw(self.cell.op(i), extent) {
                self.run.note(failure);
            }
            if Instant::now() >= until {
                break;
            }
        }
    }

    /// Draws one sample. An error is about its verification; a transfer's failure is only noted.
    fn draw(&mut self, op: Op, extent: Extent) -> Result<(), Failure> {
        let run = self.run;
        let sample = run.draw();
        if self.verify {
            self.verifying(|| run.prepare(op, extent, sample))?;
        }
        let requests = run.requests(op, extent);
        let started = Instant::now();
        let ended = run.transfer(&requests);
        let latency = started.elapsed();
        self.count(extent, ended.failed, latency);
        if let Some(failure) = ended.failure {
            run.note(failure);
            return Ok(());
        }
        if self.verify {
            match self.verifying(|| run.check(op, extent, sample))? {
                None => self.tally.verified += 1,
                Some(mismatch) => run.note_mismatch(op, sample, mismatch),
            }
        }
        Ok(())
    }

    fn verifying<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let answer = work();
        self.verifying += started.elapsed();
        answer
    }

    fn count(&mut self, extent: Extent, failed: u64, latency: Duration) {
        let tally = &mut self.tally;
        tally.samples += 1;
        tally.requests += extent.requests;
        tally.failed += failed;
        self.bytes += (extent.requests - failed) * extent.block;
        if failed == 0 {
            tally.latencies.saturating_record(latency.as_nanos() as u64);
        }
    }

    fn tally(mut self) -> Tally {
        let time = self.started.elapsed().saturating_sub(self.verifying);
        if !time.is_zero() {
            self.tally.bytes_per_sec = self.bytes as f64 / time.as_secs_f64();
        }
        self.tally
    }
}
