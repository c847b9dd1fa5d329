//! Two engines that are joined by rails on loopback, and memory to look at.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail::{
    Access, Batch, BatchStatus, Config, Engine, Faults, Hooks, Op, RailId, Region, Request,
    SegmentId, Status,
};

/// Longer than anything here takes; only a failing test waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Rails of a [`Pair`]. The spares are numbered from there on.
pub(crate) const RAILS: usize = 4;
/// One for each of them.
pub(crate) const SPARES: usize = RAILS;
pub(crate) const MIB: u64 = 1 << 20;

/// Loopback addresses, one per rail.
pub(crate) fn rails() -> Vec<IpAddr> {
    (1..=RAILS as u8)
        .map(|host| [127, 0, 0, host].into())
        .collect()
}

/// An engine that listens on all rails.
pub(crate) fn target(name: &str) -> Engine {
    Engine::new(target_config(name)).unwrap()
}

pub(crate) fn target_config(name: &str) -> Config {
    Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        rails: rails(),
        workers: 1,
        ..Config::named(name)
    }
}

/// An engine that only connects, with faults to inject.
pub(crate) fn initiator(faults: &Arc<Faults>) -> Engine {
    initiator_with(initiator_config(), faults, None)
}

pub(crate) fn initiator_config() -> Config {
    Config {
        rails: rails(),
        workers: 1,
        ..Config::named("initiator").without("shm")
    }
}

/// One that leaves a recording in a folder, perhaps.
pub(crate) fn initiator_with(
    config: Config,
    faults: &Arc<Faults>,
    recording: Option<PathBuf>,
) -> Engine {
    let hooks = Hooks {
        faults: Some(faults.clone()),
        recording,
        ..Hooks::default()
    };
    Engine::with_hooks(config, hooks).unwrap()
}

/// The address of a segment of an engine that listens.
pub(crate) fn address(engine: &Engine, segment: &str) -> String {
    format!("{}/{segment}", engine.listening().unwrap())
}

/// A target and an initiator, each with a segment.
pub(crate) struct Pair {
    pub(crate) target: Engine,
    pub(crate) initiator: Engine,
    pub(crate) faults: Arc<Faults>,
    pub(crate) local: SegmentId,
    pub(crate) remote: SegmentId,
    /// The same, as the target knows it.
    pub(crate) there: SegmentId,
    pub(crate) bytes: u64,
}

impl Pair {
    pub(crate) fn new(bytes: u64) -> Self {
        Self::with(bytes, initiator)
    }

    /// One whose initiator is started by `start`.
    pub(crate) fn with(bytes: u64, start: impl FnOnce(&Arc<Faults>) -> Engine) -> Self {
        Self::at(target("target"), bytes, start)
    }

    pub(crate) fn at(
        target: Engine,
        bytes: u64,
        start: impl FnOnce(&Arc<Faults>) -> Engine,
    ) -> Self {
        let there = target.allocate("mem", bytes, Access::RemoteReadWrite);
        let faults = Arc::new(Faults::new());
        let initiator = start(&faults);
        let local = initiator.allocate("here", bytes, Access::Local).unwrap();
        let remote = initiator.open_segment(&address(&target, "mem")).unwrap();
        Self {
            target,
            initiator,
            faults,
            local,
            remote,
            there: there.unwrap(),
            bytes,
        }
    }

    pub(crate) fn source(&self) -> Arc<Region> {
        self.initiator.region(self.local).unwrap()
    }

    pub(crate) fn destination(&self) -> Arc<Region> {
        self.target.region(self.there).unwrap()
    }

    /// A write of `length` bytes, from and to the same offset.
    pub(crate) fn write(&self, offset: u64, length: u64) -> Request {
        Request {
            op: Op::Write,
            local: self.local,
            local_offset: offset,
            remote: self.remote,
            remote_offset: offset,
            length,
        }
    }

    pub(crate) fn write_all(&self) -> Request {
        self.write(0, self.bytes)
    }

