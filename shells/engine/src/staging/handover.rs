//! What a worker hands over to be staged: requests that a transport which reaches memory of GPUs has failed to carry out.
//!
//! A plan between such memory ends with a transport called `staged`, so core decides as it does between all others: when a
//! request leaves a transport whose rails are paused, whether its budget allows that, and when newer ones go back. But a
//! request that passes through slots is carried out by others, over other transports to the same peer, and would wait in
//! core's line before them. So it does not stay there: lanes of `staged` refuse every work, which ends the request in core
//! once nothing of it is on its way any more; then it goes, all of it, to whoever stages, and the program is told how that
//! has ended.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, OnceLock, Weak};

use polyrail_core::plan::Plan;
use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::transport::{Capabilities, MemoryKind};
use polyrail_core::units::{Epoch, LaneId, PlanId};
use polyrail_transport::clock::Clock;
use polyrail_transport::{Endpoint, FenceAnswer, InboundLane, RetireAnswer, SessionId, Transport};
use rustix::event::{EventfdFlags, eventfd};

use super::alive;
use super::requests::{follow, not_begun, request, terms};
use crate::batch::Batch;
use crate::engine::Inner;
use crate::error::{ReleaseError, SubmitError};
use crate::intake::refused;
use crate::known::STAGED;
use crate::post::{Arrival, Command, Post};
use crate::refusal::{REFUSED, Refusal};
use crate::rows::RowId;
use crate::segments::SegmentId;
use crate::transports::Catalog;

/// The engine that stages, once it is there. Transports and workers are made before it.
pub(crate) type EngineCell = OnceLock<Weak<Inner>>;

/// How long a request waits that whoever stages has no room for.
const RETRY: Duration = Duration::from_millis(1);
/// How often it is looked what has become known of requests that ended without proof.
const LOOK: Duration = Duration::from_millis(50);

/// The transport. It has only an initiator's half, and that moves nothing.
pub(crate) struct StagedTransport;

impl Transport for StagedTransport {
    fn name(&self) -> &'static str {
        STAGED
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::HOST
            .with_local(MemoryKind::Device)
            .with_remote(MemoryKind::Device)
    }

    /// It has one rail to each peer, whatever the network's are.
    fn address(&self) -> Vec<u8> {
        b"slots".to_vec()
    }

    fn endpoint(&self, _: u16, _: Clock) -> io::Result<Box<dyn Endpoint>> {
        let never = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Box::new(Refusal::new(Arc::new(never))))
    }

    /// No peer has lanes here.
    fn admit(&self, _lane: InboundLane) {}

    fn fence_inbound(&self, _: SessionId, _: LaneId, _: Epoch, answer: FenceAnswer) {
        answer(0);
    }

    fn retire_session(&self, _: SessionId, answer: RetireAnswer) {
        answer();
    }
}

/// Two segments between which requests can be staged.
type Pair = (SegmentId, SegmentId);

/// What a worker hands over.
pub(crate) struct Handover {
    engine: Arc<EngineCell>,
    /// The worker's own.
    post: Arc<Post>,
    /// Plans that end with [`STAGED`].
    plans: HashMap<PlanId, Pair>,
    /// Requests of such plans that core has, by their tags, as they were submitted.
    known: HashMap<u64, Arrival>,
    /// Requests that are to be handed over as soon as there is room.
    waiting: VecDeque<Arrival>,
    retry_at: Instant,
    /// Batches of which some have been.
    open: HashMap<RowId, Open>,
    /// Requests that were handed over and have ended without proof, and when they are looked at.
    unsettled: Vec<(u64, Batch)>,
    look_at: Instant,
}

/// A batch of the program's of which some requests are staged.
#[derive(Default)]
struct Open {
    staged: HashMap<u64, Option<Batch>>,
    /// All others have ended.
    is_done: bool,
    /// The program has cancelled it.
    is_cancelled: bool,
}

