//! Instructions of a slice's whole life in core, from `submit` to `take`. The aim is 700 over eight rails.
//!
//! The measured function moves [`SLICES`] slices through a real `Orchestrator`. Rails are rotated, and works
//! of different lanes complete out of order. What drives it is part of the count, 42
//! instructions of a slice with [`MANY`]. Divide by [`SLICES`]. The limits fail the run 3 % above what was committed, and
//! above [`AIM`] what has reached that.

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
use polyrail_core::rail::chooser::Spray;
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::{Device, Rail, RailConfig, Shared, Waiting};
use polyrail_core::report::Status;
use polyrail_core::slice::SLICE_BYTES;
use polyrail_core::table::Row;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{
    DeviceId, Epoch, PeerId, PlanId, RailId, Rate, SegmentRef, TransportId,
};
use polyrail_core::work::{
    Completion, LaneFact, LaneLimits, Op, Outcome, Place, PostBatch, Priority, Stop,
};

/// Slices that are measured.
const SLICES: u64 = 20_000;
/// Instructions that a slice may cost.
const AIM: u64 = 700;
/// Instructions of one slice when this was committed, of requests of 64 slices; one lane completes at a time.
const MANY: u64 = 346;
/// The same, when all lanes complete before core is asked again.
const MANY_IN_BURSTS: u64 = 2_079;
/// Of requests of 4 KiB, which are one slice each.
const SMALL: u64 = 4_944;
/// The same, in bursts.
const SMALL_IN_BURSTS: u64 = 4_214;
/// As [`MANY`], over sixteen rails: 60 more for each further rail. The aim is 8. Rails are told a delay of 20 us here, of which
/// slices show that it is not so long: windows are shorter than told, and each look at the rails places fewer slices.
const SIXTEEN_RAILS: u64 = 825;
/// As [`MANY`], to 64 peers over the same eight devices: 512 lanes are open. The aim is 1,000. All that is posted completes at
/// once here, so windows grow until that has brought nothing; most of the count is choosing among rails that all have room. The
/// table of attempts has rows for half of the slices that could go, so what ends lets others go by a few at a time.
const MANY_PEERS: u64 = 2_568;
/// As [`MANY`], on lanes that take 3 works: what a post and what is seen of it costs is shared by fewer slices, as it
/// is with [`MANY_PEERS`].
const SHORT_POSTS: u64 = 1_437;
/// As [`MANY`], on devices of 25 GB/s: their windows are so long that 84 slices complete together.
const FAST_RAILS: u64 = 324;
/// As [`MANY`], with so few requests in line.
const TEN_QUEUED: u64 = 1_634;
/// As [`MANY`], with so many.
const MANY_QUEUED: u64 = 317;

/// What is measured.
struct Shape {
    peers: u16,
    /// Devices, and rails to each peer.
    rails: u16,
    request_bytes: u64,
    /// Lanes that complete between two looks at what is to be done.
    burst: usize,
    /// Requests that wait or move at a time.
    requests: usize,
    /// Works that a lane takes.
    works_max: u16,
    /// How fast each device is, in GB/s.
    bytes_per_nano: u64,
}

impl Shape {
    /// Requests of 64 slices to one peer, and one lane that completes at a time.
    const MANY: Self = Self {
        peers: 1,
        rails: 8,
        request_bytes: 64 * SLICE_BYTES as u64,
        burst: 1,
        requests: 64,
        works_max: 256,
        bytes_per_nano: 1,
    };
    const SMALL: Self = Self {
        request_bytes: 4096,
        ..Self::MANY
    };
}

/// Bytes of the longest work that a lane takes: the usual slice. All that is posted completes at once here, so windows grow until
/// few works do not fill them, and slices would be sixteen times as long.
const WORK_BYTES_MAX: u32 = SLICE_BYTES;
/// The peers are heard through their completions, and no lane is slow: each waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

