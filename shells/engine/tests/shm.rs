//! Processes of one host that share memory, or read each other's: what moves, what carries it, and what becomes of
//! it when one of them is stopped or killed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use polyrail::{
    Access, Batch, Caller, Calls, Cause, Config, Engine, Faults, Hooks, Local, Op, Plugin, RailId,
    Region, Remote, Request, SegmentId, Status,
};
use polyrail_shm::ShmTransport;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// The only rail of a transport that is made first.
const RAIL: RailId = RailId(0);
const MEANT: u8 = 0x11;
const REUSED: u8 = 0x55;

/// What a process that these tests start is to be: `shared BYTES` or `private BYTES`, a target with such memory,
/// `many BYTES`, one that has [`MANY`] small segments besides, `forbidden BYTES`, one with private memory that may not read other processes', `stranger BYTES`, one of another user,
/// or `network BYTES`, one that has no shared memory.
const ROLE: &str = "POLYRAIL_TEST_SHM";

/// Segments, named by their numbers: more than a lane of `shm` maps.
const MANY: u32 = 4_400;

/// Counts bytes of the target's private memory, for whoever has nothing to do with what moved them.
struct Census(Arc<Region>);

impl Calls for Census {
    fn call(&self, _: &Engine, _: &Caller, value: u16, _: &[u8]) -> Result<Vec<u8>, String> {
        Ok(count(&self.0, value as u8).to_le_bytes().to_vec())
    }
}

/// Is the target in a process that was started for it; nothing otherwise.
#[test]
fn target_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (kind, bytes) = role.split_once(' ').unwrap();
    let bytes = bytes.parse().unwrap();
    match kind {
        "forbidden" => forbid(libc::SYS_process_vm_readv),
        // SAFETY: numbers only.
        "stranger" => assert_eq!(unsafe { libc::setuid(NOBODY) }, 0),
        _ => {}
    }
    let access = Access::RemoteReadWrite;
    let memory = Arc::new(Region::allocate(bytes, Access::Local).unwrap());
    let mut config = Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        ..Config::named("target")
    };
    if kind == "network" {
        config = config.without("shm");
    }
    let hooks = Hooks {
        calls: Some(Arc::new(Census(memory.clone()))),
        ..Hooks::default()
    };
    let engine = Engine::with_hooks(config, hooks).unwrap();
    match kind {
        // SAFETY: the memory stays mapped until the process ends.
        "private" | "forbidden" => unsafe { engine.register("mem", memory.base(), bytes, access) },
        _ => engine.allocate("mem", bytes, access),
    }
    .unwrap();
    if kind == "many" {
        for number in 0..MANY {
            engine.allocate(&format!("{number}"), 4096, access).unwrap();
        }
    }
    engine
        .allocate("readable", 4096, Access::RemoteRead)
        .unwrap();
    println!("\nlistening {}", engine.listening().unwrap());
    // Until whoever started it closes the pipe, or ends.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    engine.shutdown();
}

/// A target in a process of its own.
struct Target {
    child: Child,
    _input: Option<ChildStdin>,
    address: String,
}

