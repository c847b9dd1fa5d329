//! Two processes of one host on the same two devices: with a weight the one goes where the other is not, and a killed
//! one casts no load. This program is both: with [`LOADER`] in its environment it loads the first device until it
//! is killed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail::{
    Access, Config, Engine, Faults, Hooks, Op, RailId, Request, SegmentId, SprayConfig, Status,
};
use polyrail_record::{Install, Reader, Step};
use polyrail_sim::replay::replay;

const LOADER: &str = "POLYRAIL_TEST_LOADER";
/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(30);
const STALE: Duration = Duration::from_millis(200);
/// Addresses that no other test uses: processes know devices by their names.
const DEVICES: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(127, 7, 77, 1)),
    IpAddr::V4(std::net::Ipv4Addr::new(127, 7, 77, 2)),
];
/// How fast they are: alone, everybody prefers the first one, by more than measuring errs.
const RATES: [u64; 2] = [120_000_000, 20_000_000];
/// Engines of the loader, each with a few slices in flight at this rate: together more than makes up for that.
const LOADERS: usize = 6;
const LOADER_RATE: u64 = 5_000_000;
const SLICE: u64 = 64 * 1024;

/// An initiator over the first so many devices, and a write to its target.
struct Side {
    engine: Engine,
    bytes: u64,
    local: SegmentId,
    remote: SegmentId,
}

impl Side {
    fn new(devices: &[(IpAddr, u64)], weight: f64, bytes: u64, recording: Option<&Path>) -> Self {
        let rails: Vec<_> = devices.iter().map(|(device, _)| *device).collect();
        let config = |name, listen| Config {
            listen,
            rails: rails.clone(),
            workers: 1,
            ..Config::named(name).without("shm")
        };
        let target = Engine::new(config("target", Some(SocketAddr::new(rails[0], 0)))).unwrap();
        let mem = target.allocate("mem", bytes, Access::RemoteReadWrite);
        mem.unwrap();
        let faults = Arc::new(Faults::new());
        for (rail, (_, rate)) in (0..).zip(devices) {
            faults.slow(RailId(rail), Some(*rate));
        }
        let hooks = Hooks {
            faults: Some(faults),
            recording: recording.map(Path::to_owned),
            ..Hooks::default()
        };
        let config = Config {
            spray: SprayConfig {
                nominal_bandwidth_gbps: devices[0].1 as f64 * 8e-9,
                diffusion_weight: weight,
                diffusion_stale: STALE,
                ..SprayConfig::default()
            },
            ..config("initiator", None)
        };
        let engine = Engine::with_hooks(config, hooks).unwrap();
        let local = engine.allocate("here", bytes, Access::Local).unwrap();
        let address = format!("{}/mem", target.listening().unwrap());
        let remote = engine.open_segment(&address).unwrap();
        // It lives as long as the process.
        std::mem::forget(target);
        Self {
            engine,
            bytes,
            local,
            remote,
        }
    }

    fn write(&self) -> polyrail::Batch {
        let request = Request {
            op: Op::Write,
            local: self.local,
            local_offset: 0,
            remote: self.remote,
            remote_offset: 0,
            length: self.bytes,
        };
        self.engine.submit(&[request]).unwrap()
    }

    fn rail_bytes(&self) -> Vec<u64> {
        // Not of their spares.
        let rails = self.engine.rails();
        rails.iter().take(2).map(|rail| rail.bytes).collect()
    }

    /// The second rail's share of so many writes, one after the other.
    fn share(&self, writes: u32) -> f64 {
        let before = self.rail_bytes();
        for _ in 0..writes {
            let status = self.write().wait(PATIENCE).unwrap();
            assert_eq!(status.status, Status::Completed);
        }
        let after = self.rail_bytes();
        let moved = |rail: usize| (after[rail] - before[rail]) as f64;
        moved(1) / (moved(0) + moved(1))
    }

    /// Moves things until both rails carry some.
    fn warm_up(&self) {
        let start = Instant::now();
        while self.rail_bytes().contains(&0) {
            let batches: Vec<_> = (0..32).map(|_| self.write()).collect();
            for batch in batches {
                batch.wait(PATIENCE).unwrap();
            }
            assert!(start.elapsed() < PATIENCE, "one rail is never used");
        }
    }
}

/// Keeps bytes in flight on the first device, and says when there are some.
fn load_until_killed() {
    let side = || Side::new(&[(DEVICES[0], LOADER_RATE)], 1.0, 256 << 20, None);
    let sides: Vec<_> = (0..LOADERS).map(|_| side()).collect();
    // Longer than the test takes.
    let batches: Vec<_> = sides.iter().map(Side::write).collect();
    for side in &sides {
        while side.rail_bytes() == [0] {
            std::thread::yield_now();
        }
    }
    println!("loaded");
    for batch in &batches {
        batch.wait(2 * PATIENCE).unwrap();
    }
}

/// Killed however the test ends.
struct Loader(Child);

impl Loader {
    fn start() -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(LOADER, "")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "loaded\n");
        Self(process)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Replays what an engine did, and counts how often it was told of others' load.
fn told_of_others(engine: &Engine) -> usize {
    engine.shutdown();
    let file = engine.recording().unwrap();
    let open = || Reader::new(BufReader::new(File::open(file).unwrap())).unwrap();
    let replayed = replay(&mut open(), None, None).unwrap();
    assert!(replayed.equal, "{:#?}", replayed.difference);
    let mut reader = open();
    let mut told = 0;
    while let Some(entry) = reader.next_entry().unwrap() {
        told += usize::from(matches!(entry.step, Step::Shared(Install::Others(..))));
    }
    told
}

fn main() {
    if std::env::var_os(LOADER).is_some() {
        return load_until_killed();
    }
    let folder = tempfile::tempdir().unwrap();
    let devices = [0, 1].map(|device| (DEVICES[device], RATES[device]));
    let [alone, sees] =
        [0.0, 1.0].map(|weight| Side::new(&devices, weight, SLICE, Some(folder.path())));
    alone.warm_up();
    sees.warm_up();
    let mut loader = Loader::start();
    let shares = [alone.share(300), sees.share(300)];
    println!(
        "the second device's share: {:.2} without, {:.2} with a weight",
        shares[0], shares[1]
    );
    assert!(shares[1] > shares[0] + 0.3, "{shares:?}");

    let middle = (shares[0] + shares[1]) / 2.0;
    loader.0.kill().unwrap();
    let killed = Instant::now();
    while sees.share(16) > middle {
        assert!(
            killed.elapsed() < STALE + PATIENCE / 6,
            "the dead cast load"
        );
    }
    println!("the dead cast none after {:?}", killed.elapsed());

    // Kept to the byte, and nothing is written down without a weight.
    let told = [&alone, &sees].map(|side| told_of_others(&side.engine));
    println!("told of others {} times without, {} with", told[0], told[1]);
    assert!(told[0] == 0 && told[1] > 0, "{told:?}");
}
