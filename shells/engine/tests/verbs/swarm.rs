//! Two engines over devices whose calls fail by chance, that fail themselves, go and come back, and on whose wires works stay
//! until they are let go; engines end in the midst of it, and others take their places. Every byte is checked, before and after
//! what is said of it; what has been said to be over has to be.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use polyrail::{
    Access, Batch, Config, Engine, Local, Op, Region, RegisterError, ReleaseError, Report, Request,
    SegmentId, Status, Terms,
};
use polyrail_verbs::stub::{self, COUNTERS, Happening};

use super::{PATIENCE, engine_of, turn};

/// One history each; `VERBS_SEEDS` says another number, or which: `7..8`.
const SEEDS: u64 = 8;
/// Most are short, one in sixteen is long.
const STEPS: u64 = 3;
const STEPS_LONG: u64 = 12;
const SLOTS: usize = 4;
/// In one step of so many an engine ends.
const ENDS_ONE_IN: u64 = 8;
/// Of 8 bytes each. Several slices.
const WORDS: usize = 24 << 10;
const BYTES: u64 = 8 * WORDS as u64;

/// What a program writes into memory that it has been given back. It arrives nowhere.
const POISON: u64 = u64::MAX;

/// A generator of numbers: splitmix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

fn words(region: &Region) -> Vec<u64> {
    let base = region.base().cast::<u64>();
    // SAFETY: the region is alive, has so many words and is aligned; what devices write meanwhile is seen as it comes.
    (0..WORDS)
        .map(|word| unsafe { base.add(word).read_volatile() })
        .collect()
}

fn fill(region: &Region, word: u64) {
    let base = region.base().cast::<u64>();
    for index in 0..WORDS {
        // SAFETY: as above.
        unsafe { base.add(index).write_volatile(word) };
    }
}

/// Memory at one end, and what has to be in it as long as nothing is under way.
struct End {
    segment: SegmentId,
    region: Arc<Region>,
    holds: Vec<u64>,
    /// It is not known what may still happen to it.
    is_open: bool,
}

impl End {
    fn new(engine: &Engine, name: &str, access: Access) -> Self {
        let segment = engine.allocate(name, BYTES, access).unwrap();
        let region = engine.region(segment).unwrap();
        Self {
            segment,
            region,
            holds: vec![0; WORDS],
            is_open: false,
        }
    }

    /// Its engine has ended: nothing happens to it any more, unless that said so.
    fn leave(&mut self) {
        self.is_open = self.region.is_touched();
        if !self.is_open {
            self.set(POISON);
        }
    }

    fn set(&mut self, word: u64) {
        fill(&self.region, word);
        self.holds.fill(word);
    }

    /// It is as it was when somebody said that nothing happens to it any more.
    fn check(&self, what: &str) {
        if self.is_open {
            return;
        }
        let now = words(&self.region);
        let changed = now.iter().zip(&self.holds).filter(|(now, was)| now != was);
        let changed: Vec<_> = changed.take(2).collect();
        assert!(changed.is_empty(), "{what}: {changed:x?}");
    }

    /// It holds what it held, or this, and stays so.
    fn settle(&mut self, word: u64, what: &str) {
        let now = words(&self.region);
        for (now, was) in now.iter().zip(&self.holds) {
            assert!(
                now == was || *now == word,
                "{what}: {now:x}, {was:x}, {word:x}"
            );
        }
        self.holds = now;
    }
}

/// A pair of segments that one request at a time is for.
struct Slot {
    here: End,
    there: End,
    /// `there` as the initiator knows it.
    remote: SegmentId,
    busy: Option<(Batch, Op, u64)>,
    /// It has ended, and not all is known of it.
    open: Option<(Batch, Op, u64)>,
    /// Which engines it is of.
    of: [u64; 2],
}

/// An initiator and a target, and the how manieth each is.
struct Engines {
    now: [Engine; 2],
    numbers: [u64; 2],
}

const INITIATOR: usize = 0;
const TARGET: usize = 1;

impl Engines {
    fn start(which: usize) -> Engine {
        let tune = |config: &mut Config| {
            config.health.fence_timeout = Duration::from_millis(50);
            config.health.cancel_grace = Duration::from_millis(20);
        };
        engine_of(
            ["initiator", "target"][which],
            which == TARGET,
            [1, 2],
            tune,
        )
    }

    fn new() -> Self {
        Self {
            now: [INITIATOR, TARGET].map(Self::start),
            numbers: [0; 2],
        }
    }

    fn initiator(&self) -> &Engine {
        &self.now[INITIATOR]
    }