impl Target {
    fn start(kind: &str, bytes: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "target_process",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, format!("{kind} {bytes}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .map(Result::unwrap)
            .find_map(|line| Some(line.strip_prefix("listening ")?.to_owned()));
        Self {
            _input: child.stdin.take(),
            child,
            address: address.expect("it listens"),
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it, and waits until all of its threads stand.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = WaitId::Pid(Pid::from_child(&self.child));
        waitid(pid, WaitIdOptions::STOPPED).unwrap();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail only if it has ended and been reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An engine with memory of its own, and what it sees of a target.
struct Initiator {
    engine: Engine,
    local: SegmentId,
    region: Arc<Region>,
    remote: SegmentId,
    bytes: u64,
}

impl Initiator {
    fn new(target: &Target, bytes: u64) -> Self {
        let config = Config::named("initiator");
        Self::with(target, bytes, config, Hooks::default())
    }

    /// One that cuts large copies over as many threads as this machine has processors, but no more than so many.
    fn of_workers(workers: usize, target: &Target, bytes: u64) -> Self {
        let config = Config {
            workers,
            ..Config::named("initiator")
        };
        Self::with(target, bytes, config, Hooks::default())
    }

    fn with(target: &Target, bytes: u64, config: Config, hooks: Hooks) -> Self {
        let engine = Engine::with_hooks(config, hooks).unwrap();
        let local = engine.allocate("here", bytes, Access::Local).unwrap();
        let remote = engine.open_segment(&format!("{}/mem", target.address));
        Self {
            region: engine.region(local).unwrap(),
            remote: remote.unwrap(),
            engine,
            local,
            bytes,
        }
    }

    fn request(&self, op: Op, local_offset: u64, remote_offset: u64, length: u64) -> Request {
        Request {
            op,
            local: self.local,
            local_offset,
            remote: self.remote,
            remote_offset,
            length,
        }
    }

    fn submit(&self, request: Request) -> Batch {
        self.engine.submit(&[request]).unwrap()
    }

    fn all(&self, op: Op) -> Batch {
        self.submit(self.request(op, 0, 0, self.bytes))
    }

    fn moves(&self, request: Request) {
        completed(&self.submit(request));
    }

    /// Bytes that each transport has carried.
    fn carried(&self, transport: &str) -> u64 {
        let rails = self.engine.rails();
        let of = rails.iter().filter(|rail| {
            let name = rail.name.split(':').next();
            name == Some(transport)
        });
        of.map(|rail| rail.bytes).sum()
    }

    /// How many bytes of the target's memory have this value, as it says itself.
    fn census(&self, value: u8) -> u64 {
        let answer = self
            .engine
            .call(self.remote, value.into(), &[], PATIENCE)
            .unwrap();
        u64::from_le_bytes(answer.try_into().unwrap())
    }

    /// Submits a request for everything, and does something once some of it has moved.
    fn in_the_middle(&self, op: Op, then: impl FnOnce()) -> Batch {
        let before = self.carried("shm");
        let batch = self.all(op);
        until("something moves", || self.carried("shm") > before);
        then();
        batch
    }
}

fn completed(batch: &Batch) {
    let status = batch.wait(PATIENCE).unwrap().status;
    assert_eq!(status, Status::Completed, "{:?}", batch.report(0));
}

fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !seen() {
        assert!(Instant::now() < deadline, "not seen in time: {what}");
        std::thread::yield_now();
    }
}

fn pattern(seed: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    for (index, word) in (0..).zip(bytes.chunks_mut(8)) {
        let mixed = (index ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64);
        word.copy_from_slice(&(mixed ^ mixed >> 29).to_le_bytes()[..word.len()]);
    }
    bytes
}

fn put(region: &Region, offset: u64, bytes: &[u8]) {
    let entered = region.enter().unwrap();
    let to = entered.pointer(offset, bytes.len() as u64).unwrap();
    // SAFETY: `pointer` gives the address of that many bytes, mapped while `entered` lives.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
}

fn get(region: &Region, offset: u64, length: u64) -> Vec<u8> {
    let entered = region.enter().unwrap();
    let from = entered.pointer(offset, length).unwrap();
    let mut bytes = vec![0; length as usize];
    // SAFETY: as in `put`.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    bytes
}

fn fill(region: &Region, value: u8) {
    let entered = region.enter().unwrap();
    let start = entered.pointer(0, region.bytes()).unwrap();
    // SAFETY: as in `put`.
    unsafe { std::ptr::write_bytes(start, value, region.bytes() as usize) }
}

fn count(region: &Region, value: u8) -> u64 {
    let pieces = (0..region.bytes()).step_by(MIB as usize);
    let of = |offset: u64| {
        let piece = get(region, offset, MIB.min(region.bytes() - offset));
        piece.iter().filter(|byte| **byte == value).count() as u64
    };
    pieces.map(of).sum()
}

#[test]
fn all_bytes_go_both_ways_and_nothing_over_the_network() {
    const BYTES: u64 = 9 * MIB;
    for (kind, workers) in [("shared", 1), ("private", 1), ("shared", 3), ("private", 3)] {
        let target = Target::start(kind, BYTES);
        let initiator = Initiator::of_workers(workers, &target, BYTES);
        let lengths = [1, 2, 4095, 4097, 65_537, MIB, 7 * MIB + 13];
        for (seed, length) in (1..).zip(lengths) {
            let bytes = pattern(seed, length);
            put(&initiator.region, 3, &bytes);
            initiator.moves(initiator.request(Op::Write, 3, 4091, length));
            put(&initiator.region, 5, &vec![0; length as usize]);
            initiator.moves(initiator.request(Op::Read, 5, 4091, length));
            assert!(
                get(&initiator.region, 5, length) == bytes,
                "{kind} {workers} {length}"
            );
        }
        let moved: u64 = lengths.iter().map(|length| 2 * length).sum();
        assert!(initiator.carried("shm") >= moved, "{kind}");
        assert_eq!(initiator.carried("tcp"), 0, "{kind}");
        let devices = initiator.engine.stats().devices;
        assert_eq!(
            (&*devices[0].device, devices[0].bytes >= moved),
            ("shm", true)
        );
    }
}

#[test]
fn threads_that_move_small_and_large_blocks_at_once_do_not_meet() {
    const THREADS: u64 = 4;
    const PART: u64 = 6 * MIB;
    for (kind, workers) in [("shared", 1), ("shared", 2), ("private", 2)] {
        let target = Target::start(kind, THREADS * PART);
        // Beside so many threads a worker may wait for a processor until shared memory looks slow.
        let config = Config {
            workers,
            ..Config::named("initiator").without("tcp")
        };
        let initiator = Initiator::with(&target, THREADS * PART, config, Hooks::default());
        let thread = |thread: u64| {
            let base = thread * PART;
            let mut random = thread + 1;
            for round in 0..40 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                // Most are over when they are submitted, if the worker has nothing else to do; some are not.
                let length = match round % 8 {
                    7 => 3 * MIB - round,
                    _ => 1 + (random >> 33) % (200 << 10),
                };
                let bytes = pattern(random, length);
                put(&initiator.region, base, &bytes);
                let write =
                    |at, length| initiator.request(Op::Write, base + at, base + 5 + at, length);
                let half = length / 2;
                let parts = match half {
                    0 => vec![write(0, length)],
                    _ => vec![write(half, length - half), write(0, half)],
                };
                completed(&initiator.engine.submit(&parts).unwrap());
                let back = base + PART / 2;
                completed(&initiator.submit(initiator.request(Op::Read, back, base + 5, length)));
                assert!(
                    get(&initiator.region, back, length) == bytes,
                    "{kind} {round}"
                );
            }
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..THREADS)
                .map(|number| scope.spawn(move || thread(number)))
                .collect();
            all.into_iter().for_each(|one| one.join().unwrap());
        });
    }
}

