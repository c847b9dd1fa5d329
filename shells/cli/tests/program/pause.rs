//! A process that is stopped for 2 s, as in a machine that is moved: what its peers had said meanwhile waits in its
//! sockets, and it must not take them for dead before it has looked.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, Op, Request, SegmentId, Status};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{BOUND, Target, finish, polyrail};

const STOP: Duration = Duration::from_secs(2);
const PEERS: usize = 24;
const BYTES: u64 = 4096;

/// Connections are cut after 2.5 s of silence. Beside much other work half a second may pass before a process that goes on
/// has said something, so what is cut each time counts.
const TRIES: usize = 3;

/// An engine with a session, and what it writes to.
fn initiator(target: &Target, index: usize) -> (Engine, SegmentId, SegmentId) {
    let config = Config {
        workers: 1,
        ..Config::named(format!("peer {index}")).without("shm")
    };
    let engine = Engine::new(config).expect("an engine starts");
    let local = engine
        .allocate("source", BYTES, Access::Local)
        .expect("memory");
    let remote = engine
        .open_segment(&format!("{}/mem", target.address()))
        .expect("the target answers");
    (engine, local, remote)
}

fn logged(path: &Path) -> String {
    fs::read_to_string(path).expect("the log is there")
}

/// Does something until it has left nothing in a log that should not be there.
fn once_without_loss(attempt: impl Fn() -> Vec<String>) {
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        seen = attempt();
        if seen.is_empty() {
            return;
        }
    }
    panic!("lost each time, at last: {seen:?}");
}

/// Lines of a log that have one of these words.
fn lines(log: &str, words: &[&str]) -> Vec<String> {
    let tells = |line: &&str| words.iter().any(|word| line.contains(word));
    log.lines().filter(tells).map(String::from).collect()
}

#[test]
fn a_target_that_was_stopped_loses_no_initiator() {
    once_without_loss(stop_the_target);
}

#[test]
fn an_initiator_that_was_stopped_finds_its_target_alive() {
    once_without_loss(stop_the_initiator);
}

fn stop_the_target() -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let log = File::create(&path).expect("a file");
    let target = Target::start_with("--memory 1MiB", Stdio::from(log), "warn");
    let peers: Vec<_> = (0..PEERS).map(|index| initiator(&target, index)).collect();
    target.signal(Signal::STOP);
    thread::sleep(STOP);
    target.signal(Signal::CONT);
    for (engine, local, remote) in &peers {
        let write = Request {
            op: Op::Write,
            local: *local,
            local_offset: 0,
            remote: *remote,
            remote_offset: 0,
            length: BYTES,
        };
        let until = Instant::now() + BOUND;
        loop {
            let batch = engine.submit(&[write]).expect("there is room");
            if batch.wait(BOUND).expect("it ends").status == Status::Completed {
                break;
            }
            assert!(Instant::now() < until, "nothing moves any more");
        }
    }
    drop(peers);
    target.end(Signal::TERM).expect(0);
    lines(&logged(&path), &["is gone"])
}

fn stop_the_initiator() -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let log = File::create(&path).expect("a file");
    let target = Target::start_with("--memory 8MiB", Stdio::from(log), "warn");
    let line = format!(
        "bench --target {} --seconds 5 --buffer 1MiB --block 64KiB --batch 4 --rails 127.0.0.1",
        target.address()
    );
    let bench = polyrail(&line)
        .env("RUST_LOG", "warn")
        .spawn()
        .expect("the program starts");
    let pid = Pid::from_child(&bench);
    thread::sleep(STOP);
    kill_process(pid, Signal::STOP).expect("a child can be signalled");
    thread::sleep(STOP);
    kill_process(pid, Signal::CONT).expect("a child can be signalled");
    let ended = finish(bench, &line).expect(0);
    target.end(Signal::TERM).expect(0);
    let here = lines(&ended.stderr, &["is gone", "silent"]);
    [here, lines(&logged(&path), &["is gone"])].concat()
}
