//! Lanes over the stub.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use polyrail_conform::Driven;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{RailId, SegmentRef, TransportId};
use polyrail_core::work::{Cause, LaneFact, Op, Outcome, Place, Posted, Scope, Stop, Work};
use polyrail_transport::memory::{Access, Region, RegionKey, TrustDomain};
use polyrail_transport::{RailAddress, RemoteRegion, Waits};

use super::*;
use crate::stub::{ILLEGAL_ADDRESS, Machine, Stub};

const HOST: SegmentRef = SegmentRef(1);
const GPU: SegmentRef = SegmentRef(2);
const OTHER: SegmentRef = SegmentRef(3);
const PAGED: SegmentRef = SegmentRef(4);
const EPOCH: Epoch = Epoch(1);
const BYTES: u64 = 1 << 20;

#[derive(Default)]
struct Regions(Mutex<HashMap<RegionKey, Arc<Region>>>);

impl RegionTable for Regions {
    fn find(&self, key: &RegionKey, _: TrustDomain) -> Option<Arc<Region>> {
        self.0.lock().unwrap().get(key).cloned()
    }
}

/// An endpoint with a lane to `cuda:0`, memory of the host, of that device and of another one.
struct Bench {
    stub: Arc<Stub>,
    gpus: Arc<Gpus>,
    regions: Arc<Regions>,
    driven: Driven,
    memory: HashMap<SegmentRef, Arc<Region>>,
}

impl Deref for Bench {
    type Target = Driven;

    fn deref(&self) -> &Driven {
        &self.driven
    }
}

impl DerefMut for Bench {
    fn deref_mut(&mut self) -> &mut Driven {
        &mut self.driven
    }
}

impl Bench {
    fn new() -> Self {
        Self::on(Machine::default())
    }

    fn on(machine: Machine) -> Self {
        let stub = Arc::new(Stub::new(machine));
        let gpus = Gpus::over(stub.clone());
        let regions = Arc::new(Regions::default());
        let clock = Clock::start();
        let transport = CudaTransport::new(gpus.clone(), regions.clone());
        let endpoint = transport.endpoint(0, clock).unwrap();
        let mut bench = Self {
            stub,
            gpus,
            regions,
            driven: Driven::new(endpoint, clock, LaneId::new(0, RailId(7)), EPOCH),
            memory: HashMap::new(),
        };
        bench.attach(HOST, Region::allocate(BYTES, Access::Local).unwrap());
        for (segment, ordinal) in [(GPU, 0), (OTHER, 1)] {
            let region = bench
                .gpus
                .allocate(ordinal, BYTES, Access::Local, Sharing::Process);
            bench.attach(segment, region.unwrap());
        }
        let address = RailAddress {
            transport: TransportId(0),
            local: None,
            remote: ([0, 0, 0, 0], 0).into(),
            session: SessionId([0; 16]),
            secret: None,
            own: 0_u32.to_le_bytes().as_slice().into(),
        };
        bench.driven.endpoint.attach_rail(RailId(7), address);
        bench.open();
        bench
    }

    fn attach(&mut self, segment: SegmentRef, region: Region) {
        let region = Arc::new(region);
        self.gpus.pin(0, &region);
        self.attach_as_it_is(segment, region);
    }

    fn attach_as_it_is(&mut self, segment: SegmentRef, region: Arc<Region>) {
        let key = region.key();
        self.regions.0.lock().unwrap().insert(key, region.clone());
        self.driven.endpoint.attach_local(segment, region.clone());
        let bytes = region.bytes();
        self.driven
            .endpoint
            .attach_remote(segment, RemoteRegion { key, bytes });
        self.memory.insert(segment, region);
    }

    fn bytes(&self, segment: SegmentRef, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.memory[&segment].load(offset, &mut bytes).unwrap();
        bytes
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Whatever a test held back: an endpoint waits for it.
        self.stub.go_on();
    }
}

fn work(
    cookie: u64,
    op: Op,
    local: (SegmentRef, u64),
    remote: (SegmentRef, u64),
    length: u32,
) -> Work {
    let place = |(segment, offset)| Place { segment, offset };
    Work {
        cookie,
        op,
        local: place(local),
        remote: place(remote),
        length,
        signal: true,
    }
}

