//! The simulated world: a fabric, engines with their workers, peers, and submitters in closed loops.
//!
//! Discrete events in integer nanoseconds from one seed. Each worker is a serial processor that follows the
//! contract of [`polyrail_core::orchestrator::Orchestrator`] as the engine's worker does: a post and a
//! completion cost it time, completions are stamped when it looks, and workers of equal time go in an order
//! that is drawn. Frames between engine and peer pass the control codec. A slice on a rail that is cut stays
//! on its way; when the rail is restored it arrives, unless its lane's epoch has been fenced meanwhile.

pub(crate) mod agenda;
pub(crate) mod chance;
pub(crate) mod fabric;
mod far;
pub(crate) mod ledger;
mod worker;

use polyrail_control::codec::Frame as Letter;
use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::{Config, Event, LaneAction, Request};
use polyrail_core::plan::{Plan, PlanRail};
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::health::RailState;
use polyrail_core::rail::select::Policy;
use polyrail_core::rail::{RailConfig, Shared};
use polyrail_core::report::Status;
use polyrail_core::slice::SLICE_BYTES;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{DeviceId, Epoch, LaneId, PeerId, PlanId, RailId, Rate, SegmentRef};
use polyrail_core::work::{
    Cause, Completion, LaneFact, LaneLimits, Op, Outcome, Place, Scope, Stop,
};

use crate::setup::{Cut, Setup, route_of};
use agenda::{Agenda, LaneIndex, What};
use chance::Chance;
use fabric::{Fabric, Flight};
use far::Far;
use ledger::Ledger;
use worker::{SharedMemory, Worker, WorkerMemory};

const LOCAL: SegmentRef = SegmentRef(1);
const REMOTE: SegmentRef = SegmentRef(2);
const SCRATCH: SegmentRef = SegmentRef(3);
/// How long a lane takes to be let go of on this side.
const LET_GO_NS: u64 = 1_000;
/// Submitters start within this of each other.
const START_SPREAD_NS: u64 = 10_000;
/// A run without a report for so long is given up; what is missing counts as lost.
const STUCK_NS: u64 = 20_000_000_000;
/// After the last report the world goes on for this long, to see whether anything lands late.
const AFTERMATH_NS: u64 = 1_000_000;
/// The width of a bucket of [`History::buckets`].
pub(crate) const BUCKET_NS: u64 = 1_000_000;
/// How many events pass between two signs of progress.
const PROGRESS_EVENTS: u64 = 1 << 16;
/// The stream of the order of workers and of starts.
const ORDER_STREAM: u64 = 0;

/// How a history is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How rails are chosen.
    pub policy: Policy,
    /// Whether core checks all its invariants at every step. Slow.
    pub audit: bool,
    /// Whether peers answer fences without keeping them. A test's switch: a simulator that does not notice
    /// would be of no use.
    pub ignore_fences: bool,
}

impl Options {
    /// As usual, with this policy.
    pub const fn new(policy: Policy) -> Self {
        Self {
            policy,
            audit: false,
            ignore_fences: false,
        }
    }
}

/// What one submitter did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) batches: u64,
    pub(crate) bytes: u64,
}

/// What happened in a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Each batch's time from submission to observed end.
    pub(crate) batch_ns: Vec<u64>,
    pub(crate) requests: u64,
    pub(crate) failed_requests: u64,
    pub(crate) violations: u64,
    pub(crate) first_violation: Option<String>,
    /// By submitter.
    pub(crate) done: Vec<Done>,
    /// First submission and last report.
    pub(crate) began_at: u64,
    pub(crate) ended_at: u64,
    /// Bytes acknowledged in each millisecond, by rail.
    pub(crate) buckets: Vec<Vec<u64>>,
    /// Bytes acknowledged, by rail.
    pub(crate) rail_bytes: Vec<u64>,
    /// When which rail went to which state.
    pub(crate) rail_states: Vec<(u64, usize, RailState)>,
    /// Slices that carried user bytes.
    pub(crate) slices: u64,
}

/// One lane, as the near side knows it.
struct NearLane {
    worker: u32,
    id: LaneId,
    /// The rail, of all.
    rail: u32,
    /// The newest epoch.
    epoch: u32,
    /// Completions of this epoch and older ones are not seen any more.
    let_go: u32,
    /// Slices arrive in order.
    arrives_at: u64,
}

