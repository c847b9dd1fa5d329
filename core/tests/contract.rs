//! A runtime that keeps its contract with core is told nothing, and one that breaks it is told which clause.

use std::collections::VecDeque;

use polyrail_core::contract::script::{Ran, Runtime, Script, Side};
use polyrail_core::contract::{Checked, Row, Rule};
use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::{Config, Event, LaneAction, Orchestrator, Proof, Request, Store};
use polyrail_core::path::class::RailClass;
use polyrail_core::plan::{Plan, PlanRail, PlanTransport};
use polyrail_core::rail::chooser::Spray;
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::{Device, Rail, RailConfig, Shared, Waiting};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{
    DeviceId, Epoch, LaneId, PeerId, PlanId, RailId, Rate, SegmentRef, TransportId,
};
use polyrail_core::work::{
    Cause, Completion, LaneFact, LaneLimits, Op, Outcome, Place, PostBatch, Priority, Stop, Work,
};

const LINKS: usize = 2;
const QUEUE: usize = 4;
const SLICE: u32 = 1024;
const MEMORY: usize = 48 * 1024;
const SCRATCH: SegmentRef = SegmentRef(1);
const PEER: PeerId = PeerId(0);
const PLAN: PlanId = PlanId {
    index: 0,
    generation: 1,
};

/// What a runtime does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    Correct,
    FactsBeforeCompletions,
    CompletesTwice,
    CompletesWhatWasNotPosted,
    OpensTwice,
    TimeGoesBack,
    AcceptsMoreThanThereIs,
    TimersAreSeldomHandled,
    WrongCookies,
    OldEpochs,
    DropsAPost,
    FullForEver,
    EventsAreNotRead,
    PeerAnswersNoFence,
    LanesAnswerNoFence,
    LanesDoNotOpen,
    EngineGoesOnAfterItsFence,
    // No flaw: nobody can know of a dark link that it is dark.
    DarkLinksAnswerNoOpen,
    // Nor this: it is Full earlier than its limits say, and completes works.
    TakesFewerThanItsLimit,
    // More than those that a review found to be silent.
    EndedRequestsAreLeft,
    LosesACompletion,
    PeerCountsTooMany,
    CompletionsOfTheFuture,
    FencesUnasked,
    ForeignLanes,
    BytesAreLost,
    WritesPastTheEnd,
    ActionsAreNotRead,
    Hangs,
}

use Flaw::*;

#[derive(Default)]
struct Link {
    is_cut: bool,
    is_open: bool,
    lane: LaneId,
    epoch: Epoch,
    queue: VecDeque<Work>,
    done_at: Instant,
    delivered: u32,
}

/// A runtime, with the device that it drives.
struct Rig<'a> {
    core: Checked<'a>,
    flaw: Flaw,
    now: Instant,
    links: [Link; LINKS],
    completions: VecDeque<Completion>,
    facts: VecDeque<(LaneId, Epoch, LaneFact)>,
    frames: VecDeque<Frame>,
    /// What an engine does that should have stopped, and when.
    rogues: Vec<(Instant, Work)>,
    memory: [Vec<u8>; 2],
    /// When it is found out that the peer has ended.
    gone: Option<Instant>,
    /// The core knows that.
    is_told: bool,
    /// A link has been cut.
    was_cut: bool,
    /// Turns, posts, completions.
    counts: [u64; 3],
}

const SPAN: Duration = Duration::from_micros(10);

impl<'a> Rig<'a> {
    fn new(flaw: Flaw, core: Checked<'a>) -> Self {
        Self {
            core,
            flaw,
            now: Instant::ZERO,
            links: Default::default(),
            completions: VecDeque::new(),
            facts: VecDeque::new(),
            frames: VecDeque::new(),
            rogues: Vec::new(),
            memory: [vec![0; MEMORY], vec![0; MEMORY]],
            gone: None,
            is_told: false,
            was_cut: false,
            counts: [0; 3],
        }
    }

    fn nth(&mut self, which: usize, every: u64) -> bool {
        self.counts[which] += 1;
        self.counts[which].is_multiple_of(every)
    }

