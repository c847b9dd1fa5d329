//! RDMA lanes under a real engine, over devices that are in this process: what bulk costs them, counted.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use polyrail::cuda::driver::Driver;
use polyrail::cuda::stub::{Machine, Stub as CudaStub};
use polyrail::{
    Access, Batch, Cause, Config, DeliveryStatus, Engine, Hooks, Op, Plugin, RailState,
    RegisterError, Remote, Request, SegmentId, Status, Terms,
};
use polyrail_core::time::Duration as CoreDuration;
use polyrail_transport::Transport;
use polyrail_transport::memory::RegionTable;
use polyrail_verbs::Settings;
use polyrail_verbs::stub::{self, COUNTERS, Happening, StubTransport, happen, skip_bytes};

#[path = "verbs/swarm.rs"]
mod swarm;

const BYTES: u64 = 64 << 20;

/// Queue pairs of an engine on one device: fewer than there are peers below.
const LANES_MAX: u16 = 2;

/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counters are of all devices of this process.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn engine(name: &str, listen: bool) -> Engine {
    engine_with(name, listen, [1, 2])
}

/// With rails at these addresses of the network 127.0.0.0. Devices are at 1 and 2.
fn engine_with(name: &str, listen: bool, rails: [u8; 2]) -> Engine {
    engine_of(name, listen, rails, |_| ())
}

fn engine_of(name: &str, listen: bool, rails: [u8; 2], tune: impl Fn(&mut Config)) -> Engine {
    let rails = rails.map(|last| [127, 0, 0, last].into()).to_vec();
    let mut config = Config {
        listen: listen.then(|| ([127, 0, 0, 1], 0).into()),
        rails,
        workers: 1,
        ..Config::named(name).without("shm").without("tcp")
    };
    tune(&mut config);
    let plugin = Plugin {
        make: |regions| {
            // As long as it takes, however slow this machine is.
            let batch_span = CoreDuration::from_secs(1);
            let settings = Settings {
                batch_span,
                lanes_max: LANES_MAX,
                ..Settings::default()
            };
            Arc::new(StubTransport::with(regions, settings).unwrap())
        },
        faults: None,
    };
    let hooks = Hooks {
        transports: vec![plugin],
        ..Hooks::default()
    };
    Engine::with_hooks(config, hooks).unwrap()
}

/// What RDMA is to cost in bulk: at most one doorbell and one completion for so many works.
const SHARED: u64 = 16;

/// Windows are as wide as that needs, here whatever the speed.
#[test]
fn works_in_bulk_share_doorbells_and_completions() {
    let _turn = turn();
    let target = engine("target", true);
    target
        .allocate("mem", BYTES, Access::RemoteReadWrite)
        .unwrap();
    let initiator = engine("initiator", false);
    let local = initiator.allocate("local", BYTES, Access::Local).unwrap();
    let at = target.listening().unwrap();
    let remote = initiator.open_segment(&format!("{at}/mem")).unwrap();
    skip_bytes(true);
    // All at once: each time that the last bytes under way are waited for, a doorbell and a completion are for few works.
    let run = |op, requests| {
        let request = Request {
            op,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: BYTES,
        };
        let batch = initiator.submit(&vec![request; requests]).unwrap();
        assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
    };
    let counts = || {
        [&COUNTERS.works, &COUNTERS.doorbells, &COUNTERS.completions]
            .map(|count| count.load(SeqCst))
    };
    for op in [Op::Write, Op::Read] {
        // Lanes open, and rates are learnt.
        run(op, 1);
        let before = counts();
        run(op, 64);
        let after = counts();
        let [works, doorbells, completions]: [u64; 3] =
            std::array::from_fn(|index| after[index] - before[index]);
        println!("{op:?}: {works} works, {doorbells} doorbells, {completions} completions");
        assert!(
            doorbells * SHARED <= works,
            "{op:?}: {doorbells} doorbells for {works} works"
        );
        assert!(
            completions * SHARED <= works,
            "{op:?}: {completions} completions for {works} works"
        );
    }
    let verbs = initiator
        .rails()
        .into_iter()
        .filter(|rail| rail.name.starts_with("verbs:"));
    // Their spares come behind them.
    assert!(verbs.take(2).map(|rail| rail.bytes).all(|bytes| bytes > 0));
}