/// One closed loop.
#[derive(Clone, Copy, Default)]
struct Loop {
    submitted_at: u64,
    active: bool,
}

struct World<'a> {
    setup: &'a Setup,
    options: Options,
    now: u64,
    agenda: Agenda,
    order: Chance,
    fabric: Fabric,
    far: Far,
    ledger: Ledger,
    shared: &'a [Shared<'a>],
    workers: Vec<Worker<'a>>,
    lanes: Vec<NearLane>,
    /// The first lane of each worker.
    first_lane: Vec<u32>,
    /// By rail: how it is cut, and what is stuck on it.
    cuts: Vec<Cut>,
    stuck: Vec<Vec<u32>>,
    loops: Vec<Loop>,
    active: usize,
    /// Bytes of the control plane: engine, its peer, the frame.
    letters: Vec<(u32, u32, Vec<u8>)>,
    last_report_at: u64,
    history: History,
}

/// Runs one history. `progress` is told now and then how much of the expected time has passed, in nanoseconds
/// of how many.
pub(crate) fn run(setup: &Setup, options: Options, progress: &mut dyn FnMut(u64, u64)) -> History {
    let workers_each = usize::from(*setup.engine.workers.get_ref());
    let memory: Vec<_> = setup
        .engines
        .iter()
        .map(|engine| SharedMemory::new(engine.rails.len(), setup.devices.len(), workers_each))
        .collect();
    let shared: Vec<_> = memory
        .iter()
        .map(|memory| memory.shared(SLICE_BYTES))
        .collect();
    let mut tables: Vec<_> = (0..setup.workers())
        .map(|worker| worker_memory(setup, worker))
        .collect();
    for (engine, shared) in setup.engines.iter().zip(&shared) {
        install(setup, engine, shared);
    }
    let workers = tables.iter_mut().enumerate().map(|(index, memory)| {
        let engine = index / workers_each;
        let config = Config::new((index % workers_each) as u16, options.policy);
        Worker::new(config, engine, &shared[engine], memory)
    });
    let mut world = World::new(setup, options, &shared, workers.collect());
    world.begin();
    world.go_on(progress);
    world.end()
}

fn worker_memory(setup: &Setup, worker: usize) -> WorkerMemory {
    let engine = &setup.engines[worker / usize::from(*setup.engine.workers.get_ref())];
    let own = || {
        setup
            .submitters
            .iter()
            .filter(|submitter| submitter.worker == worker)
    };
    let requests = own().map(|submitter| submitter.batch as usize).sum();
    WorkerMemory::new(
        setup.plans.len(),
        engine.peers.len(),
        engine.rails.len(),
        requests,
        own().count(),
    )
}

/// Tells what an engine's workers share of its devices and rails, as wrongly as the scenario wants.
fn install(setup: &Setup, engine: &crate::setup::Engine, shared: &Shared<'_>) {
    let believed = |bytes_per_sec: u64, delay_ns: u64| EstimateConfig {
        rate_nominal: Rate::from_bytes_per_sec(
            (bytes_per_sec as f64 * setup.engine.believed_rate_factor) as u64,
        ),
        delay_base: Duration::from_nanos(
            (delay_ns as f64 * setup.engine.believed_delay_factor) as u64,
        ),
        tier: 0,
    };
    for (number, rail) in engine.rails.iter().copied().enumerate() {
        let device = setup.rails[rail].from;
        let row = &setup.devices[device];
        shared.install_device(
            DeviceId(device as u16),
            believed(row.bytes_per_sec, row.delay_ns),
        );
        let peer = PeerId(engine.rail_peers[number]);
        let tier = setup
            .plans
            .iter()
            .flat_map(|plan| &plan.rails)
            .find(|row| usize::from(row.0) == number);
        let estimate = EstimateConfig {
            tier: tier.map_or(0, |row| row.1),
            ..believed(setup.nominal(rail), setup.delay_ns(rail))
        };
        shared.install_rail(
            RailId(number as u16),
            RailConfig {
                peer,
                device: DeviceId(device as u16),
                estimate,
            },
        );
    }
}

