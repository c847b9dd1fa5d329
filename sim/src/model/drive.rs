//! What workers do: each follows the order of calls that core asks for.

use polyrail_control::codec::Frame as Letter;
use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::{Event, LaneAction, Post};
use polyrail_core::report::Status;
use polyrail_core::time::Instant;
use polyrail_core::work::{Cause, LaneFact, Op, Scope, Stop};

use super::agenda::What;
use super::engines::REMOTE;
use super::fabric::Flight;
use super::luck::Take;
use super::{LET_GO_NS, World};
use crate::setup::{Cut, route_of};

/// Core has less than this to say in one round.
const POLLS_MAX: u32 = 1 << 20;

impl World<'_> {
    /// Makes a worker look as soon as it can.
    pub(super) fn wake(&mut self, index: u32, at: u64) {
        let poll_ns = self.setup.engine.poll_us * 1_000;
        let worker = &mut self.workers[index as usize];
        let mut at = at.max(worker.busy_until).max(worker.stalled_until);
        if poll_ns > 0 && !worker.draining {
            // Each worker looks at its own times.
            at = (at + poll_ns - worker.looks_at).next_multiple_of(poll_ns) + worker.looks_at
                - poll_ns;
        }
        if worker.step_at.is_none_or(|step_at| at < step_at) {
            worker.step_at = Some(at);
            let ticket = self.order.below(u64::from(u8::MAX)) as u8 + 1;
            self.agenda
                .enter_by_lot(at, What::Step { worker: index }, ticket);
        }
    }

    pub(super) fn timer(&mut self, index: u32) {
        let worker = &mut self.workers[index as usize];
        if worker.timer_at != Some(self.now) {
            return;
        }
        worker.timer_at = None;
        worker.inbox.timer = true;
        self.wake(index, self.now);
    }

    /// A worker takes in what came, or goes on handing out what core wants posted.
    pub(super) fn step(&mut self, index: u32) {
        let worker = &mut self.workers[index as usize];
        if worker.step_at != Some(self.now) {
            return;
        }
        worker.step_at = None;
        if let Some(long) = self.luck.stall(self.now) {
            worker.stall(self.now, self.now + long);
        }
        if worker.stalled_until > self.now {
            return self.wake(index, self.now);
        }
        let now = if worker.draining {
            self.now
        } else {
            self.tell_lies(index);
            self.take_in(index, self.now)
        };
        let worker = &mut self.workers[index as usize];
        worker.draining = true;
        match worker
            .core
            .poll_post(Instant::from_nanos(now), &mut worker.postings)
        {
            Some(post) => self.post(index, post, now),
            None => self.rest(index, now),
        }
        if self.options.audit
            && let Err(violation) = self.workers[index as usize].core.audit()
        {
            self.ledger.violation(self.now, violation.to_string());
        }
        self.check_spares(self.workers[index as usize].engine);
        if self.workers[index as usize].has_news() {
            self.wake(index, self.now);
        }
    }

    /// Hands in what came. Until when that keeps the worker busy.
    fn take_in(&mut self, index: u32, now: u64) -> u64 {
        let at = Instant::from_nanos(now);
        self.count_completions(index);
        self.heed_hints(index);
        let worker = &mut self.workers[index as usize];
        let inbox = &mut worker.inbox;
        let completions = inbox.completions.len() as u64;
        self.rooms.seen.completions += completions;
        self.polled(index, at);
        let worker = &mut self.workers[index as usize];
        let inbox = &mut worker.inbox;
        let mut cost_ns = completions * self.setup.engine.completion_ns;
        for completion in &mut inbox.completions {
            completion.at = at;
        }
        worker.core.handle_completions(at, &inbox.completions);
        worker.last_completion = inbox.completions.last().copied().or(worker.last_completion);
        inbox.completions.clear();
        for (lane, epoch, fact) in std::mem::take(&mut inbox.lanes) {
            self.note_fact(index, lane, epoch.0, fact);
            self.workers[index as usize]
                .core
                .handle_lane(at, lane, epoch, fact);
        }
        for (peer, frame) in std::mem::take(&mut self.workers[index as usize].inbox.frames) {
            self.note_heard(index, peer);
            if let Frame::Fenced { lane, epoch, .. } = frame {
                let lane = self.first_lane[index as usize] as usize + lane.rail().index();
                let row = &mut self.lanes[lane];
                row.answered = row.answered.max(epoch.0);
            }
            self.workers[index as usize]
                .core
                .handle_frame(at, peer, &frame);
        }
        for (peer, proof) in std::mem::take(&mut self.workers[index as usize].inbox.proofs) {
            self.note_gone(index, peer);
            self.workers[index as usize]
                .core
                .handle_peer_gone(at, peer, proof);
        }
        for peer in std::mem::take(&mut self.workers[index as usize].inbox.replans) {
            self.install_plans(index, Some(peer), at);
            self.split_replanned(index, peer);
        }
        let worker = &mut self.workers[index as usize];
        let inbox = &mut worker.inbox;
        for request in inbox.cancels.drain(..) {
            worker.core.cancel(at, request);
        }
        if std::mem::take(&mut inbox.woken) {
            worker.core.handle_wake();
        }
        inbox.timer = false;
        let submitters = std::mem::take(&mut inbox.submitters);
        for submitter in &submitters {
            cost_ns += u64::from(self.submit(index, *submitter)) * self.setup.engine.request_ns;
        }
        self.workers[index as usize].core.handle_timeout(at);
        self.split_bound(index);
        now + cost_ns
    }

    /// Posts what core has handed out.
    fn post(&mut self, index: u32, post: Post, now: u64) {
        let id = post.lane();
        let worker = &mut self.workers[index as usize];
        let lane = self.first_lane[index as usize] + u32::from(id.rail().0);
        let rail = self.lanes[lane as usize].rail as usize;
        let epoch = worker.postings.epoch;
        let mut at = now;
        let works = worker.postings.works.len();
        let batch = self.workers[index as usize].postings.works.clone();
        self.count_works(lane, &batch);
        self.rooms.seen.works += works as u64;
        let worker = &mut self.workers[index as usize];
        let take = self.luck.take(now, rail, works);
        let (accepted, launched, stop) = match take {
            Take::All => (works, works, Stop::All),
            Take::Full(taken, _) => (taken, taken, Stop::Full),
            Take::Rejected(taken, cause) => (taken, taken, Stop::Rejected(cause)),
            Take::Unknown(taken, more) => (taken, taken + more, Stop::Unknown),
        };
        let says_more = match take {
            Take::All => self.luck.says_more(now, rail),
            _ => 0,
        };
        let engine = &self.setup.engine;
        // Told of all at once, the device has none of them before that.
        let rung_at = at + launched as u64 * engine.post_ns + engine.doorbell_ns;
        for work in worker.postings.works.iter().take(launched) {
            at = match engine.doorbell_ns {
                0 => at + engine.post_ns,
                _ => rung_at,
            };
            let route = route_of(rail, work.op == Op::Read) as u32;
            let offset = (work.remote.segment == REMOTE).then_some(work.remote.offset);
            let row = &mut self.lanes[lane as usize];
            let place = (epoch.0, row.posted);
            row.posted += 1;
            let flight = Flight::new(lane, place, route, work, offset);
            self.fabric.launch(&mut self.agenda, at, flight);
        }
        if let Some(breaks) = self.luck.facts(now, rail) {
            at = self.take_in(index, at);
            if breaks {
                let fact = LaneFact::Broken(Cause::Reset);
                let at = Instant::from_nanos(at);
                self.note_fact(index, id, epoch.0, fact);
                self.workers[index as usize]
                    .core
                    .handle_lane(at, id, epoch, fact);
            }
            self.split_disturbed(index);
        }
        let worker = &mut self.workers[index as usize];
        let said = accepted + says_more;
        worker
            .core
            .handle_posted(Instant::from_nanos(at), post, said, stop);
        worker.busy_until = at;
        if stop != Stop::Unknown {
            self.uncount_works(lane, works - accepted);
        }
        self.split_posted(lane, &batch[..launched]);
        if matches!(stop, Stop::Rejected(_) | Stop::Unknown) {
            self.split_disturbed(index);
        }
        self.split_bound(index);
        let says = match take {
            Take::Full(_, after) => after.map(|after| (after, LaneFact::Writable)),
            _ => {
                let after = self.luck.breaks(now, rail);
                after.map(|after| (after, LaneFact::Broken(Cause::Reset)))
            }
        };
        if let Some((after, fact)) = says {
            let epoch = epoch.0;
            self.agenda
                .enter(at + after, What::Fact { lane, epoch, fact });
        }
        if self.cuts[rail] == Cut::Error {
            let at = at + self.setup.timing.error_us * 1_000;
            self.agenda.enter(
                at,
                What::Errors {
                    lane,
                    epoch: epoch.0,
                },
            );
        }
    }

    /// Nothing is left to post: does the rest of what core asks for, and sleeps.
    fn rest(&mut self, index: u32, now: u64) {
        let at = Instant::from_nanos(now);
        let mut polls = 0;
        while let Some(action) = self.workers[index as usize].core.poll_lane() {
            self.act(index, action);
            if self.too_many(&mut polls) {
                break;
            }
        }
        while let Some(message) = self.workers[index as usize].core.poll_message(at) {
            let Message::Fence { peer, lane, epoch } = message;
            let frame = Letter::Fence {
                lane: lane.0,
                epoch: epoch.0,
            };
            let engine = self.workers[index as usize].engine as u32;
            self.send(engine, u32::from(peer.0), &frame, |letter| {
                What::LetterFar { letter }
            });
            if self.too_many(&mut polls) {
                break;
            }
        }
        while let Some(event) = self.workers[index as usize].core.poll_event() {
            self.event(index, event, now);
            if self.too_many(&mut polls) {
                break;
            }
        }
        self.check_behind(now);
        self.check_split(index);
        let worker = &mut self.workers[index as usize];
        worker.draining = false;
        worker.busy_until = now;
        if let Some((due, _)) = worker.core.poll_timeout() {
            let due = due.as_nanos().max(now + 1);
            if worker.timer_at.is_none_or(|at| due < at) {
                worker.timer_at = Some(due);
                self.agenda.enter(due, What::Timer { worker: index });
            }
        }
    }

    /// Counts what core says in one round: there is an end to it.
    fn too_many(&mut self, polls: &mut u32) -> bool {
        *polls += 1;
        if *polls == POLLS_MAX {
            let text = format!("core has said {POLLS_MAX} things in one round");
            self.ledger.violation(self.now, text);
        }
        *polls >= POLLS_MAX
    }

    fn act(&mut self, index: u32, action: LaneAction) {
        let at = self.now;
        let first = self.first_lane[index as usize];
        if !matches!(action, LaneAction::Open { .. }) {
            self.split_disturbed(index);
        }
        match action {
            LaneAction::Open { lane, epoch, .. } => {
                let lane = first + u32::from(lane.rail().0);
                self.check_class(lane);
                self.lane_ends(lane);
                let row = &mut self.lanes[lane as usize];
                (row.epoch, row.posted, row.completed) = (epoch.0, 0, 0);
                row.overtook.clear();
                row.open_works.clear();
                (row.opening, row.fencing, row.probes) = (true, false, false);
                let opens_at = at + self.setup.timing.open_us * 1_000;
                self.agenda.enter(
                    opens_at,
                    What::Opens {
                        lane,
                        epoch: epoch.0,
                    },
                );
            }
            LaneAction::Fence {
                lane,
                epoch,
                scope: Scope::Local,
            } => {
                let lane = first + u32::from(lane.rail().0);
                self.lane_ends(lane);
                self.rooms.seen.ended += 1;
                let row = &mut self.lanes[lane as usize];
                row.fencing = true;
                let held = self.luck.held(at, row.rail as usize);
                if held.is_none() {
                    row.let_go = row.let_go.max(epoch.0);
                } else {
                    let scope = Scope::Local;
                    self.fact(lane, epoch.0, LaneFact::Unfenceable { scope });
                }
                self.agenda.enter(
                    at + LET_GO_NS + held.unwrap_or(0),
                    What::LetGo {
                        lane,
                        epoch: epoch.0,
                    },
                );
            }
            // Nothing is posted on a lane that is closed.
            LaneAction::Close { lane, epoch } => {
                let lane = first + u32::from(lane.rail().0);
                if self.lanes[lane as usize].epoch == epoch.0 {
                    self.lane_ends(lane);
                    let row = &mut self.lanes[lane as usize];
                    row.ended += u32::from(row.opening && self.setup.limits.reset_cooldown_us > 0);
                    (row.opening, row.fencing) = (false, false);
                }
            }
            // The other fact comes by a frame.
            LaneAction::Fence {
                scope: Scope::Remote,
                ..
            } => {}
        }
    }

    fn event(&mut self, index: u32, event: Event, now: u64) {
        let worker = &mut self.workers[index as usize];
        let engine = &self.setup.engines[worker.engine];
        match event {
            Event::RequestDone { request, tag } => {
                if let Some(report) = worker.core.take(request) {
                    self.lets_go(tag);
                    if let Some(submitter) = self.ledger.reported(now, tag, &report) {
                        self.check_ending(submitter, tag, &report, now);
                        self.request_done(submitter, tag, &report);
                    }
                    self.history.requests += 1;
                    self.history.failed_requests += u64::from(report.status != Status::Completed);
                    self.last_report_at = self.last_report_at.max(now);
                }
            }
            Event::BatchDone { batch, tag } => {
                if let Some(report) = worker.core.take_batch(batch) {
                    self.batch_done(tag as u32, &report, now);
                }
            }
            Event::Settled { tag, local, remote } => self.settles(tag, local, remote),
            Event::RailChanged {
                rail, state, cause, ..
            } => {
                let number = rail;
                let rail = engine.rails[rail.index()];
                self.history.rail_states.push((now, rail, state));
                self.check_pause(index, number, state, cause);
            }
            Event::Failover { attempt, .. } => self.check_failover(attempt),
            Event::PeerChanged { .. } => {}
            // No transport of a model hands over.
            Event::HandedOver { .. } | Event::CalledBack { .. } => {}
            Event::WakeWorker { worker } => {
                let other = engine.first_worker + usize::from(worker);
                self.workers[other].inbox.woken = true;
                self.wake(other as u32, now);
            }
        }
    }
}
