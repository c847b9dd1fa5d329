//! One sample: a batch of requests from submit to observed completion, and its verification around that.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Batch, BatchStatus, Cause, Engine, Op, Request, Status, SubmitError};

use crate::exit::Failure;
use crate::pattern::Pattern;
use crate::pattern::memory::{self, MemoryError, Mismatch, Span};
use crate::serve::SEGMENT;
use crate::session::Session;

/// How long nothing may move on any rail until the target counts as lost. The engine decides such things
/// sooner and better; this only bounds the wait should it not.
const STALL_MAX: Duration = Duration::from_secs(6);

/// How often a wait looks around.
const LOOK: Duration = Duration::from_millis(100);

/// What all threads that draw samples share.
pub(crate) struct Run<'a> {
    /// Where the bytes go.
    pub(crate) session: &'a Session,
    /// The seed of all patterns.
    seed: u64,
    /// The number of the next sample. No two samples share one, so none can be taken for another.
    next_sample: AtomicU64,
    /// Whether all are to stop: the target is gone, or a byte is wrong.
    stop: AtomicBool,
    /// The first failure: those after it are mostly its consequences.
    failure: Mutex<Option<Failure>>,
    /// What is known of a target that does not answer any more.
    absence: Mutex<Option<Absence>>,
}

/// Why nothing goes to the target any more, whatever its rails look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Absence {
    /// It has ended.
    Lost,
    /// It is not heard.
    Silent,
}

impl Absence {
    /// What the end of requests says about it.
    fn of(status: Status, cause: Option<Cause>) -> Option<Self> {
        match (status, cause) {
            (Status::PeerLost, _) => Some(Self::Lost),
            (_, Some(Cause::PeerSilent)) => Some(Self::Silent),
            _ => None,
        }
    }

    /// One word for it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Silent => "silent",
        }
    }
}

/// The bytes of one batch: `requests` of `block` bytes, side by side in either memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// Where they are in the local memory.
    pub(crate) local: u64,
    /// Where they are in the target's.
    pub(crate) remote: u64,
    /// Bytes of each request.
    pub(crate) block: u64,
    /// How many requests.
    pub(crate) requests: u64,
}

impl Extent {
    /// Bytes of the batch.
    pub(crate) fn bytes(self) -> u64 {
        self.block * self.requests
    }

    fn local_span(self) -> Span {
        Span {
            offset: self.local,
            bytes: self.bytes(),
        }
    }

    fn remote_span(self) -> Span {
        Span {
            offset: self.remote,
            bytes: self.bytes(),
        }
    }
}

/// How a batch ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    /// Requests that did not complete.
    pub(crate) failed: u64,
    /// Why, if any did not.
    pub(crate) failure: Option<Failure>,
}

impl<'a> Run<'a> {
    /// A run that has drawn no sample yet.
    pub(crate) fn new(session: &'a Session) -> Self {
        Self {
            session,
            seed: random_seed(),
            next_sample: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
            absence: Mutex::new(None),
        }
    }

    /// What is known of a target that does not answer any more.
    pub(crate) fn absence(&self) -> Option<Absence> {
        *self.known_absence()
    }

    fn known_absence(&self) -> MutexGuard<'_, Option<Absence>> {
        self.absence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_absence(&self, absence: Option<Absence>) {
        if let Some(absence) = absence {
            self.known_absence().get_or_insert(absence);
        }
    }

