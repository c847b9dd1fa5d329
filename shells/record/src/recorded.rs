//! A worker's core, with a recorder beside it or without.

use std::borrow::Cow;

use polyrail_core::batch::BatchReport;
use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::{
    About, AtOnce, Cancelled, Event, Handed, Ignored, LaneAction, LaneLoad, Orchestrator, Post,
    Proof, Reason, Request, SubmitError,
};
use polyrail_core::path::share::Shares;
use polyrail_core::plan::Plan;
use polyrail_core::rail::policies::Policies;
use polyrail_core::report::{Report, Unbegun};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{BatchId, Epoch, LaneId, PeerId, PlanId, RequestId};
use polyrail_core::work::{Completion, LaneFact, PostBatch, Stop};

use crate::call::{Answer, Call, Posts, Step};
use crate::journal::Journal;

/// Completions that are handed in at once: so many fit into a block.
const COMPLETIONS_MAX: usize = 1_024;

/// An [`Orchestrator`] whose calls are written down if there is a journal, and only looked past if not. Its
/// methods are those of [`Orchestrator`].
///
/// What cannot have changed anything is left out: polls of a quiet core, timeouts that are not due, and no
/// completions. So a worker that looks again and again and finds nothing records nothing.
#[derive(Debug)]
pub struct Recorded<'a> {
    core: Orchestrator<'a, Policies<'a>>,
    worker: u16,
    journal: Option<Journal>,
    /// What the journal has last seen of this worker.
    seen: u64,
}

#[allow(missing_docs)] // as of `Orchestrator`
impl<'a> Recorded<'a> {
    /// The core of this worker.
    pub fn new(
        core: Orchestrator<'a, Policies<'a>>,
        worker: u16,
        journal: Option<Journal>,
    ) -> Self {
        Self {
            core,
            worker,
            journal,
            seen: 0,
        }
    }

    /// Makes a call, and writes it down under the same lock: workers share more than their order tells.
    #[inline]
    fn call<'c, T: Copy + Into<Answer<'c>>>(
        &mut self,
        make: impl FnOnce(&mut Orchestrator<'a, Policies<'a>>) -> T,
        call: impl FnOnce() -> Call<'c>,
    ) -> T {
        match &self.journal {
            None => make(&mut self.core),
            Some(journal) => {
                let mut log = journal.open(self.worker, &mut self.seen, &self.core);
                let answer = make(&mut self.core);
                log.note(&Step::Worker(self.worker, call()), &answer.into());
                answer
            }
        }
    }

    /// Makes a poll, unless it would find nothing.
    #[inline]
    fn poll<T: Copy>(
        &mut self,
        make: impl FnOnce(&mut Orchestrator<'a, Policies<'a>>) -> Option<T>,
        call: impl FnOnce() -> Call<'static>,
    ) -> Option<T>
    where
        Option<T>: Into<Answer<'static>>,
    {
        if self.journal.is_some() && self.core.is_quiet() {
            return None;
        }
        self.call(make, call)
    }

    pub fn install_plan(&mut self, now: Instant, id: PlanId, plan: &Plan) -> bool {
        let call = || Call::InstallPlan {
            now,
            id,
            plan: Cow::Borrowed(plan),
        };
        self.call(|core| core.install_plan(now, id, plan), call)
    }

    pub fn retire_plan(&mut self, id: PlanId) {
        self.call(|core| core.retire_plan(id), || Call::RetirePlan { id })
    }

    pub fn open_batch(&mut self, tag: u64) -> Option<BatchId> {
        self.call(|core| core.open_batch(tag), || Call::OpenBatch { tag })
    }

