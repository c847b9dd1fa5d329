//! The initiator of the dark experiment: it keeps requests of all streams under way to a target whose links go dark,
//! says how each ended, and counts what it moves to another target meanwhile.
//!
//! It is led by words on standard input: `soon`, before the links are cut; `dark`, when they all have been; `light`, when
//! they are whole again.

use std::collections::VecDeque;
use std::error::Error;
use std::io::stdin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{
    Access, Batch, Config, Engine, Local, Op, Region, RegisterError, ReleaseError, Remote, Report,
    Request, SegmentId, Status,
};
use serde_json::{Value, json};

use crate::case::{Load, Transports};
use crate::clinging::cling;
use crate::marks::{self, STREAMS, Stream};
use crate::target::MEMORY;
use crate::transports::hooks;
use crate::voice;

/// How long after the cut a request is waited for. One that has not ended then counts as one that never does.
const GIVE_UP: Duration = Duration::from_secs(10);

/// What the rate to the other target is the mean over.
const WINDOW: Duration = Duration::from_millis(250);

/// Windows before the cut, and from the cut on.
const BEFORE: usize = 4;
const AFTER: usize = 14;

/// How long the peer may take to be used again.
const RETURN: Duration = Duration::from_secs(30);

/// What is in memory that nobody may write to any more.
const POISON: u8 = 0xee;

/// Requests to the other target.
const OTHER_BYTES: usize = 256 << 10;
const OTHER_DEPTH: usize = 16;

/// What all threads know.
#[derive(Default)]
struct Known {
    /// Requests of each stream that have completed.
    completed: [AtomicU64; STREAMS.len()],
    /// When the links were about to be cut, and when they all had been.
    soon: OnceLock<Instant>,
    dark: OnceLock<Instant>,
    /// The other target is no longer needed.
    over: AtomicBool,
}

impl Known {
    fn is_dark(&self) -> bool {
        self.dark.get().is_some()
    }
}

/// The last request of a slot.
struct Last {
    slot: usize,
    version: u64,
    batch: Batch,
    /// When it was reported; `None`: not before [`GIVE_UP`].
    at: Option<Instant>,
    /// Of a read: whether its bytes are those of the target.
    intact: Option<bool>,
}

/// One stream's memory and requests.
struct Course {
    engine: Engine,
    number: usize,
    stream: Stream,
    here: SegmentId,
    memory: Arc<Region>,
    remote: SegmentId,
}

/// Runs the experiment.
pub(crate) fn run(
    dying: &str,
    other: &str,
    transports: Transports,
    load: Load,
) -> Result<(), Box<dyn Error>> {
    // One rail for each address of a peer: the two have as many links as they like.
    let engine = Engine::with_hooks(Config::named("initiator"), hooks(transports))?;
    let known = Arc::new(Known::default());
    let remote = engine.open_segment(&format!("{dying}/{MEMORY}"))?;
    let courses: Vec<Course> = (0..STREAMS.len())
        .filter(|number| load == Load::All || STREAMS[*number].is_small())
        .map(|number| Course::new(&engine, number, remote))
        .collect::<Result<_, _>>()?;
    let numbers: Vec<usize> = courses.iter().map(|course| course.number).collect();
    let pace = Pace::start(&engine, other, &known)?;
    let mut words = stdin().lines();
    let mut next_word = |expected: &str| match words.next() {
        Some(Ok(word)) if word == expected => Ok(()),
        word => Err(format!("not \"{expected}\" but {word:?}")),
    };

    let threads: Vec<_> = courses
        .into_iter()
        .map(|course| {
            let known = known.clone();
            thread::spawn(move || {
                let lasts = course.play(&known);
                (course, lasts)
            })
        })
        .collect();
    let moves = |number: &usize| known.completed[*number].load(SeqCst) >= 3;
    let all_move = || numbers.iter().all(moves);
    while !(all_move() && pace.has_rate()) {
        thread::sleep(Duration::from_millis(10));
    }
    voice::say("under way", true);
    next_word("soon")?;
    cling(transports == Transports::Clinging);
    let soon = *known.soon.get_or_init(Instant::now);
    voice::say("ready", true);
    next_word("dark")?;
    let dark = *known.dark.get_or_init(Instant::now);

    let mut played = Vec::new();
    for thread in threads {
        played.push(thread.join().map_err(|_| "a stream panicked")?);
    }
    let late = late(&engine, &played, dark)?;
    let rates = pace.rates(soon, dark);
    known.over.store(true, SeqCst);
    let reports: Vec<Value> = played
        .iter()
        .flat_map(|(course, lasts)| lasts.iter().map(|last| course.told(last, soon, dark)))
        .collect();
    voice::say(
        "reports",
        json!({"requests": reports, "late": late, "rates": rates}),
    );

    next_word("light")?;
    let answer = back(&played)?;
    let kept = kept(&played);
    cling(false);
    voice::say(
        "back",
        json!({"ms": answer, "kept": kept, "open": open(&played), "touched": touched(&played)?}),
    );
    for (course, _) in &played {
        course.engine.unregister(course.here)?;
    }
    Ok(())
}