/// A completion says that the peer's device has the bytes; whether its program can see them, an immediate behind them does.
#[test]
fn a_notification_follows_an_immediate_on_each_lane_that_carried_its_bytes() {
    let _turn = turn();
    skip_bytes(false);
    let target = engine("target", true);
    target
        .allocate("mem", BYTES, Access::RemoteReadWrite)
        .unwrap();
    let initiator = engine("initiator", false);
    let local = initiator.allocate("local", BYTES, Access::Local).unwrap();
    let at = target.listening().unwrap();
    let remote = initiator.open_segment(&format!("{at}/mem")).unwrap();
    let write = |length| Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length,
    };
    let immediates = || COUNTERS.immediates.load(SeqCst);
    let notifications = target.notifications();
    // Lanes open.
    let batch = initiator.submit(&[write(BYTES)]).unwrap();
    assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
    for round in 0..10_u8 {
        let before = immediates();
        let batch = initiator.submit_notifying(&[write(BYTES)], &[round, 1]);
        let batch = batch.unwrap();
        assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
        let later = initiator.notify(remote, &[round, 2]).unwrap();
        let first = notifications.wait(PATIENCE).unwrap();
        assert_eq!(first.bytes, [round, 1], "in order, although it had to wait");
        assert_eq!(immediates() - before, 2, "both lanes carried bytes");
        assert_eq!(notifications.wait(PATIENCE).unwrap().bytes, [round, 2]);
        assert_eq!(later.wait(PATIENCE), Ok(DeliveryStatus::Delivered));
    }
}

/// What lanes have written that are over by then, the peer's end of them proves to be seen.
#[test]
fn a_notification_goes_out_although_the_lanes_that_carried_its_bytes_have_failed() {
    let _turn = turn();
    skip_bytes(false);
    let ends = Ends::new(8 << 20);
    let notifications = ends.target.notifications();
    for round in 0..4 {
        assert_eq!(ends.write(), Status::Completed);
        (0..2).for_each(|device| happen(device, Happening::PairFatal));
        let request = Request {
            op: Op::Write,
            local: ends.local,
            local_offset: 0,
            remote: ends.remote,
            remote_offset: 0,
            length: 8,
        };
        let batch = ends.initiator.submit_notifying(&[request], &[round]);
        assert_eq!(
            batch.unwrap().wait(PATIENCE).unwrap().status,
            Status::Completed
        );
        assert_eq!(notifications.wait(PATIENCE).unwrap().bytes, [round]);
    }
}

impl Ends {
    /// A write of 1 MiB that is to be seen before it is over, and a read beside it.
    fn submit_visible(&self) -> Batch {
        let request = |op, offset| Request {
            op,
            local: self.local,
            local_offset: offset,
            remote: self.remote,
            remote_offset: offset,
            length: 1 << 20,
        };
        let terms = Terms {
            visible: true,
            ..Terms::default()
        };
        let requests = [request(Op::Write, 0), request(Op::Read, 2 << 20)];
        self.initiator.submit_with(&requests, &terms).unwrap()
    }
}

/// A batch that is to be seen is not over before each lane that it went over has said so.
#[test]
fn a_batch_that_is_to_be_seen_ends_with_the_answers_of_its_lanes_or_says_that_there_are_none() {
    let _turn = turn();
    skip_bytes(false);
    let tune = |config: &mut Config| config.health.fence_timeout = Duration::from_millis(50);
    let ends = Ends::of(8 << 20, tune);
    let immediates = || COUNTERS.immediates.load(SeqCst);
    for _ in 0..10 {
        assert_eq!(ends.write(), Status::Completed);
        let before = immediates();
        let batch = ends.submit_visible();
        assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
        assert!(immediates() > before, "nobody was asked");
        // All of it, and so of what went before: there is nothing more to be seen.
        let before = immediates();
        let terms = Terms {
            visible: true,
            ..Terms::default()
        };
        let read = Request {
            op: Op::Read,
            local: ends.local,
            local_offset: 0,
            remote: ends.remote,
            remote_offset: 0,
            length: 8,
        };
        let batch = ends.initiator.submit_with(&[read], &terms).unwrap();
        assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
        assert_eq!(immediates(), before);
    }
    stub::lose_immediates(true);
    let batch = ends.submit_visible();
    assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Indeterminate);
    let [write, read] = [0, 1].map(|index| batch.report(index).unwrap());
    assert_eq!(
        (write.status, write.remote),
        (Status::Indeterminate, Remote::Unknown)
    );
    assert_eq!(
        (write.cause, write.delivered_bytes),
        (Some(Cause::Silent), 1 << 20)
    );
    assert_eq!(
        (read.status, read.remote),
        (Status::Completed, Remote::Settled)
    );
    // The end of its lanes proves it.
    (0..2).for_each(|device| happen(device, Happening::PairFatal));
    batch.wait_released(PATIENCE).unwrap();
    let write = batch.report(0).unwrap();
    assert_eq!(
        (write.status, write.remote),
        (Status::Indeterminate, Remote::Settled)
    );
    stub::lose_immediates(false);
    let until = Instant::now() + PATIENCE;
    while ends.submit_visible().wait(PATIENCE).unwrap().status != Status::Completed {
        assert!(Instant::now() < until);
    }
}

