//! What a program and its peer may do, in orders drawn at random: each request is reported once, bytes are where its report
//! says, nothing hangs, and nothing is left in the end.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use polyrail::{
    Access, Batch, Blocks, CloseError, Config, Engine, Faults, LimitsConfig, Local, Op,
    PagedRequest, Places, PreparedTransfer, Priority, RailId, Region, Remote, Request, SegmentId,
    Status, SubmitError, Terms,
};

use crate::fixture::*;

/// Bytes that one batch has for itself at each end.
const SLOT: u64 = 64 << 10;
const SLOTS: u64 = 8;
/// More than may be under way at a time.
const MANY: u64 = 20_000;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const ACTS: usize = 60;

/// Draws from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % most
    }
}

/// A batch that was submitted, and the bytes at both ends before that.
struct Flight {
    batch: Batch,
    /// The ranges of each request: where here, where there, and how long.
    requests: Vec<Vec<(u64, u64, u64)>>,
    op: Op,
    ids: (SegmentId, SegmentId),
    slot: u64,
    ends: [Arc<Region>; 2],
    /// `None`: nobody can look there.
    before: [Option<Vec<u8>>; 2],
    told: Arc<AtomicUsize>,
    transfer: Option<PreparedTransfer>,
}

/// A target, an initiator, and what is under way.
struct World {
    dice: Dice,
    seed: u64,
    at: SocketAddr,
    target: Engine,
    initiator: Engine,
    faults: Arc<Faults>,
    locals: Vec<SegmentId>,
    /// What of the target's is open, and its memory there.
    open: HashMap<&'static str, (SegmentId, Arc<Region>)>,
    flights: Vec<Flight>,
    /// Slots that no batch has.
    free: Vec<u64>,
    patterns: u64,
}

fn target_at(at: SocketAddr) -> Engine {
    let target = Engine::new(Config {
        listen: Some(at),
        rails: rails()[..2].to_vec(),
        workers: 1,
        ..Config::named("target")
    });
    let target = target.unwrap();
    for name in NAMES {
        allocate(&target, name);
    }
    target
}

fn allocate(target: &Engine, name: &str) {
    let access = Access::RemoteReadWrite;
    target.allocate(name, SLOTS * SLOT, access).unwrap();
}

