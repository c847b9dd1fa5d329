//! The simulated world: a fabric, engines with their workers, peers, and submitters in closed loops.
//!
//! Discrete events in integer nanoseconds from one seed. Each worker is a serial processor that follows the
//! contract of [`polyrail_core::orchestrator::Orchestrator`] as the engine's worker does: a post and a
//! completion cost it time, completions are stamped when it looks, and workers of equal time go in an order
//! that is drawn. Frames between engine and peer pass the control codec. A slice on a rail that is cut stays
//! on its way; when the rail is restored it arrives, unless its lane's epoch has been fenced meanwhile.

pub(crate) mod agenda;
mod agents;
pub(crate) mod chance;
mod checks;
mod chosen;
mod control;
mod drive;
mod endings;
mod engines;
pub(crate) mod fabric;
mod far;
mod hosts;
pub(crate) mod ledger;
mod lies;
mod luck;
mod paths;
mod rest;
mod room;
mod split;
mod submit;
mod traced;
mod travel;
mod worker;

use std::collections::{BTreeMap, VecDeque};

use polyrail_core::batch::BatchReport;
use polyrail_core::rail::Shared;
use polyrail_core::rail::health::RailState;
use polyrail_core::rail::select::Policy;
use polyrail_core::report::Status;
use polyrail_core::send_queue::credit::Credits;
use polyrail_core::time::Instant;
use polyrail_core::units::{BatchId, LaneId, RailId};
use polyrail_core::work::{LaneFact, Scope};

use crate::OwnPolicy;
use crate::setup::{Cut, Setup};
use crate::split::SplitPolicy;
use agenda::{Agenda, LaneIndex, What};
use agents::Agents;
use chance::Chance;
use checks::SpareSeen;
use endings::{Behind, Gone, Told};
use engines::{config, install, worker_memory};
use fabric::{Fabric, Flight};
use far::Far;
use hosts::Session;
use ledger::Ledger;
use luck::Luck;
use paths::Paths;
pub(crate) use rest::Failure;
use room::Rooms;
pub(crate) use room::Seen;
use split::Split;
pub(crate) use traced::{Span, Traced};
use worker::Worker;
pub(crate) use worker::{Core, SharedMemory, WorkerMemory};

/// How long a lane takes to be let go of on this side.
const LET_GO_NS: u64 = 1_000;
/// Submitters start within this of each other.
const START_SPREAD_NS: u64 = 10_000;
/// A run without a report for so long is given up; what is missing counts as lost. A large request over a rail that
/// core takes for a hundredth of what it is may take minutes.
const STUCK_NS: u64 = 1_000_000_000_000;
/// After the last report the world goes on for this long, to see whether anything lands late.
const AFTERMATH_NS: u64 = 1_000_000;
/// How many events pass between two signs of progress.
const PROGRESS_EVENTS: u64 = 1 << 16;
/// The stream of the order of workers and of starts.
const ORDER_STREAM: u64 = 0;

/// How a history is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How rails are chosen.
    pub policy: Policy,
    /// Programs choose rails by themselves, which leaves `policy` nothing to choose.
    pub split: Option<SplitPolicy>,
    /// Whether it is watched how full queues are, as [`crate::posting`] tells. Slow.
    pub watches_queues: bool,
    /// Whether core checks all its invariants at every step. Slow.
    pub audit: bool,
    /// Whether what does not come right in the end counts as a violation: requests that fail with a way open,
    /// rails that stay paused, room that is not given back.
    pub strict: bool,
    /// A run of more events than this does not end, which is a violation.
    pub events_max: u64,
    /// Whether peers answer fences without keeping them. A test's switch: a simulator that does not notice
    /// would be of no use.
    pub ignore_fences: bool,
    /// So many slices, from the first on, are kept one by one for [`crate::picture::trace`].
    pub traced_slices_max: usize,
}

impl Options {
    /// As usual, with this policy.
    pub const fn new(policy: Policy) -> Self {
        Self {
            policy,
            split: None,
            watches_queues: false,
            audit: false,
            strict: false,
            events_max: u64::MAX,
            ignore_fences: false,
            traced_slices_max: 0,
        }
    }

    /// As usual, with what has this name: a policy of core, or a split policy.
    pub fn named(name: &str) -> Option<Self> {
        // Each request names one rail: core has nothing to choose.
        let of_split = |split| Self {
            split: Some(split),
            ..Self::new(Policy::Spray)
        };
        let policy = crate::policy(name).map(Self::new);
        policy.or_else(|| SplitPolicy::of(name).map(of_split))
    }