    /// The number of a new sample.
    pub(crate) fn draw(&self) -> u64 {
        self.next_sample.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether all are to stop.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Notes why a sample failed. Going on has no point once the environment has failed.
    pub(crate) fn note(&self, failure: Failure) {
        let fatal = matches!(failure, Failure::Environment(_));
        self.failure().get_or_insert(failure);
        if fatal {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Notes a wrong byte, and tells all to stop.
    pub(crate) fn note_mismatch(&self, op: Op, sample: u64, mismatch: Mismatch) {
        let Self { session, seed, .. } = self;
        let owner = match op {
            Op::Write => format!("{SEGMENT} of target {}", session.target),
            Op::Read => format!(
                "the buffer that was read into from target {}",
                session.target
            ),
        };
        self.failure().get_or_insert(Failure::Verdict(format!(
            "{owner}: {mismatch}, in sample {sample} of seed {seed:#x}"
        )));
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The first failure noted so far.
    pub(crate) fn first_failure(&self) -> Option<Failure> {
        self.failure().clone()
    }

    fn failure(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the sample's pattern into the source, and poison into the destination.
    pub(crate) fn prepare(&self, op: Op, extent: Extent, sample: u64) -> Result<(), Failure> {
        let (session, owner) = (self.session, self.session.owner());
        // The sample before left other bytes here, so even a lost word cannot look right by chance.
        let poison = !(sample as u8);
        match op {
            Op::Write => {
                let pattern = Pattern::new(self.seed, sample);
                memory::fill(&session.region, extent.local_span(), extent.remote, pattern)
                    .map_err(own_memory)?;
                owner.poison(extent.remote_span(), poison)
            }
            Op::Read => {
                owner.fill(extent.remote_span(), self.seed, sample)?;
                memory::poison(&session.region, extent.local_span(), poison).map_err(own_memory)
            }
        }
    }

    /// Has the destination checked by whoever owns it.
    pub(crate) fn check(
        &self,
        op: Op,
        extent: Extent,
        sample: u64,
    ) -> Result<Option<Mismatch>, Failure> {
        let session = self.session;
        match op {
            Op::Write => session
                .owner()
                .check(extent.remote_span(), self.seed, sample),
            Op::Read => {
                let pattern = Pattern::new(self.seed, sample);
                memory::check(&session.region, extent.local_span(), extent.remote, pattern)
                    .map_err(own_memory)
            }
        }
    }

    /// The requests of a batch.
    pub(crate) fn requests(&self, op: Op, extent: Extent) -> Vec<Request> {
        (0..extent.requests)
            .map(|i| Request {
                op,
                local: self.session.local,
                local_offset: extent.local + i * extent.block,
                remote: self.session.remote,
                remote_offset: extent.remote + i * extent.block,
                length: extent.block,
            })
            .collect()
    }

    /// Submits a batch and waits until it has ended. Being full is not a failure, only a reason to wait;
    /// being asked to stop is one.
    pub(crate) fn transfer(&self, requests: &[Request]) -> Ended {
        let ended = self
            .submit(requests)
            .and_then(|batch| Ok((self.wait(&batch)?, batch)));
        match ended {
            Ok((status, batch)) => self.ended(status, &batch),
            Err(failure) => Ended {
                failed: requests.len() as u64,
                failure: Some(failure),
            },
        }
    }

    fn submit(&self, requests: &[Request]) -> Result<Batch, Failure> {
        let mut stall = None;
        loop {
            match self.session.engine.submit(requests) {
                Ok(batch) => return Ok(batch),
                Err(SubmitError::Full(_)) => {
                    self.look_around(
                        stall.get_or_insert_with(|| Stall::new(&self.session.engine)),
                    )?;
                    thread::yield_now();
                }
                Err(e) => {
                    let lost = matches!(e, SubmitError::PeerLost { .. });
                    self.note_absence(lost.then_some(Absence::Lost));
                    return Err(self.lost(&e));
                }
            }
        }
    }

    fn wait(&self, batch: &Batch) -> Result<BatchStatus, Failure> {
        let mut stall = None;
        loop {
            if let Ok(status) = batch.wait(LOOK) {
                return Ok(status);
            }
            self.look_around(stall.get_or_insert_with(|| Stall::new(&self.session.engine)))
                .inspect_err(|_| batch.cancel())?;
        }
    }

    /// An error if waiting on has no point.
    fn look_around(&self, stall: &mut Stall) -> Result<(), Failure> {
        if self.stopped() {
            return Err(self.lost(&"the run was stopped while the batch was on its way"));
        }
        if stall.is_over(&self.session.engine) {
            return Err(self.lost(&Stall::TEXT));
        }
        Ok(())
    }

    fn lost(&self, why: &dyn fmt::Display) -> Failure {
        Failure::Environment(format!("target {}: {why}", self.session.target))
    }

    fn ended(&self, status: BatchStatus, batch: &Batch) -> Ended {
        let failed = u64::from(status.failed);
        let failure = (status.status != Status::Completed).then(|| {
            let cause = (0..status.requests as usize)
                .filter_map(|i| batch.report(i))
                .find(|report| report.status != Status::Completed)
                .and_then(|report| report.cause);
            self.note_absence(Absence::of(status.status, cause));
            why_failed(&self.session.target, failed, status.status, cause)
        });
        Ended { failed, failure }
    }
}

fn why_failed(target: &str, failed: u64, status: Status, cause: Option<Cause>) -> Failure {
    let why = cause.map_or_else(|| "no cause given".to_owned(), |cause| cause.to_string());
    let text = format!("target {target}: {failed} of a batch's requests ended {status:?}: {why}");
    verdict(text, status, cause)
}

/// The verdict about requests that failed: the environment's fault if the peer or the way to it was lost.
pub(crate) fn verdict(text: String, status: Status, cause: Option<Cause>) -> Failure {
    let lost = matches!(status, Status::PeerLost | Status::Indeterminate)
        || cause.is_some_and(|cause| {
            cause.counts_against_rail()
                || matches!(cause, Cause::PeerSilent | Cause::PeerGone | Cause::NoRail)
        });
    if lost {
        Failure::Environment(text)
    } else {
        Failure::Verdict(text)
    }
}

fn own_memory(error: MemoryError) -> Failure {
    Failure::Environment(format!("own buffer: {error}"))
}

/// A seed that differs from run to run. It is not a secret.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Notices that nothing moves on any rail.
pub(crate) struct Stall {
    bytes: u64,
    since: Instant,
    looked: Instant,
}

impl Stall {
    /// What to say once it is over.
    pub(crate) const TEXT: &str = "nothing moved on any rail for 6 s";

    pub(crate) fn new(engine: &Engine) -> Self {
        let now = Instant::now();
        Self {
            bytes: total(engine),
            since: now,
            looked: now,
        }
    }

    /// Whether nothing has moved for too long.
    pub(crate) fn is_over(&mut self, engine: &Engine) -> bool {
        let now = Instant::now();
        if now.duration_since(self.looked) >= LOOK {
            self.looked = now;
            let bytes = total(engine);
            if bytes != self.bytes {
                (self.bytes, self.since) = (bytes, now);
            }
        }
        now.duration_since(self.since) >= STALL_MAX
    }
}

fn total(engine: &Engine) -> u64 {
    engine.rails().iter().map(|rail| rail.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losing_the_peer_is_the_environments_fault() {
        // (status, cause, environment)
        let cases = [
            (Status::PeerLost, None, true),
            (Status::Indeterminate, Some(Cause::Silent), true),
            (Status::Failed, Some(Cause::PeerSilent), true),
            (Status::Failed, Some(Cause::NoRail), true),
            (Status::Failed, Some(Cause::Reset), true),
            (Status::Failed, Some(Cause::RemoteAccess), false),
            (Status::Failed, None, false),
            (Status::Cancelled, Some(Cause::Cancelled), false),
        ];
        for (status, cause, environment) in cases {
            let failure = why_failed("10.0.0.2:7", 3, status, cause);
            let is = matches!(failure, Failure::Environment(_));
            assert_eq!(is, environment, "{status:?} {cause:?}");
            assert!(failure.to_string().contains("10.0.0.2:7"), "{failure}");
        }
    }

    #[test]
    fn what_ends_requests_tells_a_lost_target_from_a_silent_one() {
        // (status, cause, absence)
        let cases = [
            (Status::PeerLost, Some(Cause::PeerGone), Some("lost")),
            (Status::Failed, Some(Cause::PeerSilent), Some("silent")),
            (
                Status::Indeterminate,
                Some(Cause::PeerSilent),
                Some("silent"),
            ),
            (Status::Failed, Some(Cause::NoRail), None),
            (Status::Failed, None, None),
        ];
        for (status, cause, absence) in cases {
            let found = Absence::of(status, cause).map(Absence::name);
            assert_eq!(found, absence, "{status:?} {cause:?}");
        }
    }
}