fn pattern(seed: u64, length: u64) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(31).wrapping_add(seed) % 251) as u8;
    (0..length).map(byte).collect()
}

#[test]
fn bytes_move_between_all_memories_at_odd_sizes_and_offsets() {
    let mut bench = Bench::new();
    let sizes = [1, 2, 3, 255, 4095, 4096, 4097, 65_536, 65_537, 300_001];
    // (name, local, remote)
    let pairs = [
        ("host and device", HOST, GPU),
        ("host and the other device", HOST, OTHER),
        ("device and device", GPU, OTHER),
        ("other device and device", OTHER, GPU),
        ("memory that is not pinned and device", PAGED, GPU),
    ];
    let paged = Region::allocate(BYTES, Access::Local).unwrap();
    bench.attach_as_it_is(PAGED, Arc::new(paged));
    let mut seed = 0;
    for (name, local, remote) in pairs {
        for size in sizes {
            for (at, to) in [(0, 0), (1, 13), (4095, 3)] {
                for op in [Op::Write, Op::Read] {
                    seed += 1;
                    let (from, from_at, into, into_at) = match op {
                        Op::Write => (local, at, remote, to),
                        Op::Read => (remote, to, local, at),
                    };
                    let sent = pattern(seed, size);
                    bench.memory[&from].store(&sent, from_at).unwrap();
                    let around = [0xa5; 8];
                    bench.memory[&into].store(&around, into_at + size).unwrap();
                    let one = work(1, op, (local, at), (remote, to), size as u32);
                    assert_eq!(bench.run(&[one]), [Outcome::Success]);
                    let case = format!("{name}, {op:?}, {size} bytes, {at} to {to}");
                    assert!(bench.bytes(into, into_at, size) == sent, "{case}");
                    assert_eq!(bench.bytes(into, into_at + size, 8), around, "{case}");
                }
            }
        }
    }
}

/// Of several rounds through all slots.
const LARGE: u64 = 5 * (2 << 20) + 4097;

impl Bench {
    /// One with a segment of `LARGE` bytes that is not pinned, and one on a device.
    fn paged() -> Self {
        let mut bench = Self::new();
        let paged = Region::allocate(LARGE, Access::Local).unwrap();
        bench.attach_as_it_is(PAGED, Arc::new(paged));
        let large = bench
            .gpus
            .allocate(0, LARGE, Access::Local, Sharing::Process);
        bench.attach(GPU, large.unwrap());
        bench
    }

    fn paged_work(op: Op) -> Work {
        work(1, op, (PAGED, 0), (GPU, 0), LARGE as u32)
    }
}

#[test]
fn memory_that_is_not_pinned_passes_through_slots_and_no_call_waits() {
    // Such a copy returned when it was over: the worker stood still behind the program's kernels, with all its lanes.
    for (seed, op) in [(1, Op::Write), (2, Op::Read)] {
        let mut bench = Bench::paged();
        let (from, to) = match op {
            Op::Write => (PAGED, GPU),
            Op::Read => (GPU, PAGED),
        };
        let sent = pattern(seed, LARGE);
        bench.memory[&from].store(&sent, 0).unwrap();
        let unpinned = bench.stub.counts().unpinned;
        bench.stub.hold();
        assert_eq!(bench.post(&[Bench::paged_work(op)]).stop, Stop::All);
        for _ in 0..100 {
            bench.poll();
            assert!(bench.driven.endpoint.poll_timeout().is_some(), "{op:?}");
        }
        assert_eq!(bench.driven.polled.completions, []);
        // A neighbour is taken meanwhile.
        let other = work(2, Op::Write, (HOST, 0), (OTHER, 0), 100);
        assert_eq!(bench.post(&[other]).stop, Stop::All);
        bench.stub.go_on();
        while bench.driven.polled.completions.len() < 2 {
            bench.poll();
        }
        let done = &bench.driven.polled.completions;
        assert!(done.iter().all(|done| done.outcome == Outcome::Success));
        assert!(bench.bytes(to, 0, LARGE) == sent, "{op:?}");
        let counts = bench.stub.counts();
        // Only to look at the bytes; and what is pinned are the host's segment and slots.
        assert_eq!(counts.unpinned, unpinned + u64::from(op == Op::Write));
        assert_eq!(counts.pinned, 2, "{op:?}");
    }
}