    fn copy(&mut self, work: &Work) {
        let is_lost = self.flaw == BytesAreLost && self.was_cut;
        if work.local.segment == SCRATCH || is_lost {
            return;
        }
        let start = work.local.offset as usize;
        let mut end = start + work.length as usize;
        if self.flaw == WritesPastTheEnd {
            end = (end + 1).min(MEMORY);
        }
        let [ours, theirs] = &mut self.memory;
        let (from, to) = match work.op {
            Op::Write => (ours, theirs),
            Op::Read => (theirs, ours),
        };
        to[start..end].copy_from_slice(&from[start..end]);
    }

    /// The links work until now.
    fn run_device(&mut self) {
        let rogues = std::mem::take(&mut self.rogues);
        for (at, work) in rogues {
            match at <= self.now {
                true => self.copy(&work),
                false => self.rogues.push((at, work)),
            }
        }
        for index in 0..LINKS {
            loop {
                let link = &mut self.links[index];
                if link.is_cut || link.done_at > self.now {
                    break;
                }
                let Some(work) = link.queue.pop_front() else {
                    break;
                };
                link.delivered += 1;
                let done = Completion {
                    lane: link.lane,
                    epoch: link.epoch,
                    cookie: work.cookie,
                    at: link.done_at,
                    outcome: Outcome::Success,
                };
                link.done_at = link.done_at + SPAN;
                self.copy(&work);
                self.complete(done);
            }
        }
    }

    fn complete(&mut self, mut done: Completion) {
        let is_third = self.nth(2, 3);
        match self.flaw {
            CompletesTwice if is_third => self.completions.push_back(done),
            CompletesWhatWasNotPosted if is_third => self
                .completions
                .push_back(Completion { cookie: 77, ..done }),
            WrongCookies if is_third => done.cookie ^= 1 << 40,
            OldEpochs if is_third => done.epoch.0 -= 1,
            LosesACompletion if self.counts[2] == 20 => return,
            CompletionsOfTheFuture if is_third => done.at = done.at + Duration::from_secs(1),
            ForeignLanes if is_third => self.completions.push_back(Completion {
                lane: LaneId::new(9, RailId(0)),
                ..done
            }),
            _ => {}
        }
        self.completions.push_back(done);
    }

    fn act(&mut self, action: LaneAction) {
        let (LaneAction::Open { lane, epoch, .. }
        | LaneAction::Fence { lane, epoch, .. }
        | LaneAction::Close { lane, epoch }) = action;
        let (flaw, now) = (self.flaw, self.now);
        let works_max = match flaw {
            TakesFewerThanItsLimit => 3 * QUEUE,
            _ => QUEUE,
        };
        let link = &mut self.links[lane.rail().index()];
        let fact = match action {
            LaneAction::Open { .. } if flaw == LanesDoNotOpen => return,
            LaneAction::Open { .. } if link.is_cut && flaw == DarkLinksAnswerNoOpen => return,
            LaneAction::Open { .. } if link.is_cut => LaneFact::OpenFailed(Cause::Refused),
            LaneAction::Open { .. } => {
                *link = Link {
                    lane,
                    epoch,
                    is_open: true,
                    ..Link::default()
                };
                LaneFact::Opened {
                    limits: LaneLimits {
                        counts: true,
                        ..LaneLimits::new(works_max as u16, u32::MAX)
                    },
                }
            }
            LaneAction::Fence { .. } if flaw == LanesAnswerNoFence => return,
            LaneAction::Fence { scope, .. } => {
                link.is_open = false;
                let queue = std::mem::take(&mut link.queue);
                if flaw == EngineGoesOnAfterItsFence {
                    let later = now + Duration::from_millis(30);
                    self.rogues
                        .extend(queue.into_iter().map(|work| (later, work)));
                }
                LaneFact::Fenced {
                    scope,
                    delivered: None,
                }
            }
            LaneAction::Close { .. } => {
                link.is_open = false;
                return;
            }
        };
        self.facts.push_back((lane, epoch, fact));
        if matches!(fact, LaneFact::Opened { .. }) {
            match flaw {
                OpensTwice => self.facts.push_back((lane, epoch, fact)),
                FencesUnasked => self.facts.push_back((
                    lane,
                    epoch,
                    LaneFact::Fenced {
                        scope: polyrail_core::work::Scope::Local,
                        delivered: None,
                    },
                )),
                _ => {}
            }
        }
    }

