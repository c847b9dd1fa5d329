//! Faults of a host, each in a process of its own: limits that are met, and threads of the engine that panic. The table
//! in `docs/failures.md` has a row for each.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use polyrail::{
    Access, Batch, CallError, Caller, Calls, Cause, Config, Engine, FileTerms, Hooks, Local, Op,
    RegisterError, Remote, Report, Request, SegmentId, Status, SubmitError,
};
use polyrail_transport::mishap;
use rustix::process::{Resource, Rlimit, setrlimit};

/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Within this every request has its report: two seconds are promised.
const BOUND: Duration = Duration::from_secs(6);
const MIB: u64 = 1 << 20;

/// Address space that is left to a process: a thread that begins takes some 70 MiB of it, and ends the process without.
const ROOM: u64 = 512 * MIB;

/// What a process that these tests start is to be: a target, or a case of [`case`].
const ROLE: &str = "POLYRAIL_TEST_HOST";

/// A user who may lock no memory but within the limit.
const NOBODY: libc::uid_t = 65534;

/// Lets a thread of the process panic, by its name.
#[derive(Default)]
struct Arm(AtomicU32);

impl Calls for Arm {
    /// Answers with the name of a segment that is new, so that the threads of inbound lanes have to be asked for it. Without
    /// the name of a thread: whether the last one has panicked.
    fn call(&self, engine: &Engine, _: &Caller, _: u16, thread: &[u8]) -> Result<Vec<u8>, String> {
        if thread.is_empty() {
            return Ok(vec![mishap::has_happened().into()]);
        }
        let name = format!("new {}", self.0.fetch_add(1, Relaxed));
        let access = Access::RemoteReadWrite;
        engine.allocate(&name, MIB, access).unwrap();
        assert!(mishap::arm(std::str::from_utf8(thread).unwrap()));
        Ok(name.into_bytes())
    }
}

fn config(name: &str, without: &[&str]) -> Config {
    let config = Config {
        workers: 1,
        ..Config::named(name)
    };
    let leave = |config: Config, name: &&str| config.without(name);
    without.iter().fold(config, leave)
}

fn target(without: &[&str], bytes: u64) -> Engine {
    let config = Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        ..config("target", without)
    };
    let hooks = Hooks {
        calls: Some(Arc::new(Arm::default())),
        ..Hooks::default()
    };
    let engine = Engine::with_hooks(config, hooks).unwrap();
    engine
        .allocate("mem", bytes, Access::RemoteReadWrite)
        .unwrap();
    engine
}

/// Is what it was started for; nothing otherwise.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<_> = role.split(' ').collect();
    match words[..] {
        ["target", bytes] => {
            let engine = target(&[], bytes.parse().unwrap());
            println!("\nlistening {}", engine.listening().unwrap());
            // Until whoever started it closes the pipe, or ends.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            engine.shutdown();
            println!("\nended");
        }
        [name, address] => case(name, address),
        _ => panic!("{role}"),
    }
}