#[test]
fn memory_that_shares_a_page_with_what_is_pinned_passes_through_slots() {
    let mut bench = Bench::new();
    let mut here = pattern(7, 4 * 4096);
    let address = here.as_mut_ptr() as u64;
    // The program has pinned the first half, and a bit.
    assert!(bench.stub.pin(0, address, 2 * 4096 + 10).unwrap());
    let base = std::ptr::NonNull::new(here.as_mut_ptr()).unwrap();
    // SAFETY: it lives until the end of the test, and the region goes before.
    let region = unsafe { Region::new(base, 4 * 4096, Access::Local, None) };
    bench.attach(PAGED, region.unwrap());
    let unpinned = bench.stub.counts().unpinned;
    let all = work(1, Op::Write, (PAGED, 0), (GPU, 0), 4 * 4096);
    assert_eq!(bench.run(&[all]), [Outcome::Success]);
    assert_eq!(bench.stub.counts().unpinned, unpinned);
    assert!(bench.bytes(GPU, 0, 4 * 4096) == here);
    // And of what it has pinned itself, all is copied as it is.
    // SAFETY: as above.
    let inner = unsafe { Region::new(base, 2 * 4096, Access::Local, None) };
    let inner = Arc::new(inner.unwrap());
    bench.gpus.pin(0, &inner);
    assert!(bench.gpus.is_pinned(&inner));
    inner.revoke();
    assert!(bench.stub.unpin(0, address).is_ok(), "it is the program's");
}

#[test]
fn what_passes_through_slots_is_read_when_the_programs_stream_is_over() {
    let mut bench = Bench::paged();
    let theirs = bench.stub.stream(0).unwrap();
    let made = pattern(3, 64);
    bench.memory[&OTHER].store(&[0; 64], 0).unwrap();
    bench.memory[&GPU].store(&made, 100).unwrap();
    let paged = bench.memory[&PAGED].base().as_ptr() as u64;
    assert!(bench.stub.pin(0, paged, 64).unwrap());
    bench.stub.hold();
    // The program reads into the memory that we are to write from.
    let from = driver::End {
        address: bench.memory[&GPU].base().as_ptr() as u64 + 100,
        ordinal: Some(0),
    };
    let to = driver::End {
        address: paged,
        ordinal: None,
    };
    // SAFETY: both ends live until the stream is finished below.
    unsafe { bench.stub.copy(0, theirs, to, from, 64) }.unwrap();
    bench.gpus.order_after(0, theirs).unwrap();
    let write = work(1, Op::Write, (PAGED, 0), (GPU, 5000), 64);
    assert_eq!(bench.post(&[write]).stop, Stop::All);
    for _ in 0..100 {
        bench.poll();
    }
    bench.stub.go_on();
    while bench.driven.polled.completions.is_empty() {
        bench.poll();
    }
    assert!(bench.bytes(GPU, 5000, 64) == made);
    bench.stub.finish(0, theirs).unwrap();
}

#[test]
fn what_cannot_go_on_through_slots_ends_when_what_is_on_its_way_has() {
    for fences in [false, true] {
        let mut bench = Bench::paged();
        bench.stub.hold();
        bench.post(&[Bench::paged_work(Op::Read)]);
        if fences {
            bench
                .driven
                .endpoint
                .fence(bench.driven.lane, EPOCH, Scope::Local);
        }
        let call = "cuMemcpyAsync";
        let error = driver::CudaError::Driver { call, code: 1 };
        bench.stub.refuse_copies(Some(error));
        for _ in 0..100 {
            bench.poll();
        }
        assert_eq!(bench.driven.polled.completions, []);
        bench.stub.go_on();
        while bench.driven.polled.completions.is_empty() {
            bench.poll();
        }
        let failed = Outcome::Error(Cause::LocalOperation);
        assert_eq!(bench.driven.polled.completions[0].outcome, failed);
        if fences {
            assert!(matches!(bench.fact().fact, LaneFact::Fenced { .. }));
        }
        bench.stub.refuse_copies(None);
    }
}

