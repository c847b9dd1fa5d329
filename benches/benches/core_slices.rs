//! Instructions of a slice's whole life in core, from `submit` to `take`, over eight rails.
//!
//! The measured function moves [`SLICES`] slices through a real `Orchestrator`. Rails are rotated, and works
//! of different lanes complete out of order. What drives it is part of the count; it is a few dozen
//! instructions a slice. Divide by [`SLICES`]. The limits fail the run 10 % above what was committed.

// The macros make public items without documentation.
#![allow(missing_docs)]

use std::hint::black_box;

use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use polyrail_core::orchestrator::rows::{Attempt, BatchRow, Lane, Peer, PlanRow, RequestRow};
use polyrail_core::orchestrator::{Config, Event, LaneAction, Orchestrator, Request, Tables};
use polyrail_core::path::class::RailClass;
use polyrail_core::plan::{Plan, PlanRail, PlanTransport};
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::select::Policy;
use polyrail_core::rail::{Device, Rail, RailConfig, Shared, Waiting};
use polyrail_core::report::Status;
use polyrail_core::slice::SLICE_BYTES;
use polyrail_core::table::Row;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{
    DeviceId, Epoch, LaneId, PeerId, PlanId, RailId, Rate, SegmentRef, TransportId,
};
use polyrail_core::work::{
    Completion, LaneFact, LaneLimits, Op, Outcome, Place, PostBatch, Priority, Stop,
};

/// Slices that are measured.
const SLICES: u64 = 20_000;
/// Instructions of one slice when this was committed, of requests of 64 slices; one lane completes at a time.
const MANY: u64 = 1_155;
/// The same, when all lanes complete before core is asked again.
const MANY_IN_BURSTS: u64 = 1_362;
/// Of requests of 4 KiB, which are one slice each.
const SMALL: u64 = 3_101;
/// The same, in bursts.
const SMALL_IN_BURSTS: u64 = 2_794;

const RAILS: u16 = 8;
const PEER: PeerId = PeerId(0);
const PLAN: PlanId = PlanId {
    index: 0,
    generation: 1,
};
const LIMITS: LaneLimits = LaneLimits {
    works_max: 256,
    work_bytes_max: 1 << 20,
};
/// Requests that wait or move at a time.
const REQUESTS: usize = 64;

fn rows<T>(count: usize, row: impl Fn() -> T) -> &'static mut [T] {
    Vec::leak((0..count).map(|_| row()).collect())
}

/// A posted work: its cookie and length.
type Posted = (u64, u32);

/// A core and eight rails of 1 GB/s.
struct Fleet {
    core: Orchestrator<'static>,
    now: Instant,
    epochs: [Epoch; RAILS as usize],
    posted: [Vec<Posted>; RAILS as usize],
    batch: PostBatch,
    completions: Vec<Completion>,
    /// Which lane completes next.
    turn: usize,
    open: usize,
    tag: u64,
    taken: u64,
    bytes: u64,
    /// Lanes that complete between two looks at what is to be done.
    burst: usize,
}

impl Fleet {
    /// One that has moved enough to know its rails, with all lanes open.
    fn new(request_bytes: u64, burst: usize) -> Self {
        let rails = rows(RAILS.into(), || Rail::EMPTY);
        let devices = rows(RAILS.into(), || Device::EMPTY);
        let waiting = rows(1, || Waiting::NO);
        let shared: &'static Shared<'static> =
            Box::leak(Box::new(Shared::new(rails, devices, waiting, SLICE_BYTES)));
        let estimate = EstimateConfig {
            slice_span: Duration::ZERO,
            rate_nominal: Rate::from_bytes_per_sec(1_000_000_000),
            delay_base: Duration::from_micros(20),
            tier: 0,
        };
        for rail in 0..RAILS {
            let device = DeviceId(rail);
            assert!(shared.install_device(device, estimate));
            let config = RailConfig {
                peer: PEER,
                device,
                estimate,
            };
            assert!(shared.install_rail(RailId(rail), config));
        }
        let tables = Tables {
            plans: rows(2, || PlanRow::EMPTY),
            peers: rows(2, || Peer::EMPTY),
            lanes: rows(RAILS.into(), || Lane::EMPTY),
            requests: rows::<Row<RequestRow>>(2 * REQUESTS, || Row::EMPTY),
            attempts: rows::<Row<Attempt>>(4096, || Row::EMPTY),
            batches: rows::<Row<BatchRow>>(2 * REQUESTS, || Row::EMPTY),
        };
        let mut core = Orchestrator::new(Config::new(0, Policy::Spray), shared, tables);
        let place = |segment| Place {
            segment: SegmentRef(segment),
            offset: 0,
        };
        let plan = Plan {
            peer: PEER,
            local: SegmentRef(1),
            remote: SegmentRef(2),
            transports: [PlanTransport {
                transport: TransportId(0),
                rails: (0..RAILS)
                    .map(|rail| PlanRail {
                        rail: RailId(rail),
                        tier: 0,
                        class: RailClass::PRIMARY,
                    })
                    .collect(),
            }]
            .into_iter()
            .collect(),
            scratch_local: place(8),
            scratch_remote: place(9),
            scratch_bytes: SLICE_BYTES,
            path: None,
        };
        assert!(core.install_plan(Instant::ZERO, PLAN, &plan));
        let mut fleet = Self {
            core,
            now: Instant::ZERO,
            epochs: [Epoch(0); RAILS as usize],
            posted: std::array::from_fn(|_| Vec::with_capacity(512)),
            batch: PostBatch::default(),
            completions: Vec::with_capacity(512),
            turn: 0,
            open: 0,
            tag: 0,
            taken: 0,
            bytes: request_bytes,
            burst,
        };
        fleet.run(SLICES);
        assert!(
            fleet.epochs.iter().all(|epoch| epoch.0 > 0),
            "all lanes are open"
        );
        fleet
    }