/// It was accepted, and what a network device reads went out before the kernels that it was to wait for.
#[test]
fn an_order_that_a_transport_would_not_keep_is_refused() {
    let _turn = turn();
    fn over(regions: Arc<dyn RegionTable>, gpu_memory: bool) -> Arc<dyn Transport> {
        let settings = Settings {
            gpu_memory,
            ..Settings::default()
        };
        Arc::new(StubTransport::with(regions, settings).unwrap())
    }
    let plugins: [fn(_) -> _; 2] = [
        |regions| over(regions, false),
        |regions| over(regions, true),
    ];
    for (make, gpu_memory) in plugins.into_iter().zip([false, true]) {
        let stub = Arc::new(CudaStub::new(Machine::default()));
        let stream = stub.stream(0).unwrap();
        let hooks = Hooks {
            transports: vec![Plugin { make, faults: None }],
            cuda: Some(stub.clone()),
            ..Hooks::default()
        };
        let config = Config {
            rails: vec![[127, 0, 0, 1].into()],
            workers: 1,
            ..Config::named("gpus").without("shm").without("tcp")
        };
        let engine = Engine::with_hooks(config, hooks).unwrap();
        let gpu = engine
            .allocate_on_gpu("gpu", 0, 4096, Access::Local)
            .unwrap();
        let said = engine
            .order_after(gpu, stream.0)
            .map_err(|error| error.to_string());
        assert_eq!(said.is_err(), gpu_memory, "{said:?}");
        if let Err(said) = said {
            assert!(
                said.contains("verbs") && said.contains("synchronise"),
                "{said}"
            );
        }
    }
}

/// A peer used to be asked for ever, by probes, for queue pairs at addresses where it has no device.
#[test]
fn there_is_no_rail_to_an_address_where_the_peer_has_no_device() {
    let _turn = turn();
    let rails = |at: [u8; 2]| {
        let target = engine_with("target", true, at);
        target
            .allocate("mem", 4096, Access::RemoteReadWrite)
            .unwrap();
        let initiator = engine("initiator", false);
        let address = format!("{}/mem", target.listening().unwrap());
        initiator.open_segment(&address).unwrap();
        let rails = initiator.rails().into_iter().map(|rail| rail.name);
        rails.collect::<Vec<_>>()
    };
    assert_eq!(rails([2, 9]), ["verbs:127.0.0.1>127.0.0.2"]);
    // Another process there answers otherwise.
    let all = [(1, 2), (2, 1), (1, 1), (2, 2)]
        .map(|(here, there)| format!("verbs:127.0.0.{here}>127.0.0.{there}"));
    assert_eq!(rails([2, 1]), all, "two rails, and a spare for each");
}

/// With more peers than it may have queue pairs, an engine goes on, and no rail counts as bad for it.
#[test]
fn lanes_to_many_peers_take_turns() {
    let _turn = turn();
    skip_bytes(true);
    let targets: [Engine; 4] = std::array::from_fn(|_| {
        let target = engine("target", true);
        target
            .allocate("mem", BYTES, Access::RemoteReadWrite)
            .unwrap();
        target
    });
    let initiator = engine("initiator", false);
    let local = initiator.allocate("local", BYTES, Access::Local).unwrap();
    let remotes = targets.each_ref().map(|target| {
        let at = target.listening().unwrap();
        initiator.open_segment(&format!("{at}/mem")).unwrap()
    });
    let before = COUNTERS.queue_pairs.load(SeqCst);
    for round in 0..24 {
        let request = Request {
            op: Op::Write,
            local,
            local_offset: 0,
            remote: remotes[round % remotes.len()],
            remote_offset: 0,
            length: 4 << 20,
        };
        let batch = initiator.submit(&[request]).unwrap();
        assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
    }
    let made = COUNTERS.queue_pairs.load(SeqCst) - before;
    // Two ends of two rails to each of four peers, and more: none could stay.
    assert!(made > 2 * 2 * 4, "{made}");
    for rail in initiator.rails() {
        assert!(matches!(rail.state, RailState::Healthy), "{rail:?}");
    }
}