    /// Looking changes nothing.
    pub fn lanes(&self) -> impl Iterator<Item = LaneLoad> + '_ {
        self.core.lanes()
    }

    /// Asking changes nothing.
    #[inline]
    pub fn at_once(&self, request: &Request) -> Option<AtOnce> {
        self.core.at_once(request)
    }

    #[inline]
    pub fn handle_at_once(
        &mut self,
        now: Instant,
        done: &AtOnce,
        took: Option<Duration>,
    ) -> Report {
        if self.journal.is_none() {
            return self.core.handle_at_once(now, done, took);
        }
        let call = || Call::HandleAtOnce {
            now,
            done: *done,
            took,
        };
        let report = self.call(|core| Some(core.handle_at_once(now, done, took)), call);
        report.unwrap_or(Report::PENDING)
    }

    pub fn submit(&mut self, now: Instant, request: &Request) -> Result<RequestId, SubmitError> {
        let call = || Call::Submit {
            now,
            request: *request,
        };
        self.call(|core| core.submit(now, request), call)
    }

    pub fn seal_batch(&mut self, id: BatchId) {
        self.call(|core| core.seal_batch(id), || Call::SealBatch { id })
    }

    pub fn cancel(&mut self, now: Instant, id: RequestId) -> Cancelled {
        self.call(|core| core.cancel(now, id), || Call::Cancel { now, id })
    }

    pub fn shut_down(&mut self, now: Instant) {
        self.call(|core| core.shut_down(now), || Call::ShutDown { now })
    }

    pub fn withdraw(&mut self, batch: BatchId, count: u32, why: Unbegun) -> Report {
        let call = || Call::Withdraw { batch, count, why };
        let report = self.call(|core| Some(core.withdraw(batch, count, why)), call);
        report.unwrap_or(why.report())
    }

    pub fn hand_back(&mut self, id: RequestId, how: &Report) -> bool {
        let call = || Call::HandBack { id, how: *how };
        self.call(|core| core.hand_back(id, how), call)
    }

    pub fn take(&mut self, id: RequestId) -> Option<Report> {
        self.call(|core| core.take(id), || Call::Take { id })
    }

    pub fn take_batch(&mut self, id: BatchId) -> Option<BatchReport> {
        self.call(|core| core.take_batch(id), || Call::TakeBatch { id })
    }

    #[inline]
    pub fn handle_posted(&mut self, now: Instant, post: Post, accepted: usize, stop: Stop) -> bool {
        let (lane, number) = (post.lane(), post.number());
        let call = || Call::HandlePosted {
            now,
            lane,
            number,
            accepted,
            stop,
        };
        self.call(|core| core.handle_posted(now, post, accepted, stop), call)
    }

    #[inline]
    pub fn handle_completions(&mut self, now: Instant, completions: &[Completion]) {
        for some in completions.chunks(COMPLETIONS_MAX) {
            let call = || Call::HandleCompletions {
                now,
                completions: Cow::Borrowed(some),
            };
            self.call(|core| core.handle_completions(now, some), call)
        }
    }

    pub fn handle_lane(&mut self, now: Instant, lane: LaneId, epoch: Epoch, fact: LaneFact) {
        let call = || Call::HandleLane {
            now,
            lane,
            epoch,
            fact,
        };
        self.call(|core| core.handle_lane(now, lane, epoch, fact), call)
    }

    pub fn handle_frame(&mut self, now: Instant, peer: PeerId, frame: &Frame) {
        let call = || Call::HandleFrame {
            now,
            peer,
            frame: *frame,
        };
        self.call(|core| core.handle_frame(now, peer, frame), call)
    }

    pub fn handle_peer_gone(&mut self, now: Instant, peer: PeerId, proof: Proof) {
        let call = || Call::HandlePeerGone { now, peer, proof };
        self.call(|core| core.handle_peer_gone(now, peer, proof), call)
    }

    pub fn forget_peer(&mut self, now: Instant, peer: PeerId) -> bool {
        let call = || Call::ForgetPeer { now, peer };
        self.call(|core| core.forget_peer(now, peer), call)
    }

    pub fn handle_hint(&mut self, now: Instant, peer: PeerId, hint: Option<Shares>) {
        let call = || Call::HandleHint { now, peer, hint };
        self.call(|core| core.handle_hint(now, peer, hint), call)
    }

    /// Only looks, so it is not written down.
    pub fn ignored(&self) -> Ignored {
        self.core.ignored()
    }

    /// Only looks, so it is not written down.
    pub fn finds_silence(&self, now: Instant) -> bool {
        self.core.finds_silence(now)
    }

    /// Only looks, so it is not written down.
    pub fn backlog_bytes(&mut self) -> u64 {
        self.core.backlog_bytes()
    }

    /// Only looks, so it is not written down.
    pub fn handed(&self, id: RequestId) -> Option<Handed> {
        self.core.handed(id)
    }

    /// Only looks, so it is not written down.
    pub fn about(&self, id: RequestId) -> Option<About> {
        self.core.about(id)
    }

    pub fn handle_wake(&mut self) {
        self.call(Orchestrator::handle_wake, || Call::HandleWake)
    }

    #[inline]
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_due = |core: &Orchestrator<'_, Policies<'_>>| {
            core.poll_timeout().is_some_and(|(at, _)| at <= now)
        };
        if self.journal.is_none() || is_due(&self.core) {
            self.call(
                |core| core.handle_timeout(now),
                || Call::HandleTimeout { now },
            )
        }
    }

    #[inline]
    pub fn poll_post(&mut self, now: Instant, out: &mut PostBatch) -> Option<Post> {
        let Some(journal) = &self.journal else {
            return self.core.poll_post(now, out);
        };
        if self.core.is_quiet() {
            return None;
        }
        let mut log = journal.open(self.worker, &mut self.seen, &self.core);
        let post = self.core.poll_post(now, out);
        let answer = Answer::Posts(post.as_ref().map(|_| Posts::of(out)));
        let call = Call::PollPost { now };
        log.note(&Step::Worker(self.worker, call), &answer);
        post
    }

    #[inline]
    pub fn poll_lane(&mut self) -> Option<LaneAction> {
        self.poll(Orchestrator::poll_lane, || Call::PollLane)
    }

    #[inline]
    pub fn poll_message(&mut self, now: Instant) -> Option<Message> {
        self.poll(|core| core.poll_message(now), || Call::PollMessage { now })
    }

    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.poll(Orchestrator::poll_event, || Call::PollEvent)
    }

    pub fn poll_timeout(&mut self) -> Option<(Instant, Reason)> {
        self.call(|core| core.poll_timeout(), || Call::PollTimeout)
    }
}