impl<'a> World<'a> {
    fn new(
        setup: &'a Setup,
        options: Options,
        shared: &'a [Shared<'a>],
        workers: Vec<Worker<'a>>,
    ) -> Self {
        let mut lanes = Vec::new();
        let mut first_lane = Vec::new();
        for (index, worker) in workers.iter().enumerate() {
            let engine = &setup.engines[worker.engine];
            first_lane.push(lanes.len() as u32);
            for (number, rail) in engine.rails.iter().enumerate() {
                let id = LaneId::new((index - engine.first_worker) as u16, RailId(number as u16));
                lanes.push(NearLane {
                    worker: index as u32,
                    id,
                    rail: *rail as u32,
                    epoch: 0,
                    let_go: 0,
                    arrives_at: 0,
                });
            }
        }
        let rails = setup.rails.len();
        Self {
            setup,
            options,
            now: 0,
            agenda: Agenda::default(),
            order: Chance::new(setup.seed, ORDER_STREAM),
            fabric: Fabric::new(
                &setup.jitters,
                setup.routes.clone(),
                rails,
                setup.jitter,
                setup.seed,
            ),
            far: Far::new(lanes.len(), options.ignore_fences),
            ledger: Ledger::default(),
            shared,
            workers,
            lanes,
            first_lane,
            cuts: vec![Cut::No; rails],
            stuck: vec![Vec::new(); rails],
            loops: vec![Loop::default(); setup.submitters.len()],
            active: setup.submitters.len(),
            letters: Vec::new(),
            last_report_at: 0,
            history: History {
                began_at: u64::MAX,
                done: vec![Done::default(); setup.submitters.len()],
                rail_bytes: vec![0; rails],
                ..History::default()
            },
        }
    }

    /// Plans are installed, and what is known of the future is entered.
    fn begin(&mut self) {
        for (index, plan) in self.setup.plans.iter().enumerate() {
            let engine = &self.setup.engines[plan.engine];
            let place = |segment| Place { segment, offset: 0 };
            let core_plan = Plan {
                peer: PeerId(plan.peer),
                local: LOCAL,
                remote: REMOTE,
                rails: plan
                    .rails
                    .iter()
                    .map(|(rail, tier)| PlanRail {
                        rail: RailId(*rail),
                        tier: *tier,
                    })
                    .collect(),
                scratch_local: place(SCRATCH),
                scratch_remote: place(SCRATCH),
                scratch_bytes: SLICE_BYTES,
            };
            let workers = usize::from(*self.setup.engine.workers.get_ref());
            for worker in &mut self.workers[engine.first_worker..engine.first_worker + workers] {
                worker
                    .core
                    .install_plan(Instant::ZERO, plan_id(index as u32), &core_plan);
            }
        }
        for index in 0..self.setup.intervals.len() {
            let at = self.setup.intervals[index].starts_at;
            self.agenda.enter(
                at,
                What::Change {
                    interval: index as u32,
                },
            );
        }
        for (index, engine) in self.setup.engines.iter().enumerate() {
            for peer in 0..engine.peers.len() {
                let at = self
                    .order
                    .below(self.setup.timing.heartbeat_ms.max(1) * 1_000_000);
                self.agenda.enter(
                    at,
                    What::Heartbeat {
                        engine: index as u32,
                        peer: peer as u32,
                    },
                );
            }
        }
        for (index, submitter) in self.setup.submitters.iter().enumerate() {
            let at = submitter.starts_at + self.order.below(START_SPREAD_NS);
            self.agenda.enter(
                at,
                What::Starts {
                    submitter: index as u32,
                },
            );
        }
    }

    fn go_on(&mut self, progress: &mut dyn FnMut(u64, u64)) {
        let last_change = self
            .setup
            .intervals
            .last()
            .map_or(0, |interval| interval.starts_at);
        let mut events = 0_u64;
        while let Some((at, what)) = self.agenda.next() {
            self.now = at;
            self.happens(what);
            events += 1;
            if events.is_multiple_of(PROGRESS_EVENTS) {
                progress(at.min(self.setup.ends_at), self.setup.ends_at);
            }
            let over = self.active == 0 && at > self.last_report_at.max(last_change) + AFTERMATH_NS;
            if over || at > self.last_report_at.max(last_change) + STUCK_NS {
                break;
            }
        }
    }

    fn end(mut self) -> History {
        for (engine, shared) in self.setup.engines.iter().zip(self.shared) {
            for (number, rail) in engine.rails.iter().enumerate() {
                let view = shared.view(RailId(number as u16));
                self.history.rail_bytes[*rail] += view.map_or(0, |view| view.done_bytes);
            }
        }
        let (violations, first) = self.ledger.close(self.now);
        self.history.violations = violations;
        self.history.first_violation = first;
        self.history.began_at = self.history.began_at.min(self.last_report_at);
        self.history.ended_at = self.last_report_at;
        self.history
    }

    fn happens(&mut self, what: What) {
        let now = self.now;
        match what {
            What::Served { server, generation } => {
                if let Some((flight, travels_ns)) =
                    self.fabric
                        .served(&mut self.agenda, now, server, generation)
                {
                    self.departs(flight, travels_ns);
                }
            }
            What::Arrives { flight } => self.arrives(flight),
            What::Step { worker } => self.step(worker),
            What::Timer { worker } => self.timer(worker),
            What::Opens { lane, epoch } => self.opens(lane, epoch),
            What::LetGo { lane, epoch } => {
                self.fact(
                    lane,
                    epoch,
                    LaneFact::Fenced {
                        scope: Scope::Local,
                        delivered: None,
                    },
                );
            }
            What::Errors { lane, epoch } => self.errors(lane, epoch),
            What::LetterFar { letter } => {
                let at = now + self.setup.timing.fence_us * 1_000;
                self.agenda.enter(at, What::Answer { letter });
            }
            What::Answer { letter } => self.answer(letter),
            What::LetterNear { letter } => self.letter_near(letter),
            What::Heartbeat { engine, peer } => self.heartbeat(engine, peer),
            What::Change { interval } => self.change(interval as usize),
            What::Starts { submitter } => {
                self.loops[submitter as usize].active = true;
                self.submit_next(submitter, now);
            }
        }
    }
}