/// A target and an initiator, with memory of one size at either end.
struct Ends {
    target: Engine,
    there: SegmentId,
    initiator: Engine,
    local: SegmentId,
    remote: SegmentId,
}

impl Ends {
    fn new(bytes: u64) -> Self {
        Self::of(bytes, |_| ())
    }

    fn of(bytes: u64, tune: impl Fn(&mut Config)) -> Self {
        let target = engine("target", true);
        let access = Access::RemoteReadWrite;
        let there = target.allocate("mem", bytes, access).unwrap();
        let initiator = engine_of("initiator", false, [1, 2], tune);
        let local = initiator.allocate("local", bytes, Access::Local).unwrap();
        let at = target.listening().unwrap();
        let remote = initiator.open_segment(&format!("{at}/mem")).unwrap();
        Self {
            target,
            there,
            initiator,
            local,
            remote,
        }
    }

    /// Writes the first 8 MiB.
    fn write(&self) -> Status {
        let request = Request {
            op: Op::Write,
            local: self.local,
            local_offset: 0,
            remote: self.remote,
            remote_offset: 0,
            length: 8 << 20,
        };
        let batch = self.initiator.submit(&[request]).unwrap();
        batch.wait(PATIENCE).unwrap().status
    }
}

/// A device that had failed used to stay out until its engine ended, at either end.
#[test]
fn rails_of_a_device_that_has_failed_come_back_with_it() {
    let _turn = turn();
    skip_bytes(false);
    let ends = Ends::new(BYTES);
    assert_eq!(ends.write(), Status::Completed);
    // Each rail begins at one of the devices and ends at the other.
    for device in [0, 1] {
        let before = ends.initiator.rails();
        happen(device, Happening::DeviceFatal);
        let until = Instant::now() + PATIENCE;
        loop {
            // It may fail while there is no rail at all.
            let status = ends.write();
            let rails = ends.initiator.rails();
            let moved = rails.iter().zip(&before).take(2).all(|(rail, before)| {
                matches!(rail.state, RailState::Healthy) && rail.bytes > before.bytes + (8 << 20)
            });
            if moved && status == Status::Completed {
                break;
            }
            assert!(Instant::now() < until, "{rails:?}");
        }
    }
}

/// The call that took memory back used to say that it had, whatever the device did.
#[test]
fn memory_that_a_device_does_not_let_go_of_is_not_taken_back() {
    let _turn = turn();
    skip_bytes(false);
    let ends = Ends::new(8 << 20);
    let (target, there) = (&ends.target, ends.there);
    assert_eq!(ends.write(), Status::Completed);
    (0..2).for_each(|device| stub::unplug(device, true));
    stub::fail(stub::Call::DeregMr, 5);
    let region = target.region(there).unwrap();
    let unprovable =
        |error| matches!(error, Err(RegisterError::Unprovable { segment }) if segment == there);
    assert!(unprovable(target.unregister(there)));
    assert!(region.is_touched());
    // It is listed, under no name: peers do not find it, and another segment may have that.
    assert_eq!(target.segment_bytes(there), Some(8 << 20));
    assert_eq!(target.local_segment("mem"), None);
    target.allocate("mem", 4096, Access::Local).unwrap();
    assert!(unprovable(target.unregister(there)));
    assert!(target.local_segment("mem").is_some());
    stub::fail_nothing();
    assert!(
        unprovable(target.unregister(there)),
        "the devices are not back"
    );
    (0..2).for_each(|device| stub::unplug(device, false));
    let until = Instant::now() + PATIENCE;
    while let Err(error) = target.unregister(there) {
        assert!(Instant::now() < until, "{error}");
        std::thread::yield_now();
    }
    assert!(!region.is_touched());
    assert_eq!(target.segment_bytes(there), None);
}