#[test]
fn a_context_that_is_lost_leaves_the_end_of_what_passes_through_slots_open() {
    let mut bench = Bench::paged();
    bench.stub.hold();
    bench.post(&[Bench::paged_work(Op::Write)]);
    for _ in 0..10 {
        bench.poll();
    }
    bench.stub.lose(0, ILLEGAL_ADDRESS);
    assert_eq!(bench.fact().fact, LaneFact::Broken(Cause::Fatal));
    bench
        .driven
        .endpoint
        .fence(bench.driven.lane, EPOCH, Scope::Remote);
    assert!(matches!(bench.fact().fact, LaneFact::Unfenceable { .. }));
    assert_eq!(bench.driven.polled.completions, []);
    assert!(bench.memory[&PAGED].is_touched());
}

#[test]
fn memory_that_the_program_put_together_is_memory_like_any_other() {
    let mut bench = Bench::new();
    let address = bench.stub.allocate_mapped(0, 4096, 8).unwrap();
    // SAFETY: allocated until the driver ends.
    let region = unsafe { bench.gpus.register(address, 8 * 4096, Access::Local) }.unwrap();
    let segment = SegmentRef(9);
    bench.attach(segment, region);
    let sent = pattern(5, 20_000);
    bench.memory[&HOST].store(&sent, 7).unwrap();
    let one = work(1, Op::Write, (HOST, 7), (segment, 4000), 20_000);
    assert_eq!(bench.run(&[one]), [Outcome::Success]);
    assert!(bench.bytes(segment, 4000, 20_000) == sent);
}

#[test]
fn works_that_follow_each_other_are_one_copy() {
    let mut bench = Bench::new();
    let sent = pattern(1, BYTES);
    bench.memory[&HOST].store(&sent, 0).unwrap();
    let slice = 65_536;
    let works: Vec<_> = (0..16)
        .map(|n| {
            work(
                n,
                Op::Write,
                (HOST, n * slice),
                (GPU, n * slice),
                slice as u32,
            )
        })
        .collect();
    let before = bench.stub.counts();
    assert_eq!(bench.run(&works), [Outcome::Success; 16]);
    let counts = bench.stub.counts();
    assert_eq!(counts.copies - before.copies, 1);
    assert_eq!(counts.copy_bytes_max, BYTES);
    assert!(bench.bytes(GPU, 0, BYTES) == sent);
    // Those that do not, are not: a gap at either end, the other direction, another segment.
    let apart = [
        work(0, Op::Write, (HOST, 0), (GPU, 0), 10),
        work(1, Op::Write, (HOST, 11), (GPU, 10), 10),
        work(2, Op::Write, (HOST, 21), (GPU, 30), 10),
        work(3, Op::Read, (HOST, 31), (GPU, 40), 10),
        work(4, Op::Read, (HOST, 41), (OTHER, 50), 10),
    ];
    assert_eq!(bench.run(&apart), [Outcome::Success; 5]);
    assert_eq!(bench.stub.counts().copies - counts.copies, 5 + 1);
}

#[test]
fn streams_and_events_are_used_again() {
    let mut bench = Bench::new();
    let one = |n| work(n, Op::Write, (HOST, n), (GPU, 2 * n), 1);
    for _ in 0..50 {
        let works: Vec<_> = (0..8).map(one).collect();
        assert_eq!(bench.run(&works), [Outcome::Success; 8]);
    }
    let counts = bench.stub.counts();
    assert!(counts.events <= 8, "{counts:?}");
    assert_eq!(counts.streams, 3);
    bench.driven.endpoint = CudaTransport::new(bench.gpus.clone(), bench.regions.clone())
        .endpoint(0, bench.driven.clock)
        .unwrap();
    let counts = bench.stub.counts();
    assert_eq!((counts.events, counts.streams), (0, 0));
}