    pub(crate) fn submit(&self, request: Request) -> Batch {
        self.initiator.submit(&[request]).unwrap()
    }

    /// Fills the source anew, and moves all of it.
    pub(crate) fn exchange(&self, seed: u64) {
        fill(&self.source(), seed);
        completed(&self.submit(self.write_all()));
        assert!(bytes(&self.destination()) == pattern(seed, self.bytes));
    }

    /// Moves things until every rail has carried some, so that every lane is open.
    pub(crate) fn warm_up(&self) {
        until("every rail is in use", || {
            self.exchange(1);
            let rails = self.initiator.rails();
            rails.len() == RAILS + SPARES && rails[..RAILS].iter().all(|rail| rail.bytes > 0)
        });
    }

    /// A request between the same engines that touches other memory.
    pub(crate) fn bystander(&self) -> Request {
        let access = Access::RemoteReadWrite;
        self.target.allocate("other", MIB, access).unwrap();
        let remote = self.initiator.open_segment(&address(&self.target, "other"));
        let local = self.initiator.allocate("spare", MIB, Access::Local);
        Request {
            local: local.unwrap(),
            remote: remote.unwrap(),
            ..self.write(0, MIB)
        }
    }

    /// Moves `request` until the rail has carried some of it.
    ///
    /// Several at once, so that there is more to do than the fastest rail alone ends sooner: a lone one of 1 MiB
    /// can be better off without the rail for ever.
    pub(crate) fn until_used(&self, rail: usize, request: Request) {
        let before = self.rail_bytes(rail);
        until("the rail is used again", || {
            completed(&self.initiator.submit(&[request; 16]).unwrap());
            self.rail_bytes(rail) > before
        });
    }

    pub(crate) fn rail_bytes(&self, rail: usize) -> u64 {
        self.initiator.rails()[rail].bytes
    }

    pub(crate) fn moved_bytes(&self) -> u64 {
        self.initiator.rails().iter().map(|rail| rail.bytes).sum()
    }

    pub(crate) fn each_rail(&self, change: impl Fn(&Faults, RailId)) {
        for rail in 0..(RAILS + SPARES) as u16 {
            change(&self.faults, RailId(rail));
        }
    }
}

/// Waits for a batch to end, however it does.
pub(crate) fn ended(batch: &Batch) -> BatchStatus {
    batch.wait(PATIENCE).unwrap()
}

/// Waits for a batch to end well.
pub(crate) fn completed(batch: &Batch) {
    let status = ended(batch);
    assert_eq!(status.status, Status::Completed, "{:?}", batch.report(0));
    assert_eq!(
        (status.ended, status.failed),
        (status.requests, 0),
        "{status:?}"
    );
}

/// Looks again and again until `seen`, for a while.
pub(crate) fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !seen() {
        assert!(Instant::now() < deadline, "not seen in time: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Bytes that tell by their value where they belong.
pub(crate) fn pattern(seed: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    for (index, word) in (0..).zip(bytes.chunks_mut(8)) {
        let mixed = (index ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64);
        word.copy_from_slice(&(mixed ^ mixed >> 29).to_le_bytes()[..word.len()]);
    }
    bytes
}

/// Fills a segment with the pattern of `seed`.
pub(crate) fn fill(region: &Region, seed: u64) {
    put(region, 0, &pattern(seed, region.bytes()));
}

/// Fills a segment with one byte.
pub(crate) fn poison(region: &Region, byte: u8) {
    put(region, 0, &vec![byte; region.bytes() as usize]);
}

pub(crate) fn put(region: &Region, offset: u64, bytes: &[u8]) {
    region.store(bytes, offset).unwrap();
}

/// All bytes of a segment.
pub(crate) fn bytes(region: &Region) -> Vec<u8> {
    get(region, 0, region.bytes())
}

pub(crate) fn get(region: &Region, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    region.load(offset, &mut bytes).unwrap();
    bytes
}