impl World {
    fn new(seed: u64) -> Self {
        let target = target_at("127.0.0.1:0".parse().unwrap());
        let faults = Arc::new(Faults::new());
        let config = Config {
            check_overlap: looks_for_overlap(seed),
            rails: rails()[..2].to_vec(),
            // Fewer than there are.
            limits: LimitsConfig {
                pairs: 16,
                ..LimitsConfig::default()
            },
            ..Config::named("initiator")
        };
        let config = match seed % 3 {
            0 => config,
            _ => config.without("shm"),
        };
        let initiator = initiator_with(config, &faults, None);
        let local = |name| initiator.allocate(name, SLOTS * SLOT, Access::Local);
        let locals = ["w", "x", "y", "z"].map(|name| local(name).unwrap());
        Self {
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            seed,
            at: target.listening().unwrap(),
            target,
            faults,
            locals: locals.to_vec(),
            initiator,
            open: HashMap::new(),
            flights: Vec::new(),
            free: (0..SLOTS).collect(),
            patterns: 0,
        }
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.dice.below(NAMES.len() as u64) as usize]
    }

    fn opened(&mut self, name: &'static str) -> Option<(SegmentId, Arc<Region>)> {
        if !self.open.contains_key(name) {
            let there = self.target.local_segment(name)?;
            let there = self.target.region(there)?;
            let address = format!("{}/{name}", self.at);
            let opened = self.initiator.open_segment(&address);
            let id = opened.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
            self.open.insert(name, (id, there));
        }
        self.open.get(name).cloned()
    }

    /// Something that the program or its peer does.
    fn act(&mut self) {
        let name = self.name();
        match self.dice.below(24) {
            0..12 => self.submit(name),
            12..15 => self.with_one(|_, flight| flight.batch.cancel()),
            15 => self.with_one(Self::overlap),
            16 => self.close(name),
            17 => {
                if let Some((id, _)) = self.open.remove(name) {
                    self.initiator.close_segment_later(id).unwrap();
                }
            }
            18 | 19 => self.register_anew(name),
            20 => self.cut(),
            21 => self.restore(),
            22 => self.settle(),
            _ => self.restart(),
        }
        self.collect();
    }

    fn with_one(&mut self, act: fn(&Self, &Flight)) {
        let count = self.flights.len() as u64;
        if count > 0 {
            let index = self.dice.below(count) as usize;
            act(self, &self.flights[index]);
        }
    }

    /// Writes the same once more, which may not be while it is written.
    fn overlap(&self, flight: &Flight) {
        let (here, there, length) = flight.requests[0][0];
        let again = Request {
            op: flight.op,
            local: flight.ids.0,
            local_offset: here,
            remote: flight.ids.1,
            remote_offset: there,
            length,
        };
        match self.initiator.submit(&[again]) {
            Ok(batch) => {
                let is_over = flight.batch.status().status != Status::Pending;
                assert!(
                    is_over || !looks_for_overlap(self.seed),
                    "seed {}",
                    self.seed
                );
                self.restore();
                ended(&batch);
            }
            Err(SubmitError::Overlap { under_way, .. }) => assert!(under_way),
            Err(error) => self.allowed(&error),
        }
    }

    /// Whether that may come of a submission here.
    fn allowed(&self, error: &SubmitError) {
        let may = matches!(
            error,
            SubmitError::Stale { .. }
                | SubmitError::PeerLost { .. }
                | SubmitError::Plans { .. }
                | SubmitError::Full(_)
        );
        assert!(may, "seed {}: {error}", self.seed);
    }

    fn close(&mut self, name: &'static str) {
        let Some((id, _)) = self.open.get(name) else {
            return;
        };
        match self.initiator.close_segment(*id) {
            Ok(()) => drop(self.open.remove(name)),
            Err(CloseError::InUse { .. }) => {
                let has_it = |flight: &Flight| flight.ids.1 == *id;
                assert!(self.flights.iter().any(has_it), "seed {}", self.seed);
            }
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }

    /// The owner has something else under a name; what is under way may fail by that.
    fn register_anew(&mut self, name: &'static str) {
        if let Some(there) = self.target.local_segment(name) {
            self.target.unregister(there).unwrap();
        }
        allocate(&self.target, name);
        if self.dice.below(2) == 0 {
            self.open.remove(name);
        }
    }

    fn cut(&self) {
        (0..4).for_each(|rail| self.faults.cut(RailId(rail)));
    }

    fn restore(&self) {
        (0..16).for_each(|rail| self.faults.restore(RailId(rail)));
    }

    fn settle(&mut self) {
        self.restore();
        for flight in &self.flights {
            ended(&flight.batch);
        }
    }

    /// The peer's process ends, and another one takes its place.
    fn restart(&mut self) {
        self.restore();
        self.target.shutdown();
        self.initiator.declare_lost(&self.at.to_string()).unwrap();
        self.target = target_at(self.at);
        self.open.clear();
    }

    fn submit(&mut self, name: &'static str) {
        let Some((remote, there)) = self.opened(name) else {
            return;
        };
        let Some(slot) = self.free.pop() else {
            return;
        };
        let local = self.locals[self.dice.below(4) as usize];
        let ends = [self.initiator.region(local).unwrap(), there];
        let before = self.fill(slot, &ends);
        let op = match self.dice.below(2) {
            0 => Op::Write,
            _ => Op::Read,
        };
        let submitted = match self.dice.below(4) {
            0 => self.post_paged(op, slot, (local, remote)),
            1 => self.post_prepared(op, slot, (local, remote)),
            2 => self.post(op, slot, (local, remote), MANY),
            _ => {
                let count = 1 + self.dice.below(64);
                self.post(op, slot, (local, remote), count)
            }
        };
        match submitted {
            Ok((batch, requests, transfer)) => {
                self.flights.push(Flight {
                    told: counted(&batch),
                    batch,
                    requests,
                    op,
                    ids: (local, remote),
                    slot,
                    ends,
                    before,
                    transfer,
                });
            }
            Err(error) => {
                self.allowed(&error);
                self.free.push(slot);
                // What it named may have gone with its peer or by its new name.
                self.open.remove(name);
            }
        }
    }

    /// Fills a slot at both ends anew.
    fn fill(&mut self, slot: u64, ends: &[Arc<Region>; 2]) -> [Option<Vec<u8>>; 2] {
        [0, 1].map(|end: usize| {
            self.patterns += 1;
            let bytes = pattern(self.patterns, SLOT);
            let stored = ends[end].store(&bytes, slot * SLOT);
            stored.ok().map(|()| bytes)
        })
    }

    fn terms(&mut self) -> Terms<'static> {
        let within = match self.dice.below(6) {
            0 => Some(Duration::ZERO),
            1 => Some(Duration::from_millis(1)),
            2 => Some(Duration::from_millis(30)),
            _ => None,
        };
        Terms {
            priority: [Priority::Normal, Priority::High][self.dice.below(2) as usize],
            deadline: within,
            arrival: (self.dice.below(3) == 0).then_some(7),
            ..Terms::default()
        }
    }

    /// Requests that fill most of a slot, mixed at the far end.
    fn requests(
        &mut self,
        op: Op,
        slot: u64,
        ids: (SegmentId, SegmentId),
        count: u64,
    ) -> Vec<Request> {
        let length = SLOT / count;
        let first = self.dice.below(count);
        let of = |index: u64| Request {
            op,
            local: ids.0,
            local_offset: slot * SLOT + index * length,
            remote: ids.1,
            remote_offset: slot * SLOT + (first + index) % count * length,
            length,
        };
        (0..count).map(of).collect()
    }

    fn post(&mut self, op: Op, slot: u64, ids: (SegmentId, SegmentId), count: u64) -> Submitted {
        let requests = self.requests(op, slot, ids, count);
        let terms = self.terms();
        let batch = self.initiator.submit_with(&requests, &terms)?;
        Ok((batch, ranges(&requests), None))
    }

    fn post_prepared(&mut self, op: Op, slot: u64, ids: (SegmentId, SegmentId)) -> Submitted {
        let count = [10, MANY][usize::from(self.dice.below(8) == 0)];
        let requests = self.requests(op, slot, ids, count);
        let mut transfer = self.initiator.prepare_transfer(&requests)?;
        let batch = transfer.post_with(&self.terms())?;
        Ok((batch, ranges(&requests), Some(transfer)))
    }

    fn post_paged(
        &mut self,
        op: Op,
        slot: u64,
        (local, remote): (SegmentId, SegmentId),
    ) -> Submitted {
        let count = [16, 4096][usize::from(self.dice.below(3) == 0)];
        let length = SLOT / count;
        // Runs of two, so that some go as one.
        let table: Vec<u32> = (0..count as u32).map(|page| page ^ 2).collect();
        let cut = self.dice.below(count - 1) as usize + 1;
        let blocks = |segment, places| Blocks {
            segment,
            base: slot * SLOT,
            stride: length,
            places,
        };
        let rows: Vec<u32> = (0..count as u32).collect();
        let parts = [(&rows[..cut], &table[..cut]), (&rows[cut..], &table[cut..])];
        let paged = parts.map(|(here, there)| PagedRequest {
            op,
            local: blocks(local, Places::Pages(here)),
            remote: blocks(remote, Places::Pages(there)),
            length,
        });
        let of = |part: &[u32]| {
            let at = |page: u32| slot * SLOT + u64::from(page) * length;
            let block = |page: &u32| (at(*page), at(page ^ 2), length);
            part.iter().map(block).collect()
        };
        let requests = vec![of(&rows[..cut]), of(&rows[cut..])];
        let terms = self.terms();
        if self.dice.below(2) == 0 {
            let mut transfer = self.initiator.prepare_paged(&paged)?;
            let batch = transfer.post_with(&terms)?;
            return Ok((batch, requests, Some(transfer)));
        }
        let batch = self.initiator.submit_paged(&paged, &terms)?;
        Ok((batch, requests, None))
    }

    /// Looks at what has ended; some of what was prepared is posted again.
    fn collect(&mut self) {
        let is_over = |flight: &mut Flight| flight.batch.status().status != Status::Pending;
        let over: Vec<_> = self.flights.extract_if(.., is_over).collect();
        for mut flight in over {
            let is_proved = self.check(&flight);
            if is_proved && !self.again(&mut flight) {
                self.free.push(flight.slot);
            } else if is_proved {
                self.flights.push(flight);
            }
        }
    }

    /// Posts what was prepared once more, perhaps.
    fn again(&mut self, flight: &mut Flight) -> bool {
        let terms = self.terms();
        if self.dice.below(2) == 0 {
            return false;
        }
        let Some(transfer) = &mut flight.transfer else {
            return false;
        };
        flight.before = self.fill(flight.slot, &flight.ends);
        match transfer.post_with(&terms) {
            Ok(batch) => {
                flight.told = counted(&batch);
                flight.batch = batch;
                true
            }
            Err(error) => {
                self.allowed(&error);
                false
            }
        }
    }

    /// Compares reports with bytes. Whether it is proved that nothing can change them any more.
    fn check(&self, flight: &Flight) -> bool {
        let seed = self.seed;
        let status = flight.batch.status();
        assert_eq!(
            status.ended,
            flight.requests.len() as u32,
            "seed {seed}: {status:?}"
        );
        until("the end is told", || flight.told.load(SeqCst) > 0);
        let now = [0, 1].map(|end: usize| {
            let mut bytes = vec![0; SLOT as usize];
            let loaded = flight.ends[end].load(flight.slot * SLOT, &mut bytes);
            loaded.ok().map(|()| bytes)
        });
        let (from, to) = match flight.op {
            Op::Write => (0, 1),
            Op::Read => (1, 0),
        };
        let (mut failed, mut is_proved) = (0, true);
        let mut expected = flight.before[to].clone();
        for (index, ranges) in flight.requests.iter().enumerate() {
            let report = flight.batch.report(index).unwrap();
            assert_ne!(
                report.status,
                Status::Pending,
                "seed {seed}: request {index}"
            );
            let length: u64 = ranges.iter().map(|(.., length)| length).sum();
            let is_whole = report.status == Status::Completed;
            assert!(
                report.delivered_bytes <= length && (!is_whole || report.delivered_bytes == length),
                "seed {seed}: {report:?}"
            );
            failed += u32::from(!is_whole);
            is_proved &= report.local == Local::Released && report.remote == Remote::Settled;
            let (Some(source), Some(now), Some(expected)) =
                (&flight.before[from], &now[to], &mut expected)
            else {
                continue;
            };
            for (here, there, length) in ranges {
                let of = |offset: &u64| {
                    let first = (offset - flight.slot * SLOT) as usize;
                    first..first + *length as usize
                };
                let (here, there) = (of(here), of(there));
                let (came, went) = if flight.op == Op::Write {
                    (here, there)
                } else {
                    (there, here)
                };
                for (byte, at) in came.zip(went) {
                    if is_whole || now[at] == source[byte] {
                        expected[at] = source[byte];
                    }
                }
            }
        }
        assert_eq!(status.failed, failed, "seed {seed}: {status:?}");
        if is_proved && let (Some(now), Some(expected)) = (&now[to], &expected) {
            assert!(now == expected, "seed {seed}: {:?} {status:?}", flight.op);
        }
        if let (Some(now), Some(before)) = (&now[from], &flight.before[from]) {
            assert!(now == before, "seed {seed}: what was only read has changed");
        }
        assert_eq!(flight.told.load(SeqCst), 1, "seed {seed}");
        is_proved
    }

    /// Everything ends, and nothing is left.
    fn end(mut self) {
        while !self.flights.is_empty() {
            self.settle();
            self.collect();
        }
        for (_, (id, _)) in self.open.drain() {
            let closed = || self.initiator.close_segment(id);
            until("it can be closed", || {
                !matches!(closed(), Err(CloseError::InUse { .. }))
            });
        }
        for local in &self.locals {
            until("nothing uses it", || {
                self.initiator.unregister(*local).is_ok()
            });
        }
        assert!(
            self.initiator
                .stats()
                .workers
                .iter()
                .all(|worker| worker.held == 0)
        );
    }
}

/// Whether requests that overlap are refused.
fn looks_for_overlap(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// How often a batch tells of its end.
fn counted(batch: &Batch) -> Arc<AtomicUsize> {
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    batch.on_done(move |_| {
        count.fetch_add(1, SeqCst);
    });
    told
}

type Submitted = Result<(Batch, Vec<Vec<(u64, u64, u64)>>, Option<PreparedTransfer>), SubmitError>;

/// The one range of each request.
fn ranges(requests: &[Request]) -> Vec<Vec<(u64, u64, u64)>> {
    let range =
        |request: &Request| vec![(request.local_offset, request.remote_offset, request.length)];
    requests.iter().map(range).collect()
}

#[test]
fn whatever_comes_in_whatever_order_each_request_is_reported_once_and_no_byte_is_lost() {
    for seed in 1..=5 {
        let mut world = World::new(seed);
        for _ in 0..ACTS {
            world.act();
        }
        world.end();
    }
}
