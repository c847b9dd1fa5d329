//! Core on a bench: its tables, and a fabric that does what it is told.

use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::{Config, LaneAction, Post, Proof, Request};
use polyrail_core::path::class::RailClass;
use polyrail_core::plan::{Plan, PlanRail, PlanTransport};
use polyrail_core::rail::RailConfig;
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::select::Policy;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{
    DeviceId, Epoch, LaneId, PeerId, PlanId, RailId, Rate, RequestId, SegmentRef, TransportId,
};
use polyrail_core::work::{
    Cause, Completion, LaneFact, LaneLimits, Op, Outcome, Place, PostBatch, Priority, Scope, Stop,
    Work,
};
use polyrail_record::Capacities;

use super::act::{Act, Answer, Bounds, Bytes};
use polyrail_core::rail::policies::PoliciesConfig;

use crate::model::{Core, SharedMemory, WorkerMemory};

pub(super) const RAILS: u8 = 2;
pub(super) const SLICE_BYTES: u32 = 64;
/// Which way, and slices.
pub(super) const REQUESTS: [(Op, u64); 2] = [(Op::Write, 2), (Op::Read, 1)];
const LOCAL: SegmentRef = SegmentRef(1);
pub(super) const REMOTE: SegmentRef = SegmentRef(2);
const SCRATCH: SegmentRef = SegmentRef(3);
const PEER: PeerId = PeerId(0);
const PLAN: PlanId = PlanId {
    index: 0,
    generation: 1,
};
/// Where a request's number stands in its offsets.
pub(super) const NUMBER_SHIFT: u32 = 32;

/// A work on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) epoch: u32,
    pub(super) sequence: u32,
    pub(super) work: Work,
    /// Its bytes are there.
    pub(super) landed: bool,
    /// They never will be.
    pub(super) gone: bool,
    /// Its end can still be said.
    pub(super) pending: bool,
}

impl Flight {
    /// The request that it is of; `None`: it is a probe.
    pub(super) fn request(&self) -> Option<usize> {
        (self.work.remote.segment == REMOTE)
            .then_some((self.work.remote.offset >> NUMBER_SHIFT) as usize)
    }
}

/// A lane, as the fabric has it.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    pub(super) epoch: u32,
    pub(super) opening: bool,
    /// Works posted under the epoch.
    pub(super) posted: u32,
    /// It has failed: what is posted on it is flushed.
    pub(super) failed: bool,
    /// It said that it is full.
    pub(super) full: bool,
    pub(super) let_go: u32,
    pub(super) asked_local: bool,
    pub(super) fenced: u32,
    pub(super) asked_remote: Option<u32>,
    /// What was said of the epoch that was fenced last.
    pub(super) delivered: u32,
    pub(super) flights: Vec<Flight>,
}

/// What is known of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Story {
    /// Slices that have landed.
    pub(super) landed: u64,
    /// It was reported, with this side's memory free, and the peer's.
    pub(super) reported: Option<(bool, bool)>,
}

/// The whole of it.
pub(super) struct Bench<'a> {
    pub(super) core: Core<'a>,
    pub(super) bounds: Bounds,
    pub(super) now: Instant,
    pub(super) lines: [Line; RAILS as usize],
    pub(super) stories: [Story; REQUESTS.len()],
    pub(super) ids: Vec<RequestId>,
    pub(super) posting: Option<(Post, PostBatch)>,
    pub(super) last: Option<Completion>,
    pub(super) batches_done: u8,
    pub(super) peer_gone: bool,
    pub(super) shut_down: bool,
    pub(super) violation: Option<String>,
}

