//! Random histories of works, syncs and faults over a disk that is not there, with a model of what may be in the file.
//!
//! Lanes, cutting, turns, what is asked for again and what fails are the crate's own; below them is a [`Kernel`] in place of
//! the system. A history is drawn from one number: a failure prints it and what had happened.

mod disk;
mod model;
mod ranges;

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use oorandom::Rand32;
use polyrail_core::time::Duration;
use polyrail_core::work::PostBatch;
use polyrail_transport::Polled;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use self::disk::{FILE_BYTES, Fake, Kernel, Rates};
use self::model::{Model, WRITES_MAX};
use self::ranges::Made;
use super::*;

/// Unless `FILE_SEEDS` says otherwise.
const SEEDS: u64 = 1_000;
const WORKERS: usize = 2;
const RANGES: usize = 3;
/// Works that a worker may have under way.
const WORKS: usize = 8;
/// Bytes of memory for each.
const ROOM: usize = 5 * 4096;
/// The longest work.
const LENGTH_MAX: usize = 4 * 4096;
/// What no write writes.
const UNTOUCHED: u8 = 255;

struct Worker {
    endpoint: FileEndpoint<Fake>,
    region: Arc<Region>,
    epoch: Epoch,
    open: bool,
    polled: Polled,
}

/// A work on its way.
struct Going {
    work: Work,
    /// In the file.
    bytes: std::ops::Range<usize>,
    asked: u64,
    /// Bytes of the file when it was asked for.
    len: usize,
    /// A write's number.
    write: u8,
}

struct History {
    kernel: Arc<Mutex<Kernel>>,
    random: Rand32,
    file: File,
    files: Arc<Files>,
    made: Vec<Made>,
    workers: Vec<Worker>,
    /// By worker and place in its memory.
    going: Vec<Vec<Option<Going>>>,
    model: Model,
    /// Counts events.
    now: u64,
    /// What endpoints take for the time.
    time: Instant,
    works: u64,
    is_told: bool,
}

const LANE: LaneId = LaneId::new(0, RailId(0));

fn segment(range: usize) -> SegmentRef {
    SegmentRef(10 + range as u32)
}