    fn post(&mut self, batch: &PostBatch) -> (usize, Stop) {
        let index = batch.lane.rail().index();
        if self.flaw == FullForEver && index == 1 {
            return (0, Stop::Full);
        }
        let now = self.now;
        let link = &mut self.links[index];
        if !link.is_open || link.is_cut || link.epoch != batch.epoch {
            return (0, Stop::Rejected(Cause::Reset));
        }
        if link.queue.is_empty() {
            link.done_at = now + SPAN;
        }
        let room = QUEUE - link.queue.len();
        let taken = room.min(batch.works.len());
        link.queue.extend(&batch.works[..taken]);
        match taken == batch.works.len() {
            true if self.flaw == AcceptsMoreThanThereIs => (taken + 1, Stop::All),
            true => (taken, Stop::All),
            false => (taken, Stop::Full),
        }
    }

    fn hand_in(&mut self, now: Instant) {
        let completions: Vec<_> = self.completions.drain(..).collect();
        if self.flaw != FactsBeforeCompletions {
            self.core.handle_completions(now, &completions);
        }
        for (lane, epoch, fact) in self.facts.drain(..) {
            self.core.handle_lane(now, lane, epoch, fact);
        }
        if self.flaw == FactsBeforeCompletions {
            self.core.handle_completions(now, &completions);
        }
        for frame in self.frames.drain(..) {
            self.core.handle_frame(now, PEER, &frame);
        }
        let is_gone = self.gone.is_some_and(|at| at <= self.now);
        if is_gone && !std::mem::replace(&mut self.is_told, true) {
            self.core.handle_peer_gone(now, PEER, Proof::ProcessGone);
        }
    }

    fn carry_out(&mut self, now: Instant) {
        let mut batch = PostBatch::default();
        while let Some(post) = self.core.poll_post(now, &mut batch) {
            let (accepted, stop) = self.post(&batch);
            if self.nth(1, 5) && self.flaw == DropsAPost && self.counts[1] == 5 {
                continue;
            }
            self.core.handle_posted(now, post, accepted, stop);
        }
        while self.flaw != ActionsAreNotRead
            && let Some(action) = self.core.poll_lane()
        {
            self.act(action);
        }
        while let Some(Message::Fence { lane, epoch, .. }) = self.core.poll_message(now) {
            if self.gone.is_some() || self.flaw == PeerAnswersNoFence {
                continue;
            }
            let more = if self.flaw == PeerCountsTooMany {
                1000
            } else {
                0
            };
            let delivered = self.links[lane.rail().index()].delivered + more;
            self.frames.push_back(Frame::Fenced {
                lane,
                epoch,
                delivered,
            });
        }
        while self.flaw != EventsAreNotRead
            && let Some(event) = self.core.poll_event()
        {
            match event {
                Event::RequestDone { .. } if self.flaw == EndedRequestsAreLeft => {}
                Event::RequestDone { request, .. } => drop(self.core.take(request)),
                Event::BatchDone { batch, .. } => drop(self.core.take_batch(batch)),
                _ => {}
            }
        }
    }
}