#[test]
fn places_beyond_4_gib_are_reached() {
    // Only the pages that are touched are there.
    const FAR: u64 = (4 << 30) + 77;
    for kind in ["shared", "private"] {
        let target = Target::start(kind, FAR + MIB);
        let initiator = Initiator::new(&target, 2 * MIB);
        let bytes = pattern(1, MIB);
        put(&initiator.region, 0, &bytes);
        initiator.moves(initiator.request(Op::Write, 0, FAR, MIB));
        initiator.moves(initiator.request(Op::Read, MIB, FAR, MIB));
        assert!(get(&initiator.region, MIB, MIB) == bytes, "{kind}");
        assert_eq!(initiator.carried("tcp"), 0, "{kind}");
    }
}

#[test]
fn overlapping_requests_leave_bytes_of_either() {
    const BYTES: u64 = 2 * MIB;
    for kind in ["shared", "private"] {
        let target = Target::start(kind, BYTES);
        let initiator = Initiator::new(&target, 2 * BYTES);
        put(&initiator.region, 0, &vec![1; BYTES as usize]);
        put(&initiator.region, BYTES, &vec![2; BYTES as usize]);
        let both = [
            initiator.request(Op::Write, 0, 0, BYTES - 1000),
            initiator.request(Op::Write, BYTES, 1000, BYTES - 1000),
        ];
        completed(&initiator.engine.submit(&both).unwrap());
        initiator.moves(initiator.request(Op::Read, 0, 0, BYTES));
        let bytes = get(&initiator.region, 0, BYTES);
        let (first, rest) = bytes.split_at(1000);
        let (middle, last) = rest.split_at(BYTES as usize - 2000);
        assert!(first.iter().all(|byte| *byte == 1), "{kind}");
        assert!(middle.iter().all(|byte| [1, 2].contains(byte)), "{kind}");
        assert!(last.iter().all(|byte| *byte == 2), "{kind}");
    }
}