#[test]
fn what_does_not_lie_inside_is_refused_where_it_is() {
    let mut bench = Bench::new();
    bench
        .driven
        .endpoint
        .attach_local(SegmentRef(8), bench.memory[&HOST].clone());
    let good = work(0, Op::Write, (HOST, 0), (GPU, 0), 10);
    // (name, work, cause)
    let cases = [
        (
            "past the near end",
            work(1, Op::Write, (HOST, BYTES - 1), (GPU, 10), 2),
            Cause::LocalProtection,
        ),
        (
            "past the far end",
            work(1, Op::Write, (HOST, 10), (GPU, BYTES - 1), 2),
            Cause::RemoteAccess,
        ),
        (
            "an unknown near end",
            work(1, Op::Write, (SegmentRef(20), 0), (GPU, 0), 2),
            Cause::LocalProtection,
        ),
        (
            "a far end in the host's memory",
            work(1, Op::Write, (GPU, 0), (HOST, 0), 2),
            Cause::RemoteAccess,
        ),
    ];
    for (name, bad, cause) in cases {
        let posted = bench.post(&[good, bad]);
        let refused = Posted {
            accepted: 1,
            stop: Stop::Rejected(cause),
        };
        assert_eq!(posted, refused, "{name}");
        while bench.driven.polled.completions.is_empty() {
            bench.poll();
        }
        bench.driven.polled.completions.clear();
    }
    bench.memory[&GPU].revoke();
    let posted = bench.post(&[good]);
    assert_eq!(posted.stop, Stop::Rejected(Cause::RemoteAccess), "revoked");
}

#[test]
fn a_lane_takes_only_so_many_works() {
    let mut bench = Bench::new();
    bench.stub.hold();
    let works: Vec<_> = (0..32)
        .map(|n| work(n, Op::Write, (HOST, n), (GPU, n), 1))
        .collect();
    for _ in 0..WORKS_MAX / 32 {
        assert_eq!(bench.post(&works).stop, Stop::All);
    }
    let full = Posted {
        accepted: 0,
        stop: Stop::Full,
    };
    assert_eq!(bench.post(&works), full);
    bench.stub.go_on();
    while bench.driven.polled.completions.len() < usize::from(WORKS_MAX) {
        bench.poll();
    }
    assert_eq!(bench.post(&works).stop, Stop::All);
}

#[test]
fn a_fence_holds_when_the_last_copy_is_over_and_no_sooner() {
    let mut bench = Bench::new();
    bench.stub.hold();
    let write = work(1, Op::Write, (HOST, 0), (GPU, 0), 100);
    bench.post(&[write]);
    for scope in [Scope::Local, Scope::Remote] {
        bench.driven.endpoint.fence(bench.driven.lane, EPOCH, scope);
    }
    for _ in 0..100 {
        bench.poll();
    }
    assert_eq!(bench.driven.polled.lanes, [], "it is still on its way");
    let flushed = Stop::Rejected(Cause::Flushed);
    assert_eq!(bench.post(&[write]).stop, flushed, "nothing more is taken");
    bench.stub.go_on();
    for scope in [Scope::Local, Scope::Remote] {
        let fact = LaneFact::Fenced {
            scope,
            delivered: None,
        };
        assert_eq!(bench.fact().fact, fact);
    }
    assert_eq!(bench.driven.polled.completions.len(), 1);
    // Again, and of an epoch that was never used.
    for epoch in [EPOCH, Epoch(9)] {
        bench
            .driven
            .endpoint
            .fence(bench.driven.lane, epoch, Scope::Local);
        let fact = bench.fact();
        assert!(matches!(fact.fact, LaneFact::Fenced { .. }), "{fact:?}");
        bench.driven.polled.lanes.clear();
        bench.poll();
        bench.driven.polled.lanes.clear();
    }
}