    /// The name of what chooses rails.
    pub const fn name(&self) -> &'static str {
        match self.split {
            Some(split) => split.name(),
            None => self.policy.name(),
        }
    }
}

/// What one submitter did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) batches: u64,
    /// Delivered, also by batches that failed.
    pub(crate) bytes: u64,
    /// Those of requests that completed.
    pub(crate) good_bytes: u64,
    /// Requests that did not complete.
    pub(crate) failed_requests: u64,
    /// Time between the end of a batch and the next one.
    pub(crate) paused_ns: u64,
}

/// What happened in a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Each batch's time from submission to observed end,
    pub(crate) batch_ns: Vec<u64>,
    /// and whose it was.
    pub(crate) batch_of: Vec<u32>,
    pub(crate) requests: u64,
    pub(crate) failed_requests: u64,
    pub(crate) violations: u64,
    pub(crate) first_violation: Option<String>,
    /// Requests that did not complete.
    pub(crate) failures: Vec<Failure>,
    /// By submitter.
    pub(crate) done: Vec<Done>,
    /// Spans in which no submitter had work, in order, the one before the first submission first.
    pub(crate) idle: Vec<(u64, u64)>,
    /// First submission and last report.
    pub(crate) began_at: u64,
    pub(crate) ended_at: u64,
    /// Bytes acknowledged in each span of [`Setup::bucket_ns`], by rail.
    pub(crate) buckets: Vec<Vec<u64>>,
    /// Bytes acknowledged, by rail.
    pub(crate) rail_bytes: Vec<u64>,
    /// When which rail went to which state.
    pub(crate) rail_states: Vec<(u64, usize, RailState)>,
    /// Slices that carried user bytes.
    pub(crate) slices: u64,
    /// Slices and batches one by one, as far as that was asked for.
    pub(crate) traced: Traced,
    /// How full queues were, if that was watched.
    pub(crate) queues: Seen,
}

/// A work that was handed out and whose end its worker does not know.
#[derive(Clone, Copy, Debug)]
struct OpenWork {
    cookie: u64,
    signal: bool,
    read: bool,
    /// It carries bytes of a program.
    user: bool,
}

/// One lane, as the near side knows it.
struct NearLane {
    worker: u32,
    id: LaneId,
    /// The rail, of all.
    rail: u32,
    /// The newest epoch, and works posted of it.
    epoch: u32,
    posted: u32,
    /// Works that core takes for open.
    open_works: Vec<OpenWork>,
    /// On a lane whose completions cover others: those of its epoch in order, and what waits for its turn.
    completed: u32,
    overtook: BTreeMap<u32, Flight>,
    /// Completions of this epoch and older ones are not seen any more.
    let_go: u32,
    /// Its worker was told that this side has let go of this epoch, and that the peer has ended it.
    released: u32,
    answered: u32,
    /// Its worker has asked for it, and was not told what became of that; or has asked for its fence.
    opening: bool,
    fencing: bool,
    /// User bytes of this epoch are known to have arrived, before any of its works failed.
    carried: bool,
    failed: bool,
    /// It was opened to probe a paused rail.
    probes: bool,
    /// When it has opened since anything has arrived over it, and how often it has ended in a row without that its worker was
    /// told that anything has.
    opened: VecDeque<u64>,
    ended: u32,
    is_open: bool,
    /// Slices arrive in order.
    arrives_at: u64,
}

/// One closed loop.
#[derive(Clone, Copy)]
struct Loop {
    submitted_at: u64,
    /// When the last of its batch had room, and when its worker took that.
    admitted_at: u64,
    taken_at: u64,
    /// Requests of its batch, and the batch in core, while more of them may come.
    requests: u32,
    open: Option<BatchId>,
    /// Where those that lie in a row begin.
    first_offset: Option<u64>,
    active: bool,
    /// Its present batch, as its requests' reports say.
    batch: BatchReport,
    /// It has a batch out, or waits to try again; not: it pauses, has not begun, or is done.
    has_work: bool,
    /// Some of that batch was not taken, or failed by no doing of the program.
    unserved: bool,
    /// How many batches in a row were so.
    unserved_batches: u32,
}

impl Loop {
    const IDLE: Self = Self {
        submitted_at: 0,
        admitted_at: 0,
        taken_at: 0,
        requests: 0,
        open: None,
        first_offset: None,
        active: false,
        has_work: false,
        batch: BatchReport {
            status: Status::Pending,
            requests: 0,
            ended: 0,
            failed: 0,
            delivered_bytes: 0,
        },
        unserved: false,
        unserved_batches: 0,
    };