#[test]
fn what_may_only_be_read_is_mapped_so() {
    let target = Target::start("shared", 4096);
    let initiator = Initiator::new(&target, 4096);
    let remote = initiator
        .engine
        .open_segment(&format!("{}/readable", target.address))
        .unwrap();
    fill(&initiator.region, 9);
    let read = Request {
        remote,
        ..initiator.request(Op::Read, 0, 0, 4096)
    };
    initiator.moves(read);
    assert_eq!(count(&initiator.region, 0), 4096);
    assert!(
        initiator
            .engine
            .submit(&[Request {
                op: Op::Write,
                ..read
            }])
            .is_err()
    );
    // Nothing of it can be written here, whoever tries.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("memfd:polyrail"));
    assert!(ours.clone().any(|line| line.contains(" r--s ")), "{maps}");
}

#[test]
fn memory_that_a_target_shares_is_written_while_it_is_stopped() {
    const BYTES: u64 = 64 * MIB;
    let target = Target::start("shared", BYTES);
    // However long the copies take here: to a peer that counts as silent nothing new begins.
    let mut config = Config::named("initiator");
    config.health.peer_silence = PATIENCE;
    let initiator = Initiator::with(&target, BYTES, config, Hooks::default());
    initiator.moves(initiator.request(Op::Write, 0, 0, 1));
    target.stop();
    // A thread that copies may have to wait for a processor for a long time: what it has begun is not lost, and whoever opened the
    // lane anew would need the target for that.
    for others in [0, 10] {
        let _busy = Busy::start(others);
        fill(&initiator.region, MEANT);
        completed(&initiator.all(Op::Write));
        fill(&initiator.region, 0);
        completed(&initiator.all(Op::Read));
        assert_eq!(count(&initiator.region, MEANT), BYTES);
    }
    target.signal(Signal::CONT);
}