#[test]
fn a_lost_context_is_no_fence_and_lets_go_of_nothing() {
    let mut bench = Bench::new();
    bench.stub.hold();
    bench.memory[&HOST].store(&[1; 100], 0).unwrap();
    let read = work(1, Op::Read, (HOST, 0), (GPU, 0), 100);
    assert_eq!(bench.post(&[read]).stop, Stop::All);
    bench.stub.lose(0, ILLEGAL_ADDRESS);
    assert_eq!(bench.fact().fact, LaneFact::Broken(Cause::Fatal));
    for scope in [Scope::Local, Scope::Remote] {
        bench.driven.endpoint.fence(bench.driven.lane, EPOCH, scope);
    }
    let mut facts = Vec::new();
    while facts.len() < 4 {
        facts.push(bench.fact().fact);
    }
    let unfenceable = |fact: &LaneFact| matches!(fact, LaneFact::Unfenceable { .. });
    assert!(facts.iter().all(unfenceable), "{facts:?}");
    assert_eq!(
        bench.driven.polled.completions,
        [],
        "nobody knows how it ended"
    );
    // What it was to write to is still there when it does so after all.
    let region = bench.memory.remove(&HOST).unwrap();
    bench.driven.endpoint.detach_local(HOST);
    bench.regions.0.lock().unwrap().remove(&region.key());
    let weak = Arc::downgrade(&region);
    drop(region);
    let region = weak.upgrade().expect("it is kept");
    assert_eq!(bench.stub.haunt(0), 1);
    let mut bytes = [0; 100];
    region.load(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 100], "the device's zeroes have come");
    // The device is of no use any more; the other one is.
    bench
        .driven
        .endpoint
        .open(bench.driven.lane, Epoch(2), Instant::MAX);
    assert_eq!(bench.fact().fact, LaneFact::OpenFailed(Cause::Fatal));
}

/// What a driver answers, and nothing is lost.
fn refusals() -> [driver::CudaError; 3] {
    let of = |code| driver::CudaError::Busy {
        call: "cuEventQuery",
        code,
    };
    let call = "cuEventQuery";
    [
        of(900),
        of(907),
        driver::CudaError::Driver { call, code: 2 },
    ]
}

#[test]
fn a_copy_is_asked_after_again_when_the_driver_does_not_say_whether_it_is_over() {
    // A program that captured a graph made the driver say 900. The device counted as lost for ever.
    for refused in refusals() {
        let mut bench = Bench::new();
        let sent = pattern(1, 100);
        bench.memory[&HOST].store(&sent, 0).unwrap();
        let write = work(1, Op::Write, (HOST, 0), (GPU, 0), 100);
        assert_eq!(bench.post(&[write]).stop, Stop::All);
        bench.stub.set_refused(Some(refused.clone()));
        for _ in 0..100 {
            bench.poll();
        }
        assert_eq!(bench.driven.polled.completions, [], "{refused}");
        assert_eq!(bench.driven.polled.lanes, [], "{refused}");
        assert!(bench.driven.endpoint.poll_timeout().is_some());
        bench.stub.set_refused(None);
        while bench.driven.polled.completions.is_empty() {
            bench.poll();
        }
        let outcome = bench.driven.polled.completions[0].outcome;
        assert_eq!(outcome, Outcome::Success, "{refused}");
        assert!(bench.bytes(GPU, 0, 100) == sent);
    }
}

#[test]
fn works_wait_while_the_driver_says_not_now() {
    let mut bench = Bench::new();
    let [refused, ..] = refusals();
    bench.stub.set_refused(Some(refused));
    let before = bench.stub.counts().copies;
    let works: Vec<_> = (0..4)
        .map(|n| work(n, Op::Write, (HOST, 2 * n), (GPU, n), 1))
        .collect();
    assert_eq!(bench.post(&works).stop, Stop::All);
    for _ in 0..100 {
        bench.poll();
        assert!(bench.driven.endpoint.poll_timeout().is_some());
    }
    assert_eq!(bench.stub.counts().copies, before);
    // One of a lane that is given up has never begun.
    let other = LaneId::new(1, RailId(7));
    bench.driven.endpoint.open(other, EPOCH, Instant::MAX);
    let batch = polyrail_core::work::PostBatch {
        lane: other,
        epoch: EPOCH,
        works: [works[0]].into_iter().collect(),
    };
    assert_eq!(bench.driven.endpoint.post(&batch).stop, Stop::All);
    bench.driven.endpoint.fence(other, EPOCH, Scope::Local);
    bench.stub.set_refused(None);
    while bench.driven.polled.completions.len() < 4 {
        bench.poll();
    }
    let done = &bench.driven.polled.completions;
    assert!(done.iter().all(|done| done.outcome == Outcome::Success));
    assert_eq!(bench.stub.counts().copies - before, 4);
}