fn rows<T>(count: usize, row: impl Fn() -> T) -> &'static mut [T] {
    Vec::leak((0..count).map(|_| row()).collect())
}

/// What is posted on a lane, as it will complete.
struct Posted {
    completions: Vec<Completion>,
    bytes: u64,
}

/// A core and its rails, over devices of one speed.
struct Fleet {
    shape: Shape,
    core: Orchestrator<'static>,
    now: Instant,
    epochs: Vec<Epoch>,
    posted: Vec<Posted>,
    batch: PostBatch,
    /// Which lane completes next.
    turn: usize,
    open: usize,
    tag: u64,
    taken: u64,
}

fn plan_id(peer: u16) -> PlanId {
    PlanId {
        index: peer.into(),
        generation: 1,
    }
}

impl Fleet {
    /// One that has moved enough to know its rails, with all lanes open.
    fn new(shape: Shape) -> Self {
        let lanes = usize::from(shape.peers * shape.rails);
        let rails = rows(lanes, || Rail::EMPTY);
        let devices = rows(shape.rails.into(), || Device::EMPTY);
        let waiting = rows(1, || Waiting::NO);
        let shared: &'static Shared<'static> =
            Box::leak(Box::new(Shared::new(rails, devices, waiting, SLICE_BYTES)));
        let estimate = EstimateConfig {
            slice_span: Duration::ZERO,
            batch_span: Duration::ZERO,
            rate_nominal: Rate::from_bytes_per_sec(shape.bytes_per_nano * 1_000_000_000),
            delay_base: Duration::from_micros(20),
            tier: 0,
        };
        for device in 0..shape.rails {
            assert!(shared.install_device(DeviceId(device), estimate));
        }
        for rail in 0..shape.peers * shape.rails {
            let config = RailConfig {
                peer: PeerId(rail / shape.rails),
                device: DeviceId(rail % shape.rails),
                far: None,
                estimate,
            };
            assert!(shared.install_rail(RailId(rail), config));
        }
        let tables = Tables {
            plans: rows(shape.peers.into(), || PlanRow::EMPTY),
            peers: rows(shape.peers.into(), || Peer::EMPTY),
            lanes: rows(lanes, || Lane::EMPTY),
            requests: rows::<Row<RequestRow>>(2 * shape.requests, || Row::EMPTY),
            attempts: rows(4096, || Attempt::EMPTY),
            batches: rows::<Row<BatchRow>>(2 * shape.requests, || Row::EMPTY),
        };
        let config = Config {
            progress_floor: PATIENCE,
            ..Config::new(0, Spray)
        };
        let mut core = Orchestrator::new(config, shared, tables);
        let place = |segment| Place {
            segment: SegmentRef(segment),
            offset: 0,
        };
        let plan = |peer: u16| Plan {
            peer: PeerId(peer),
            local: SegmentRef(1),
            remote: SegmentRef(2),
            transports: [PlanTransport {
                transport: TransportId(0),
                rails: (0..shape.rails)
                    .map(|rail| PlanRail {
                        rail: RailId(peer * shape.rails + rail),
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
        for peer in 0..shape.peers {
            assert!(core.install_plan(Instant::ZERO, plan_id(peer), &plan(peer)));
        }
        let mut fleet = Self {
            core,
            now: Instant::ZERO,
            epochs: vec![Epoch(0); lanes],
            posted: (0..lanes)
                .map(|_| Posted {
                    completions: Vec::with_capacity(512),
                    bytes: 0,
                })
                .collect(),
            batch: PostBatch::default(),
            turn: 0,
            open: 0,
            tag: 0,
            taken: 0,
            shape,
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
            while self.open < self.shape.requests {
                self.submit();
            }
            self.drain();
            for _ in 0..self.shape.burst {
                moved += self.complete();
            }
        }
    }

    fn submit(&mut self) {
        let batch = self.core.open_batch(self.tag).unwrap_or_default();
        let request = Request {
            tag: self.tag,
            plan: plan_id((self.tag % u64::from(self.shape.peers)) as u16),
            batch,
            local_offset: 0,
            remote_offset: 0,
            length: self.shape.request_bytes,
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
        while let Some(post) = self.core.poll_post(self.now, &mut self.batch) {
            let lane = post.lane();
            let works = &self.batch.works;
            let (epoch, accepted) = (self.batch.epoch, works.len());
            let posted = &mut self.posted[usize::from(lane.rail().0)];
            posted.completions.extend(works.iter().map(|work| {
                posted.bytes += u64::from(work.length);
                Completion {
                    lane,
                    epoch,
                    cookie: work.cookie,
                    at: Instant::ZERO,
                    outcome: Outcome::Success,
                }
            }));
            self.core.handle_posted(self.now, post, accepted, Stop::All);
        }
        while let Some(action) = self.core.poll_lane() {
            let LaneAction::Open { lane, epoch, .. } = action else {
                panic!("no lane ever breaks here");
            };
            self.epochs[usize::from(lane.rail().0)] = epoch;
            let limits = LaneLimits::new(self.shape.works_max, WORK_BYTES_MAX);
            let opened = LaneFact::Opened { limits };
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
        self.turn = (self.turn + 3) % self.posted.len();
        let rail = self.turn;
        let posted = &mut self.posted[rail];
        let bytes_per_nano = u64::from(self.shape.rails) * self.shape.bytes_per_nano;
        let took = posted.bytes / bytes_per_nano + 100;
        self.now = self.now + Duration::from_nanos(took);
        for completion in &mut posted.completions {
            completion.at = self.now;
        }
        let slices = posted.completions.len() as u64;
        self.core.handle_completions(self.now, &posted.completions);
        self.core.handle_timeout(self.now);
        posted.completions.clear();
        posted.bytes = 0;
        slices
    }
}

fn limit(instructions: u64) -> LibraryBenchmarkConfig {
    let above = instructions * 103 / 100;
    // What has reached the aim has to stay there.
    let limit = match instructions {
        ..=AIM => above.min(AIM),
        _ => above,
    } * SLICES;
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(EventKind::Ir, limit)]));
    config
}

#[library_benchmark(setup = Fleet::new)]
#[bench::many(args = (Shape::MANY), config = limit(MANY))]
#[bench::many_in_bursts(
    args = (Shape { burst: 8, ..Shape::MANY }),
    config = limit(MANY_IN_BURSTS)
)]
#[bench::of_4_kib(args = (Shape::SMALL), config = limit(SMALL))]
#[bench::of_4_kib_in_bursts(
    args = (Shape { burst: 8, ..Shape::SMALL }),
    config = limit(SMALL_IN_BURSTS)
)]
#[bench::sixteen_rails(args = (Shape { rails: 16, ..Shape::MANY }), config = limit(SIXTEEN_RAILS))]
#[bench::many_peers(
    args = (Shape { peers: 64, requests: 128, ..Shape::MANY }),
    config = limit(MANY_PEERS)
)]
#[bench::short_posts(
    args = (Shape { works_max: 3, ..Shape::MANY }),
    config = limit(SHORT_POSTS)
)]
#[bench::fast_rails(
    args = (Shape { bytes_per_nano: 25, ..Shape::MANY }),
    config = limit(FAST_RAILS)
)]
#[bench::ten_queued(args = (Shape { requests: 10, ..Shape::MANY }), config = limit(TEN_QUEUED))]
#[bench::many_queued(
    args = (Shape { requests: 100_000, ..Shape::MANY }),
    config = limit(MANY_QUEUED)
)]
fn slices(mut fleet: Fleet) -> Fleet {
    fleet.run(SLICES);
    black_box(fleet)
}

library_benchmark_group!(
    name = core;
    benchmarks = slices
);
main!(library_benchmark_groups = core);