/// Threads that want processors for themselves, until it is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn start(threads: usize) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let ends = ends.clone();
            std::thread::spawn(move || {
                while !ends.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(ends)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn what_a_stopped_target_has_not_given_yet_holds_nobody_else_up() {
    const BYTES: u64 = 8 * MIB;
    let target = Target::start("shared", BYTES);
    let mut config = Config::named("initiator");
    config.health.peer_silence = PATIENCE;
    config.health.progress_floor = PATIENCE;
    let initiator = Initiator::with(&target, BYTES, config, Hooks::default());
    let name = format!("{}/readable", target.address);
    let remote = initiator.engine.open_segment(&name).unwrap();
    initiator.moves(initiator.request(Op::Write, 0, 0, 1));
    target.stop();
    fill(&initiator.region, MEANT);
    // Nobody has read this one before, so it has to be asked for.
    let asking = initiator.submit(Request {
        remote,
        ..initiator.request(Op::Read, 0, 0, 4096)
    });
    let all = initiator.submit(initiator.request(Op::Write, 4096, 4096, BYTES - 4096));
    completed(&all);
    assert_eq!(asking.status().status, Status::Pending);
    target.signal(Signal::CONT);
    completed(&asking);
    assert_eq!(count(&initiator.region, 0), 4096);
}

#[test]
fn a_stopped_target_pulls_no_byte_of_memory_that_was_used_again() {
    // Promise 3: the target of a write to its program's memory is stopped in the midst of it, the write ends, and the
    // source is used for something else. When the target goes on, nothing of that may arrive.
    const BYTES: u64 = 256 * MIB;
    let target = Target::start("private", BYTES);
    // Offers as many works as a lane takes.
    let config = Config {
        policy: polyrail::Policy::Documented,
        ..Config::named("initiator")
    };
    let initiator = Initiator::with(&target, BYTES, config, Hooks::default());
    // Many small slices, so that the target is stopped between two that it pulls without a look at anything else.
    const PIECE: u64 = MIB / 4;
    let pieces = (0..BYTES / PIECE).map(|piece| piece * PIECE);
    let requests: Vec<_> = pieces
        .map(|offset| initiator.request(Op::Write, offset, offset, PIECE))
        .collect();
    let reports = (0..10).find_map(|_| {
        fill(&initiator.region, MEANT);
        let before = initiator.carried("shm");
        let batch = initiator.engine.submit(&requests).unwrap();
        until("something moves", || initiator.carried("shm") > before);
        target.stop();
        let status = batch.wait(PATIENCE).unwrap().status;
        let reports = (0..requests.len()).map(|index| batch.report(index).unwrap());
        let reports: Vec<_> = reports.collect();
        let released = reports.iter().all(|report| report.local == Local::Released);
        if released {
            fill(&initiator.region, REUSED);
        }
        target.signal(Signal::CONT);
        // It was stopped where nobody can tell whether it still reads; then nothing is claimed. Or it was quicker than
        // the signal.
        let told = status != Status::Completed && released;
        if !told {
            batch.wait_released(PATIENCE).ok();
        }
        told.then_some(reports)
    });
    println!("told: {}", reports.is_some());
    let delivered = reports.iter().flatten();
    let delivered: u64 = delivered.map(|report| report.delivered_bytes).sum();
    assert!(delivered < BYTES);
    // What it has answered it has seen after it went on.
    assert_eq!(
        initiator.census(REUSED),
        0,
        "bytes of reused memory arrived"
    );
    assert!(initiator.census(MEANT) >= delivered);
    // And it is used again.
    until("it works again", || {
        let batch = initiator.submit(initiator.request(Op::Write, 0, 0, 1));
        batch.wait(PATIENCE).unwrap().status == Status::Completed
    });
}

#[test]
fn works_of_a_killed_target_end_and_nothing_of_it_stays() {
    const BYTES: u64 = 256 * MIB;
    let cases = [
        ("shared", Op::Write, 1),
        ("private", Op::Write, 1),
        ("shared", Op::Write, 3),
        ("private", Op::Read, 3),
    ];
    for (kind, op, workers) in cases {
        let before = leftovers();
        let mut target = Target::start(kind, BYTES);
        let initiator = Initiator::of_workers(workers, &target, BYTES);
        let start = Instant::now();
        let batch = initiator.in_the_middle(op, || target.signal(Signal::KILL));
        let mut status = batch.wait(PATIENCE).unwrap().status;
        while status == Status::Completed {
            // It was quicker than the signal, or than the news; not for ever.
            assert!(start.elapsed() < Duration::from_secs(20), "nobody notices");
            match initiator
                .engine
                .submit(&[initiator.request(op, 0, 0, BYTES)])
            {
                Ok(batch) => status = batch.wait(PATIENCE).unwrap().status,
                Err(polyrail::SubmitError::PeerLost { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        if status != Status::Completed {
            assert_eq!(status, Status::PeerLost, "{kind}");
        }
        target.child.wait().unwrap();
        until("its memory is unmapped", || !is_mapped(BYTES));
        initiator.engine.shutdown();
        drop(initiator);
        assert_eq!(leftovers(), before, "{kind}");
    }
}

/// Whether shared memory of so many bytes is mapped here.
fn is_mapped(bytes: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("memfd:polyrail"));
    let sizes = ours.filter_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(number(end)? - number(start)?)
    });
    sizes.into_iter().any(|size| size == bytes)
}

/// What there is of polyrail in the places where processes leave things.
fn leftovers() -> Vec<String> {
    let folders = ["/dev/shm", "/tmp", "/run"];
    let entries = folders.iter().flat_map(|folder| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string())
    });
    let mut left: Vec<_> = entries.filter(|path| path.contains("polyrail")).collect();
    left.sort();
    left
}

#[test]
fn peers_without_shared_memory_use_the_network() {
    let target = Target::start("network", MIB);
    let initiator = Initiator::new(&target, MIB);
    completed(&initiator.all(Op::Write));
    assert_eq!(
        (initiator.carried("shm"), initiator.carried("tcp")),
        (0, MIB)
    );
    let off = Config::named("initiator").without("shm");
    let target = Target::start("shared", MIB);
    let initiator = Initiator::with(&target, MIB, off, Hooks::default());
    completed(&initiator.all(Op::Write));
    assert_eq!(
        (initiator.carried("shm"), initiator.carried("tcp")),
        (0, MIB)
    );
}

/// Forbids this thread, and those that it starts, a call of the kernel for other processes' memory, as Yama or a container would.
fn forbid(call: libc::c_long) {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        // The number of the system call.
        step(load, 0, 0, 0),
        step(equal, 0, 1, call as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: numbers only.
    let asked = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the program and its steps live until the kernel has copied them.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// A user that no process of this test is of, unless it becomes one.
const NOBODY: u32 = 65_534;

/// What was logged.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Ears;

impl log::Log for Ears {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LOGGED.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// From now on everything that is logged is kept.
fn listen_to_logs() {
    // Whoever calls this first has set it.
    let _ = log::set_logger(&Ears);
    log::set_max_level(log::LevelFilter::Debug);
}

fn was_logged(text: &str) {
    let logged = LOGGED.lock().unwrap();
    assert!(
        logged.iter().any(|line| line.contains(text)),
        "{text}: {logged:#?}"
    );
}

#[test]
fn a_process_of_another_user_is_reached_over_the_network_alone() {
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!must, "only root can become another user");
        return eprintln!("not run, because only root can become another user");
    }
    listen_to_logs();
    let target = Target::start("stranger", MIB);
    let initiator = Initiator::new(&target, MIB);
    completed(&initiator.all(Op::Write));
    assert_eq!(
        (initiator.carried("shm"), initiator.carried("tcp")),
        (0, MIB)
    );
    was_logged(&format!(
        "shm does not reach the peer: it is a process of user {NOBODY}, not 0"
    ));
}

#[test]
fn where_the_kernel_forbids_to_read_processes_the_reason_is_said_and_the_network_does_it() {
    listen_to_logs();
    let said = |who: &str| {
        was_logged(&format!(
            "{who}: the kernel forbids it: Operation not permitted"
        ));
    };
    let moves = |target: &Target, carrier: &str| {
        let initiator = Initiator::new(target, MIB);
        let sent = pattern(7, MIB);
        put(&initiator.region, 0, &sent);
        completed(&initiator.all(Op::Write));
        fill(&initiator.region, 0);
        completed(&initiator.all(Op::Read));
        assert!(get(&initiator.region, 0, MIB) == sent);
        assert_eq!(initiator.carried(carrier), 2 * MIB);
    };
    let [first, second] = ["forbidden"; 2].map(|kind| Target::start(kind, MIB));
    let [private, other] = ["private"; 2].map(|kind| Target::start(kind, MIB));
    let shared = Target::start("shared", MIB);
    // Who may not read is written to.
    moves(&first, "shm");
    forbid(libc::SYS_process_vm_writev);
    moves(&second, "tcp");
    said("the peer cannot read this process's");
    // Who may reads what nobody may write.
    moves(&private, "shm");
    forbid(libc::SYS_process_vm_readv);
    moves(&other, "tcp");
    said("this process cannot read the peer's");
    // Processes that share memory need neither.
    moves(&shared, "shm");
}

/// An initiator and the faults of its shared memory.
fn with_faults(target: &Target, bytes: u64) -> (Initiator, Arc<Faults>) {
    let faults = Arc::new(Faults::new());
    let plugin = Plugin {
        make: |regions| Arc::new(ShmTransport::new(regions, 1).unwrap()),
        faults: Some(faults.clone()),
    };
    let hooks = Hooks {
        transports: vec![plugin],
        ..Hooks::default()
    };
    let config = Config::named("initiator").without("shm");
    (Initiator::with(target, bytes, config, hooks), faults)
}

#[test]
fn a_write_goes_on_over_the_network_when_shared_memory_fails_under_it() {
    const BYTES: u64 = 64 * MIB;
    let target = Target::start("shared", BYTES);
    let (initiator, faults) = with_faults(&target, BYTES);
    fill(&initiator.region, MEANT);
    let batch = initiator.in_the_middle(Op::Write, || faults.cut(RAIL));
    completed(&batch);
    assert_eq!(batch.report(0).unwrap().remote, Remote::Settled);
    assert!(initiator.carried("tcp") > 0);
    fill(&initiator.region, 0);
    completed(&initiator.all(Op::Read));
    assert_eq!(count(&initiator.region, MEANT), BYTES);
}

#[test]
fn shared_memory_that_is_slow_is_left_for_the_network_until_it_is_not() {
    const BYTES: u64 = 64 * MIB;
    let target = Target::start("shared", BYTES);
    let (initiator, faults) = with_faults(&target, BYTES);
    fill(&initiator.region, MEANT);
    completed(&initiator.all(Op::Write));
    // All of it would take 6.4 s.
    faults.slow(RAIL, Some(10_000_000));
    until("most of it over the network", || {
        let before = initiator.carried("tcp");
        fill(&initiator.region, REUSED);
        completed(&initiator.all(Op::Write));
        initiator.carried("tcp") - before > BYTES / 2
    });
    let reasons = initiator.engine.stats();
    assert!(reasons.failovers_total() > 0, "{reasons:?}");
    faults.slow(RAIL, None);
    until("all of it over shared memory", || {
        let before = initiator.carried("tcp");
        fill(&initiator.region, 0);
        completed(&initiator.all(Op::Read));
        assert_eq!(count(&initiator.region, REUSED), BYTES);
        initiator.carried("tcp") == before
    });
}

#[test]
fn more_segments_than_a_lane_maps_are_written_and_read() {
    const ROUNDS: u64 = 3;
    // A pair of segments takes one of the engine's plans, of which there are fewer than segments here.
    const PART: usize = MANY as usize / 2;
    listen_to_logs();
    let target = Target::start("many", MIB);
    let initiator = Initiator::new(&target, MIB);
    let engine = &initiator.engine;
    let open = |number| engine.open_segment(&format!("{}/{number}", target.address));
    let remotes: Vec<_> = (0..MANY).map(|number| open(number).unwrap()).collect();
    for round in 0..ROUNDS {
        for (part, remotes) in remotes.chunks(PART).enumerate() {
            let bytes = 8 * remotes.len() as u64;
            let local = engine.allocate("part", bytes, Access::Local).unwrap();
            let region = engine.region(local).unwrap();
            let meant = pattern(round * 2 + part as u64, bytes);
            let move_all = |op| {
                let request = |(place, remote): (u64, &SegmentId)| Request {
                    op,
                    local,
                    local_offset: 8 * place,
                    remote: *remote,
                    remote_offset: 8 * round,
                    length: 8,
                };
                let requests: Vec<_> = (0..).zip(remotes).map(request).collect();
                for some in requests.chunks(100) {
                    completed(&engine.submit(some).unwrap());
                }
            };
            put(&region, 0, &meant);
            move_all(Op::Write);
            fill(&region, 0);
            move_all(Op::Read);
            assert!(
                get(&region, 0, bytes) == meant,
                "round {round}, part {part}"
            );
            engine.unregister(local).unwrap();
        }
    }
    let moved = initiator.carried("shm") + initiator.carried("tcp");
    let meant = ROUNDS * u64::from(MANY) * 16;
    // A lane that a busy machine holds up is suspected, and a few of its works are copied.
    assert!((meant..=meant + meant / 100).contains(&moved), "{moved}");
    // A lane that is full ends, and the next one begins with none: that is once a round, not for ever. Lanes of other
    // tests are opened less often.
    let logged = LOGGED.lock().unwrap();
    let fenced = logged.iter().filter_map(|line| {
        let (_, epoch) = line.split_once(" epoch ")?;
        epoch.split_once(": fenced")?.0.parse::<u32>().ok()
    });
    let openings = fenced.max();
    assert!((1..20).contains(&openings.unwrap_or(0)), "{openings:?}");
}

#[test]
fn memory_that_a_target_takes_back_is_left_alone() {
    let access = Access::RemoteReadWrite;
    let target = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        ..Config::named("target")
    })
    .unwrap();
    let shared = target.allocate("shared", MIB, access).unwrap();
    let memory = Region::allocate(MIB, Access::Local).unwrap();
    // SAFETY: the memory outlives the engine.
    let private = unsafe { target.register("private", memory.base(), MIB, access) }.unwrap();
    let engine = Engine::new(Config::named("initiator")).unwrap();
    let local = engine.allocate("here", MIB, Access::Local).unwrap();
    for (name, segment) in [("shared", shared), ("private", private)] {
        let kept = target.region(segment).unwrap();
        let at = format!("{}/{name}", target.listening().unwrap());
        let write = Request {
            op: Op::Write,
            local,
            local_offset: 0,
            remote: engine.open_segment(&at).unwrap(),
            remote_offset: 0,
            length: MIB,
        };
        completed(&engine.submit(&[write]).unwrap());
        target.unregister(segment).unwrap();
        let region = engine.region(local).unwrap();
        fill(&region, REUSED);
        let batch = engine.submit(&[write]).unwrap();
        assert_eq!(
            batch.wait(PATIENCE).unwrap().status,
            Status::Failed,
            "{name}"
        );
        assert_eq!(batch.report(0).unwrap().cause, Some(Cause::RemoteAccess));
        // SAFETY: it is mapped, and nobody else's now.
        assert_eq!(unsafe { NonNull::read(kept.base()) }, 0, "{name}");
        fill(&region, 0);
    }
    engine.shutdown();
    target.shutdown();
}
