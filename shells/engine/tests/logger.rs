//! A program's logger may ask the engine whose line it gets. A test program of its own, because a process has one logger.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, Faults, Hooks, Op, RailId, Request};

/// Only a failing test waits for so long.
const PATIENCE: Duration = Duration::from_secs(30);

static ENGINE: OnceLock<Engine> = OnceLock::new();

/// Asks the engine about itself for each line, and keeps those that it had an answer for.
struct Curious(Mutex<Vec<String>>);

static CURIOUS: Curious = Curious(Mutex::new(Vec::new()));

impl log::Log for Curious {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let Some(engine) = ENGINE.get() else {
            return;
        };
        let rails = engine.rails().len();
        let _ = (engine.stats(), engine.transports());
        let line = format!("{rails}: {}", record.args());
        self.0.lock().unwrap().push(line);
    }

    fn flush(&self) {}
}

#[test]
fn a_logger_may_ask_for_rails() {
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
    log::set_logger(&CURIOUS).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
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
                // Two rails, and a spare for each.
                .any(|line| line.starts_with("4: ") && line.contains(text))
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
