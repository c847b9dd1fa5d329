//! What a worker hands over to be staged: requests that a transport which reaches memory of GPUs has failed to carry out.
//!
//! A plan between such memory ends with a transport called `staged`, so core decides as it does between all others: when a
//! request leaves a transport whose rails are paused, whether its budget allows that, and when newer ones go back. What comes to
//! `staged` core hands over: a request that passes through slots is carried out by others, over other transports to the same peer,
//! and would wait in core's line before them. It stays open in core, which calls it back if it is to end, and writes its report
//! when it is told here what became of it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, OnceLock, Weak};

use polyrail_core::orchestrator::Handed;
use polyrail_core::report::{Local, Remote, Report, Status, Unbegun};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::transport::{Capabilities, MemoryKind};
use polyrail_core::units::{Epoch, LaneId, RequestId};
use polyrail_transport::clock::Clock;
use polyrail_transport::{Endpoint, FenceAnswer, InboundLane, RetireAnswer, SessionId, Transport};
use rustix::event::{EventfdFlags, eventfd};

use super::alive;
use super::requests::{follow, not_begun, terms};
use crate::batch::Batch;
use crate::engine::Inner;
use crate::error::{ReleaseError, SubmitError};
use crate::known::STAGED;
use crate::post::{Command, Post};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::segments::SegmentId;

/// The engine that stages, once it is there. Transports and workers are made before it.
pub(crate) type EngineCell = OnceLock<Weak<Inner>>;

/// How long a request waits that whoever stages has no room for.
const RETRY: Duration = Duration::from_millis(1);
/// How often it is looked what has become known of requests that ended without proof.
const LOOK: Duration = Duration::from_millis(50);

/// The transport. It has only an initiator's half, and core opens no lanes there.
pub(crate) struct StagedTransport;

impl Transport for StagedTransport {
    fn name(&self) -> &'static str {
        STAGED
    }

    fn is_within_host(&self) -> bool {
        true
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

/// What is known of the memory of both sides.
type Known = (Local, Remote);

/// What a worker hands over.
pub(crate) struct Handover {
    engine: Arc<EngineCell>,
    /// The worker's own.
    post: Arc<Post>,
    /// Requests that begin as soon as there is room.
    waiting: VecDeque<(RequestId, Handed)>,
    retry_at: Instant,
    /// Those that have begun.
    out: HashMap<RequestId, Batch>,
    /// Those that have ended without proof, with what was known of them last, and when they are looked at.
    unsettled: Vec<(RequestId, Batch, Known)>,
    look_at: Instant,
}

impl Handover {
    pub(crate) fn new(engine: Arc<EngineCell>, post: Arc<Post>) -> Self {
        Self {
            engine,
            post,
            waiting: VecDeque::new(),
            retry_at: Instant::MAX,
            out: HashMap::new(),
            unsettled: Vec::new(),
            look_at: Instant::MAX,
        }
    }

    /// Core hands a request over.
    pub(crate) fn take(&mut self, now: Instant, id: RequestId, handed: Handed) {
        self.waiting.push_back((id, handed));
        self.retry_at = now;
    }

    /// Core calls one back. How it has ended, if it had not begun.
    pub(crate) fn call_back(&mut self, id: RequestId) -> Option<Report> {
        if let Some(batch) = self.out.get(&id) {
            batch.cancel();
            return None;
        }
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != id);
        (self.waiting.len() < before).then_some(Unbegun::Cancelled.report())
    }

    /// One that has begun has ended so.
    pub(crate) fn end(&mut self, now: Instant, id: RequestId, how: &Report) {
        let batch = self.out.remove(&id);
        if let Some(batch) = batch.filter(|_| how.status == Status::Indeterminate) {
            self.unsettled.push((id, batch, (how.local, how.remote)));
            self.look_at = self.look_at.min(now + LOOK);
        }
    }

    /// When [`Self::hand_over`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        let retry = (!self.waiting.is_empty()).then_some(self.retry_at);
        let look = (!self.unsettled.is_empty()).then_some(self.look_at);
        retry.into_iter().chain(look).min()
    }

    /// Tells what has become known of those that had ended without proof.
    fn settle(&mut self, now: Instant, mut tell: impl FnMut(RequestId, &Report) -> bool) {
        self.look_at = now + LOOK;
        self.unsettled.retain_mut(|(id, batch, known)| {
            let waits = batch.wait_released(std::time::Duration::ZERO);
            let Some(how) = batch.report(0) else {
                return false;
            };
            let is_new = std::mem::replace(known, (how.local, how.remote)) != *known;
            // Core may not wait for it any more.
            let waited_for = !is_new || tell(*id, &how);
            waited_for && matches!(waits, Err(ReleaseError::TimedOut { .. }))
        });
    }

    /// Begins what waits. `tell` tells core what became of a request.
    pub(crate) fn hand_over(
        &mut self,
        now: Instant,
        mut tell: impl FnMut(RequestId, &Report) -> bool,
    ) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        if self.look_at <= now {
            self.settle(now, &mut tell);
        }
        while let Some((id, handed)) = self.waiting.pop_front() {
            match self.begin(now, id, &handed) {
                Ok(()) => {}
                Err(SubmitError::Full(_)) => {
                    self.waiting.push_front((id, handed));
                    self.retry_at = now + RETRY;
                    return;
                }
                Err(error) => {
                    tell(id, &not_begun(&error).report());
                }
            }
        }
    }

    fn begin(&mut self, now: Instant, id: RequestId, handed: &Handed) -> Result<(), SubmitError> {
        let engine = self.engine.get().and_then(alive);
        let engine = engine.ok_or(SubmitError::ShutDown)?;
        let deadline = (handed.deadline != Instant::MAX).then_some(handed.deadline);
        let terms = terms(now, deadline, handed.priority);
        let batch = engine.submit_through_slots(&request(handed), &terms)?;
        self.out.insert(id, batch.clone());
        let post = self.post.clone();
        follow(batch, move |report| {
            post.send(Command::StagedEnded(id, report));
        });
        Ok(())
    }
}