/// What slices do on their way.
impl World<'_> {
    /// A slice has passed all servers.
    fn departs(&mut self, index: u32, travels_ns: u64) {
        let Some(lane) = self.fabric.flight(index).map(|flight| flight.lane) else {
            return;
        };
        let row = &mut self.lanes[lane as usize];
        row.arrives_at = row.arrives_at.max(self.now + travels_ns);
        self.agenda
            .enter(row.arrives_at, What::Arrives { flight: index });
    }

    fn arrives(&mut self, index: u32) {
        let Some(flight) = self.fabric.flight(index) else {
            return;
        };
        let rail = self.fabric.rail_of(flight) as usize;
        if self.cuts[rail] != Cut::No {
            self.stuck[rail].push(index);
            return;
        }
        let Some(flight) = self.fabric.land(index) else {
            return;
        };
        let now = self.now;
        let row = &self.lanes[flight.lane as usize];
        let let_go = row.let_go >= flight.epoch;
        let lands = self.far.lands(flight.lane, flight.epoch) && !(flight.op == Op::Read && let_go);
        if !lands {
            return;
        }
        if let Some(offset) = flight.offset {
            self.ledger.arrived(now, offset, u64::from(flight.length));
        }
        if let_go {
            return;
        }
        if flight.offset.is_some() {
            self.history.slices += 1;
            let bucket = (now / BUCKET_NS) as usize;
            if self.history.buckets.len() <= bucket {
                self.history
                    .buckets
                    .resize(bucket + 1, vec![0; self.cuts.len()]);
            }
            self.history.buckets[bucket][rail] += u64::from(flight.length);
        }
        self.completion(&flight, Outcome::Success);
    }

    fn completion(&mut self, flight: &Flight, outcome: Outcome) {
        let (worker, lane) = {
            let row = &self.lanes[flight.lane as usize];
            (row.worker, row.id)
        };
        let at = Instant::from_nanos(self.now);
        let completion = Completion {
            lane,
            epoch: Epoch(flight.epoch),
            cookie: flight.cookie,
            at,
            outcome,
        };
        self.workers[worker as usize]
            .inbox
            .completions
            .push(completion);
        self.wake(worker, self.now);
    }

    /// The near side's device gives up what it has posted on a lane of a rail that is cut.
    fn errors(&mut self, lane: LaneIndex, epoch: u32) {
        let row = &mut self.lanes[lane as usize];
        if row.let_go >= epoch {
            return;
        }
        let mut flights: Vec<Flight> = self.fabric.on_lane(lane, epoch).copied().collect();
        if flights.is_empty() {
            return;
        }
        row.let_go = epoch;
        flights.sort_unstable_by_key(|flight| flight.number);
        for (index, flight) in flights.iter().enumerate() {
            let cause = if index == 0 {
                Cause::RetryExceeded
            } else {
                Cause::Flushed
            };
            self.completion(flight, Outcome::Error(cause));
        }
    }

    /// The fabric changes.
    fn change(&mut self, index: usize) {
        let interval = &self.setup.intervals[index];
        for (server, rate) in interval.bytes_per_sec.iter().enumerate() {
            self.fabric
                .set_rate(&mut self.agenda, self.now, server, *rate);
        }
        for rail in 0..interval.cuts.len() {
            let (before, cut) = (self.cuts[rail], interval.cuts[rail]);
            self.cuts[rail] = cut;
            if cut == Cut::Error && before != cut {
                self.fail_lanes(rail);
            }
            if cut == Cut::No && before != cut {
                let travels_ns = self.setup.delay_ns(rail);
                for flight in std::mem::take(&mut self.stuck[rail]) {
                    self.departs(flight, travels_ns);
                }
            }
        }
    }

    /// All lanes of a rail will see errors.
    fn fail_lanes(&mut self, rail: usize) {
        let at = self.now + self.setup.timing.error_us * 1_000;
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].rail as usize == rail {
                let epoch = self.lanes[lane].epoch;
                self.agenda.enter(
                    at,
                    What::Errors {
                        lane: lane as u32,
                        epoch,
                    },
                );
            }
        }
    }
}