    /// One of them has ended, with all slots; another one takes its place.
    fn replace(&mut self, which: usize, slots: &mut [Slot]) {
        for slot in slots {
            let is_open = slot.open.take().is_some();
            let ends = [&mut slot.here, &mut slot.there];
            for (place, end) in ends.into_iter().enumerate() {
                match place == which {
                    true => end.leave(),
                    false => end.is_open |= is_open,
                }
            }
        }
        stub::fail_nothing();
        (0..2).for_each(|device| stub::unplug(device, false));
        self.now[which] = Self::start(which);
        self.numbers[which] += 1;
    }
}

impl Slot {
    fn new(engines: &Engines, number: usize) -> Self {
        let [initiator, target] = &engines.now;
        let here = End::new(initiator, &format!("here{number}"), Access::Local);
        let name = format!("there{number}");
        let there = End::new(target, &name, Access::RemoteReadWrite);
        let at = target.listening().unwrap();
        // Beside others it may take longer than a connection has.
        let until = Instant::now() + PATIENCE;
        let remote = loop {
            match initiator.open_segment(&format!("{at}/{name}")) {
                Ok(remote) => break remote,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        };
        Self {
            here,
            there,
            remote,
            busy: None,
            open: None,
            of: engines.numbers,
        }
    }

    fn check(&self) {
        self.here.check("here");
        self.there.check("there");
    }

    fn submit(&mut self, initiator: &Engine, op: Op, mark: u64, visible: bool) {
        match op {
            Op::Write => self.here.set(mark),
            Op::Read => self.there.set(mark),
        }
        let request = Request {
            op,
            local: self.here.segment,
            local_offset: 0,
            remote: self.remote,
            remote_offset: 0,
            length: BYTES,
        };
        let terms = Terms {
            visible,
            ..Terms::default()
        };
        let batch = initiator.submit_with(&[request], &terms).unwrap();
        self.busy = Some((batch, op, mark));
    }

    /// Its request has ended.
    fn judge(&mut self, (batch, op, mark): (Batch, Op, u64)) {
        let report = batch.report(0).unwrap();
        let what = format!("{op:?} {mark:x}, {report:?}");
        if report.is_proved() {
            return self.over(&report, op, mark, &what);
        }
        assert_eq!(report.status, Status::Indeterminate, "{what}");
        if report.local == Local::Released && op == Op::Write {
            self.here.set(POISON);
        }
        self.open = Some((batch, op, mark));
    }

    fn over(&mut self, report: &Report, op: Op, mark: u64, what: &str) {
        let end = match op {
            Op::Write => &mut self.there,
            Op::Read => &mut self.here,
        };
        if report.status == Status::Completed {
            let now = words(&end.region);
            let wrong = now.iter().enumerate().filter(|(_, now)| **now != mark);
            let wrong: Vec<_> = wrong.collect();
            let (first, last) = (wrong.first(), wrong.last());
            assert!(
                wrong.is_empty(),
                "{what}: {} from {first:x?} to {last:x?}, {:x}",
                wrong.len(),
                end.holds[0]
            );
        }
        end.settle(mark, what);
        match op {
            Op::Write => self.here.set(POISON),
            Op::Read => self.there.set(POISON),
        }
    }

    /// Looks whether what was open is over by now; `ends`: an engine may have ended, and with it all proof.
    fn look(&mut self, ends: bool) {
        let Some((batch, op, mark)) = self.open.take() else {
            return;
        };
        match batch.wait_released(Duration::ZERO) {
            Ok(_) => {
                let report = batch.report(0).unwrap();
                assert!(report.is_proved(), "{report:?}");
                let what = format!("{op:?} {mark:x}, later: {report:?}");
                self.over(&report, op, mark, &what);
            }
            Err(ReleaseError::TimedOut { .. }) => self.open = Some((batch, op, mark)),
            Err(ReleaseError::Unprovable { .. }) if ends => self.open = Some((batch, op, mark)),
            // It was seen in time, or not at all.
            Err(error) => panic!("{error}"),
        }
    }
}

/// How works move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Provider {
    /// At once, or held until they are let go.
    Holds,
    /// Each in its own time.
    Lies,
    /// The same, and what has completed is in memory later: only what is to be seen can be looked at when it has.
    LiesOfMemory,
}