impl Course {
    fn new(engine: &Engine, number: usize, remote: SegmentId) -> Result<Self, Box<dyn Error>> {
        let stream = STREAMS[number];
        let here = engine.allocate(stream.name, stream.total() as u64, Access::Local)?;
        let memory = engine.region(here).ok_or("it has just been allocated")?;
        Ok(Self {
            engine: engine.clone(),
            number,
            stream,
            here,
            memory,
            remote,
        })
    }

    /// Keeps requests under way until the links are dark, or one does not complete; at least one is under way then.
    /// Answers the last one of each slot.
    fn play(&self, known: &Known) -> Vec<Last> {
        let mut under_way = VecDeque::new();
        let mut lasts: Vec<Option<Last>> = (0..self.stream.slots()).map(|_| None).collect();
        let mut goes_on = true;
        for turn in 0.. {
            let is_dark = known.is_dark();
            let is_under_way = |last: &Last| last.batch.status().status == Status::Pending;
            goes_on &= !(is_dark && under_way.iter().any(is_under_way));
            if goes_on {
                let slot = turn % self.stream.slots();
                let version = 1 + (turn / self.stream.slots()) as u64;
                under_way.push_back(self.submit(slot, version));
            }
            thread::sleep(self.stream.pause);
            if goes_on && under_way.len() < self.stream.depth {
                continue;
            }
            let Some(last) = under_way.pop_front() else {
                break;
            };
            let last = self.wait(last, known);
            match last.batch.status().status {
                Status::Completed => known.completed[self.number].fetch_add(1, SeqCst),
                _ => {
                    goes_on = false;
                    0
                }
            };
            let slot = last.slot;
            lasts[slot] = Some(last);
        }
        lasts.into_iter().flatten().collect()
    }

    fn submit(&self, slot: usize, version: u64) -> Last {
        let offset = self.stream.slot_offset(slot) as u64;
        let bytes = match self.stream.op {
            Op::Write => marks::pattern(self.number, slot, version),
            Op::Read => vec![POISON; self.stream.bytes],
        };
        self.memory.store(&bytes, offset).expect("it is there");
        let request = Request {
            op: self.stream.op,
            local: self.here,
            local_offset: offset,
            remote: self.remote,
            remote_offset: marks::offset(self.number) as u64 + offset,
            length: self.stream.bytes as u64,
        };
        let batch = self.engine.submit(&[request]);
        Last {
            slot,
            version,
            batch: batch.expect("a silent peer is no reason to refuse"),
            at: None,
            intact: None,
        }
    }