#[test]
fn a_copy_that_was_taken_without_its_mark_is_marked_later() {
    let mut bench = Bench::new();
    let write = work(1, Op::Write, (HOST, 0), (GPU, 0), 100);
    assert_eq!(bench.run(&[write]), [Outcome::Success]);
    let [refused, ..] = refusals();
    bench.stub.refuse_marks(Some(refused));
    assert_eq!(bench.post(&[write]).stop, Stop::All);
    for _ in 0..100 {
        bench.poll();
    }
    assert_eq!(bench.driven.polled.completions, []);
    assert_eq!(bench.driven.polled.lanes, []);
    bench.stub.refuse_marks(None);
    while bench.driven.polled.completions.is_empty() {
        bench.poll();
    }
    let outcome = bench.driven.polled.completions[0].outcome;
    assert_eq!(outcome, Outcome::Success);
}

#[test]
fn a_fence_that_waits_is_told_that_the_context_is_lost() {
    let mut bench = Bench::new();
    bench.stub.hold();
    bench.post(&[work(1, Op::Write, (HOST, 0), (GPU, 0), 100)]);
    bench
        .driven
        .endpoint
        .fence(bench.driven.lane, EPOCH, Scope::Local);
    bench.stub.lose(0, ILLEGAL_ADDRESS);
    let scope = Scope::Local;
    assert_eq!(bench.fact().fact, LaneFact::Unfenceable { scope });
}

#[test]
fn a_context_that_is_lost_when_works_are_posted_leaves_their_end_open() {
    let mut bench = Bench::new();
    let one = work(1, Op::Write, (HOST, 0), (GPU, 0), 100);
    assert_eq!(bench.run(&[one]), [Outcome::Success]);
    bench.stub.lose(0, ILLEGAL_ADDRESS);
    assert_eq!(bench.post(&[one]).stop, Stop::Unknown);
    assert_eq!(bench.fact().fact, LaneFact::Broken(Cause::Fatal));
    bench
        .driven
        .endpoint
        .fence(bench.driven.lane, EPOCH, Scope::Remote);
    assert!(matches!(bench.fact().fact, LaneFact::Unfenceable { .. }));
}

#[test]
fn what_was_not_begun_on_a_lost_context_has_ended() {
    let mut bench = Bench::new();
    bench.stub.lose(0, ILLEGAL_ADDRESS);
    let one = work(1, Op::Write, (HOST, 0), (GPU, 0), 100);
    assert_eq!(bench.post(&[one]).stop, Stop::Rejected(Cause::Fatal));
    assert_eq!(bench.fact().fact, LaneFact::Broken(Cause::Fatal));
    bench
        .driven
        .endpoint
        .fence(bench.driven.lane, EPOCH, Scope::Remote);
    assert!(matches!(bench.fact().fact, LaneFact::Fenced { .. }));
}

