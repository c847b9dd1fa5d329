//! Memory and segments that come and go, as a server's do all day: what an engine keeps of them is what is there now.
//!
//! `CYCLES` says how often each is done; `.ci/deep` does it as often as in months.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, Op, OpenError, Request, SegmentId, Status};

/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that are allocated, written and taken back in each cycle.
const LARGE: u64 = 64 << 20;

/// What these tests count is the process's: one of them runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cycles(least: usize) -> usize {
    let said = std::env::var("CYCLES").ok();
    said.map_or(least, |said| said.parse().expect("a number of cycles"))
}

/// A target, an initiator that has memory, and what that is.
fn pair(transport: &str, bytes: u64) -> (Engine, Engine, SegmentId) {
    let others = ["tcp", "shm"].into_iter().filter(|name| *name != transport);
    let config = |name: &str| {
        let config = Config {
            workers: 1,
            ..Config::named(name)
        };
        others
            .clone()
            .fold(config, |config, other| config.without(other))
    };
    let target = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        ..config("target")
    });
    let engine = Engine::new(config("initiator")).unwrap();
    let local = engine.allocate("here", bytes, Access::Local).unwrap();
    (target.unwrap(), engine, local)
}

fn write(local: SegmentId, remote: SegmentId, length: u64) -> Request {
    Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length,
    }
}

/// Opens a segment. On a busy machine connections may be cut, and are made anew.
fn open(engine: &Engine, address: &str) -> SegmentId {
    let start = Instant::now();
    loop {
        match engine.open_segment(address) {
            Err(OpenError::Ask(why)) if start.elapsed() < PATIENCE => println!("again: {why}"),
            opened => return opened.unwrap(),
        }
    }
}

fn status(engine: &Engine, request: Request) -> Status {
    let batch = engine.submit(&[request]).unwrap();
    batch.wait(PATIENCE).unwrap().status
}

fn until(what: &str, mut seen: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !seen() {
        assert!(start.elapsed() < PATIENCE, "not seen in time: {what}");
        std::thread::yield_now();
    }
    start.elapsed()
}

/// How often shared memory of so many bytes is mapped here.
fn mappings(bytes: u64) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("memfd:polyrail"));
    let sizes = ours.filter_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(number(end)? - number(start)?)
    });
    sizes.filter(|size| *size == bytes).count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn memory_that_was_unregistered_comes_back_while_initiators_live() {
    let _alone = alone();
    // It stayed mapped at every initiator on the host, 64 MiB of it each time, until that had lost the peer.
    let (target, engine, local) = pair("shm", LARGE);
    let address = format!("{}/kv", target.listening().unwrap());
    let mut first = 0;
    let mut slowest = Duration::ZERO;
    for cycle in 0..cycles(10) {
        let own = target
            .allocate("kv", LARGE, Access::RemoteReadWrite)
            .unwrap();
        let remote = open(&engine, &address);
        let request = write(local, remote, LARGE);
        assert_eq!(status(&engine, request), Status::Completed, "{cycle}");
        assert_eq!(mappings(LARGE), 2, "the owner's, and the initiator's");
        target.unregister(own).unwrap();
        // Nobody calls the initiator's engine meanwhile.
        slowest = slowest.max(until("it is unmapped", || mappings(LARGE) == 0));
        if cycle == 0 {
            first = descriptors();
        }
        if cycle % 1000 == 999 {
            println!(
                "{cycle}: {} descriptors, of {first} at first",
                descriptors()
            );
        }
    }
    // A connection may have been made anew.
    until("the descriptors are closed", || descriptors() <= first + 2);
    println!("unmapped after {slowest:?} at the latest");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let said = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = said.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse::<u64>().unwrap() * 1024
}

fn lines_of_maps() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().count()
}

/// The owner registers, the peer opens, writes and closes if it is to, the owner unregisters: again and again.
fn reregister(transport: &str, closes: bool) {
    const BYTES: u64 = 4096;
    let (target, engine, local) = pair(transport, BYTES);
    let address = format!("{}/x", target.listening().unwrap());
    let most = cycles(200);
    let mut first = (0, 0, 0);
    for cycle in 0..most {
        let own = target
            .allocate("x", BYTES, Access::RemoteReadWrite)
            .unwrap();
        let remote = open(&engine, &address);
        let moved = status(&engine, write(local, remote, BYTES));
        assert_eq!(moved, Status::Completed, "{cycle}");
        if closes {
            engine.close_segment(remote).unwrap();
        }
        target.unregister(own).unwrap();
        if cycle == most / 10 {
            first = (descriptors(), lines_of_maps(), resident());
        }
    }
    let (open, maps, bytes) = first;
    println!(
        "{transport}, closes: {closes}: descriptors {open} to {}, mappings {maps} to {}, MiB {} to {}",
        descriptors(),
        lines_of_maps(),
        bytes >> 20,
        resident() >> 20
    );
    until("descriptors are closed", || descriptors() <= open + 2);
    until("memory is unmapped", || lines_of_maps() <= maps + 8);
    assert!(resident() < bytes + (24 << 20));
}

#[test]
fn segments_that_come_and_go_leave_nothing_over_tcp() {
    let _alone = alone();
    // After 4,096 of them nothing could be submitted to a new one, ever.
    reregister("tcp", true);
    reregister("tcp", false);
}

#[test]
fn segments_that_come_and_go_leave_nothing_over_shm() {
    let _alone = alone();
    reregister("shm", true);
    reregister("shm", false);
}