    /// Waits for its end. A read's bytes are looked at then, and what is ours again is marked.
    fn wait(&self, mut last: Last, known: &Known) -> Last {
        // Before the cut everything moves, so nothing takes so long.
        let dark = known.dark.get();
        let patience = dark.map_or(GIVE_UP, |dark| GIVE_UP.saturating_sub(dark.elapsed()));
        if last.batch.wait(patience).is_err() {
            return last;
        }
        last.at = Some(Instant::now());
        let report = report(&last.batch);
        if self.stream.op == Op::Read {
            match report.status {
                Status::Completed => {
                    let there = marks::pattern(self.number, last.slot, 0);
                    last.intact = Some(self.load(last.slot) == there);
                }
                _ if report.local == Local::Released => {
                    let offset = self.stream.slot_offset(last.slot) as u64;
                    let poison = vec![POISON; self.stream.bytes];
                    self.memory.store(&poison, offset).expect("it is there");
                }
                _ => {}
            }
        }
        last
    }

    fn load(&self, slot: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.stream.bytes];
        let offset = self.stream.slot_offset(slot) as u64;
        self.memory.load(offset, &mut bytes).expect("it is there");
        bytes
    }

    /// What the test is told of a request.
    fn told(&self, last: &Last, soon: Instant, dark: Instant) -> Value {
        let report = report(&last.batch);
        // Of one that ended before: none.
        let after = |at: Instant| at.saturating_duration_since(dark).as_millis() as u64;
        json!({
            "stream": self.number,
            "slot": last.slot,
            "version": last.version,
            "before": last.at.is_some_and(|at| at < soon),
            "ms": last.at.map(after),
            "status": report.status.name(),
            "cause": report.cause.map(|cause| format!("{cause:?}")),
            "delivered": report.delivered_bytes,
            "held": report.local == Local::Held,
            "unknown": report.remote == Remote::Unknown,
            "intact": last.intact,
        })
    }
}

fn report(batch: &Batch) -> Report {
    batch.report(0).expect("it has one request")
}

/// Each stream with its last requests.
type Played = [(Course, Vec<Last>)];

/// How requests fare that are submitted when all others have been reported: status and milliseconds.
fn late(engine: &Engine, played: &Played, dark: Instant) -> Result<Vec<Value>, Box<dyn Error>> {
    let lasts = || played.iter().flat_map(|(_, lasts)| lasts);
    if lasts().any(|last| last.at.is_none()) || dark.elapsed() > GIVE_UP {
        return Ok(Vec::new());
    }
    let mut told = Vec::new();
    for (course, _) in played {
        let name = format!("late {}", course.stream.name);
        let here = engine.allocate(&name, course.stream.bytes as u64, Access::Local)?;
        let start = Instant::now();
        let batch = engine.submit(&[Request {
            op: course.stream.op,
            local: here,
            local_offset: 0,
            remote: course.remote,
            remote_offset: marks::offset(course.number) as u64,
            length: course.stream.bytes as u64,
        }])?;
        let status = batch
            .wait(GIVE_UP)
            .map_or(Status::Pending, |status| status.status);
        told.push(json!({"status": status.name(), "ms": start.elapsed().as_millis() as u64}));
        if batch.wait_released(Duration::ZERO).is_ok() {
            engine.unregister(here)?;
        }
    }
    Ok(told)
}

/// Milliseconds until a request to the peer completes again.
fn back(played: &Played) -> Result<u64, Box<dyn Error>> {
    let (course, _) = played.first().ok_or("there are streams")?;
    let start = Instant::now();
    let here = course.engine.allocate("back", 8, Access::Local)?;
    while start.elapsed() < RETURN {
        let batch = course.engine.submit(&[Request {
            op: Op::Read,
            local: here,
            local_offset: 0,
            remote: course.remote,
            remote_offset: 0,
            length: 8,
        }])?;
        match batch.wait(RETURN)?.status {
            Status::Completed => return Ok(start.elapsed().as_millis() as u64),
            // It has not been heard yet.
            _ => thread::sleep(Duration::from_millis(20)),
        }
    }
    Err("the peer is not used again".into())
}