/// What workers do.
impl World<'_> {
    /// Makes a worker look as soon as it can.
    fn wake(&mut self, index: u32, at: u64) {
        let poll_ns = self.setup.engine.poll_us * 1_000;
        let worker = &mut self.workers[index as usize];
        let mut at = at.max(worker.busy_until);
        if poll_ns > 0 && !worker.draining {
            at = at.next_multiple_of(poll_ns);
        }
        if worker.step_at.is_none_or(|step_at| at < step_at) {
            worker.step_at = Some(at);
            let ticket = self.order.below(u64::from(u8::MAX)) as u8 + 1;
            self.agenda
                .enter_by_lot(at, What::Step { worker: index }, ticket);
        }
    }

    fn timer(&mut self, index: u32) {
        let worker = &mut self.workers[index as usize];
        if worker.timer_at != Some(self.now) {
            return;
        }
        worker.timer_at = None;
        worker.inbox.timer = true;
        self.wake(index, self.now);
    }

    /// A worker takes in what came, or goes on handing out what core wants posted.
    fn step(&mut self, index: u32) {
        let worker = &mut self.workers[index as usize];
        if worker.step_at != Some(self.now) {
            return;
        }
        worker.step_at = None;
        let now = if worker.draining {
            self.now
        } else {
            self.take_in(index)
        };
        let worker = &mut self.workers[index as usize];
        worker.draining = true;
        match worker
            .core
            .poll_post(Instant::from_nanos(now), &mut worker.postings)
        {
            Some(lane) => self.post(index, lane, now),
            None => self.rest(index, now),
        }
        if self.options.audit
            && let Err(violation) = self.workers[index as usize].core.audit()
        {
            self.ledger.violation(self.now, violation.to_string());
        }
        if self.workers[index as usize].has_news() {
            self.wake(index, self.now);
        }
    }

    /// Hands in what came. Until when that keeps the worker busy.
    fn take_in(&mut self, index: u32) -> u64 {
        let at = Instant::from_nanos(self.now);
        let worker = &mut self.workers[index as usize];
        let inbox = &mut worker.inbox;
        let cost_ns = inbox.completions.len() as u64 * self.setup.engine.completion_ns;
        for completion in &mut inbox.completions {
            completion.at = at;
        }
        worker.core.handle_completions(at, &inbox.completions);
        inbox.completions.clear();
        for (lane, epoch, fact) in inbox.lanes.drain(..) {
            worker.core.handle_lane(at, lane, epoch, fact);
        }
        for (peer, frame) in inbox.frames.drain(..) {
            worker.core.handle_frame(at, peer, &frame);
        }
        if std::mem::take(&mut inbox.woken) {
            worker.core.handle_wake();
        }
        inbox.timer = false;
        let submitters = std::mem::take(&mut inbox.submitters);
        for submitter in &submitters {
            self.submit(index, *submitter);
        }
        self.workers[index as usize].core.handle_timeout(at);
        self.now + cost_ns
    }

    /// Posts what core has handed out.
    fn post(&mut self, index: u32, id: LaneId, now: u64) {
        let worker = &mut self.workers[index as usize];
        let lane = self.first_lane[index as usize] + u32::from(id.rail().0);
        let rail = self.lanes[lane as usize].rail as usize;
        let epoch = worker.postings.epoch;
        let mut at = now;
        for work in &worker.postings.works {
            at += self.setup.engine.post_ns;
            let route = route_of(rail, work.op == Op::Read) as u32;
            let offset = (work.remote.segment == REMOTE).then_some(work.remote.offset);
            self.fabric.launch(
                &mut self.agenda,
                at,
                Flight::new(lane, epoch.0, route, work, offset),
            );
        }
        let count = worker.postings.works.len();
        worker
            .core
            .handle_posted(Instant::from_nanos(at), id, epoch, count, Stop::All);
        worker.busy_until = at;
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
        while let Some(action) = self.workers[index as usize].core.poll_lane() {
            self.act(index, action);
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
        }
        while let Some(event) = self.workers[index as usize].core.poll_event() {
            self.event(index, event, now);
        }
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

    fn act(&mut self, index: u32, action: LaneAction) {
        let at = self.now;
        let first = self.first_lane[index as usize];
        match action {
            LaneAction::Open { lane, epoch, .. } => {
                let lane = first + u32::from(lane.rail().0);
                self.lanes[lane as usize].epoch = epoch.0;
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
                let row = &mut self.lanes[lane as usize];
                row.let_go = row.let_go.max(epoch.0);
                self.agenda.enter(
                    at + LET_GO_NS,
                    What::LetGo {
                        lane,
                        epoch: epoch.0,
                    },
                );
            }
            // The other fact comes by a frame; nothing is posted on a lane that is closed.
            LaneAction::Fence {
                scope: Scope::Remote,
                ..
            }
            | LaneAction::Close { .. } => {}
        }
    }

    fn event(&mut self, index: u32, event: Event, now: u64) {
        let worker = &mut self.workers[index as usize];
        let engine = &self.setup.engines[worker.engine];
        match event {
            Event::RequestDone { request, tag } => {
                if let Some(report) = worker.core.take(request) {
                    self.ledger.reported(now, tag, &report);
                    self.history.requests += 1;
                    self.history.failed_requests += u64::from(report.status != Status::Completed);
                    self.last_report_at = self.last_report_at.max(now);
                }
            }
            Event::BatchDone { batch, tag } => {
                if worker.core.take_batch(batch).is_some() {
                    self.batch_done(tag as u32, now);
                }
            }
            Event::Settled { tag } => self.ledger.settled(tag),
            Event::RailChanged { rail, state, .. } => {
                let rail = engine.rails[rail.index()];
                self.history.rail_states.push((now, rail, state));
            }
            Event::PeerChanged { .. } => {}
            Event::WakeWorker { worker } => {
                let other = engine.first_worker + usize::from(worker);
                self.workers[other].inbox.woken = true;
                self.wake(other as u32, now);
            }
        }
    }
}