#[test]
fn copies_wait_for_the_programs_stream() {
    let mut bench = Bench::new();
    let theirs = bench.stub.stream(0).unwrap();
    let first = work(1, Op::Read, (HOST, 0), (GPU, 0), 64);
    assert_eq!(bench.run(&[first]), [Outcome::Success]);
    // The program's own copy, a kernel in its place, goes on only later.
    bench.stub.hold();
    let mut made = pattern(3, 64);
    assert!(bench.stub.pin(0, made.as_ptr() as u64, 64).unwrap());
    let from = driver::End {
        address: made.as_mut_ptr() as u64,
        ordinal: None,
    };
    let to = driver::End {
        address: bench.memory[&GPU].base().as_ptr() as u64,
        ordinal: Some(0),
    };
    // SAFETY: both ends live until the stream is finished below.
    unsafe { bench.stub.copy(0, theirs, to, from, 64) }.unwrap();
    bench.gpus.order_after(0, Stream(theirs.0)).unwrap();
    // Whichever stream carries it.
    let within = work(3, Op::Write, (GPU, 0), (OTHER, 0), 64);
    assert_eq!(
        bench
            .post(&[work(2, Op::Read, (HOST, 0), (GPU, 0), 64)])
            .stop,
        Stop::All
    );
    assert_eq!(bench.post(&[within]).stop, Stop::All);
    bench.stub.go_on();
    while bench.driven.polled.completions.len() < 2 {
        bench.poll();
    }
    assert!(bench.bytes(HOST, 0, 64) == made);
    assert!(bench.bytes(OTHER, 0, 64) == made);
    bench.stub.finish(0, theirs).unwrap();
}

#[test]
fn copies_into_another_device_wait_for_its_stream_too() {
    let mut bench = Bench::new();
    let theirs = bench.stub.stream(1).unwrap();
    bench.stub.hold();
    let mut before = pattern(3, 64);
    assert!(bench.stub.pin(0, before.as_ptr() as u64, 64).unwrap());
    let from = driver::End {
        address: before.as_mut_ptr() as u64,
        ordinal: None,
    };
    let to = driver::End {
        address: bench.memory[&OTHER].base().as_ptr() as u64,
        ordinal: Some(1),
    };
    // SAFETY: both ends live until the stream is finished below.
    unsafe { bench.stub.copy(1, theirs, to, from, 64) }.unwrap();
    bench.gpus.order_after(1, theirs).unwrap();
    let within = work(1, Op::Write, (GPU, 0), (OTHER, 0), 64);
    assert_eq!(bench.post(&[within]).stop, Stop::All);
    bench.stub.go_on();
    while bench.driven.polled.completions.is_empty() {
        bench.poll();
    }
    assert_eq!(bench.bytes(OTHER, 0, 64), [0; 64], "ours came last");
    bench.stub.finish(1, theirs).unwrap();
}

#[test]
fn devices_that_do_not_reach_each_other_are_joined_all_the_same() {
    let mut bench = Bench::on(Machine {
        peers: false,
        ..Machine::default()
    });
    let sent = pattern(4, 1000);
    bench.memory[&GPU].store(&sent, 0).unwrap();
    let one = work(1, Op::Write, (GPU, 0), (OTHER, 0), 1000);
    assert_eq!(bench.run(&[one]), [Outcome::Success]);
    assert!(bench.bytes(OTHER, 0, 1000) == sent);
}

#[test]
fn the_longer_a_copy_takes_the_later_it_is_looked_at() {
    let mut bench = Bench::new();
    bench.stub.hold();
    let start = bench.driven.clock.now();
    bench.post(&[work(1, Op::Write, (HOST, 0), (GPU, 0), 1)]);
    let waits = |bench: &Bench| {
        let due = bench.driven.endpoint.poll_timeout().unwrap();
        due.since(bench.driven.clock.now())
    };
    assert!(waits(&bench) <= Duration::from_millis(1));
    // Whoever waits for it does not sleep, but not for as long as a program's kernel may hold it up.
    let at_first = bench.driven.endpoint.waits();
    if bench.driven.clock.now().since(start) < crate::endpoint::SHORT {
        assert_eq!(at_first, Waits::Device);
    }
    while bench.driven.endpoint.waits() == Waits::Device {
        bench.sleep();
    }
    assert_eq!(bench.driven.endpoint.waits(), Waits::Long);
    bench.stub.go_on();
    while bench.driven.polled.completions.is_empty() {
        bench.sleep();
        bench.poll();
    }
    assert_eq!(bench.driven.endpoint.poll_timeout(), None);
    assert_eq!(bench.driven.endpoint.waits(), Waits::Nothing);
}