/// Of the requests whose memory was reported held: how many there are, and of how many the engine knows that it is.
fn kept(played: &Played) -> Value {
    let (mut held, mut kept) = (0, 0);
    for (course, lasts) in played {
        let in_use = || {
            let refused = course.engine.unregister(course.here);
            matches!(refused, Err(RegisterError::InUse { .. }))
        };
        for last in lasts
            .iter()
            .filter(|last| report(&last.batch).local == Local::Held)
        {
            held += 1;
            let released = last.batch.wait_released(Duration::ZERO);
            let is_kept = matches!(released, Err(ReleaseError::TimedOut { held: 1, .. }));
            kept += u32::from(is_kept && in_use());
        }
    }
    json!({"held": held, "kept": kept})
}

/// How many requests stay open although the peer is back and nobody keeps memory.
fn open(played: &Played) -> usize {
    let lasts = played.iter().flat_map(|(_, lasts)| lasts);
    let stays = |last: &&Last| last.batch.wait_released(RETURN).is_err();
    lasts.filter(stays).count()
}

/// How many reads that did not complete have written to memory after it was reported free.
fn touched(played: &Played) -> Result<usize, Box<dyn Error>> {
    let mut touched = 0;
    for (course, lasts) in played
        .iter()
        .filter(|(course, _)| course.stream.op == Op::Read)
    {
        let freed = lasts.iter().filter(|last| {
            let report = report(&last.batch);
            last.at.is_some() && report.status == Status::Failed
        });
        for last in freed {
            let clean = course.load(last.slot).iter().all(|byte| *byte == POISON);
            touched += usize::from(!clean);
        }
    }
    Ok(touched)
}

/// What is moved to the other target: when each request had completed.
struct Pace {
    ends: Arc<Mutex<Vec<Instant>>>,
}

impl Pace {
    fn start(engine: &Engine, other: &str, known: &Arc<Known>) -> Result<Self, Box<dyn Error>> {
        let remote = engine.open_segment(&format!("{other}/{MEMORY}"))?;
        let local = engine.allocate("other", OTHER_BYTES as u64, Access::Local)?;
        let request = Request {
            op: Op::Write,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: OTHER_BYTES as u64,
        };
        let ends = Arc::<Mutex<Vec<Instant>>>::default();
        let (engine, known, noted) = (engine.clone(), known.clone(), ends.clone());
        thread::spawn(move || {
            let mut under_way = VecDeque::new();
            while !known.over.load(SeqCst) {
                let batch = engine.submit(&[request]).expect("there is room");
                under_way.push_back(batch);
                if under_way.len() < OTHER_DEPTH {
                    continue;
                }
                let Some(batch) = under_way.pop_front() else {
                    continue;
                };
                let status = batch.wait(GIVE_UP).map(|status| status.status);
                if !matches!(status, Ok(Status::Completed)) {
                    // Seen as a rate of nothing from here on.
                    return eprintln!("a request to the other target: {status:?}");
                }
                noted.lock().expect("nobody panics").push(Instant::now());
            }
        });
        Ok(Self { ends })
    }

    /// Whether it has run for as long as is measured before the cut, and as long again.
    fn has_rate(&self) -> bool {
        let ends = self.ends.lock().expect("nobody panics");
        let first = ends.first();
        first.is_some_and(|first| first.elapsed() > WINDOW * 2 * BEFORE as u32)
    }

    /// The mean of a window before the cut, in bytes a second, and each from the cut on as part of it. Waits for their end.
    fn rates(&self, soon: Instant, dark: Instant) -> Value {
        let end = dark + WINDOW * AFTER as u32;
        thread::sleep(end.saturating_duration_since(Instant::now()));
        let ends = self.ends.lock().expect("nobody panics");
        let within = |from: Instant, span: Duration| {
            let within = ends.iter().filter(|at| (from..from + span).contains(at));
            within.count() as f64
        };
        let before = WINDOW * BEFORE as u32;
        let mean = within(soon - before, before) / BEFORE as f64;
        let parts = (0..AFTER as u32).map(|window| within(dark + WINDOW * window, WINDOW) / mean);
        json!({
            "mean": mean * OTHER_BYTES as f64 / WINDOW.as_secs_f64(),
            "parts": parts.collect::<Vec<_>>(),
        })
    }
}
