//! A target's process, and an engine that moves bytes to and from it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail::{
    Access, BatchStatus, Config, Engine, HealthConfig, IsolationMode, Op, Region, Request,
    SegmentId, Status,
};

use crate::rails::{address, addresses};

/// The target's memory.
pub(crate) const MEMORY: u64 = 32 << 20;
/// The initiator's.
pub(crate) const LOCAL: u64 = 32 << 20;
/// Longer than anything here takes; only a failing case waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A byte that depends on where it is.
pub(crate) fn pattern(seed: u64, offset: u64) -> u8 {
    let mixed = (offset + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ seed.rotate_left(32));
    (mixed >> 56) as u8 ^ mixed as u8
}

/// What both ends have in common: patience enough for emulated processors.
pub(crate) fn common(name: &str) -> Config {
    Config {
        workers: 1,
        health: HealthConfig {
            progress_floor: Duration::from_secs(1),
            open_timeout: Duration::from_secs(5),
            peer_silence: Duration::from_secs(4),
            fence_timeout: Duration::from_secs(6),
            ..HealthConfig::default()
        },
        ..Config::named(name).without("shm")
    }
}

/// Without TCP: emulated devices are about as slow, and TCP has no limits such as `rail rate` sets. It would be used, rightly,
/// whenever it was measured to be the faster one.
pub(crate) fn initiator() -> Config {
    initiator_with_tcp().without("tcp")
}

pub(crate) fn initiator_with_tcp() -> Config {
    let mut config = Config {
        rails: addresses(false),
        ..common("initiator")
    };
    // A dead wire is noticed after about a second.
    (config.verbs.ack_timeout, config.verbs.retry_count) = (16, 3);
    config
}

/// Tells a target that rails 2 and 3 are of a supplementary fabric, in which mode, and how many bits of addresses an
/// island has.
pub(crate) const ISLAND: &str = "RDMA_TARGET_ISLAND";

/// A target's process.
pub(crate) struct Target {
    pub(crate) process: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
    pub(crate) address: String,
}

impl Target {
    pub(crate) fn start(isolated: Option<&str>) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut process = Command::new(program)
            .arg("target")
            .env(ISLAND, isolated.unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a target starts");
        let mut target = Self {
            says: BufReader::new(process.stdout.take().expect("it is piped")),
            hears: process.stdin.take().expect("it is piped"),
            process,
            address: String::new(),
        };
        target.address = target.line();
        target
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.says.read_line(&mut line).expect("it speaks text");
        assert!(!line.is_empty(), "the target has ended");
        line.trim().to_owned()
    }

    /// Its answer.
    pub(crate) fn ask(&mut self, question: &str) -> String {
        writeln!(self.hears, "{question}").expect("it listens");
        self.line()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let status = Command::new("kill").args([name, &pid]).status();
        assert!(status.expect("there is a kill").success());
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An engine with memory, and a target's.
pub(crate) struct Pair {
    pub(crate) engine: Engine,
    pub(crate) target: Target,
    region: Arc<Region>,
    pub(crate) local: SegmentId,
    pub(crate) remote: SegmentId,
}

impl Pair {
    pub(crate) fn start() -> Self {
        Self::with(initiator())
    }

    /// With two fabrics that both ends know: rails 0 and 1 are of the primary one, 2 and 3 of the supplementary one.
    pub(crate) fn isolated(mut config: Config) -> Self {
        let mode = match config.path.mode {
            IsolationMode::Advanced => "advanced",
            _ => "vanilla",
        };
        config.path.supplementary = [2, 3].map(|number| address(number, false)).to_vec();
        let isolated = format!("{mode} {}", config.path.island_prefix.v4_bits);
        Self::between(config, Target::start(Some(&isolated)))
    }

    pub(crate) fn with(config: Config) -> Self {
        Self::between(config, Target::start(None))
    }

    fn between(config: Config, target: Target) -> Self {
        let engine = Engine::new(config).expect("an engine starts");
        let verbs = engine
            .transports()
            .into_iter()
            .find(|known| known.name == "verbs");
        assert_eq!(verbs.expect("it is built in").missing, None);
        let local = engine
            .allocate("local", LOCAL, Access::Local)
            .expect("memory");
        let region = engine.region(local).expect("it is registered");
        let remote = engine.open_segment(&format!("{}/mem", target.address));
        Self {
            remote: remote.expect("the target is there"),
            region,
            local,
            engine,
            target,
        }
    }

    pub(crate) fn request(&self, op: Op, local: u64, remote: u64, length: u64) -> Request {
        Request {
            op,
            local: self.local,
            local_offset: local,
            remote: self.remote,
            remote_offset: remote,
            length,
        }
    }

    /// Submits and waits.
    pub(crate) fn run(&self, requests: &[Request]) -> BatchStatus {
        let batch = self
            .engine
            .submit(requests)
            .expect("they are good requests");
        batch.wait(PATIENCE).expect("it ends in time")
    }

    /// Submits, waits, and is not content with less than all.
    pub(crate) fn complete(&self, requests: &[Request]) {
        let report = self.run(requests);
        assert_eq!(report.status, Status::Completed, "{report:?}");
    }

    /// Puts into local memory what belongs at `remote` and behind it.
    pub(crate) fn fill(&self, seed: u64, local: u64, remote: u64, length: u64) {
        assert!(self.region.contains(local, length));
        for step in 0..length {
            // SAFETY: inside the region, which is mapped while it is held.
            unsafe {
                let at = self.region.base().as_ptr().add((local + step) as usize);
                at.write_volatile(pattern(seed, remote + step));
            }
        }
    }

    /// Sets local memory to one byte.
    pub(crate) fn set(&self, byte: u8) {
        // SAFETY: as above.
        unsafe {
            self.region
                .base()
                .as_ptr()
                .write_bytes(byte, LOCAL as usize)
        };
    }

    /// Whether local memory has what belongs at `remote` and behind it.
    pub(crate) fn check(&self, seed: u64, local: u64, remote: u64, length: u64) {
        for step in 0..length {
            // SAFETY: as above.
            let byte = unsafe {
                let at = self.region.base().as_ptr().add((local + step) as usize);
                at.read_volatile()
            };
            assert_eq!(
                byte,
                pattern(seed, remote + step),
                "byte {step} of {length} at {remote}"
            );
        }
    }

    /// Bytes acknowledged on the rails of a transport, rail by rail, without spares.
    pub(crate) fn bytes(&self, transport: &str) -> Vec<u64> {
        let rails = self.engine.rails().into_iter();
        let rails = rails.filter(|rail| !rail.is_spare);
        let of = rails.filter(|rail| rail.name.split(':').next() == Some(transport));
        of.map(|rail| rail.bytes).collect()
    }
}

/// Waits until something is so, which nobody tells of.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}