/// What submitters do.
impl World<'_> {
    /// A submitter has its next batch ready, or stops.
    fn submit_next(&mut self, index: u32, now: u64) {
        let submitter = &self.setup.submitters[index as usize];
        let done = self.history.done[index as usize].batches;
        let more = submitter.count.is_none_or(|count| done < count) && now < submitter.stops_at;
        let row = &mut self.loops[index as usize];
        if !more {
            if std::mem::take(&mut row.active) {
                self.active -= 1;
            }
            return;
        }
        row.submitted_at = now;
        self.history.began_at = self.history.began_at.min(now);
        self.last_report_at = self.last_report_at.max(now);
        let worker = submitter.worker;
        self.workers[worker].inbox.submitters.push(index);
        self.wake(worker as u32, now);
    }

    /// A worker takes a submitter's batch.
    fn submit(&mut self, worker: u32, index: u32) {
        let submitter = &self.setup.submitters[index as usize];
        let core = &mut self.workers[worker as usize].core;
        let Some(batch) = core.open_batch(u64::from(index)) else {
            return self
                .ledger
                .violation(self.now, "no row for a batch".to_owned());
        };
        for _ in 0..submitter.batch {
            let number = self.ledger.submitted(submitter.op, submitter.block);
            let offset = Ledger::offset(number);
            let request = Request {
                tag: number,
                plan: plan_id(submitter.plan),
                batch,
                local_offset: offset,
                remote_offset: offset,
                length: submitter.block,
                deadline: Instant::MAX,
                op: submitter.op,
            };
            // One that is refused is never reported, and counts as lost in the end.
            let _ = core.submit(Instant::from_nanos(self.now), &request);
        }
        core.seal_batch(batch);
    }

    fn batch_done(&mut self, index: u32, now: u64) {
        let submitter = &self.setup.submitters[index as usize];
        let submitted_at = self.loops[index as usize].submitted_at;
        self.history.batch_ns.push(now - submitted_at);
        let done = &mut self.history.done[index as usize];
        done.batches += 1;
        done.bytes += submitter.block * u64::from(submitter.batch);
        self.submit_next(index, now);
    }
}

