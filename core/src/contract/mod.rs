//! Whether a runtime keeps its contract with core, call by call.
//!
//! A runtime that breaks it is not told by core: nothing panics, and what it forgets is late. [`Checked`] stands in the
//! place of an [`Orchestrator`], takes the same calls, passes each on, and remembers what core and the runtime owe each other.
//! It tells by name which [`Rule`] was broken, when and where. It is meant for tests: a call takes time in proportion to its
//! rows.
//!
//! [`script`] drives a runtime through transfers, broken lanes and lost peers, looks at the bytes, and is over when all is.
//! `docs/embedding.md` shows both.

mod rule;
pub mod script;
mod watch;

use core::fmt;
use core::ops::{Deref, DerefMut};

use crate::batch::BatchReport;
use crate::message::{Frame, Message};
use crate::orchestrator::{
    Cancelled, Event, LaneAction, Orchestrator, Post, Proof, Request, SubmitError,
};
use crate::plan::Plan;
use crate::rail::chooser::{Chooser, Spray};
use crate::report::Report;
use crate::time::{Duration, Instant};
use crate::units::{BatchId, Epoch, LaneId, PeerId, PlanId, RequestId};
use crate::work::{Completion, LaneFact, PostBatch, Stop};

pub use rule::{Breach, Rule};
pub use watch::Row;
use watch::{About, Watch};

/// A core whose calls are looked at. What is not here is the [`Orchestrator`]'s, and is not looked at.
///
/// The calls mean what they mean there, and core does the same.
#[derive(Debug)]
pub struct Checked<'a, P = Spray> {
    core: Orchestrator<'a, P>,
    watch: Option<Watch<'a>>,
}

/// What was found.
#[derive(Clone, Copy, Debug)]
pub struct Verdict<'v> {
    /// The first breach of each clause that was broken, in the order in which they were noticed.
    pub breaches: &'v [Breach],
}

impl Verdict<'_> {
    /// Whether nothing was broken.
    pub fn is_good(&self) -> bool {
        self.breaches.is_empty()
    }

    /// Whether this was broken.
    pub fn has(&self, rule: Rule) -> bool {
        self.breaches.iter().any(|breach| breach.rule == rule)
    }
}

impl fmt::Display for Verdict<'_> {
    /// A line for each breach.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_good() {
            return f.write_str("nothing was broken");
        }
        let lines = (0..).zip(self.breaches);
        lines.into_iter().try_for_each(|(line, breach)| {
            f.write_str(if line == 0 { "" } else { "\n" })?;
            fmt::Display::fmt(breach, f)
        })
    }
}

impl<'a, P> Deref for Checked<'a, P> {
    type Target = Orchestrator<'a, P>;

    fn deref(&self) -> &Self::Target {
        &self.core
    }
}

impl<P> DerefMut for Checked<'_, P> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.core
    }
}

impl<'a, P: Chooser> Checked<'a, P> {
    /// Looks at all calls on a core, from now on. `rows` is memory for that, see [`Row`]: 512 are enough for most tests.
    pub fn new(core: Orchestrator<'a, P>, rows: &'a mut [Row]) -> Self {
        let mut checked = Self::unwatched(core);
        checked.watch(rows);
        checked
    }

    /// Passes calls on, and looks at nothing before [`Self::watch`].
    pub fn unwatched(core: Orchestrator<'a, P>) -> Self {
        Self { core, watch: None }
    }

    /// Looks at all calls from now on, with nothing known of those before. Nothing should be under way.
    pub fn watch(&mut self, rows: &'a mut [Row]) {
        let about = About {
            worker: self.core.worker(),
            lanes: self.core.lanes_max(),
            fence_timeout: self.core.fence_timeout(),
        };
        self.watch = Some(Watch::new(about, rows));
    }

