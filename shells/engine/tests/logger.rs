//! A program's logger may ask the engine whose line it gets. A test program of its own, because a process has one logger.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{
    Access, Batch, Config, Engine, Faults, Hooks, Op, RailId, RailState, Request, Status,
};

/// Only a failing test waits for so long.
const PATIENCE: Duration = Duration::from_secs(30);

static ENGINE: OnceLock<Engine> = OnceLock::new();

/// Asks the engine about itself for each line, and keeps those that it had an answer for.
struct Curious(Mutex<Vec<String>>);

/// It has panicked over a certain line.
static PANICKED: AtomicBool = AtomicBool::new(false);

static CURIOUS: Curious = Curious(Mutex::new(Vec::new()));

impl log::Log for Curious {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        if text.contains("Rail recovered")
            && text.contains("127.0.0.3")
            && !PANICKED.swap(true, SeqCst)
        {
            panic!("on purpose");
        }
        let Some(engine) = ENGINE.get() else {
            return;
        };
        let rails = engine.rails().len();
        let _ = (engine.stats(), engine.transports());
        let line = format!("{rails}: {text}");
        self.0.lock().unwrap().push(line);
    }

    fn flush(&self) {}
}

/// Threads of workers are counted, so one test at a time has some.
static TURN: Mutex<()> = Mutex::new(());

fn workers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names
        .filter(|name| name.starts_with("polyrail-work"))
        .count()
}

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&CURIOUS).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
    });
}

#[test]
fn a_worker_that_has_panicked_is_left_out() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    listen();
    let rails = || vec![[127, 0, 0, 3].into(), [127, 0, 0, 4].into()];
    let target = Engine::new(Config {
        listen: Some("127.0.0.3:0".parse().unwrap()),
        rails: rails(),
        ..Config::named("target")
    });
    let target = target.unwrap();
    let access = Access::RemoteReadWrite;
    target.allocate("mem", 1 << 20, access).unwrap();
    let faults = Arc::new(Faults::new());
    let hooks = Hooks {
        faults: Some(faults.clone()),
        ..Hooks::default()
    };
    let config = Config {
        rails: rails(),
        workers: 2,
        ..Config::named("initiator").without("shm")
    };
    let engine = Engine::with_hooks(config, hooks).unwrap();
    let local = engine.allocate("here", 1 << 20, Access::Local).unwrap();
    let at = target.listening().unwrap();
    let remote = engine.open_segment(&format!("{at}/mem")).unwrap();
    let request = Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: 1 << 20,
    };
    let deadline = Instant::now() + PATIENCE;
    // Nobody waits: whoever drives would panic.
    let ends = |batch: Batch| {
        while batch.status().status == Status::Pending {
            assert!(Instant::now() < deadline, "a batch does not end");
            thread::yield_now();
        }
        batch.status().status
    };
    assert_eq!(ends(engine.submit(&[request]).unwrap()), Status::Completed);
    faults.cut(RailId(0));
    let paused = || engine.rails()[0].state != RailState::Healthy;
    while !paused() {
        ends(engine.submit(&[request]).unwrap());
    }
    // It comes back by a probe, of a worker that has nothing else to do.
    let before = workers();
    faults.restore(RailId(0));
    while !PANICKED.load(SeqCst) || workers() == before {
        assert!(Instant::now() < deadline, "the rail does not come back");
        thread::yield_now();
    }
    // Each thread has a worker that it goes to if it can.
    for _ in 0..6 {
        let engine = &engine;
        thread::scope(|scope| {
            let home = scope.spawn(move || {
                for _ in 0..5 {
                    let batch = engine.submit(&[request]).expect("another worker is there");
                    assert_eq!(ends(batch), Status::Completed);
                }
            });
            home.join().unwrap();
        });
    }
    engine.shutdown();
    target.shutdown();
}

#[test]
fn a_logger_may_ask_for_rails() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (ended, ends) = channel();
    // Whoever waits drives, and would hang itself.
    let body = thread::spawn(move || {
        asks_for_rails();
        let _ = ended.send(());
    });
    assert_ne!(
        ends.recv_timeout(2 * PATIENCE),
        Err(RecvTimeoutError::Timeout),
        "a line of the log holds up the engine"
    );
    body.join().unwrap();
}

fn asks_for_rails() {
    listen();
    let rails = || vec![[127, 0, 0, 1].into(), [127, 0, 0, 2].into()];
    let target = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        rails: rails(),
        ..Config::named("target")
    });
    let target = target.unwrap();
    target
        .allocate("mem", 1 << 20, Access::RemoteReadWrite)
        .unwrap();
    let faults = Arc::new(Faults::new());
    let hooks = Hooks {
        faults: Some(faults.clone()),
        ..Hooks::default()
    };
    let config = Config {
        rails: rails(),
        workers: 1,
        ..Config::named("initiator").without("shm")
    };
    let engine = Engine::with_hooks(config, hooks).unwrap();
    let engine = ENGINE.get_or_init(|| engine);
    let local = engine.allocate("here", 1 << 20, Access::Local).unwrap();
    let at = target.listening().unwrap();
    let remote = engine.open_segment(&format!("{at}/mem")).unwrap();
    let request = Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: 1 << 20,
    };
    let until_logged = |text: &str| {
        let deadline = Instant::now() + PATIENCE;
        let logged = || {
            let lines = CURIOUS.0.lock().unwrap();
            lines
                .iter()
                .any(|line| line.starts_with("2: ") && line.contains(text))
        };
        while !logged() {
            assert!(Instant::now() < deadline, "no line says \"{text}\"");
            let batch = engine.submit(&[request]).unwrap();
            let _ = batch.wait(Duration::from_secs(1));
        }
    };
    faults.cut(RailId(0));
    until_logged("is paused");
    faults.restore(RailId(0));
    until_logged("Rail recovered");
    target.shutdown();
    engine.shutdown();
}