impl Handover {
    pub(crate) fn new(engine: Arc<EngineCell>, post: Arc<Post>) -> Self {
        Self {
            engine,
            post,
            plans: HashMap::new(),
            known: HashMap::new(),
            waiting: VecDeque::new(),
            retry_at: Instant::MAX,
            open: HashMap::new(),
            unsettled: Vec::new(),
            look_at: Instant::MAX,
        }
    }

    /// A plan is installed.
    pub(crate) fn learn(&mut self, id: PlanId, plan: &Plan, transports: &Catalog) {
        let last = plan.transports.last();
        if last.is_some_and(|last| transports.stages(last.transport)) {
            let pair = (SegmentId(plan.local.0), SegmentId(plan.remote.0));
            self.plans.insert(id, pair);
        }
    }

    /// A plan is retired.
    pub(crate) fn forget(&mut self, id: PlanId) {
        self.plans.remove(&id);
    }

    /// A request has gone to core.
    pub(crate) fn note(&mut self, arrival: &Arrival) {
        if !self.plans.is_empty()
            && let Some((local, remote)) = self.plans.get(&arrival.submission.plan)
        {
            let mut arrival = *arrival;
            arrival.submission.plan = PlanId {
                index: local.0,
                generation: remote.0,
            };
            self.known.insert(arrival.tag, arrival);
        }
    }

    /// A request has ended in core; `at_staged` says whether it had come to [`STAGED`]. Whether it goes on: then it has not
    /// ended for the program.
    pub(crate) fn takes(
        &mut self,
        now: Instant,
        tag: u64,
        report: &Report,
        at_staged: impl FnOnce() -> bool,
    ) -> bool {
        // As mostly: no plan is of GPUs.
        if self.known.is_empty() {
            return false;
        }
        let Some(arrival) = self.known.remove(&tag) else {
            return false;
        };
        let proved = (report.local, report.remote) == (Local::Released, Remote::Settled);
        let refused = (report.status, report.cause) == (Status::Failed, Some(REFUSED));
        if !(proved && refused && at_staged()) {
            return false;
        }
        let (row, _) = RowId::from_tag(tag);
        self.open.entry(row).or_default().staged.insert(tag, None);
        self.waiting.push_back(arrival);
        self.retry_at = now;
        true
    }

    /// All requests of a batch have ended in core. Whether they have for the program.
    pub(crate) fn has_ended(&mut self, row: RowId) -> bool {
        match self.open.get_mut(&row) {
            None => true,
            Some(open) => {
                open.is_done = true;
                false
            }
        }
    }

    /// A request that was handed over has ended so. Whether that was the last one of its batch.
    pub(crate) fn end(&mut self, now: Instant, tag: u64, report: &Report) -> bool {
        let (row, _) = RowId::from_tag(tag);
        let Some(open) = self.open.get_mut(&row) else {
            return false;
        };
        let batch = open.staged.remove(&tag).flatten();
        if let Some(batch) = batch.filter(|_| report.status == Status::Indeterminate) {
            self.unsettled.push((tag, batch));
            self.look_at = self.look_at.min(now + LOOK);
        }
        let is_last = open.staged.is_empty() && open.is_done;
        if open.staged.is_empty() {
            self.open.remove(&row);
        }
        is_last
    }

    /// The program cancels a batch.
    pub(crate) fn cancel(&mut self, row: RowId) {
        if let Some(open) = self.open.get_mut(&row) {
            open.is_cancelled = true;
            open.staged.values().flatten().for_each(Batch::cancel);
        }
    }