/// Blocks from all over this side that lie together at the peer: the device is given few works for them. On one rail:
/// where there are several with room, neighbours go over different ones.
#[test]
fn short_requests_that_lie_together_at_the_peer_share_works() {
    let _turn = turn();
    skip_bytes(false);
    let target = engine_with("target", true, [2, 9]);
    let there = target
        .allocate("mem", BYTES, Access::RemoteReadWrite)
        .unwrap();
    let initiator = engine("initiator", false);
    let local = initiator.allocate("local", BYTES, Access::Local).unwrap();
    let at = target.listening().unwrap();
    let remote = initiator.open_segment(&format!("{at}/mem")).unwrap();
    let run = |requests: &[Request]| {
        let batch = initiator.submit(requests).unwrap();
        assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
    };
    let request = |op, local_offset, remote_offset, length| Request {
        op,
        local,
        local_offset,
        remote,
        remote_offset,
        length,
    };
    // The lane opens.
    run(&[request(Op::Write, 0, 0, BYTES)]);
    const BLOCK: u64 = 4096;
    const BLOCKS: u64 = 2048;
    // In another order on this side, with gaps.
    let place = |block: u64| block * 1021 % BLOCKS * 3 * BLOCK;
    let own = initiator.region(local).unwrap();
    let its = target.region(there).unwrap();
    for op in [Op::Write, Op::Read] {
        for block in 0..BLOCKS {
            let content = [block as u8 ^ (block >> 8) as u8 ^ op as u8; BLOCK as usize];
            match op {
                Op::Write => own.store(&content, place(block)),
                Op::Read => its.store(&content, block * BLOCK),
            }
            .unwrap();
        }
        let before = COUNTERS.works.load(SeqCst);
        let blocks = (0..BLOCKS).map(|block| request(op, place(block), block * BLOCK, BLOCK));
        run(&blocks.collect::<Vec<_>>());
        let works = COUNTERS.works.load(SeqCst) - before;
        println!("{op:?}: {works} works for {BLOCKS} blocks");
        let mut content = [[0; BLOCK as usize]; 2];
        for block in 0..BLOCKS {
            own.load(place(block), &mut content[0]).unwrap();
            its.load(block * BLOCK, &mut content[1]).unwrap();
            let expected = block as u8 ^ (block >> 8) as u8 ^ op as u8;
            assert_eq!(content, [[expected; BLOCK as usize]; 2], "{op:?} {block}");
        }
        assert!(
            works * 2 <= BLOCKS,
            "{op:?}: {works} works for {BLOCKS} blocks"
        );
    }
}

/// It was used after the next restart only.
#[test]
fn a_device_that_comes_later_carries_memory_that_was_there_before() {
    let _turn = turn();
    skip_bytes(false);
    static ROOT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let root = ROOT.get_or_init(|| tempfile::tempdir().unwrap()).path();
    stub::appear(root, 0).unwrap();
    let start = |name: &str, listen: bool| {
        let make: fn(_) -> Arc<dyn Transport> = |regions| {
            let root = ROOT.get().unwrap().path();
            Arc::new(StubTransport::at(root, regions, Settings::default()).unwrap())
        };
        let config = Config {
            listen: listen.then(|| ([127, 0, 0, 1], 0).into()),
            rails: [1, 2].map(|last| [127, 0, 0, last].into()).to_vec(),
            workers: 1,
            ..Config::named(name).without("shm").without("tcp")
        };
        let hooks = Hooks {
            transports: vec![Plugin { make, faults: None }],
            ..Hooks::default()
        };
        Engine::with_hooks(config, hooks).unwrap()
    };
    let target = start("target", true);
    let there = target
        .allocate("mem", BYTES, Access::RemoteReadWrite)
        .unwrap();
    let initiator = start("initiator", false);
    let local = initiator.allocate("local", BYTES, Access::Local).unwrap();
    let at = target.listening().unwrap();
    let remote = initiator.open_segment(&format!("{at}/mem")).unwrap();
    let own = initiator.region(local).unwrap();
    own.store(&[7; 4096], BYTES - 4096).unwrap();
    let request = Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: BYTES,
    };
    let carries = |host: &str| {
        let batch = initiator.submit(&[request]).unwrap();
        assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
        let mut rails = initiator.rails().into_iter();
        rails.any(|rail| rail.name == format!("verbs:{host}>{host}") && rail.bytes > 0)
    };
    assert!(carries("127.0.0.1"));
    let names: Vec<_> = initiator
        .rails()
        .into_iter()
        .map(|rail| rail.name)
        .collect();
    assert_eq!(names, ["verbs:127.0.0.1>127.0.0.1"]);
    stub::appear(root, 1).unwrap();
    let until = Instant::now() + PATIENCE;
    while !carries("127.0.0.2") {
        assert!(Instant::now() < until, "{:?}", initiator.rails());
    }
    let mut last = [0; 4096];
    target
        .region(there)
        .unwrap()
        .load(BYTES - 4096, &mut last)
        .unwrap();
    assert_eq!(last, [7; 4096]);
}
