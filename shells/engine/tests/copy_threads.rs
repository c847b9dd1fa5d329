//! Threads that help with large copies between processes of one host: there are none before the first such copy, none
//! after the engine, and never any where the configuration says one worker.

use std::fs;
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, Op, Request, Status};

const BYTES: u64 = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// Threads of this process that do nothing but help.
fn helpers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names
        .filter(|name| name.starts_with("polyrail-copy"))
        .count()
}

#[test]
fn helpers_come_with_the_first_large_copy_and_go_with_the_engine() {
    let processors = std::thread::available_parallelism().unwrap().get();
    for workers in [0, 1, 2, 3] {
        let target = Engine::new(Config {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            workers: 1,
            ..Config::named("target")
        });
        let target = target.unwrap();
        let access = Access::RemoteReadWrite;
        target.allocate("mem", BYTES, access).unwrap();
        let engine = Engine::new(Config {
            workers,
            ..Config::named("initiator").without("tcp")
        });
        let engine = engine.unwrap();
        let local = engine.allocate("here", BYTES, Access::Local).unwrap();
        let address = target.listening().unwrap();
        let remote = engine.open_segment(&format!("{address}/mem")).unwrap();
        let moves = |op, length| {
            let request = Request {
                op,
                local,
                local_offset: 0,
                remote,
                remote_offset: 0,
                length,
            };
            let batch = engine.submit(&[request]).unwrap();
            assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
        };
        moves(Op::Write, 64 << 10);
        assert_eq!(helpers(), 0, "{workers} workers, small copies only");
        // If nobody says how many workers, two threads copy at least.
        let copiers = match workers {
            0 => (processors / 2).max(2),
            _ => workers,
        };
        let most = copiers.min(processors) - 1;
        let deadline = Instant::now() + PATIENCE;
        // How much is copied at once grows with what is learned of the speed.
        let mut rounds = 0;
        while rounds < 20 || helpers() < most {
            moves(Op::Write, BYTES);
            moves(Op::Read, BYTES);
            assert!(Instant::now() < deadline, "{workers} workers");
            rounds += 1;
        }
        assert_eq!(helpers(), most, "{workers} workers");
        engine.shutdown();
        drop(engine);
        assert_eq!(helpers(), 0, "{workers} workers, and no engine");
        target.shutdown();
    }
}
