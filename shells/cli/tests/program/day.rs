//! A target that many peers use for long: what it has does not grow. A few seconds here; `.ci/deep day` makes it an hour.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, Op, OpenTerms, Request, Status, advice};

use crate::harness::*;

const BLOCK: u64 = 64 << 10;
/// Bytes of each peer's own part of the target's memory.
const PART: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// What a target has of the machine.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Has {
    memory_kib: u64,
    descriptors: u64,
    threads: u64,
    log_bytes: u64,
}

impl Has {
    fn now(pid: u32, log: &std::fs::File) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let number = |key: &str| -> u64 {
            let line = status.lines().find(|line| line.starts_with(key));
            let word = line.and_then(|line| line.split_whitespace().nth(1));
            word.and_then(|word| word.parse().ok()).expect("a number")
        };
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
        Self {
            memory_kib: number("VmRSS:"),
            descriptors: descriptors.count() as u64,
            threads: number("Threads:"),
            log_bytes: log.metadata().expect("a file").len(),
        }
    }
}

/// A number from the environment, or this.
fn said(name: &str, otherwise: u64) -> u64 {
    let said = std::env::var(name).ok();
    said.map_or(otherwise, |text| text.parse().expect("a whole number"))
}

/// What all peers have done.
#[derive(Default)]
struct Done {
    /// Bytes that were moved.
    moved: AtomicU64,
    /// Engines that came.
    came: AtomicU64,
    /// Batches that failed for a while and were submitted again.
    again: AtomicU64,
}

/// One peer after the other with the same part of memory: each lives for a while, writes and reads it back, and goes.
fn peers(number: u64, address: &str, rest: Duration, stop: &AtomicBool, done: &Done) {
    let mut life = number;
    while !stop.load(Acquire) {
        life += 1;
        let config = Config {
            workers: 1,
            ..Config::named(format!("peer-{number}"))
        };
        let config = match life % 2 {
            0 => config.without("shm"),
            _ => config,
        };
        let engine = Engine::new(config).expect("an engine starts");
        let local = engine.allocate("local", 2 * PART, Access::Local);
        let local = local.expect("memory");
        let here = engine.region(local).expect("it is there");
        let terms = OpenTerms {
            within: Some(PATIENCE),
            ..OpenTerms::default()
        };
        let remote = engine.open_segment_with(&format!("{address}/mem"), &terms);
        let remote = remote.expect("the target is there");
        done.came.fetch_add(1, AcqRel);
        for round in 0..20 + life % 50 {
            let text: Vec<u8> = (0..PART).map(|at| (at / 7 + round + life) as u8).collect();
            here.store(&text, 0).expect("it is in the region");
            for (op, at) in [(Op::Write, 0), (Op::Read, PART)] {
                let requests: Vec<_> = (0..PART / BLOCK)
                    .map(|block| Request {
                        op,
                        local,
                        local_offset: at + block * BLOCK,
                        remote,
                        remote_offset: number * PART + block * BLOCK,
                        length: BLOCK,
                    })
                    .collect();
                let since = Instant::now();
                loop {
                    let batch = engine.submit(&requests).expect("good requests");
                    let ended = batch.wait(PATIENCE).expect("it ends in time");
                    let report = batch.first_failure().map(|(_, report)| report);
                    let Some(report) = report else {
                        break assert_eq!(ended.status, Status::Completed);
                    };
                    // Whoever has the processor for a fraction of a second only may be too late for his rails.
                    let can = report.cause.is_some_and(|cause| advice(cause).is_retryable);
                    let can = can && ended.status == Status::Failed;
                    assert!(can && since.elapsed() < PATIENCE, "{report:?}");
                    done.again.fetch_add(1, AcqRel);
                }
            }
            let mut back = vec![0; PART as usize];
            here.load(PART, &mut back).expect("it is in the region");
            assert!(
                back == text,
                "peer {number}: what was written is what is read"
            );
            done.moved.fetch_add(2 * PART, AcqRel);
            // Engines of a hundred hosts are on one, whose processors would do nothing but change between their threads.
            std::thread::sleep(rest);
        }
        engine.shutdown();
    }
}

#[test]
fn a_target_that_many_peers_use_for_long_has_no_more_in_the_end() {
    let (seconds, count) = (said("DAY_SECONDS", 6), said("DAY_PEERS", 8));
    let log = tempfile::tempfile().expect("a file");
    let stderr = Stdio::from(log.try_clone().expect("a descriptor"));
    let memory = count * PART;
    let target = Target::start_with(
        &format!("--memory {memory} --prefault --listen 127.0.0.1:0"),
        stderr,
        "warn",
    );
    let (stop, done) = (AtomicBool::new(false), Done::default());
    let rest = Duration::from_secs(seconds) / 3600;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..count)
            .map(|number| {
                let (address, stop, done) = (target.address(), &stop, &done);
                scope.spawn(move || peers(number, address, rest, stop, done))
            })
            .collect();
        // The first third warms up; then each is looked at, and the most of the second third is what the last may have.
        let third = Duration::from_secs(seconds) / 3;
        let mut most: [Option<Has>; 3] = [None; 3];
        let mut said_at = start;
        while start.elapsed() < 3 * third && all.iter().all(|peer| !peer.is_finished()) {
            let has = Has::now(target.pid(), &log);
            let part = (start.elapsed().as_millis() / third.as_millis().max(1)).min(2) as usize;
            let before = most[part].unwrap_or(has);
            most[part] = Some(Has {
                memory_kib: before.memory_kib.max(has.memory_kib),
                descriptors: before.descriptors.max(has.descriptors),
                threads: before.threads.max(has.threads),
                log_bytes: has.log_bytes,
            });
            if said_at.elapsed() >= Duration::from_secs(60) {
                said_at = Instant::now();
                println!(
                    "{:>5.0} s: {has:?}, {} peers came, {} GB moved, {} batches again",
                    start.elapsed().as_secs_f64(),
                    done.came.load(Acquire),
                    done.moved.load(Acquire) >> 30,
                    done.again.load(Acquire)
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Release);
        for peer in all {
            peer.join().expect("a peer has ended well");
        }
        let [_, Some(second), Some(last)] = most else {
            panic!("each third was looked at: {most:?}");
        };
        println!(
            "{count} peers at a time, {} in all, {} MiB moved in {seconds} s, {} batches again; most in the second third \
             {second:?}, in the last {last:?}",
            done.came.load(Acquire),
            done.moved.load(Acquire) >> 20,
            done.again.load(Acquire)
        );
        assert!(done.moved.load(Acquire) > 0);
        assert!(last.memory_kib <= second.memory_kib + second.memory_kib / 20 + 8192);
        assert!(last.descriptors <= second.descriptors + 2 * count);
        assert!(last.threads <= second.threads + 2);
        assert_eq!(
            last.log_bytes, second.log_bytes,
            "nothing is wrong, and nothing is said"
        );
    });
    target.end(rustix::process::Signal::TERM).expect(0);
}