/// What goes wrong while requests are under way.
fn trouble(dice: &mut Dice, slots: &[Slot], provider: Provider) {
    let device = dice.roll(2) as usize;
    match dice.roll(18) {
        14 => stub::happen(device, Happening::PortDown),
        15 | 16 => stub::happen(device, Happening::PortActive),
        17 => {
            let what = [
                Happening::GidChange,
                Happening::QueueFatal,
                Happening::OtherPortDown,
            ];
            stub::happen(device, what[dice.roll(3) as usize]);
        }
        0..=3 if provider != Provider::Holds => {}
        0 => stub::hold(true),
        1 | 2 => {
            stub::hold(false);
            stub::land();
        }
        3 => drop(stub::land()),
        4 => stub::happen(dice.roll(2) as usize, Happening::DeviceFatal),
        5 => stub::unplug(dice.roll(2) as usize, true),
        6 => (0..2).for_each(|device| stub::unplug(device, false)),
        8 => stub::happen(dice.roll(2) as usize, Happening::PairFatal),
        9 => {
            let slot = &slots[dice.roll(SLOTS as u64) as usize];
            if let Some((batch, ..)) = &slot.busy {
                batch.cancel();
            }
        }
        // Some are the request's fault, some the rail's.
        10 | 11 => stub::spoil(1 + dice.roll(21) as i32),
        _ => {}
    }
}

fn calm() {
    stub::fail_nothing();
    stub::spoil(0);
    stub::be_honest();
    stub::hold(false);
    stub::land();
    (0..2).for_each(|device| stub::unplug(device, false));
}

/// Takes memory back from both engines, if they can prove that it is free before this. An error says which could not, and why.
fn unregister(slot: &mut Slot, engines: &Engines, patience: Instant) -> Result<(), String> {
    let ends = [&mut slot.here, &mut slot.there];
    let ends = ends.into_iter().zip(slot.of);
    let of_now = engines.now.iter().zip(engines.numbers);
    let mut living = ends
        .zip(of_now)
        .filter(|((_, of), (_, number))| of == number);
    living.try_for_each(|((end, _), (engine, number))| {
        loop {
            let error = match engine.unregister(end.segment) {
                Ok(()) => break assert!(!end.region.is_touched()),
                Err(error @ RegisterError::Unprovable { .. }) => error,
                // A request of an engine that has ended was on its way there.
                Err(error @ RegisterError::InUse { .. }) if end.is_open => error,
                // It was before.
                Err(RegisterError::Stale { .. }) => break,
                Err(error) => panic!("{error}"),
            };
            if Instant::now() >= patience {
                let (touched, lanes) = (end.region.is_touched(), engine.stats().lanes);
                let ghosts = stub::ghosts();
                return Err(format!(
                    "engine {number}: {error}; touched: {touched}, {ghosts} left, {lanes:?}"
                ));
            }
            std::thread::yield_now();
        }
        if end.is_open && !end.region.is_touched() {
            end.is_open = false;
            end.set(POISON);
        }
        Ok(())
    })
}

/// Requests end, whatever happens meanwhile. How many did well, otherwise, and without proof.
fn run(
    dice: &mut Dice,
    slots: &mut [Slot],
    (provider, ends): (Provider, bool),
    what: &str,
) -> [usize; 3] {
    let mut counts = [0; 3];
    let until = Instant::now() + PATIENCE;
    while slots.iter().any(|slot| slot.busy.is_some()) {
        trouble(dice, slots, provider);
        for slot in slots.iter_mut() {
            slot.look(ends);
            let Some(busy) = slot.busy.take() else {
                continue;
            };
            match busy.0.wait(Duration::from_millis(1)) {
                Ok(ended) => {
                    counts[match ended.status {
                        Status::Completed => 0,
                        Status::Indeterminate => 2,
                        _ => 1,
                    }] += 1;
                    slot.judge(busy);
                }
                Err(_) => slot.busy = Some(busy),
            }
        }
        assert!(Instant::now() < until, "{what}: requests do not end");
    }
    counts
}

/// Nothing fails any more: all that was open is over, everything goes on, and all memory is free.
fn finish(engines: &Engines, mut slots: Vec<Slot>, gone: Vec<Slot>) {
    let initiator = engines.initiator();
    calm();
    let until = Instant::now() + PATIENCE;
    for slot in &mut slots {
        if let Some((batch, ..)) = &slot.open {
            batch.wait_released(PATIENCE).unwrap();
        }
        slot.look(false);
        slot.check();
        // It may fail while the last lanes are still ending.
        let (mut status, mut cause) = (Status::Pending, None);
        while status != Status::Completed {
            let ghosts = stub::ghosts();
            let lanes = || initiator.stats().lanes;
            let left = || format!("{ghosts} left, {:?}, {:?}", initiator.rails(), lanes());
            assert!(Instant::now() < until, "{status:?} {cause:?}: {}", left());
            slot.submit(initiator, Op::Write, 1, false);
            let busy = slot.busy.take().unwrap();
            status = busy.0.wait(PATIENCE).unwrap().status;
            busy.0.wait_released(PATIENCE).unwrap();
            cause = busy.0.report(0).unwrap().cause;
            slot.judge(busy);
        }
    }
    slots.extend(gone);
    for slot in &mut slots {
        unregister(slot, engines, until).unwrap();
    }
    stub::land();
    slots.iter().for_each(Slot::check);
}