fn start(role: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Carries out a case in a process of its own, with a target in another one.
#[track_caller]
fn in_a_process(name: &str, bytes: u64) {
    let target = Target::start(bytes);
    let output = start(&format!("{name} {}", target.address)).wait_with_output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
}

/// A target in a process of its own.
struct Target {
    child: Child,
    input: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Target {
    fn start(bytes: u64) -> Self {
        let mut child = start(&format!("target {bytes}"));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines_left = lines.by_ref().map(Result::unwrap);
        let address = lines_left.find_map(|line| Some(line.strip_prefix("listening ")?.to_owned()));
        Self {
            input: child.stdin.take(),
            child,
            lines,
            address: address.expect("it listens"),
        }
    }

    /// Lets its program end, which shuts the engine down first.
    fn ends(mut self) {
        drop(self.input.take());
        let began = Instant::now();
        assert!(self.lines.any(|line| line.unwrap() == "ended"));
        assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
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
    address: String,
    local: SegmentId,
    remote: SegmentId,
}

impl Initiator {
    fn new(address: &str, without: &[&str]) -> Self {
        let engine = Engine::new(config("initiator", without)).unwrap();
        let local = engine.allocate("here", MIB, Access::Local).unwrap();
        let remote = engine.open_segment(&format!("{address}/mem")).unwrap();
        let initiator = Self {
            engine,
            address: address.to_owned(),
            local,
            remote,
        };
        initiator.completes();
        initiator
    }

    fn submit(&self, local: SegmentId, remote: SegmentId) -> Result<Batch, SubmitError> {
        self.engine.submit(&[Request {
            op: Op::Write,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: MIB,
        }])
    }

    fn write(&self, local: SegmentId, remote: SegmentId) -> (Status, Report) {
        let batch = self.submit(local, remote).unwrap();
        let began = Instant::now();
        let status = batch.wait(PATIENCE).unwrap().status;
        assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
        (status, batch.report(0).unwrap())
    }

    /// A write ends well.
    #[track_caller]
    fn completes(&self) {
        let (status, report) = self.write(self.local, self.remote);
        assert_eq!(status, Status::Completed, "{report:?}");
    }

    /// A write fails, and says why. What was under way when it came to that is not certain.
    #[track_caller]
    fn fails(&self, cause: Cause) {
        let (_, first) = self.write(self.local, self.remote);
        assert!(
            matches!(first.status, Status::Failed | Status::Indeterminate),
            "{first:?}"
        );
        let (status, report) = self.write(self.local, self.remote);
        assert_eq!((status, report.cause), (Status::Failed, Some(cause)));
        assert_eq!(
            (report.local, report.remote),
            (Local::Released, Remote::Settled)
        );
    }

    fn open(&self, name: &str) -> Result<SegmentId, String> {
        let address = format!("{}/{name}", self.address);
        let opened = self.engine.open_segment(&address);
        opened.map_err(|error| error.to_string())
    }

    fn call(&self, thread: &str) -> Result<Vec<u8>, String> {
        let longest = Duration::from_secs(2);
        let answer = self.engine.call(self.remote, 0, thread.as_bytes(), longest);
        answer.map_err(|error| error.to_string())
    }

    /// Bytes that a transport has carried.
    fn carried(&self, transport: &str) -> u64 {
        let rails = self.engine.rails();
        let of = rails
            .iter()
            .filter(|rail| rail.name.split(':').next() == Some(transport));
        of.map(|rail| rail.bytes).sum()
    }

    fn ends(self) {
        let began = Instant::now();
        self.engine.shutdown();
        assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    }
}

/// Lets a thread of this process panic.
fn arm(thread: &str) {
    assert!(mishap::arm(thread), "a build without debug assertions");
}

fn until_it_has_happened() {
    let deadline = Instant::now() + PATIENCE;
    while !mishap::has_happened() {
        assert!(Instant::now() < deadline, "no such thread has run");
        std::thread::yield_now();
    }
}

fn limit(resource: Resource, most: u64) {
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    setrlimit(resource, limit).unwrap();
}

/// Bytes of this process's address space.
fn address_space() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    pages * 4096
}

/// A thread of a target panics that serves the lanes of a transport: these break, and the next ones are served.
fn serving_goes_on(transport: &str, without: &[&str]) {
    let target = Target::start(MIB);
    let initiator = Initiator::new(&target.address, without);
    initiator.completes();
    let new = initiator.call(&format!("polyrail-{transport}")).unwrap();
    let new = initiator.open(std::str::from_utf8(&new).unwrap()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    // There may be several threads, of which the one that goes first is not the lane's.
    while initiator.call("") != Ok(vec![1]) {
        assert!(Instant::now() < deadline, "no such thread has run");
        let (status, report) = initiator.write(initiator.local, new);
        assert_eq!(status, Status::Completed, "{report:?}");
    }
    let before = initiator.carried(transport);
    while initiator.carried(transport) < before + MIB {
        assert!(Instant::now() < deadline, "nothing goes over {transport}");
        initiator.completes();
    }
    initiator.ends();
    target.ends();
}

#[test]
fn a_target_whose_tcp_thread_panics_goes_on() {
    serving_goes_on("tcp", &["shm"]);
}

#[test]
fn a_target_whose_shm_thread_panics_goes_on() {
    serving_goes_on("shm", &[]);
}

#[test]
fn a_target_whose_control_thread_panics_is_silent() {
    let target = Target::start(MIB);
    let initiator = Initiator::new(&target.address, &[]);
    // Whether its answer still goes out is open.
    let _ = initiator.call("polyrail-control");
    let error = initiator.call("").unwrap_err();
    assert!(error.contains("no answer"), "{error}");
    initiator.fails(Cause::PeerSilent);
    initiator.ends();
    target.ends();
}

#[test]
fn a_call_whose_thread_panics_is_not_answered_and_the_next_one_is() {
    let target = Target::start(MIB);
    let initiator = Initiator::new(&target.address, &[]);
    initiator.call("polyrail-call").unwrap();
    let error = initiator.call("").unwrap_err();
    assert!(error.contains("unanswered"), "{error}");
    assert_eq!(initiator.call(""), Ok(vec![1]));
    initiator.completes();
    initiator.ends();
    target.ends();
}

#[test]
fn an_engine_whose_task_panics_carries_the_next_one_out() {
    in_a_process("task", MIB);
}

#[test]
fn an_initiator_whose_control_thread_panics_says_so_and_moves_what_it_can() {
    in_a_process("control", MIB);
}

#[test]
fn what_is_staged_when_its_thread_panics_ends_and_nothing_else() {
    in_a_process("stage", MIB);
}

#[test]
fn without_descriptors_a_new_segment_is_refused_and_the_rest_goes_on() {
    in_a_process("descriptors", MIB);
}

#[test]
fn without_address_space_memory_is_refused_and_the_rest_goes_on() {
    in_a_process("address-space", MIB);
}

#[test]
fn without_address_space_an_engine_does_not_start_and_says_so() {
    in_a_process("start", MIB);
}

#[test]
fn memory_of_a_peer_that_cannot_be_mapped_is_reached_over_the_network() {
    in_a_process("mapping", 1 << 30);
}

#[test]
fn files_are_read_and_written_by_who_may_lock_no_memory() {
    in_a_process("locked", MIB);
}

/// What happens in a process of its own, with a target at `address`.
fn case(name: &str, address: &str) {
    match name {
        "control" => control(address),
        "task" => task(address),
        "stage" => stage(address),
        "descriptors" => descriptors(address),
        "address-space" => no_address_space(address),
        "start" => no_start(),
        "mapping" => no_mapping(address),
        "locked" => no_locked_memory(),
        _ => panic!("{name}"),
    }
}

fn control(address: &str) {
    let initiator = Initiator::new(address, &["shm"]);
    arm("polyrail-control");
    until_it_has_happened();
    // Lanes need no control thread.
    initiator.completes();
    for error in [
        initiator.open("mem").unwrap_err(),
        initiator.call("").unwrap_err(),
    ] {
        assert!(error.contains("\"initiator\" is shut down"), "{error}");
    }
    initiator.ends();
}

fn task(address: &str) {
    let initiator = Initiator::new(address, &[]);
    // Their ends are tasks.
    let others = [Target::start(MIB), Target::start(MIB)];
    let mut opened = Vec::new();
    for other in &others {
        let remote = format!("{}/mem", other.address);
        opened.push(initiator.engine.open_segment(&remote).unwrap());
    }
    let [first, second] = others;
    arm("polyrail-task");
    drop(first);
    until_it_has_happened();
    drop(second);
    let deadline = Instant::now() + PATIENCE;
    let lost = |segment| {
        let asked = initiator.engine.call(segment, 0, b"", PATIENCE);
        matches!(asked, Err(CallError::PeerLost { .. }))
    };
    while !lost(opened[1]) {
        assert!(Instant::now() < deadline, "the second one is not lost");
        std::thread::yield_now();
    }
    // Its end is more than one task: it may be known although one of them has panicked.
    match initiator.submit(initiator.local, opened[0]) {
        Ok(batch) => assert_ne!(batch.wait(BOUND).unwrap().status, Status::Completed),
        Err(error) => assert!(matches!(error, SubmitError::PeerLost { .. }), "{error}"),
    }
    initiator.completes();
    initiator.ends();
}

fn stage(address: &str) {
    let initiator = Initiator::new(address, &[]);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![7; MIB as usize]).unwrap();
    let file = initiator.engine.register_file(file, &FileTerms::default());
    let file = file.unwrap();
    let (status, report) = initiator.write(file, initiator.remote);
    assert_eq!(status, Status::Completed, "{report:?}");
    arm("polyrail-stage");
    let (status, report) = initiator.write(file, initiator.remote);
    assert!(status != Status::Completed, "{report:?}");
    assert!(mishap::has_happened());
    initiator.completes();
    initiator.ends();
}

fn descriptors(address: &str) {
    const MOST: u64 = 200;
    limit(Resource::Nofile, MOST);
    let initiator = Initiator::new(address, &[]);
    let allocate = |number: u64| {
        let access = Access::RemoteReadWrite;
        let name = number.to_string();
        initiator.engine.allocate(&name, 4096, access)
    };
    let mut got = Vec::new();
    let error = loop {
        match allocate(got.len() as u64) {
            Ok(segment) => got.push(segment),
            Err(error) => break error,
        }
        assert!(got.len() < MOST as usize);
    };
    let said = error.to_string();
    assert!(
        said.contains("200 descriptors") && said.contains("ulimit -Hn"),
        "{said}"
    );
    initiator.completes();
    for segment in got.drain(..got.len() / 2) {
        initiator.engine.unregister(segment).unwrap();
    }
    // Workers let go of them a little later.
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = allocate(MOST) {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::yield_now();
    }
    initiator.completes();
    initiator.ends();
}

fn no_address_space(address: &str) {
    let initiator = Initiator::new(address, &[]);
    limit(Resource::As, address_space() + ROOM);
    for access in [Access::Local, Access::RemoteRead, Access::RemoteReadWrite] {
        let error = initiator.engine.allocate("large", 1 << 30, access);
        let error = error.unwrap_err();
        assert!(
            matches!(error, RegisterError::System { bytes, .. } if bytes == 1 << 30),
            "{error}"
        );
        assert!(error.to_string().contains("1073741824"), "{error}");
        initiator.completes();
        let small = initiator.engine.allocate("small", MIB, access).unwrap();
        initiator.engine.unregister(small).unwrap();
    }
    initiator.ends();
}

fn no_start() {
    limit(Resource::As, address_space() + 4 * MIB);
    let error = Engine::new(config("engine", &[]))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("memory") || error.contains("unavailable"),
        "{error}"
    );
}

fn no_mapping(address: &str) {
    let engine = Engine::new(config("initiator", &[])).unwrap();
    let local = engine.allocate("here", MIB, Access::Local).unwrap();
    let remote = engine.open_segment(&format!("{address}/mem")).unwrap();
    let initiator = Initiator {
        engine,
        address: address.to_owned(),
        local,
        remote,
    };
    limit(Resource::As, address_space() + ROOM);
    initiator.completes();
    assert!(initiator.carried("tcp") >= MIB);
    initiator.ends();
}

fn no_locked_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = File::options();
    let file = file.clone().read(true).write(true).create(true).open(path);
    let file = file.unwrap();
    file.set_len(MIB).unwrap();
    limit(Resource::Memlock, 0);
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::setuid(NOBODY) }, 0);
    let engine = Engine::new(config("engine", &[])).unwrap();
    let local = engine.allocate("here", MIB, Access::Local).unwrap();
    let memory = engine.region(local).unwrap();
    memory.store(&vec![7; MIB as usize], 0).unwrap();
    let file = engine.register_file(file, &FileTerms::default()).unwrap();
    for op in [Op::Write, Op::Read] {
        let request = Request {
            op,
            local,
            local_offset: 0,
            remote: file,
            remote_offset: 0,
            length: MIB,
        };
        let batch = engine.submit(&[request]).unwrap();
        let status = batch.wait(PATIENCE).unwrap().status;
        assert_eq!(status, Status::Completed, "{:?}", batch.report(0));
        memory.store(&vec![9; MIB as usize], 0).unwrap();
    }
    engine.shutdown();
}