/// What the control plane and lanes do.
impl World<'_> {
    fn opens(&mut self, lane: LaneIndex, epoch: u32) {
        let rail = self.lanes[lane as usize].rail as usize;
        match self.cuts[rail] {
            // Nobody answers; the deadline ends it.
            Cut::Silent => {}
            Cut::Error => self.fact(lane, epoch, LaneFact::OpenFailed(Cause::Refused)),
            Cut::No => {
                let works_max = self.setup.devices[self.setup.rails[rail].from].queue_depth;
                let limits = LaneLimits {
                    works_max,
                    work_bytes_max: u32::MAX,
                };
                self.fact(lane, epoch, LaneFact::Opened { limits });
            }
        }
    }

    fn fact(&mut self, lane: LaneIndex, epoch: u32, fact: LaneFact) {
        let (worker, id) = {
            let row = &self.lanes[lane as usize];
            (row.worker, row.id)
        };
        self.workers[worker as usize]
            .inbox
            .lanes
            .push((id, Epoch(epoch), fact));
        self.wake(worker, self.now);
    }

    /// Sends bytes between an engine and a peer, over whichever rail still works; none does: they are lost.
    fn send(&mut self, engine: u32, peer: u32, frame: &Letter, arrives: fn(u32) -> What) {
        let row = &self.setup.engines[engine as usize];
        let mut rails = row.rails.iter().zip(&row.rail_peers);
        if rails.any(|(rail, to)| u32::from(*to) == peer && self.cuts[*rail] == Cut::No) {
            self.letters.push((engine, peer, far::encode(frame)));
            let at = self.now + self.setup.timing.control_us * 1_000;
            self.agenda
                .enter(at, arrives(self.letters.len() as u32 - 1));
        }
    }

    /// A peer has carried out what it was asked for.
    fn answer(&mut self, letter: u32) {
        let (engine, peer, bytes) = std::mem::take(&mut self.letters[letter as usize]);
        for frame in far::decode(&bytes) {
            let Letter::Fence { lane, epoch } = frame else {
                continue;
            };
            let id = LaneId(lane);
            let worker =
                self.setup.engines[engine as usize].first_worker + usize::from(id.worker());
            let index = self.first_lane[worker] + u32::from(id.rail().0);
            let delivered = self.far.fence(index, epoch);
            let fenced = Letter::Fenced {
                lane,
                epoch,
                delivered,
            };
            self.send(engine, peer, &fenced, |letter| What::LetterNear { letter });
        }
    }

    fn letter_near(&mut self, letter: u32) {
        let (engine, peer, bytes) = std::mem::take(&mut self.letters[letter as usize]);
        let first = self.setup.engines[engine as usize].first_worker;
        for frame in far::decode(&bytes).iter().filter_map(far::to_core) {
            let workers = match frame {
                Frame::Alive => first..first + usize::from(*self.setup.engine.workers.get_ref()),
                Frame::Fenced { lane, .. } => {
                    let worker = first + usize::from(lane.worker());
                    worker..worker + 1
                }
            };
            for worker in workers {
                self.workers[worker]
                    .inbox
                    .frames
                    .push((PeerId(peer as u16), frame));
                self.wake(worker as u32, self.now);
            }
        }
    }

    fn heartbeat(&mut self, engine: u32, peer: u32) {
        self.send(engine, peer, &Letter::Heartbeat, |letter| {
            What::LetterNear { letter }
        });
        let at = self.now + self.setup.timing.heartbeat_ms.max(1) * 1_000_000;
        self.agenda.enter(at, What::Heartbeat { engine, peer });
    }
}

fn plan_id(index: u32) -> PlanId {
    PlanId {
        index,
        generation: 1,
    }
}