/// The last lines of the log, for a history that goes wrong.
struct LastLines(Mutex<VecDeque<String>>);

static LAST: LastLines = LastLines(Mutex::new(VecDeque::new()));
const LINES: usize = 200;

impl log::Log for LastLines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Says which history it was if that goes wrong.
struct Which(u64, Provider);

impl Drop for Which {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = LAST.0.lock().unwrap_or_else(PoisonError::into_inner);
            lines.iter().for_each(|line| eprintln!("{line}"));
            eprintln!(
                "seed {}, {:?}: VERBS_SEEDS={0}..{}",
                self.0,
                self.1,
                self.0 + 1
            );
        }
    }
}

/// Who is dropped when nothing of it is left.
fn history(seed: u64) -> Which {
    let mut dice = Dice(seed);
    let providers = [Provider::Holds, Provider::Lies, Provider::LiesOfMemory];
    let provider = providers[dice.roll(3) as usize];
    let which = Which(seed, provider);
    if provider != Provider::Holds {
        stub::lie(seed, provider == Provider::LiesOfMemory);
    }
    let mut engines = Engines::new();
    let mut numbers = 0..;
    let mut new = |engines: &Engines| Slot::new(engines, numbers.next().unwrap());
    let mut slots: Vec<Slot> = (0..SLOTS).map(|_| new(&engines)).collect();
    let mut gone = Vec::new();
    let mut counts = [0; 3];
    let steps = match dice.roll(16) {
        0 => STEPS_LONG,
        _ => 1 + dice.roll(STEPS),
    };
    for step in 0..steps {
        let one_in = [0, 10, 40, 200][dice.roll(4) as usize];
        stub::fail_by_chance(seed * 1000 + step, one_in);
        stub::hold(dice.roll(2) == 0 && provider == Provider::Holds);
        for slot in slots.iter_mut().filter(|slot| slot.open.is_none()) {
            slot.check();
            let op = [Op::Write, Op::Read][dice.roll(2) as usize];
            let visible = provider == Provider::LiesOfMemory || dice.roll(2) == 0;
            slot.submit(engines.initiator(), op, dice.0 >> 1, visible);
        }
        let ends = (dice.roll(ENDS_ONE_IN) == 0).then(|| dice.roll(2) as usize);
        let what = format!("seed {seed} step {step} {provider:?}");
        let more = std::thread::scope(|scope| {
            if let Some(which) = ends {
                let (engine, after) = (engines.now[which].clone(), dice.roll(3000));
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_micros(after));
                    engine.shutdown();
                });
            }
            run(&mut dice, &mut slots, (provider, ends.is_some()), &what)
        });
        counts = std::array::from_fn(|index| counts[index] + more[index]);
        if let Some(which) = ends {
            engines.replace(which, &mut slots);
            gone.append(&mut slots);
            slots.extend((0..SLOTS).map(|_| new(&engines)));
        }
        let slot = &mut slots[dice.roll(SLOTS as u64) as usize];
        if slot.open.is_none() && dice.roll(2) == 0 {
            // Not yet, perhaps: then at the end.
            let _ = unregister(slot, &engines, Instant::now());
            gone.push(std::mem::replace(slot, new(&engines)));
        }
    }
    finish(&engines, slots, gone);
    let [well, otherwise, unproven] = counts;
    println!(
        "seed {seed}, {provider:?}: {well} completed, {otherwise} did not, {unproven} without proof"
    );
    which
}

/// Threads of this process, by name.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm"));
        name.unwrap_or_default().trim_end().to_owned()
    };
    tasks.map(name).collect()
}

#[test]
fn what_is_said_to_be_over_is_over_whatever_fails() {
    let _turn = turn();
    stub::skip_bytes(false);
    stub::reuse_keys(true);
    let _ = log::set_logger(&LAST);
    log::set_max_level(log::LevelFilter::Debug);
    let before = COUNTERS.live.load(SeqCst);
    let said = std::env::var("VERBS_SEEDS").unwrap_or(SEEDS.to_string());
    let (first, end) = said.split_once("..").unwrap_or(("0", &said));
    for seed in first.parse().unwrap()..end.parse().unwrap() {
        let _which = history(seed);
        // Threads that deregister memory of devices which had failed take their time.
        let until = Instant::now() + PATIENCE;
        let left = || (COUNTERS.live.load(SeqCst) - before, stub::ghosts());
        while left() != (0, 0) {
            let is_late = Instant::now() >= until;
            assert!(!is_late, "{:?}, {}, {:?}", left(), stub::left(), threads());
            std::thread::yield_now();
        }
    }
    stub::reuse_keys(false);
    log::set_max_level(log::LevelFilter::Off);
}