impl<'a> Runtime<'a> for Rig<'a> {
    fn core(&mut self) -> &mut Checked<'a> {
        &mut self.core
    }

    fn turn(&mut self, until: Instant) -> Instant {
        self.run_device();
        let every = self.nth(0, 50);
        let mut now = self.now;
        if every && self.flaw == TimeGoesBack {
            now = Instant::from_nanos(now.as_nanos().saturating_sub(50_000));
        }
        self.hand_in(now);
        if self.flaw != TimersAreSeldomHandled || self.counts[0].is_multiple_of(500) {
            self.core.handle_timeout(now);
        }
        if self.flaw != Hangs {
            self.carry_out(now);
        }
        if self.facts.is_empty() && self.frames.is_empty() {
            let busy = |link: &&Link| !link.is_cut && !link.queue.is_empty();
            let done = self.links.iter().filter(busy).map(|link| link.done_at);
            let rogue = self.rogues.iter().map(|(at, _)| *at);
            let due = self.core.poll_timeout().map(|(at, _)| at);
            let gone = self.gone.filter(|_| !self.is_told);
            let next = done.chain(rogue).chain(due).chain(gone).min();
            self.now = next.map_or(until, |next| next.min(until)).max(self.now);
        }
        self.now
    }

    fn store(&mut self, side: Side, offset: u64, bytes: &[u8]) {
        let start = offset as usize;
        self.memory[side as usize][start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn load(&mut self, side: Side, offset: u64, bytes: &mut [u8]) {
        let start = offset as usize;
        bytes.copy_from_slice(&self.memory[side as usize][start..start + bytes.len()]);
    }

    fn cut(&mut self, rail: RailId) -> bool {
        // What is there by now is there.
        self.run_device();
        let link = &mut self.links[rail.index()];
        link.is_cut = true;
        self.was_cut = true;
        let broken = LaneFact::Broken(Cause::Reset);
        self.facts.push_back((link.lane, link.epoch, broken));
        true
    }

    fn mend(&mut self, rail: RailId) {
        self.links[rail.index()].is_cut = false;
    }

    fn end_peer(&mut self) -> bool {
        for rail in 0..LINKS as u16 {
            self.cut(RailId(rail));
        }
        self.gone = Some(self.now + Duration::from_millis(1));
        true
    }
}

/// Makes a runtime with a flaw, does something with it, and gives what is told of it.
fn judged<T>(
    flaw: Flaw,
    rows: usize,
    drive: impl FnOnce(&mut Rig<'_>) -> T,
) -> (Vec<Rule>, String, T) {
    let estimate = EstimateConfig {
        rate_nominal: Rate::from_bytes_in(u64::from(SLICE), SPAN),
        delay_base: Duration::from_micros(1),
        tier: 0,
        slice_span: Duration::ZERO,
        batch_span: Duration::ZERO,
    };
    let rails = [Rail::EMPTY; LINKS];
    let devices = [Device::EMPTY; LINKS];
    let waiting = [Waiting::NO];
    let shared = Shared::new(&rails, &devices, &waiting, SLICE);
    let mut store = Store::<1, 1, LINKS, 8, 32, 8>::new();
    let core = Orchestrator::new(Config::new(0, Spray), &shared, store.tables());
    let mut rows = vec![Row::EMPTY; rows];
    let mut core = Checked::new(core, &mut rows);
    let numbers = [RailId(0), RailId(1)];
    for rail in numbers {
        let device = DeviceId(rail.0);
        assert!(shared.install_device(device, estimate));
        let peer = PEER;
        assert!(shared.install_rail(
            rail,
            RailConfig {
                peer,
                device,
                far: None,
                estimate
            }
        ));
    }
    let row = |rail| PlanRail {
        rail,
        tier: 0,
        class: RailClass::PRIMARY,
    };
    let scratch = Place {
        segment: SCRATCH,
        offset: 0,
    };
    let plan = Plan {
        peer: PEER,
        local: SegmentRef(0),
        remote: SegmentRef(0),
        transports: heapless::Vec::from_iter([PlanTransport {
            transport: TransportId(0),
            rails: numbers.into_iter().map(row).collect(),
        }]),
        scratch_local: scratch,
        scratch_remote: scratch,
        scratch_bytes: SLICE,
        path: None,
    };
    assert!(core.install_plan(Instant::ZERO, PLAN, &plan));
    let mut rig = Rig::new(flaw, core);
    let done = drive(&mut rig);
    let verdict = rig.core.end();
    let rules = verdict.breaches.iter().map(|breach| breach.rule).collect();
    (rules, verdict.to_string(), done)
}

/// How far the script came.
fn drive(rig: &mut Rig<'_>) -> Ran {
    let script = Script {
        plan: PLAN,
        rails: &[RailId(0), RailId(1)],
        bytes: MEMORY as u64,
    };
    script.run(Instant::ZERO, rig)
}

/// Turns for a while, longer than anything is waited for.
fn go_on(rig: &mut Rig<'_>) {
    let until = rig.now + Duration::from_secs(3);
    while rig.now < until {
        rig.turn(until);
    }
    rig.turn(until);
}

/// What is told of a runtime with a flaw by the script.
fn told(flaw: Flaw) -> (Vec<Rule>, String) {
    let (rules, text, _) = judged(flaw, 512, drive);
    (rules, text)
}

#[test]
fn calls_are_looked_at_without_the_script_too() {
    let cases: [(Flaw, &[&str]); 5] = [
        (Correct, &[]),
        (EndedRequestsAreLeft, &["not-taken"]),
        (LanesDoNotOpen, &["open-unanswered"]),
        (DropsAPost, &["post-unanswered"]),
        (OldEpochs, &["epoch-wrong", "never-completed"]),
    ];
    for (flaw, expected) in cases {
        let (rules, text, ()) = judged(flaw, 512, |rig| {
            let batch = rig.core.open_batch(0).expect("a row is free");
            let request = Request {
                tag: 7,
                plan: PLAN,
                batch,
                local_offset: 0,
                remote_offset: 0,
                length: MEMORY as u64,
                deadline: Instant::MAX,
                op: Op::Write,
                priority: Priority::Normal,
            };
            rig.core.submit(Instant::ZERO, &request).expect("as above");
            rig.core.seal_batch(batch);
            go_on(rig);
        });
        let names: Vec<_> = rules.iter().map(|rule| rule.name()).collect();
        assert_eq!(names, expected, "{flaw:?}: {text}");
    }
}

#[test]
fn a_runtime_that_breaks_nothing_is_told_nothing() {
    for flaw in [Correct, DarkLinksAnswerNoOpen, TakesFewerThanItsLimit] {
        let (rules, text, ran) = judged(flaw, 512, |rig| {
            let ran = drive(rig);
            go_on(rig);
            ran
        });
        assert_eq!(rules, [], "{flaw:?}: {text}");
        assert_eq!(text, "nothing was broken");
        assert!(ran.is_whole && ran.peer_ended, "{ran:?}");
        assert_eq!(ran.cuts, 4, "each link while it writes, and while it reads");
    }
}

#[test]
fn each_breach_is_told_by_its_name() {
    // (what is done wrong, what is told of it, in the order in which it was noticed)
    let cases: [(Flaw, &[&str]); 26] = [
        (FactsBeforeCompletions, &["broken-first"]),
        (CompletesTwice, &["completed-twice"]),
        (CompletesWhatWasNotPosted, &["completed-unknown"]),
        (OpensTwice, &["opened-twice"]),
        (TimeGoesBack, &["time-went-back", "completed-in-future"]),
        (AcceptsMoreThanThereIs, &["post-miscounted"]),
        (TimersAreSeldomHandled, &["timer-late"]),
        (WrongCookies, &["completed-unknown", "never-completed"]),
        (OldEpochs, &["epoch-wrong", "never-completed"]),
        (DropsAPost, &["post-unanswered", "not-completed"]),
        (FullForEver, &["full-for-ever"]),
        (EventsAreNotRead, &["not-drained", "never-ended"]),
        (PeerAnswersNoFence, &["message-unanswered"]),
        (LanesAnswerNoFence, &["fence-unanswered"]),
        (LanesDoNotOpen, &["open-unanswered", "not-completed"]),
        (EngineGoesOnAfterItsFence, &["touched-after-report"]),
        (EndedRequestsAreLeft, &["not-taken"]),
        (LosesACompletion, &["never-completed"]),
        (PeerCountsTooMany, &["counted-too-many"]),
        (CompletionsOfTheFuture, &["completed-in-future"]),
        (FencesUnasked, &["fenced-unasked"]),
        (ForeignLanes, &["lane-unknown"]),
        (BytesAreLost, &["bytes-wrong"]),
        (WritesPastTheEnd, &["bytes-wrong"]),
        (ActionsAreNotRead, &["not-drained", "not-completed"]),
        (Hangs, &["not-drained", "never-ended"]),
    ];
    for (flaw, expected) in cases {
        let (rules, text) = told(flaw);
        let names: Vec<_> = rules.iter().map(|rule| rule.name()).collect();
        assert_eq!(names, expected, "{flaw:?}: {text}");
    }
}

#[test]
fn a_checker_with_too_few_rows_says_so_and_accuses_nobody() {
    let (rules, text, _) = judged(Correct, 8, drive);
    assert_eq!(rules, [Rule::RowsUsedUp], "{text}");
}

#[test]
fn a_breach_says_what_happened_when_where_and_how_often() {
    let (_, text) = told(OldEpochs);
    let first = text.lines().next();
    let expected = "epoch-wrong: epoch 0 was said of what is of another one; lane 0 of worker 0, epoch 1; \
                    at 0.020000ms; 184 times";
    assert_eq!(first, Some(expected));
}

#[test]
fn the_guide_has_each_rule() {
    let guide = include_str!("../../docs/embedding.md");
    for rule in Rule::ALL {
        let name = rule.name();
        assert!(guide.contains(&format!("| `{name}` |")), "{name}");
    }
}