/// What was handed over, as a request.
fn request(handed: &Handed) -> Request {
    Request {
        op: handed.op,
        local: SegmentId(handed.local.segment.0),
        local_offset: handed.local.offset,
        remote: SegmentId(handed.remote.segment.0),
        remote_offset: handed.remote.offset,
        length: handed.length,
    }
}

#[cfg(test)]
mod tests {
    use polyrail_core::units::SegmentRef;
    use polyrail_core::work::{Cause, Op, Place, Priority};
    use polyrail_transport::clock::Clock;

    use super::*;
    use crate::batch::Shared;
    use crate::config::SendQueueConfig;
    use crate::post::Pulse;

    const ID: RequestId = RequestId {
        index: 3,
        generation: 1,
    };

    fn post() -> Arc<Post> {
        let pulse = Pulse::new(None, Clock::start());
        Arc::new(Post::new(64, &SendQueueConfig::default(), pulse, Arc::default()).unwrap())
    }

    fn handed() -> Handed {
        let place = |segment| Place {
            segment: SegmentRef(segment),
            offset: 0,
        };
        Handed {
            op: Op::Write,
            local: place(1),
            remote: place(2),
            length: 100,
            deadline: Instant::MAX,
            priority: Priority::Normal,
        }
    }

    #[test]
    fn core_is_told_once_of_each_thing_that_becomes_known_of_what_ended_without_proof() {
        let open = Report {
            status: Status::Indeterminate,
            cause: Some(Cause::Cancelled),
            ..Report::PENDING
        };
        let stager = post();
        let shared = |row| Arc::new(Shared::with_reports(row, vec![Report::PENDING]));
        let staged = stager.batches().add(shared).unwrap();
        let mut handover = Handover::new(Arc::default(), post());
        handover
            .out
            .insert(ID, Batch::new(staged.clone(), stager.clone()));
        stager.report(staged.row.tag(0), open);
        drop(stager.finish(staged.row, |_| {}));
        handover.end(Instant::ZERO, ID, &open);
        let mut told = Vec::new();
        let mut look = || {
            let due = handover.due();
            handover.hand_over(due.unwrap_or(Instant::ZERO), |id, how| {
                assert_eq!((id, how.status), (ID, Status::Indeterminate));
                told.push((how.local, how.remote));
                true
            });
            due
        };
        assert!(look().is_some());
        staged.settle(0, Local::Released, Remote::Unknown);
        assert!(look().is_some() && look().is_some());
        staged.settle(0, Local::Released, Remote::Settled);
        assert!(look().is_some());
        assert_eq!(look(), None, "nothing is looked for any more");
        let known = [Remote::Unknown, Remote::Settled].map(|remote| (Local::Released, remote));
        assert_eq!(told, known);
    }

    #[test]
    fn what_cannot_begin_is_handed_back_and_what_is_called_back_first_does_not() {
        // There is no engine.
        let mut handover = Handover::new(Arc::default(), post());
        handover.take(Instant::ZERO, ID, handed());
        let report = handover.call_back(ID).unwrap();
        assert_eq!(report.status, Status::Cancelled);
        assert_eq!((handover.due(), handover.call_back(ID)), (None, None));
        handover.take(Instant::ZERO, ID, handed());
        let mut told = Vec::new();
        handover.hand_over(Instant::ZERO, |id, how| {
            told.push((id, how.status));
            true
        });
        assert_eq!(told, [(ID, Status::ShutDown)]);
        assert_eq!(handover.due(), None);
    }
}
