//! Initiators that start all at once, are all killed, and start again at once: nobody is kept out by his own ghost.
//!
//! `WAVE_ENGINES` says how many engines each of the processes has; `.ci/deep` has more of them than this has by itself. Then the
//! machine has to have nothing else to do, and it is also asked what fair transfers keep of their rate.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, Op, OpenTerms, Request, SegmentId, Status};

const PROCESSES: usize = 4;
const BYTES: u64 = 4096;
/// In a child: the segment that it is to write to.
const TARGET: &str = "POLYRAIL_TEST_WAVE";
const NAME: &str = "a_wave_that_is_killed_and_comes_again_is_in_at_once";
/// What the last of a wave may take, on a machine that all of it shares.
const IN_MAX: Duration = Duration::from_secs(5);
/// So long the fair one is watched alone.
const ALONE: Duration = Duration::from_millis(300);
/// What the fair one does between two writes: without that, spinning takes all processors that this machine has.
const PAUSE: Duration = Duration::from_micros(100);
/// What it keeps of its rate beside waves at least, in the mean, on a machine that has nothing else to do. The aim is 0.8.
const KEPT_MIN: f64 = 0.5;

fn asked() -> Option<String> {
    std::env::var("WAVE_ENGINES").ok()
}

fn engines() -> usize {
    asked().map_or(12, |count| count.parse().expect("a number"))
}

fn config(name: &str) -> Config {
    Config {
        workers: 1,
        ..Config::named(name).without("shm")
    }
}

/// Of an initiator, which has one peer: its tables are as small, so that the wave is one of sessions and not of memory.
fn config_of_initiator(name: &str) -> Config {
    let mut config = config(name);
    config.limits.peers = 4;
    config.limits.rails = 16;
    config.limits.pairs = 16;
    config.limits.requests = 256;
    config
}

fn write(engine: &Engine, local: SegmentId, remote: SegmentId) {
    let request = Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: BYTES,
    };
    let batch = engine.submit(&[request]).expect("there is room");
    let ended = batch.wait(Duration::from_secs(30)).expect("it ends");
    assert_eq!(ended.status, Status::Completed, "{:?}", batch.report(0));
}

/// Starts an engine that has written something, and says when it was there, had opened the segment, and had written.
fn comes_in(index: usize, address: &str, start: Instant) -> (Engine, [Duration; 3]) {
    let engine =
        Engine::new(config_of_initiator(&format!("wave {index}"))).expect("an engine starts");
    let is_there = start.elapsed();
    let local = engine
        .allocate("here", BYTES, Access::Local)
        .expect("memory");
    // This machine has all of the wave to start, which may take longer than an engine waits for an answer, or a target for a sign
    // of life.
    let terms = OpenTerms {
        within: Some(IN_MAX),
        ..OpenTerms::default()
    };
    let remote = engine.open_segment_with(address, &terms);
    let remote = remote.unwrap_or_else(|error| panic!("{error}"));
    let has_opened = start.elapsed();
    write(&engine, local, remote);
    (engine, [is_there, has_opened, start.elapsed()])
}

/// A process of the wave: all of its engines come in, and stay until it is killed.
fn child(address: &str) {
    let start = Instant::now();
    let together = Barrier::new(engines());
    let all: Vec<_> = thread::scope(|scope| {
        let comes = |index| {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                comes_in(index, address, start)
            })
        };
        let threads: Vec<_> = (0..engines()).map(comes).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it comes in"))
            .collect()
    });
    let last = |step: usize| all.iter().map(|(_, at)| at[step]).max().unwrap_or_default();
    let steps = [0, 1, 2].map(last);
    println!("\nin {}: there, opened, written {steps:.2?}", all.len());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// It leaves the processors to the target and the fair one where those want them: a cluster's initiators have their own.
/// Beside somebody else's work it would never have its turn if it left them altogether.
fn spawn(address: &str) -> Child {
    let (program, arguments) = match asked() {
        Some(_) => ("chrt", ["-i", "0"]),
        None => ("nice", ["-n", "10"]),
    };
    Command::new(program)
        .args(arguments)
        .arg(std::env::current_exe().expect("it runs"))
        .args(["--exact", NAME, "--nocapture"])
        .env(TARGET, address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts")
}

/// Processes that are all killed at once, and without a word.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// Starts a wave and waits until all of it are in. How long that took.
fn wave(address: &str) -> (Children, Duration) {
    let start = Instant::now();
    let mut children = Children((0..PROCESSES).map(|_| spawn(address)).collect());
    for child in &mut children.0 {
        let out = child.stdout.as_mut().expect("it is piped");
        let mut lines = BufReader::new(out).lines().map_while(Result::ok);
        let said = format!("in {}: ", engines());
        let line = lines.find(|line| line.starts_with(&said));
        println!("{}", line.expect("one was not let in"));
    }
    (children, start.elapsed())
}

/// Says so when it goes, however that is.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_wave_that_is_killed_and_comes_again_is_in_at_once() {
    if let Ok(address) = std::env::var(TARGET) {
        return child(&address);
    }
    let target = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse().expect("an address")),
        ..config("target")
    })
    .expect("an engine starts");
    target
        .allocate("mem", BYTES, Access::RemoteReadWrite)
        .expect("memory");
    let address = format!("{}/mem", target.listening().expect("it listens"));
    let fair = Engine::new(config("fair")).expect("an engine starts");
    let local = fair.allocate("here", BYTES, Access::Local).expect("memory");
    let remote = fair.open_segment(&address).expect("it is let in");
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let fair = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                write(&fair, local, remote);
                written.fetch_add(1, Ordering::Relaxed);
                thread::sleep(PAUSE);
            }
        });
        let at_the_end = Stop(&stop);
        let mut took = Vec::new();
        for _ in 0..3 {
            let start = Instant::now();
            let before = written.load(Ordering::Relaxed);
            let has_written = || written.load(Ordering::Relaxed) > before || fair.is_finished();
            while start.elapsed() < ALONE || !has_written() {
                thread::yield_now();
            }
            let (alone, count) = (start.elapsed(), written.load(Ordering::Relaxed));
            let (children, seen) = wave(&address);
            let beside = written.load(Ordering::Relaxed) - count;
            let rate_alone = (count - before) as f64 / alone.as_secs_f64();
            took.push((seen, beside as f64 / seen.as_secs_f64() / rate_alone));
            drop(children);
        }
        drop(at_the_end);
        fair.join().expect("fair transfers go on");
        println!(
            "{} engines each, and what the fair one kept of its rate: {took:.2?}",
            PROCESSES * engines()
        );
        let mean = took.iter().map(|(_, kept)| kept).sum::<f64>() / took.len() as f64;
        assert!(asked().is_none() || mean >= KEPT_MIN, "{mean}");
        for (seen, kept) in took {
            assert!(seen < IN_MAX && kept > 0.0, "{seen:?} {kept}");
        }
    });
}
