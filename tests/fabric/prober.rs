//! An initiator in chaos: a thread for each segment of each target, which keeps requests under way in slots that nobody else
//! uses, and looks at every byte and every report.
//!
//! It is led by words on standard input: `calm`, when nothing fails any more: it ends what is under way, looks at all slots, and
//! says what it has counted; `storm`: it goes on.

use std::error::Error;
use std::io::stdin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use oorandom::Rand64;
use polyrail::{
    Access, Batch, Config, Engine, Local, Op, Region, Remote, Report, Request, SegmentId, Status,
    SubmitError,
};
use serde_json::json;

use crate::hoard::{SEGMENTS, name};
use crate::ledger::{Ledger, Mark, Open, POISON, SLOTS, STAMP_BYTES, area_bytes, slot_offset};
use crate::voice;

/// Requests of a thread that are under way at a time.
const DEPTH: usize = 4;

/// How long a request may take to be reported: what is promised, and twice the longest stop of a process.
const REPORTED: Duration = Duration::from_secs(15);

/// How long it may take until all is well again once nothing fails any more.
const WELL: Duration = Duration::from_secs(40);

/// What all threads count.
#[derive(Default)]
struct Counts {
    completed: AtomicU64,
    failed: AtomicU64,
    indeterminate: AtomicU64,
    bytes: AtomicU64,
    /// Segments that were found anew.
    renewed: AtomicU64,
    is_calm: AtomicBool,
    wrong: Mutex<Vec<String>>,
}

impl Counts {
    fn is_wrong(&self, text: String) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.push(text);
    }
}

/// A request that is under way.
struct UnderWay {
    slot: usize,
    /// What it writes; `None`: it reads.
    mark: Option<Mark>,
    batch: Batch,
    since: Instant,
}

/// One thread: a segment of a target.
struct Prober {
    engine: Engine,
    address: String,
    counts: Arc<Counts>,
    random: Rand64,
    life: u64,
    /// Where its area begins in the segment.
    base: u64,
    local: SegmentId,
    memory: Arc<Region>,
    remote: Option<SegmentId>,
    /// The stamp of the segment that the ledgers are about.
    stamp: Option<u64>,
    ledgers: Vec<Ledger>,
    under_way: Vec<UnderWay>,
    number: u64,
    /// What went wrong last.
    last: String,
}

/// Runs until standard input ends.
pub(crate) fn run(area: usize, life: u64, targets: &[String]) -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Config::named("initiator"))?;
    let counts = Arc::new(Counts::default());
    let (told, tells) = channel();
    let mut gates = Vec::new();
    for (place, target) in targets.iter().enumerate() {
        for segment in 0..SEGMENTS {
            let index = place * SEGMENTS + segment;
            let address = format!("{target}/{}", name(segment));
            let prober = Prober::new(&engine, address, &counts, (area, life, index))?;
            let (gate, opens) = channel();
            let told = told.clone();
            thread::spawn(move || prober.run(&opens, &told));
            gates.push(gate);
        }
    }
    voice::say("probes", true);
    for word in stdin().lines() {
        if word? != "calm" {
            continue;
        }
        counts.is_calm.store(true, SeqCst);
        for _ in &gates {
            tells.recv()?;
        }
        let count = |counter: &AtomicU64| counter.swap(0, SeqCst);
        let wrong =
            std::mem::take(&mut *counts.wrong.lock().unwrap_or_else(PoisonError::into_inner));
        voice::say(
            "calm",
            json!({
                "completed": count(&counts.completed), "failed": count(&counts.failed),
                "indeterminate": count(&counts.indeterminate), "bytes": count(&counts.bytes),
                "renewed": count(&counts.renewed), "wrong": wrong,
            }),
        );
        counts.is_calm.store(false, SeqCst);
        for gate in &gates {
            gate.send(())?;
        }
    }
    engine.shutdown();
    Ok(())
}