    /// Moves about so many slices.
    fn run(&mut self, slices: u64) {
        let mut moved = 0;
        while moved < slices {
            while self.open < REQUESTS {
                self.submit();
            }
            self.drain();
            for _ in 0..self.burst {
                moved += self.complete();
            }
        }
    }

    fn submit(&mut self) {
        let batch = self.core.open_batch(self.tag).unwrap_or_default();
        let request = Request {
            tag: self.tag,
            plan: PLAN,
            batch,
            local_offset: 0,
            remote_offset: 0,
            length: self.bytes,
            deadline: Instant::MAX,
            priority: Priority::Normal,
            op: Op::Write,
        };
        self.core.submit(self.now, &request).expect("there is room");
        self.core.seal_batch(batch);
        self.tag += 1;
        self.open += 1;
    }

    fn drain(&mut self) {
        while let Some(lane) = self.core.poll_post(self.now, &mut self.batch) {
            let works = &self.batch.works;
            let posted = &mut self.posted[usize::from(lane.rail().0)];
            posted.extend(works.iter().map(|work| (work.cookie, work.length)));
            let (epoch, accepted) = (self.batch.epoch, works.len());
            self.core
                .handle_posted(self.now, lane, epoch, accepted, Stop::All);
        }
        while let Some(action) = self.core.poll_lane() {
            let LaneAction::Open { lane, epoch, .. } = action else {
                panic!("no lane ever breaks here");
            };
            self.epochs[usize::from(lane.rail().0)] = epoch;
            let opened = LaneFact::Opened { limits: LIMITS };
            self.core.handle_lane(self.now, lane, epoch, opened);
        }
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::RequestDone { request, .. } => {
                    let report = self.core.take(request).expect("it has ended");
                    assert_eq!(report.status, Status::Completed);
                    self.taken += 1;
                    self.open -= 1;
                }
                Event::BatchDone { batch, .. } => {
                    self.core.take_batch(batch);
                }
                _ => {}
            }
        }
    }

    /// Completes what is posted on the next lane, in a rotation that jumps. Gives the slices.
    fn complete(&mut self) -> u64 {
        self.turn = (self.turn + 3) % usize::from(RAILS);
        let rail = self.turn;
        let mut bytes = 0;
        self.completions.clear();
        for (cookie, length) in self.posted[rail].drain(..) {
            bytes += u64::from(length);
            self.completions.push(Completion {
                lane: LaneId::new(0, RailId(rail as u16)),
                epoch: self.epochs[rail],
                cookie,
                at: self.now,
                outcome: Outcome::Success,
            });
        }
        // Eight rails of 1 GB/s.
        self.now = self.now + Duration::from_nanos(bytes / 8 + 100);
        for completion in &mut self.completions {
            completion.at = self.now;
        }
        self.core.handle_completions(self.now, &self.completions);
        self.core.handle_timeout(self.now);
        self.completions.len() as u64
    }
}

fn of_many() -> Fleet {
    Fleet::new(64 * u64::from(SLICE_BYTES), 1)
}

fn of_many_in_bursts() -> Fleet {
    Fleet::new(64 * u64::from(SLICE_BYTES), RAILS.into())
}

fn of_4_kib() -> Fleet {
    Fleet::new(4096, 1)
}

fn of_4_kib_in_bursts() -> Fleet {
    Fleet::new(4096, RAILS.into())
}

fn limit(instructions: u64) -> LibraryBenchmarkConfig {
    let limit = instructions * SLICES * 11 / 10;
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(EventKind::Ir, limit)]));
    config
}

#[library_benchmark(config = limit(MANY), setup = of_many)]
#[bench::eight_rails()]
fn slice_of_many(mut fleet: Fleet) -> Fleet {
    fleet.run(SLICES);
    black_box(fleet)
}

#[library_benchmark(config = limit(MANY_IN_BURSTS), setup = of_many_in_bursts)]
#[bench::eight_rails()]
fn slice_of_many_in_bursts(mut fleet: Fleet) -> Fleet {
    fleet.run(SLICES);
    black_box(fleet)
}

#[library_benchmark(config = limit(SMALL), setup = of_4_kib)]
#[bench::eight_rails()]
fn slice_of_4_kib(mut fleet: Fleet) -> Fleet {
    fleet.run(SLICES);
    black_box(fleet)
}

#[library_benchmark(config = limit(SMALL_IN_BURSTS), setup = of_4_kib_in_bursts)]
#[bench::eight_rails()]
fn slice_of_4_kib_in_bursts(mut fleet: Fleet) -> Fleet {
    fleet.run(SLICES);
    black_box(fleet)
}

library_benchmark_group!(
    name = core;
    benchmarks = slice_of_many, slice_of_many_in_bursts, slice_of_4_kib, slice_of_4_kib_in_bursts
);
main!(library_benchmark_groups = core);