    /// So many more of its batch were taken; `last`: no more will be.
    fn took(&mut self, taken: u32, last: bool) {
        self.batch.requests += taken;
        self.unserved = last && self.batch.requests < self.requests;
    }
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
    luck: Luck<'a>,
    /// By host: how many faults cut its control plane off.
    muted: Vec<u32>,
    paths: Paths,
    agents: Agents,
    /// By worker and peer: which classes bytes took.
    splits: Vec<Vec<Split>>,
    /// By engine and peer.
    sessions: Vec<Vec<Session>>,
    /// By engine and peer: what is gone for good in the end; whether anything is.
    gone: Vec<Vec<Gone>>,
    is_ending: bool,
    /// By worker and peer.
    told: Vec<Vec<Told>>,
    /// By engine and its rail, if that is a spare.
    spares: Vec<Vec<SpareSeen>>,
    /// By rail: how it is cut, and what is stuck on it.
    cuts: Vec<Cut>,
    stuck: Vec<Vec<u32>>,
    loops: Vec<Loop>,
    /// By submitter: how long its batches may take, if that is limited.
    patience_ns: Vec<Option<u64>>,
    active: usize,
    /// Loops that have work, and since when none has.
    with_work: usize,
    idle_since: u64,
    /// Bytes of the control plane: engine, its peer, the frame.
    letters: Vec<(u32, u32, Vec<u8>)>,
    rooms: Rooms<'a>,
    /// Reports of this step that said less than was known.
    behind: Vec<Behind>,
    last_report_at: u64,
    history: History,
}

/// Runs one history. `progress` is told now and then how much of the expected time has passed, in nanoseconds
/// of how many. `own` chooses rails in the place of the options' policy.
pub(crate) fn run(
    setup: &Setup,
    options: Options,
    own: Option<OwnPolicy<'_>>,
    progress: &mut dyn FnMut(u64, u64),
) -> History {
    match options.split {
        Some(_) => run_in(&setup.split_by_lane(), options, own, progress),
        None => run_in(setup, options, own, progress),
    }
}

fn run_in(
    setup: &Setup,
    options: Options,
    own: Option<OwnPolicy<'_>>,
    progress: &mut dyn FnMut(u64, u64),
) -> History {
    let workers_each = usize::from(*setup.engine.workers.get_ref());
    let memory: Vec<_> = setup
        .engines
        .iter()
        .map(|engine| SharedMemory::new(engine.rails.len(), setup.devices.len(), workers_each))
        .collect();
    let shared: Vec<_> = memory
        .iter()
        .map(|memory| memory.shared(setup.limits.slice_bytes))
        .collect();
    let mut tables: Vec<_> = (0..setup.workers())
        .map(|worker| worker_memory(setup, worker))
        .collect();
    for (engine, shared) in setup.engines.iter().zip(&shared) {
        install(setup, engine, shared);
    }
    let workers = tables.iter_mut().enumerate().map(|(index, memory_of)| {
        let engine = index / workers_each;
        let number = (index % workers_each) as u16;
        let config = config(setup, number, options.policy);
        let core = match own {
            Some(own) => {
                let policy = (own.make)(&shared[engine], number);
                memory_of.own_core(config, &shared[engine], policy)
            }
            None => memory_of.core(config, &shared[engine], &memory[engine].given, &[]),
        };
        Worker::new(core, engine, setup.plans.len())
    });
    let credits = setup.credits(options.split);
    let mut world = World::new(setup, options, &shared, &credits, workers.collect());
    world.begin();
    world.go_on(progress);
    world.end()
}