impl History {
    fn new(seed: u64, is_told: bool) -> Self {
        let mut random = Rand32::new(seed);
        let mut rate = |most: u32| match random.rand_range(0..2) {
            0 => 0,
            _ => random.rand_range(1..most),
        };
        let rates = Rates {
            error: rate(60),
            short: rate(400),
            again: rate(300),
            refuse: rate(100),
            lose: rate(300),
            flush: rate(300),
        };
        let len = FILE_BYTES - random.rand_range(0..2) as usize * 10_000;
        let memory = memfd_create("swarm", MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(memory);
        let kernel = Kernel::new(Rand32::new(!seed), rates, WORKERS, len);
        let mut history = Self {
            kernel: Arc::new(Mutex::new(kernel)),
            random,
            file,
            files: Arc::default(),
            made: Vec::new(),
            workers: Vec::new(),
            going: (0..WORKERS)
                .map(|_| (0..WORKS).map(|_| None).collect())
                .collect(),
            model: Model::new(FILE_BYTES),
            now: 0,
            time: Instant::ZERO,
            works: 0,
            is_told,
        };
        history.workers = (0..WORKERS).map(|worker| history.worker(worker)).collect();
        history.made = (0..RANGES).map(|range| history.make(range)).collect();
        history.tell(|| format!("{rates:?}"));
        history
    }

    fn tell(&self, what: impl Fn() -> String) {
        if self.is_told {
            eprintln!("{:4}: {}", self.now, what());
        }
    }

    fn worker(&self, worker: usize) -> Worker {
        let fake = Fake {
            kernel: self.kernel.clone(),
            worker,
            fd: OwnedFd::from(File::open("/dev/null").unwrap()),
        };
        let mut endpoint = FileEndpoint::new(fake, self.files.clone(), Clock::start());
        let region = Region::allocate((WORKS * ROOM) as u64, Access::Local);
        let region = Arc::new(region.unwrap());
        endpoint.attach_local(MEMORY, region.clone());
        let epoch = Epoch(1);
        endpoint.open(LANE, epoch, Instant::MAX);
        Worker {
            endpoint,
            region,
            epoch,
            open: true,
            polled: Polled::default(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.rand_range(0..bound as u32) as usize
    }

    /// One event.
    fn go_on(&mut self) {
        self.now += 1;
        let step = [0, 50, 150, 400][self.below(4)];
        self.time = self.time + Duration::from_micros(step);
        match self.below(100) {
            0..20 => self.post(),
            20..45 => self.poll(),
            45..82 => self.step(),
            82..88 => {
                self.kernel.lock().unwrap().stir();
                self.note_lost();
            }
            88..94 => {
                let number = self.below(RANGES);
                self.sync(number);
            }
            94 => {
                let _ = self
                    .kernel
                    .lock()
                    .unwrap()
                    .fsync(self.made[0].range.place(Side::Cached, 0).0, false);
                self.tell(|| "the program syncs".into());
                self.note_lost();
            }
            95 => {
                let number = self.below(RANGES);
                self.tell(|| format!("range {number} is made anew"));
                self.made[number] = self.make(number);
            }
            96 => self.time = self.time + Duration::from_millis(10),
            _ => self.fence(),
        }
    }

    fn post(&mut self) {
        let (worker, number) = (self.below(WORKERS), self.below(RANGES));
        let free = self.going[worker].iter().position(Option::is_none);
        let Some(place) =
            free.filter(|_| self.workers[worker].open && self.model.writes() < WRITES_MAX)
        else {
            return;
        };
        let room = FILE_BYTES - self.made[number].start;
        let (offset, length, local) = match self.below(2) {
            0 => {
                let offset = self.below(room / 4096) * 4096;
                let length = (1 + self.below(LENGTH_MAX / 4096)) * 4096;
                (
                    offset,
                    length.min(room - offset),
                    [0, 0, 512, 100][self.below(4)],
                )
            }
            _ => {
                let offset = self.below(room);
                let length = 1 + self.below(LENGTH_MAX);
                // Aligned like the file, as whole pages can be read past the cache then.
                let local = [offset % 512, self.below(600)][self.below(2)];
                (offset, length.min(room - offset), local)
            }
        };
        let op = [Op::Write, Op::Write, Op::Read][self.below(3)];
        let start = self.made[number].start + offset;
        self.issue(
            (worker, place, number),
            (op, offset, start..start + length, local),
        );
    }

    fn issue(
        &mut self,
        (worker, place, number): (usize, usize, usize),
        (op, offset, bytes, local): (Op, usize, std::ops::Range<usize>, usize),
    ) {
        let write = match op {
            Op::Write => self.model.begin(self.now, bytes.clone()),
            Op::Read => 0,
        };
        let ours = &mut self.workers[worker];
        let at = place * ROOM + local;
        ours.region
            .store(&[UNTOUCHED; ROOM], (place * ROOM) as u64)
            .unwrap();
        if op == Op::Write {
            ours.region
                .store(&vec![write; bytes.len()], at as u64)
                .unwrap();
        }
        let remote = Place {
            segment: segment(number),
            offset: offset as u64,
        };
        let work = Work {
            remote,
            ..work(place as u64, op, at as u64, 0, bytes.len() as u32)
        };
        let posted = ours.endpoint.post(&PostBatch {
            lane: LANE,
            epoch: ours.epoch,
            works: [work].into_iter().collect(),
        });
        assert_eq!((posted.accepted, posted.stop), (1, Stop::All));
        self.works += 1;
        self.tell(|| format!("worker {worker}, place {place}: {op:?} {bytes:?}, write {write}"));
        self.going[worker][place] = Some(Going {
            work,
            bytes,
            asked: self.now,
            len: self.kernel.lock().unwrap().len,
            write,
        });
    }

    fn poll(&mut self) {
        let worker = self.below(WORKERS);
        self.poll_one(worker);
    }

    fn poll_one(&mut self, worker: usize) {
        let ours = &mut self.workers[worker];
        ours.endpoint.poll(self.time, &mut ours.polled);
        let Polled {
            completions, lanes, ..
        } = std::mem::take(&mut ours.polled);
        for completion in completions {
            assert_eq!(completion.epoch, self.workers[worker].epoch);
            self.end(worker, completion.cookie as usize, completion.outcome);
        }
        for report in lanes {
            if matches!(
                report.fact,
                LaneFact::Fenced {
                    scope: Scope::Remote,
                    ..
                }
            ) {
                let none = self.going[worker].iter().all(Option::is_none);
                assert!(none, "a fence has answered before its works");
                let ours = &mut self.workers[worker];
                ours.epoch = Epoch(ours.epoch.0 + 1);
                ours.open = true;
                ours.endpoint.open(LANE, ours.epoch, Instant::MAX);
                self.tell(|| format!("worker {worker}: fenced"));
            }
        }
    }

    /// A work has ended.
    fn end(&mut self, worker: usize, place: usize, outcome: Outcome) {
        let going = self.going[worker][place]
            .take()
            .expect("a work that is under way");
        self.tell(|| format!("worker {worker}, place {place}: {outcome:?}"));
        let mut kernel = self.kernel.lock().unwrap();
        let failed = kernel.failed.remove(&(worker, place));
        let len = kernel.len;
        drop(kernel);
        match (outcome, failed) {
            (Outcome::Success, None) => {}
            (Outcome::Error(cause), Some(failed)) if cause == failed => {}
            (Outcome::Error(Cause::EndOfFile), None) if going.work.op == Op::Read => {
                assert!(going.bytes.end > going.len, "the file went on");
            }
            other => panic!("the disk and the endpoint differ: {other:?}"),
        }
        if going.work.op == Op::Write {
            self.model
                .end(self.now, going.write, outcome == Outcome::Success);
            return;
        }
        let mut bytes = vec![0; ROOM];
        self.workers[worker]
            .region
            .load((place * ROOM) as u64, &mut bytes)
            .unwrap();
        let local = going.work.local.offset as usize - place * ROOM;
        let (before, rest) = bytes.split_at(local);
        let (read, after) = rest.split_at(going.bytes.len());
        let mut around = before.iter().chain(after);
        assert!(
            around.all(|byte| *byte == UNTOUCHED),
            "bytes beside those that were read have changed"
        );
        if outcome == Outcome::Success {
            assert!(going.bytes.end <= len, "more was read than there is");
            let checked = self
                .model
                .check_read(going.bytes.start, read, (going.asked, self.now));
            checked.unwrap_or_else(|wrong| panic!("a read: {wrong}"));
        }
    }

    fn note_lost(&mut self) {
        let lost = std::mem::take(&mut self.kernel.lock().unwrap().lost);
        for bytes in lost {
            self.tell(|| format!("lost: {bytes:?}"));
            self.model.lose(self.now, bytes);
        }
    }

    fn step(&mut self) {
        let mut kernel = self.kernel.lock().unwrap();
        if kernel.asked() > 0 {
            let said = kernel.step();
            drop(kernel);
            self.tell(|| said.clone());
            self.note_lost();
        }
    }

    fn fence(&mut self) {
        let worker = self.below(WORKERS);
        let ours = &mut self.workers[worker];
        if std::mem::take(&mut ours.open) {
            ours.endpoint.fence(LANE, ours.epoch, Scope::Local);
            self.tell(|| format!("worker {worker}: fence"));
        }
    }

    /// Everything ends once faults do.
    fn drain(&mut self) {
        self.kernel.lock().unwrap().rates = Rates::default();
        for _ in 0..10_000 {
            let is_idle = self.going.iter().flatten().all(Option::is_none);
            if is_idle && self.workers.iter().all(|worker| worker.open) {
                return;
            }
            self.now += 1;
            self.time = self.time + Duration::from_micros(100);
            self.step();
            (0..WORKERS).for_each(|worker| self.poll_one(worker));
        }
        panic!("something waits for ever");
    }

    fn read_all(&mut self) {
        for start in (0..FILE_BYTES).step_by(4096) {
            self.now += 1;
            // Past the cache or through it.
            let number = [0, 2][self.below(2)];
            if let Some(offset) = start.checked_sub(self.made[number].start) {
                let what = (Op::Read, offset, start..start + 4096, 0);
                self.issue((0, 0, number), what);
                self.drain();
            }
        }
    }

    fn run(&mut self) {
        let events = 60 + self.below(140);
        for _ in 0..events {
            self.go_on();
        }
        if self.below(2) == 0 {
            self.drain();
            self.read_all();
            for number in 0..RANGES {
                self.sync(number);
            }
        }
        self.now += 1;
        let there = self.kernel.lock().unwrap().cut();
        let checked = self.model.check_cut(&there, self.now);
        checked.unwrap_or_else(|wrong| panic!("after a loss of power: {wrong}"));
    }
}

#[test]
fn what_was_acknowledged_is_there_and_what_was_synced_survives() {
    let seeds = std::env::var("FILE_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let mut works = 0;
    for seed in 0..seeds {
        let run = |is_told| {
            let mut history = History::new(seed, is_told);
            history.run();
            history.works
        };
        match catch_unwind(|| run(false)) {
            Ok(count) => works += count,
            Err(_) => {
                eprintln!("seed {seed}:");
                let again = catch_unwind(AssertUnwindSafe(|| run(true)));
                panic!("seed {seed} fails, and again: {}", again.is_err());
            }
        }
    }
    // Histories in which nothing happens would show nothing.
    assert!(works > seeds * 5, "{works} works");
}