impl Prober {
    fn new(
        engine: &Engine,
        address: String,
        counts: &Arc<Counts>,
        (area, life, index): (usize, u64, usize),
    ) -> Result<Self, Box<dyn Error>> {
        let bytes = (STAMP_BYTES + area_bytes()) as u64;
        let local = engine.allocate(&format!("here{index}"), bytes, Access::Local)?;
        let memory = engine.region(local).ok_or("it has just been allocated")?;
        memory.store(&vec![POISON; bytes as usize], 0)?;
        Ok(Self {
            engine: engine.clone(),
            address,
            counts: counts.clone(),
            random: Rand64::new(u128::from(life << 8 | index as u64)),
            life: life << 4 | index as u64,
            base: (STAMP_BYTES + area * area_bytes()) as u64,
            local,
            memory,
            remote: None,
            stamp: None,
            ledgers: SLOTS.iter().map(|_| Ledger::new(None)).collect(),
            under_way: Vec::new(),
            number: 0,
            last: String::new(),
        })
    }

    fn run(mut self, opens: &Receiver<()>, told: &Sender<()>) {
        loop {
            match self.counts.is_calm.load(SeqCst) {
                false => self.storm(),
                true => {
                    self.calm();
                    // Whoever does not listen any more is about to end.
                    if told.send(()).is_err() || opens.recv().is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// One step while things fail.
    fn storm(&mut self) {
        if self.remote.is_none() && !self.find() {
            return thread::sleep(Duration::from_millis(20));
        }
        if self.under_way.len() < DEPTH
            && let Some(slot) = self.free_slot()
        {
            let writes = self.random.rand_float() < 0.6;
            self.submit(slot, writes);
        } else {
            self.wait_for_one();
        }
    }

    /// Everything is moved and looked at once more, which has to go well in time.
    fn calm(&mut self) {
        while !self.under_way.is_empty() {
            self.wait_for_one();
        }
        let until = Instant::now() + WELL;
        for slot in 0..SLOTS.len() {
            for writes in [false, true, false] {
                while !self.goes_well(slot, writes) {
                    if Instant::now() > until {
                        let what = if writes { "written" } else { "read" };
                        let why = &self.last;
                        let text = format!("not {what} within {WELL:?} of calm: {why}");
                        return self.is_wrong(slot, &text);
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    /// Whether a request completes now.
    fn goes_well(&mut self, slot: usize, writes: bool) -> bool {
        if self.remote.is_none() && !self.find() {
            return false;
        }
        if !self.is_free(slot) {
            self.last = "what was reported as Indeterminate is not settled".into();
            return false;
        }
        self.submit(slot, writes);
        self.wait_for_one() == Some(Status::Completed)
    }

    /// Opens the segment, and finds out whether it is the same one. Whether it is open.
    fn find(&mut self) -> bool {
        // What is under way is about the segment as it was.
        while !self.under_way.is_empty() {
            self.wait_for_one();
        }
        let remote = match self.engine.open_segment(&self.address) {
            Ok(remote) => remote,
            Err(error) => {
                self.last = error.to_string();
                return false;
            }
        };
        let request = Request {
            op: Op::Read,
            local: self.local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: 8,
        };
        let Ok(batch) = self.engine.submit(&[request]) else {
            return false;
        };
        let Some(report) = self.report(&batch) else {
            return false;
        };
        // Its memory is used again for such a read only.
        while batch.wait_released(Duration::from_millis(100)).is_err() {
            if self.counts.is_calm.load(SeqCst) {
                return false;
            }
        }
        if report.status != Status::Completed {
            return false;
        }
        let mut stamp = [0; 8];
        if self.memory.load(0, &mut stamp).is_err() {
            return false;
        }
        let stamp = Some(u64::from_le_bytes(stamp));
        if self.stamp.is_some() && self.stamp != stamp {
            self.counts.renewed.fetch_add(1, SeqCst);
            self.ledgers.iter_mut().for_each(Ledger::renew);
        }
        (self.stamp, self.remote) = (stamp, Some(remote));
        true
    }

    /// A slot that nothing is under way in.
    fn free_slot(&mut self) -> Option<usize> {
        let first = self.random.rand_range(0..SLOTS.len() as u64) as usize;
        let mut slots = (0..SLOTS.len()).map(|slot| (first + slot) % SLOTS.len());
        slots.find(|slot| self.is_free(*slot))
    }

    fn is_free(&mut self, slot: usize) -> bool {
        let was_open = self.ledgers[slot].open.is_some();
        let is_settled = self.ledgers[slot].is_settled();
        if was_open && is_settled {
            self.poison(slot);
        }
        is_settled && !self.under_way.iter().any(|one| one.slot == slot)
    }

    /// Where a slot is in this process's memory.
    fn here(slot: usize) -> u64 {
        (STAMP_BYTES + slot_offset(slot)) as u64
    }

    fn poison(&self, slot: usize) {
        let stored = self
            .memory
            .store(&vec![POISON; SLOTS[slot]], Self::here(slot));
        stored.expect("the memory is this thread's");
    }

    fn content(&self, slot: usize) -> Vec<u8> {
        let mut found = vec![0; SLOTS[slot]];
        let loaded = self.memory.load(Self::here(slot), &mut found);
        loaded.expect("the memory is this thread's");
        found
    }

    fn submit(&mut self, slot: usize, writes: bool) {
        let Some(remote) = self.remote else {
            return;
        };
        if self.content(slot).iter().any(|byte| *byte != POISON) {
            self.is_wrong(
                slot,
                "memory was written to after the report had said that it is free",
            );
        }
        let mark = writes.then(|| {
            self.number += 1;
            Mark::new(self.life, self.number)
        });
        match mark {
            Some(mark) => {
                let bytes = mark.bytes(SLOTS[slot]);
                let stored = self.memory.store(&bytes, Self::here(slot));
                stored.expect("the memory is this thread's");
            }
            None => self.poison(slot),
        }
        let request = Request {
            op: if writes { Op::Write } else { Op::Read },
            local: self.local,
            local_offset: Self::here(slot),
            remote,
            remote_offset: self.base + slot_offset(slot) as u64,
            length: SLOTS[slot] as u64,
        };
        match self.engine.submit(&[request]) {
            Ok(batch) => self.under_way.push(UnderWay {
                slot,
                mark,
                batch,
                since: Instant::now(),
            }),
            Err(error) => {
                self.poison(slot);
                self.last = error.to_string();
                match error {
                    SubmitError::Full(_) => thread::sleep(Duration::from_millis(5)),
                    _ => self.remote = None,
                }
            }
        }
    }

    /// Waits for the request that is under way for longest.
    /// How it ended; `None`: none is, or not in time.
    fn wait_for_one(&mut self) -> Option<Status> {
        if self.under_way.is_empty() {
            thread::sleep(Duration::from_millis(5));
            return None;
        }
        let UnderWay {
            slot,
            mark,
            batch,
            since,
        } = self.under_way.remove(0);
        let Some(report) = self.report(&batch) else {
            self.is_wrong(slot, &format!("not reported within {:?}", since.elapsed()));
            self.ledgers[slot].open = Some(Open {
                batch,
                mark,
                local: Local::Held,
            });
            return None;
        };
        let counter = match report.status {
            Status::Completed => &self.counts.completed,
            Status::Indeterminate => &self.counts.indeterminate,
            _ => &self.counts.failed,
        };
        counter.fetch_add(1, SeqCst);
        let is_free = report.local == Local::Released && report.remote == Remote::Settled;
        // One that was Indeterminate may have been settled since.
        if !is_free && report.status != Status::Indeterminate {
            self.is_wrong(
                slot,
                &format!("a report that contradicts itself: {report:?}"),
            );
        }
        match mark {
            Some(mark) => self.ledgers[slot].written(mark, &report),
            None if report.status == Status::Completed => {
                let found = self.content(slot);
                if let Some(what) = self.ledgers[slot].check(&found) {
                    self.is_wrong(slot, &what);
                }
            }
            None => {}
        }
        if report.status == Status::Completed {
            self.counts.bytes.fetch_add(SLOTS[slot] as u64, SeqCst);
        } else {
            self.last = format!("{report:?}");
            // The segment may be another one by now.
            self.remote = None;
        }
        let local = report.local;
        if local == Local::Released {
            self.poison(slot);
        }
        if !is_free {
            self.ledgers[slot].open = Some(Open { batch, mark, local });
        }
        Some(report.status)
    }

    fn report(&self, batch: &Batch) -> Option<Report> {
        batch.wait(REPORTED).ok()?;
        batch.report(0)
    }

    fn is_wrong(&self, slot: usize, what: &str) {
        let (address, life) = (&self.address, self.life >> 4);
        let text = format!("life {life}, {address}, slot {slot}: {what}");
        self.counts.is_wrong(text);
    }
}
