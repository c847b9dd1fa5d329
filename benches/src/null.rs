//! The engine with nothing under it: every work completes at once, so what is left is the engine's own cost.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polyrail::{
    Access, Blocks, Config, Engine, Faults, Hooks, Op, PagedRequest, Places, Plugin, Request,
    SegmentId, Spoils, Status, Terms,
};
use polyrail_core::time::Instant as CoreInstant;
use polyrail_core::transport::Capabilities;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{
    Completion, LaneFact, LaneLimits, Outcome, PostBatch, Posted, Scope, Stop,
};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::Region;
use polyrail_transport::{
    Endpoint, FenceAnswer, InboundLane, LaneReport, Polled, RailAddress, RemoteRegion,
    RetireAnswer, SessionId, Transport,
};
use rustix::event::{EventfdFlags, eventfd};

/// How long each figure is measured.
const SPAN: Duration = Duration::from_secs(1);
/// Longer than any batch takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Memory of a thread, at either end.
const BYTES: u64 = 64 << 20;

/// Completes at once whatever is posted, and touches no memory.
struct Null {
    clock: Clock,
    epochs: HashMap<LaneId, Epoch>,
    polled: Polled,
    /// Polls readable while something is to be polled.
    ready: OwnedFd,
}

impl Null {
    fn ready(&self) {
        let _ = rustix::io::write(&self.ready, &1_u64.to_ne_bytes());
    }

    fn tell(&mut self, lane: LaneId, epoch: Epoch, fact: LaneFact) {
        self.polled.lanes.push(LaneReport { lane, epoch, fact });
        self.ready();
    }
}

impl Endpoint for Null {
    fn attach_local(&mut self, _: SegmentRef, _: Arc<Region>) {}

    fn detach_local(&mut self, _: SegmentRef) {}

    fn attach_remote(&mut self, _: SegmentRef, _: RemoteRegion) {}

    fn attach_rail(&mut self, _: RailId, _: RailAddress) {}

    fn open(&mut self, lane: LaneId, epoch: Epoch, _: CoreInstant) {
        self.epochs.insert(lane, epoch);
        let limits = LaneLimits::new(256, 1 << 30);
        self.tell(lane, epoch, LaneFact::Opened { limits });
    }

    fn post(&mut self, batch: &PostBatch) -> Posted {
        let at = self.clock.now();
        let (lane, epoch) = (batch.lane, batch.epoch);
        self.polled
            .completions
            .extend(batch.works.iter().map(|work| Completion {
                lane,
                epoch,
                cookie: work.cookie,
                at,
                outcome: Outcome::Success,
            }));
        Posted {
            accepted: batch.works.len(),
            stop: Stop::All,
        }
    }

    fn poll(&mut self, _: CoreInstant, out: &mut Polled) {
        out.completions.append(&mut self.polled.completions);
        if !self.polled.lanes.is_empty() {
            out.lanes.append(&mut self.polled.lanes);
            let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        }
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, scope: Scope) {
        let delivered = None;
        self.tell(lane, epoch, LaneFact::Fenced { scope, delivered });
    }

    fn close(&mut self, lane: LaneId, _: Epoch) {
        self.epochs.remove(&lane);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn poll_timeout(&self) -> Option<CoreInstant> {
        (!self.polled.completions.is_empty()).then_some(CoreInstant::ZERO)
    }
}

/// The transport that moves nothing.
struct Nothing;

impl Transport for Nothing {
    fn name(&self) -> &'static str {
        "null"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::HOST
    }

    fn endpoint(&self, _worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        Ok(Box::new(Null {
            clock,
            epochs: HashMap::new(),
            polled: Polled::default(),
            ready: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        }))
    }

    fn admit(&self, _: InboundLane) {}

    fn fence_inbound(&self, _: SessionId, _: LaneId, _: Epoch, answer: FenceAnswer) {
        answer(0);
    }

    fn retire_session(&self, _: SessionId, answer: RetireAnswer) {
        answer();
    }
}