    /// When [`Self::hand_over`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        let retry = (!self.waiting.is_empty()).then_some(self.retry_at);
        let look = (!self.unsettled.is_empty()).then_some(self.look_at);
        retry.into_iter().chain(look).min()
    }

    /// Tells what has become known of requests that had ended without proof.
    fn settle(&mut self, now: Instant) {
        self.look_at = now + LOOK;
        let post = &self.post;
        self.unsettled.retain(|(tag, batch)| {
            let known = batch.wait_released(std::time::Duration::ZERO);
            if let Some(Report { local, remote, .. }) = batch.report(0) {
                post.settle(*tag, local, remote);
            }
            matches!(known, Err(ReleaseError::TimedOut { .. }))
        });
    }

    /// Hands over what waits.
    pub(crate) fn hand_over(&mut self, now: Instant) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        if self.look_at <= now {
            self.settle(now);
        }
        while let Some(arrival) = self.waiting.pop_front() {
            match self.begin(now, &arrival) {
                Ok(()) => {}
                Err(SubmitError::Full(_)) => {
                    self.waiting.push_front(arrival);
                    self.retry_at = now + RETRY;
                    return;
                }
                Err(error) => {
                    let (status, cause) = not_begun(&error);
                    let report = refused(status, cause);
                    self.post.send(Command::StagedEnded(arrival.tag, report));
                }
            }
        }
    }

    fn begin(&mut self, now: Instant, arrival: &Arrival) -> Result<(), SubmitError> {
        let tag = arrival.tag;
        let engine = self.engine.get().and_then(alive);
        let (Some(open), Some(engine)) = (self.open.get_mut(&arrival.row), engine) else {
            return Err(SubmitError::ShutDown);
        };
        let terms = terms(now, arrival.due.within(), arrival.due.priority);
        let batch = engine.submit_through_slots(&request(arrival), &terms)?;
        if open.is_cancelled {
            batch.cancel();
        }
        open.staged.insert(tag, Some(batch.clone()));
        let post = self.post.clone();
        follow(batch, move |report| {
            post.send(Command::StagedEnded(tag, report));
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use polyrail_transport::clock::Clock;

    use super::*;
    use crate::batch::Shared;
    use crate::config::SendQueueConfig;
    use crate::post::Pulse;

    #[test]
    fn what_was_handed_over_and_ended_without_proof_is_settled_when_there_is_some() {
        let pending = Report {
            local: Local::Held,
            remote: Remote::Unknown,
            ..refused(Status::Pending, REFUSED)
        };
        let open = Report {
            status: Status::Indeterminate,
            ..pending
        };
        let post = || {
            let pulse = Pulse::new(None, Clock::start());
            Arc::new(Post::new(&SendQueueConfig::default(), pulse).unwrap())
        };
        let (ours, stager) = (post(), post());
        let shared = |row| Arc::new(Shared::with_reports(row, vec![pending]));
        let program = ours.batches().add(shared).unwrap();
        let staged = stager.batches().add(shared).unwrap();
        let tag = program.row.tag(0);
        let mut handover = Handover::new(Arc::default(), ours.clone());
        let batches = handover.open.entry(program.row).or_default();
        let batch = Batch::new(staged.clone(), stager.clone());
        batches.staged.insert(tag, Some(batch));
        assert!(!handover.has_ended(program.row), "it goes on there");

        stager.report(staged.row.tag(0), open);
        drop(stager.finish(staged.row, |_| {}));
        ours.report(tag, open);
        assert!(handover.end(Instant::ZERO, tag, &open), "it was the last");
        drop(ours.finish(program.row, |_| {}));
        let report = |program: &Arc<Shared>| {
            let batch = Batch::new(program.clone(), ours.clone());
            batch.report(0).map(|report| (report.local, report.remote))
        };
        let mut look = || {
            let due = handover.due();
            handover.hand_over(due.unwrap_or(Instant::ZERO));
            due
        };
        assert!(look().is_some());
        assert_eq!(report(&program), Some((Local::Held, Remote::Unknown)));
        staged.settle(0, Local::Released, Remote::Unknown);
        assert!(look().is_some());
        assert_eq!(report(&program), Some((Local::Released, Remote::Unknown)));
        staged.settle(0, Local::Released, Remote::Settled);
        assert!(look().is_some());
        assert_eq!(report(&program), Some((Local::Released, Remote::Settled)));
        assert_eq!(look(), None, "nothing is looked for any more");
    }
}