impl<'a> World<'a> {
    fn new(
        setup: &'a Setup,
        options: Options,
        shared: &'a [Shared<'a>],
        credits: &'a [Credits],
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
                    posted: 0,
                    open_works: Vec::new(),
                    completed: 0,
                    overtook: BTreeMap::new(),
                    let_go: 0,
                    released: 0,
                    answered: 0,
                    opening: false,
                    fencing: false,
                    carried: false,
                    failed: false,
                    probes: false,
                    opened: VecDeque::new(),
                    ended: 0,
                    is_open: false,
                    arrives_at: 0,
                });
            }
        }
        let lanes_count = lanes.len();
        let rails = setup.rails.len();
        let peers = |engine: usize| 0..setup.engines[engine].peers.len();
        let gone = |engine: usize| peers(engine).map(|peer| setup.gone(engine, peer)).collect();
        Self {
            gone: (0..setup.engines.len()).map(gone).collect(),
            is_ending: setup.is_ending(),
            told: workers
                .iter()
                .map(|worker| vec![Told::default(); peers(worker.engine).len()])
                .collect(),
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
            ledger: Ledger::new(setup.trouble.false_one_in == 0),
            shared,
            workers,
            lanes,
            first_lane,
            luck: Luck::new(setup),
            muted: vec![0; setup.hosts],
            paths: Paths::new(setup),
            agents: Agents::new(setup),
            splits: setup.splits(options.policy),
            sessions: setup
                .engines
                .iter()
                .map(|engine| vec![Session::FIRST; engine.peers.len()])
                .collect(),
            spares: (setup.engines.iter())
                .map(|engine| vec![SpareSeen::default(); engine.rails.len()])
                .collect(),
            cuts: vec![Cut::No; rails],
            stuck: vec![Vec::new(); rails],
            loops: vec![Loop::IDLE; setup.submitters.len()],
            patience_ns: match options.strict {
                true => setup.patience_ns(),
                false => vec![None; setup.submitters.len()],
            },
            active: setup.submitters.len(),
            with_work: 0,
            idle_since: 0,
            letters: Vec::new(),
            rooms: Rooms::new(setup, options.split, credits, lanes_count),
            behind: Vec::new(),
            last_report_at: 0,
            history: History {
                began_at: u64::MAX,
                done: vec![Done::default(); setup.submitters.len()],
                rail_bytes: vec![0; rails],
                traced: Traced::new(options.traced_slices_max),
                ..History::default()
            },
        }
    }

    /// Plans are installed, and what is known of the future is entered.
    fn begin(&mut self) {
        let poll_ns = self.setup.engine.poll_us * 1_000;
        if poll_ns > 0 {
            for worker in &mut self.workers {
                worker.looks_at = self.order.below(poll_ns);
            }
        }
        for worker in 0..self.workers.len() {
            self.install_plans(worker as u32, None, Instant::ZERO);
        }
        self.begin_paths();
        self.begin_agents();
        for (index, (at, ..)) in self.setup.incidents.iter().enumerate() {
            let incident = index as u32;
            self.agenda.enter(*at, What::Happens { incident });
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
        let starts = self.setup.submitters.iter().map(|row| row.starts_at);
        let last_change = starts.chain([self.setup.calm_at()]).max().unwrap_or(0);
        let patience = if self.options.strict {
            self.setup.rest_ns()
        } else {
            STUCK_NS
        };
        let mut events = 0_u64;
        while let Some((at, what)) = self.agenda.next() {
            if self.options.watches_queues {
                self.watch(at);
            }
            self.now = at;
            self.happens(what);
            events += 1;
            if events.is_multiple_of(PROGRESS_EVENTS) {
                progress(at.min(self.setup.ends_at), self.setup.ends_at);
            }
            if events > self.options.events_max {
                let text = format!("the run has not ended after {events} events");
                return self.ledger.violation(at, text);
            }
            let last = self.last_report_at.max(last_change);
            let over = self.active == 0 && at > last + AFTERMATH_NS;
            let rests = !self.options.strict || (over && self.unrest().is_none());
            if (over && rests) || at > last + patience {
                break;
            }
        }
        if self.options.strict {
            let unrest = match self.active {
                0 => self.unrest(),
                count => Some(format!("{count} submitters wait for a batch")),
            };
            if let Some(unrest) = unrest {
                self.ledger.violation(self.now, unrest);
            }
            self.judge_failures();
        }
    }

    fn end(mut self) -> History {
        if self.active == 0 {
            self.check_rooms();
        }
        self.history.queues = std::mem::take(&mut self.rooms.seen);
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
                let row = &mut self.lanes[lane as usize];
                row.let_go = row.let_go.max(epoch);
                if self.setup.engine.drops_unsent {
                    self.fabric.drop_waiting(lane, epoch);
                }
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
            What::Seen { worker, completion } => self.seen(worker, completion),
            What::Fact { lane, epoch, fact } => self.fact(lane, epoch, fact),
            What::Submits { submitter } => self.submits(submitter, now),
            What::Looks { submitter } => self.looks(submitter),
            What::Cancels { worker, request } => {
                self.workers[worker as usize].inbox.cancels.push(request);
                self.wake(worker, now);
            }
            What::Happens { incident } => self.incident(incident as usize),
            What::Proved {
                engine,
                peer,
                number,
            } => self.proved(engine, peer, number),
            What::Replans { engine, peer } => self.ask_path(engine, peer),
            What::AsksPath {
                engine,
                peer,
                question,
            } => self.asks_path(engine, peer, question),
            What::Says { host } => self.says(host),
            What::Beats { host, life } => self.beats(host, life),
            What::AgentStarts { host } => self.agent_starts(host as usize),
            What::Starts { submitter } => self.starts(submitter),
        }
    }
}