/// Nothing else to move bytes with.
fn hooks() -> Hooks {
    let no_tcp = Faults::new();
    no_tcp.spoil(Spoils {
        fail_install: true,
        ..Spoils::default()
    });
    Hooks {
        faults: Some(Arc::new(no_tcp)),
        transports: vec![Plugin {
            make: |_| Arc::new(Nothing),
            faults: None,
        }],
        ..Hooks::default()
    }
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// An engine without a transport, and a peer whose memory it never touches.
struct Bench {
    engine: Engine,
    remote: SegmentId,
    _target: Engine,
}

impl Bench {
    fn new() -> io::Result<Self> {
        let rails: Vec<_> = (1..=8).map(|host| [127, 0, 0, host].into()).collect();
        let config = Config {
            listen: Some(([127, 0, 0, 1], 0).into()),
            rails: rails.clone(),
            ..Config::named("target")
        };
        let target = Engine::with_hooks(config, hooks()).map_err(other)?;
        target
            .allocate("mem", BYTES, Access::RemoteReadWrite)
            .map_err(other)?;
        let config = Config {
            rails,
            workers: 2,
            ..Config::named("null").without("shm")
        };
        let engine = Engine::with_hooks(config, hooks()).map_err(other)?;
        let address = target.listening().ok_or_else(|| other("not listening"))?;
        let remote = engine
            .open_segment(&format!("{address}/mem"))
            .map_err(other)?;
        Ok(Self {
            engine,
            remote,
            _target: target,
        })
    }

    /// Batches of `count` requests of `block` bytes, by so many threads at once: batches a second.
    fn rate(&self, block: u64, count: u64, threads: usize) -> io::Result<f64> {
        let (stop, batches) = (AtomicBool::new(false), AtomicU64::new(0));
        let locals: Vec<SegmentId> = (0..threads)
            .map(|thread| {
                let name = format!("here {block} {count} {threads} {thread}");
                self.engine
                    .allocate(&name, BYTES, Access::Local)
                    .map_err(other)
            })
            .collect::<io::Result<_>>()?;
        let start = Instant::now();
        std::thread::scope(|scope| {
            for local in &locals {
                scope.spawn(|| {
                    let requests: Vec<Request> = (0..count)
                        .map(|index| Request {
                            op: Op::Write,
                            local: *local,
                            local_offset: index * block,
                            remote: self.remote,
                            remote_offset: index * block,
                            length: block,
                        })
                        .collect();
                    while !stop.load(Ordering::Relaxed) {
                        let batch = self.engine.submit(&requests).expect("room for one batch");
                        let ended = batch.wait(PATIENCE).expect("nothing to wait for");
                        assert_eq!(ended.status, Status::Completed);
                        batches.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            std::thread::sleep(SPAN);
            stop.store(true, Ordering::Relaxed);
        });
        let rate = batches.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        for local in locals {
            self.engine.unregister(local).map_err(other)?;
        }
        Ok(rate)
    }
}

/// Requests of the batches whose cost is measured.
const BATCHES: [u64; 5] = [100, 1_000, 16_384, 100_000, 1_000_000];
/// Bytes of each of their blocks.
const BLOCK: u64 = 4096;

/// A table of scattered pages: no two neighbours can go as one.
fn scattered(count: u64) -> Vec<u32> {
    let blocks = BYTES / BLOCK;
    // Odd, so that all are passed.
    let page = |index: u64| (index.wrapping_mul(7_919) % blocks) as u32;
    (0..count).map(page).collect()
}

/// One with groups of four neighbours, as a cache has whose blocks are allocated in order.
fn grouped(count: u64) -> Vec<u32> {
    let groups = BYTES / BLOCK / 4;
    let page = |index: u64| (index / 4).wrapping_mul(7_919) % groups * 4 + index % 4;
    (0..count).map(|index| page(index) as u32).collect()
}

/// What a table names, one by one.
fn one_by_one(bench: &Bench, local: SegmentId, table: &[u32]) -> Vec<Request> {
    let request = |page: &u32| {
        let offset = u64::from(*page) * BLOCK;
        Request {
            op: Op::Write,
            local,
            local_offset: offset,
            remote: bench.remote,
            remote_offset: offset,
            length: BLOCK,
        }
    };
    table.iter().map(request).collect()
}

/// The same as one request.
fn paged<'a>(bench: &Bench, local: SegmentId, table: &'a [u32]) -> PagedRequest<'a> {
    let blocks = |segment| Blocks {
        segment,
        base: 0,
        stride: BLOCK,
        places: Places::Pages(table),
    };
    PagedRequest {
        op: Op::Write,
        local: blocks(local),
        remote: blocks(bench.remote),
        length: BLOCK,
    }
}

/// Processor time of all threads of this process.
fn processor_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// What a request costs by `submit`, one batch after the other: nanoseconds that pass, and of processors. Two million requests.
fn cost(count: u64, mut submit: impl FnMut() -> polyrail::Batch) -> [f64; 2] {
    let batches = (2_000_000 / count).max(1);
    let (start, spent) = (Instant::now(), processor_time());
    for _ in 0..batches {
        let batch = submit();
        let ended = batch.wait(PATIENCE).expect("nothing to wait for");
        assert_eq!(ended.status, Status::Completed);
    }
    let requests = (batches * count) as f64;
    let spent = processor_time() - spent;
    [start.elapsed(), spent].map(|time| time.as_nanos() as f64 / requests)
}

/// Prints what a request costs in batches of different sizes, by turns.
pub(crate) fn batches() -> io::Result<()> {
    let bench = Bench::new()?;
    let local = bench.engine.allocate("here", BYTES, Access::Local);
    let local = local.map_err(other)?;
    let tables = BATCHES.map(|count| [scattered(count), grouped(count)]);
    // Of each size: one by one, the same by a table, one by one with neighbours, the same by a table.
    let mut costs = [[[f64::INFINITY; 2]; 4]; BATCHES.len()];
    let terms = Terms::default();
    for _ in 0..7 {
        for (tables, costs) in tables.iter().zip(&mut costs) {
            for (table, costs) in tables.iter().zip(costs.chunks_mut(2)) {
                let count = table.len() as u64;
                // Tables change, so requests are made of them for each batch.
                let seen = [
                    cost(count, || {
                        let requests = one_by_one(&bench, local, table);
                        bench.engine.submit(&requests).expect("room")
                    }),
                    cost(count, || {
                        let request = [paged(&bench, local, table)];
                        bench.engine.submit_paged(&request, &terms).expect("room")
                    }),
                ];
                for (least, seen) in costs.iter_mut().flatten().zip(seen.iter().flatten()) {
                    *least = least.min(*seen);
                }
            }
        }
    }
    println!(
        "| blocks of 4 KiB in a batch | ns each, one by one | of processors | to 100 | by a table | groups of 4, one by one | by a table |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (count, [one, table, groups, grouped]) in BATCHES.iter().zip(&costs) {
        let [passed, spent] = one;
        println!(
            "| {count} | {passed:.0} | {spent:.0} | {:.2} | {:.0} | {:.0} | {:.0} |",
            spent / costs[0][0][1],
            table[1],
            groups[1],
            grouped[1]
        );
    }
    Ok(())
}

/// Prints slices a second of one thread and of two.
pub(crate) fn run() -> io::Result<()> {
    let bench = Bench::new()?;
    println!(
        "| batch | slices of a batch | 1 thread, slices/s | 2 threads | ratio |\n|---|---|---|---|---|"
    );
    // (bytes of a request, requests, slices of one)
    for (block, count, slices) in [
        (4096, 1, 1),
        (4096, 16, 1),
        (64 << 10, 16, 1),
        (4 << 20, 4, 64),
    ] {
        bench.rate(block, count, 2)?;
        // By turns, so that drift of the machine hits both.
        let (mut one, mut two) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            one.push(bench.rate(block, count, 1)?);
            two.push(bench.rate(block, count, 2)?);
        }
        let median = |rates: &mut Vec<f64>| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2] * (count * slices) as f64
        };
        let (one, two) = (median(&mut one), median(&mut two));
        println!(
            "| {count} × {} KiB | {} | {one:.0} | {two:.0} | {:.2} |",
            block / 1024,
            count * slices,
            two / one
        );
    }
    Ok(())
}