/// Reaches the state at the end of `path`, and looks at it.
pub(super) fn with_bench<T>(
    policy: Policy,
    bounds: Bounds,
    path: &[Act],
    look: impl FnOnce(&mut Bench<'_>) -> T,
) -> T {
    let memory = SharedMemory::new(RAILS.into(), 1, 1);
    let shared = memory.shared(SLICE_BYTES);
    let estimate = EstimateConfig {
        rate_nominal: Rate::from_bytes_per_sec(1_000_000),
        delay_base: Duration::from_micros(1),
        tier: 0,
        slice_span: Duration::ZERO,
        batch_span: Duration::ZERO,
    };
    shared.install_device(DeviceId(0), estimate);
    for rail in 0..u16::from(RAILS) {
        let config = RailConfig {
            peer: PEER,
            device: DeviceId(0),
            far: None,
            estimate,
        };
        shared.install_rail(RailId(rail), config);
    }
    let mut tables = WorkerMemory::exact(&Capacities {
        rails: RAILS.into(),
        devices: 1,
        peers: 1,
        plans: 1,
        requests: 3,
        attempts: 12,
        batches: 1,
    });
    let config = Config {
        // Repetitions would use up the timers.
        message_interval: Duration::from_millis(1_500),
        ..Config::new(0, PoliciesConfig::new(0, policy))
    };
    let mut bench = Bench {
        core: tables.core(config, &shared, &memory.given, &[]),
        bounds,
        now: Instant::from_nanos(1_000),
        lines: Default::default(),
        stories: Default::default(),
        ids: Vec::new(),
        posting: None,
        last: None,
        batches_done: 0,
        peer_gone: false,
        shut_down: false,
        violation: None,
    };
    bench.begin();
    for act in path {
        bench.happens(*act);
    }
    look(&mut bench)
}

impl Bench<'_> {
    fn begin(&mut self) {
        let place = |segment| Place { segment, offset: 0 };
        let rails = (0..u16::from(RAILS)).map(|rail| PlanRail {
            rail: RailId(rail),
            tier: 0,
            class: RailClass::PRIMARY,
        });
        let transport = PlanTransport {
            transport: TransportId(0),
            rails: rails.collect(),
        };
        let plan = Plan {
            peer: PEER,
            local: LOCAL,
            remote: REMOTE,
            transports: [transport].into_iter().collect(),
            scratch_local: place(SCRATCH),
            scratch_remote: place(SCRATCH),
            scratch_bytes: SLICE_BYTES,
            path: None,
        };
        self.core.install_plan(self.now, PLAN, &plan);
        let Some(batch) = self.core.open_batch(0) else {
            return self.violated("no row for the batch");
        };
        for (number, (op, slices)) in (0..).zip(REQUESTS) {
            let offset = number << NUMBER_SHIFT;
            let request = Request {
                tag: number,
                plan: PLAN,
                batch,
                local_offset: offset,
                remote_offset: offset,
                length: slices * u64::from(SLICE_BYTES),
                deadline: Instant::MAX,
                op,
                priority: Priority::Normal,
            };
            match self.core.submit(self.now, &request) {
                Ok(id) => self.ids.push(id),
                Err(error) => self.violated(&format!("{error:?}")),
            }
        }
        self.core.seal_batch(batch);
        self.drain();
    }

    pub(super) fn violated(&mut self, text: &str) {
        self.violation.get_or_insert_with(|| text.to_owned());
    }

    /// Lets it happen, and drains core.
    pub(super) fn happens(&mut self, act: Act) {
        if act.is_fault() {
            self.bounds.faults -= 1;
        }
        match act {
            Act::Posted(answer) => self.answers(answer),
            Act::Opened(rail) => {
                self.lines[usize::from(rail)].opening = false;
                let limits = LaneLimits::new(4, u32::MAX);
                self.fact(rail, LaneFact::Opened { limits });
            }
            Act::OpenFailed(rail) => {
                self.lines[usize::from(rail)].opening = false;
                self.fact(rail, LaneFact::OpenFailed(Cause::Refused));
            }
            Act::Completes(rail, index) => {
                self.lands(rail, index);
                self.ends(rail, index, Outcome::Success);
            }
            Act::Unsaid(rail, index) => {
                self.lands(rail, index);
                self.line(rail).flights[usize::from(index)].pending = false;
            }
            Act::Fails(rail, index, bytes) => {
                self.line(rail).failed = true;
                match bytes {
                    Bytes::Landed => self.lands(rail, index),
                    Bytes::OnTheWay => {}
                    Bytes::Gone => self.line(rail).flights[usize::from(index)].gone = true,
                }
                self.ends(rail, index, Outcome::Error(Cause::RetryExceeded));
            }
            Act::Errs(rail, index) => {
                self.line(rail).failed = true;
                self.line(rail).flights[usize::from(index)].gone = true;
                self.ends(rail, index, Outcome::Error(Cause::RemoteAccess));
            }
            Act::Flushed(rail, index) => self.ends(rail, index, Outcome::Error(Cause::Flushed)),
            Act::Lands(rail, index) => self.lands(rail, index),
            Act::Again => {
                let last = self.last.take();
                self.core.handle_completions(self.now, last.as_slice());
            }
            Act::LetGo(rail) => {
                let line = self.line(rail);
                line.asked_local = false;
                line.let_go = line.epoch;
                let fact = LaneFact::Fenced {
                    scope: Scope::Local,
                    delivered: None,
                };
                for flight in &mut self.line(rail).flights {
                    flight.pending = false;
                }
                self.fact(rail, fact);
            }
            Act::Unfenceable(rail) => {
                let scope = Scope::Local;
                self.fact(rail, LaneFact::Unfenceable { scope });
            }
            Act::Fenced(rail) => self.fenced(rail),
            Act::Broken(rail) => {
                self.line(rail).failed = true;
                self.fact(rail, LaneFact::Broken(Cause::Reset));
            }
            Act::Writable(rail) => {
                self.line(rail).full = false;
                self.fact(rail, LaneFact::Writable);
            }
            Act::Cancel(number) => {
                let id = self.ids[usize::from(number)];
                self.core.cancel(self.now, id);
            }
            Act::Alive => self.core.handle_frame(self.now, PEER, &Frame::Alive),
            Act::SessionEnded => self.peer_ended(Proof::SessionEnded),
            Act::ProcessGone => self.peer_ended(Proof::ProcessGone),
            Act::ShutDown => {
                self.shut_down = true;
                self.core.shut_down(self.now);
            }
            Act::Time => {
                self.bounds.timers -= 1;
                self.time();
            }
        }
        self.drain();
    }

    fn line(&mut self, rail: u8) -> &mut Line {
        &mut self.lines[usize::from(rail)]
    }

    pub(super) fn time(&mut self) {
        if let Some((due, _)) = self.core.poll_timeout() {
            self.now = due.max(self.now + Duration::from_nanos(1));
        }
        self.core.handle_timeout(self.now);
    }

    fn fact(&mut self, rail: u8, fact: LaneFact) {
        let epoch = Epoch(self.line(rail).epoch);
        let lane = LaneId::new(0, RailId(rail.into()));
        self.core.handle_lane(self.now, lane, epoch, fact);
    }

    /// A work's bytes are there, unless they were before.
    fn lands(&mut self, rail: u8, index: u8) {
        let flight = &mut self.line(rail).flights[usize::from(index)];
        let request = flight.request().filter(|_| !flight.landed);
        flight.landed = true;
        let (flight, let_go) = (*flight, self.line(rail).let_go);
        let Some(number) = request else {
            return;
        };
        let slice = (flight.work.remote.offset & u64::from(u32::MAX)) / u64::from(SLICE_BYTES);
        let story = &mut self.stories[number];
        story.landed |= 1 << slice;
        let may = match (flight.work.op, story.reported) {
            (_, None) => true,
            (Op::Write, Some((_, settled))) => !settled,
            (Op::Read, Some((released, _))) => !released && flight.epoch > let_go,
        };
        if !may {
            self.violated("bytes arrived after the report said that none would");
        }
    }

    /// A work's end is said.
    fn ends(&mut self, rail: u8, index: u8, outcome: Outcome) {
        let flight = &mut self.line(rail).flights[usize::from(index)];
        flight.pending = false;
        let completion = Completion {
            lane: LaneId::new(0, RailId(rail.into())),
            epoch: Epoch(flight.epoch),
            cookie: flight.work.cookie,
            at: self.now,
            outcome,
        };
        self.last = Some(completion);
        self.core.handle_completions(self.now, &[completion]);
    }

    /// The peer has ended what it was asked to end, and says how much has landed in order.
    fn fenced(&mut self, rail: u8) {
        let line = self.line(rail);
        let Some(epoch) = line.asked_remote.take() else {
            return;
        };
        if epoch > line.fenced {
            line.fenced = epoch;
            let is_there = |sequence: u32| {
                let mut flights = line.flights.iter();
                flights.any(|row| (row.epoch, row.sequence, row.landed) == (epoch, sequence, true))
            };
            let there = (0..line.posted).take_while(|sequence| is_there(*sequence));
            line.delivered = there.count() as u32;
        }
        let delivered = line.delivered;
        let frame = Frame::Fenced {
            lane: LaneId::new(0, RailId(rail.into())),
            epoch: Epoch(epoch),
            delivered,
        };
        self.core.handle_frame(self.now, PEER, &frame);
    }

    fn peer_ended(&mut self, proof: Proof) {
        for line in &mut self.lines {
            line.fenced = line.epoch - u32::from(line.opening);
            line.asked_remote = None;
        }
        self.peer_gone |= proof == Proof::ProcessGone;
        self.core.handle_peer_gone(self.now, PEER, proof);
    }

    pub(super) fn answers(&mut self, answer: Answer) {
        let Some((post, batch)) = self.posting.take() else {
            return;
        };
        let count = batch.works.len();
        let (accepted, launched, stop) = match answer {
            Answer::All => (count, count, Stop::All),
            Answer::Full(taken) => (taken.into(), taken.into(), Stop::Full),
            Answer::Rejected => (0, 0, Stop::Rejected(Cause::Fatal)),
            Answer::Refused => (0, 0, Stop::Rejected(Cause::LocalProtection)),
            Answer::Unknown(taken) => (0, taken.into(), Stop::Unknown),
        };
        let line = &mut self.lines[post.lane().rail().index()];
        line.full |= stop == Stop::Full;
        for work in batch.works.iter().take(launched) {
            line.flights.push(Flight {
                epoch: batch.epoch.0,
                sequence: line.posted,
                work: *work,
                landed: false,
                gone: false,
                pending: true,
            });
            line.posted += 1;
        }
        self.core.handle_posted(self.now, post, accepted, stop);
    }

    /// Does what core asks for, as far as that is nothing to choose.
    pub(super) fn drain(&mut self) {
        if self.posting.is_some() {
            return;
        }
        let mut batch = PostBatch::default();
        if let Some(post) = self.core.poll_post(self.now, &mut batch) {
            self.check_works(&batch);
            self.posting = Some((post, batch));
        }
        while let Some(action) = self.core.poll_lane() {
            self.act(action);
        }
        while let Some(message) = self.core.poll_message(self.now) {
            let Message::Fence { lane, epoch, .. } = message;
            self.lines[lane.rail().index()].asked_remote = Some(epoch.0);
        }
        while let Some(event) = self.core.poll_event() {
            self.event(event);
        }
        for line in &mut self.lines {
            let (let_go, fenced) = (line.let_go, line.fenced);
            // What can do nothing more is forgotten, but its place in the order, while that can be asked for.
            line.flights
                .retain(|row| row.epoch > fenced || (row.pending && row.epoch > let_go));
        }
    }

    fn act(&mut self, action: LaneAction) {
        match action {
            LaneAction::Open { lane, epoch, .. } => {
                let line = &mut self.lines[lane.rail().index()];
                line.epoch = epoch.0;
                (line.opening, line.failed, line.full, line.posted) = (true, false, false, 0);
            }
            LaneAction::Fence { lane, .. } => {
                let line = &mut self.lines[lane.rail().index()];
                line.asked_local = true;
            }
            LaneAction::Close { lane, epoch } => {
                let line = &mut self.lines[lane.rail().index()];
                if line.epoch == epoch.0 {
                    line.opening = false;
                }
                line.asked_local = false;
            }
        }
    }
}