    /// Whether calls are looked at.
    pub fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// What was found so far.
    pub fn verdict(&self) -> Verdict<'_> {
        let breaches = self.watch.as_ref().map_or(&[][..], Watch::told);
        Verdict { breaches }
    }

    /// What was found, once the runtime has ended: whatever it still owes by now, it owes for good.
    pub fn end(&mut self) -> Verdict<'_> {
        self.watched(Watch::end);
        self.verdict()
    }

    /// Tells of a breach that whoever passes calls on has seen, and did not pass on.
    pub fn tell(&mut self, now: Instant, rule: Rule, lane: LaneId, number: u64, span: Duration) {
        self.timed(now, |watch| watch.tell(rule, Some(lane), number, span));
    }

    fn watched(&mut self, look: impl FnOnce(&mut Watch<'a>)) {
        if let Some(watch) = &mut self.watch {
            look(watch);
        }
    }

    /// A call that says the time.
    fn timed(&mut self, now: Instant, look: impl FnOnce(&mut Watch<'a>)) {
        if let Some(watch) = &mut self.watch {
            watch.time(now, self.core.poll_timeout().map(|(due, _)| due));
            look(watch);
        }
    }

    /// As [`Orchestrator::install_plan`].
    pub fn install_plan(&mut self, now: Instant, id: PlanId, plan: &Plan) -> bool {
        self.timed(now, |_| {});
        self.core.install_plan(now, id, plan)
    }

    /// As [`Orchestrator::submit`].
    pub fn submit(&mut self, now: Instant, request: &Request) -> Result<RequestId, SubmitError> {
        self.timed(now, |_| {});
        let submitted = self.core.submit(now, request);
        if let Ok(id) = submitted {
            self.watched(|watch| watch.submitted(id, request.tag));
        }
        submitted
    }

    /// As [`Orchestrator::cancel`].
    pub fn cancel(&mut self, now: Instant, id: RequestId) -> Cancelled {
        self.timed(now, |_| {});
        self.core.cancel(now, id)
    }

    /// As [`Orchestrator::shut_down`].
    pub fn shut_down(&mut self, now: Instant) {
        self.timed(now, |_| {});
        self.core.shut_down(now);
    }

    /// As [`Orchestrator::take`].
    pub fn take(&mut self, id: RequestId) -> Option<Report> {
        let report = self.core.take(id)?;
        self.watched(|watch| watch.took(id, report));
        Some(report)
    }

    /// As [`Orchestrator::take_batch`].
    pub fn take_batch(&mut self, id: BatchId) -> Option<BatchReport> {
        let report = self.core.take_batch(id)?;
        self.watched(|watch| watch.took_batch(id));
        Some(report)
    }

    /// As [`Orchestrator::handle_posted`].
    pub fn handle_posted(&mut self, now: Instant, post: Post, accepted: usize, stop: Stop) -> bool {
        self.timed(now, |watch| watch.posted(accepted, stop));
        self.core.handle_posted(now, post, accepted, stop)
    }

    /// As [`Orchestrator::handle_completions`].
    pub fn handle_completions(&mut self, now: Instant, completions: &[Completion]) {
        self.timed(now, |watch| {
            completions.iter().for_each(|said| watch.completed(said));
        });
        self.core.handle_completions(now, completions);
    }

    /// As [`Orchestrator::handle_lane`].
    pub fn handle_lane(&mut self, now: Instant, lane: LaneId, epoch: Epoch, fact: LaneFact) {
        self.timed(now, |watch| watch.fact(lane, epoch, fact));
        self.core.handle_lane(now, lane, epoch, fact);
    }

    /// As [`Orchestrator::handle_frame`].
    pub fn handle_frame(&mut self, now: Instant, peer: PeerId, frame: &Frame) {
        self.timed(now, |watch| {
            if let Frame::Fenced {
                lane,
                epoch,
                delivered,
            } = *frame
            {
                watch.peer_fenced(lane, epoch, delivered);
            }
        });
        self.core.handle_frame(now, peer, frame);
    }

    /// As [`Orchestrator::handle_peer_gone`].
    pub fn handle_peer_gone(&mut self, now: Instant, peer: PeerId, proof: Proof) {
        self.timed(now, |watch| watch.peer_gone(peer));
        self.core.handle_peer_gone(now, peer, proof);
    }

    /// As [`Orchestrator::forget_peer`].
    pub fn forget_peer(&mut self, now: Instant, peer: PeerId) -> bool {
        self.timed(now, |watch| watch.peer_gone(peer));
        self.core.forget_peer(now, peer)
    }

    /// As [`Orchestrator::handle_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        self.timed(now, |_| {});
        self.core.handle_timeout(now);
        let unsaid = self.core.unsaid();
        self.watched(|watch| watch.turn(unsaid));
    }

    /// As [`Orchestrator::poll_post`].
    pub fn poll_post(&mut self, now: Instant, out: &mut PostBatch) -> Option<Post> {
        self.timed(now, Watch::drains);
        let post = self.core.poll_post(now, out);
        self.watched(|watch| match &post {
            Some(post) => watch.works_out(post.number(), out),
            None => watch.drained(0),
        });
        post
    }

    /// As [`Orchestrator::poll_lane`].
    pub fn poll_lane(&mut self) -> Option<LaneAction> {
        let action = self.core.poll_lane();
        self.watched(|watch| match action {
            Some(action) => watch.action(action),
            None => watch.drained(watch::LANES),
        });
        action
    }

    /// As [`Orchestrator::poll_message`].
    pub fn poll_message(&mut self, now: Instant) -> Option<Message> {
        self.timed(now, |_| {});
        let message = self.core.poll_message(now);
        self.watched(|watch| match message {
            Some(Message::Fence { peer, lane, .. }) => watch.asks(peer, lane),
            None => watch.drained(2),
        });
        message
    }

    /// As [`Orchestrator::poll_event`].
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.core.poll_event();
        self.watched(|watch| match event {
            Some(event) => watch.event(event),
            None => watch.drained(3),
        });
        event
    }
}
