//! Promise 3 between real processes: after a report that calls the remote side settled nothing of the request
//! is written any more, and after one that does not, nothing but the bytes that were meant.

use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail::{
    Access, Batch, Config, Engine, Faults, Hooks, Local, Op, Policy, Remote, Report, Request,
    SegmentId, Status,
};
use rustix::process::Signal;

use crate::harness::{BOUND, Target};

const MIB: u64 = 1 << 20;
/// How much memory is read back at a time.
const PIECE: u64 = 64 * MIB;
const MEANT: u8 = 0x11;
const REUSED: u8 = 0x55;
/// Within what a request to a stopped target ends: the bound of 2 s, and a busy machine.
const END_MAX: Duration = Duration::from_secs(6);

/// An engine with a source and a sink, and a target's memory.
struct Initiator {
    engine: Engine,
    source: SegmentId,
    sink: SegmentId,
    remote: SegmentId,
    bytes: u64,
}

impl Initiator {
    fn new(target: &Target, bytes: u64) -> Self {
        Self::with_faults(target, bytes, &Arc::default())
    }

    fn with_faults(target: &Target, bytes: u64, faults: &Arc<Faults>) -> Self {
        let config = Config {
            // Posts all that lanes take, so that as much as possible is on its way.
            policy: Policy::Documented,
            workers: 1,
            ..Config::named("initiator").without("shm")
        };
        let hooks = Hooks {
            faults: Some(faults.clone()),
            ..Hooks::default()
        };
        let engine = Engine::with_hooks(config, hooks).expect("an engine starts");
        let allocate = |name, bytes| engine.allocate(name, bytes, Access::Local);
        let source = allocate("source", bytes).expect("memory");
        let sink = allocate("sink", bytes).expect("memory");
        let remote = engine
            .open_segment(&format!("{}/mem", target.address()))
            .expect("the target answers");
        Self {
            engine,
            source,
            sink,
            remote,
            bytes,
        }
    }

    fn request(&self, op: Op) -> Request {
        Request {
            op,
            local: match op {
                Op::Write => self.source,
                Op::Read => self.sink,
            },
            local_offset: 0,
            remote: self.remote,
            remote_offset: 0,
            length: self.bytes,
        }
    }

    /// All of the source there, or of the memory there to the sink, as one batch of several requests.
    fn submit(&self, op: Op) -> Batch {
        const REQUESTS: u64 = 4;
        let length = self.bytes / REQUESTS;
        let requests: Vec<_> = (0..REQUESTS)
            .map(|index| Request {
                local_offset: index * length,
                remote_offset: index * length,
                length,
                ..self.request(op)
            })
            .collect();
        self.engine.submit(&requests).expect("there is room")
    }

    fn fill(&self, segment: SegmentId, value: u8) {
        let region = self.engine.region(segment).expect("it exists");
        let entered = region.enter().expect("it is open");
        let start = entered.pointer(0, self.bytes).expect("it is so large");
        // SAFETY: `bytes` of memory that the region keeps mapped while it is entered; bytes may be written by
        // anybody at any time, and no reference is made.
        unsafe { std::ptr::write_bytes(start, value, self.bytes as usize) };
    }

    /// How many bytes of a segment have this value.
    fn count(&self, segment: SegmentId, value: u8) -> u64 {
        count(&self.engine, segment, self.bytes, value)
    }

    fn moved(&self) -> u64 {
        self.engine.rails().iter().map(|rail| rail.bytes).sum()
    }

    /// Waits until some of a batch has arrived.
    fn in_the_middle(&self, before: u64) {
        let until = Instant::now() + BOUND;
        while self.moved() < before + self.bytes / 16 {
            assert!(Instant::now() < until, "nothing moves");
            std::thread::yield_now();
        }
    }

    /// Submits and stops the target in the middle of it; the batch has ended, in time, and how is for the caller
    /// to see. Tried again if the target was quicker than the signal.
    fn stopped_in_the_middle(&self, target: &Target, op: Op) -> (Batch, Duration) {
        for _ in 0..5 {
            let before = self.moved();
            let batch = self.submit(op);
            self.in_the_middle(before);
            target.signal(Signal::STOP);
            let start = Instant::now();
            let status = batch.wait(BOUND).expect("it ends").status;
            let took = start.elapsed();
            if status != Status::Completed {
                assert!(took < END_MAX, "{took:?}");
                return (batch, took);
            }
            target.signal(Signal::CONT);
        }
        panic!("the target was always quicker than the signal");
    }

    /// Waits until requests to the target work again, with the segment that was opened before it stopped.
    fn until_back(&self) {
        let until = Instant::now() + BOUND;
        loop {
            let request = Request {
                length: 1,
                ..self.request(Op::Read)
            };
            let batch = self.engine.submit(&[request]).expect("it is not lost");
            if batch.wait(BOUND).expect("it ends").status == Status::Completed {
                return;
            }
            assert!(Instant::now() < until, "it does not come back");
        }
    }
}

fn count(engine: &Engine, segment: SegmentId, bytes: u64, value: u8) -> u64 {
    let region = engine.region(segment).expect("it exists");
    let entered = region.enter().expect("it is open");
    let start = entered.pointer(0, bytes).expect("it is so large");
    let mut copy = vec![0; bytes as usize];
    // SAFETY: as in `fill`, read into memory of our own.
    unsafe { std::ptr::copy_nonoverlapping(start, copy.as_mut_ptr(), copy.len()) };
    copy.iter().filter(|byte| **byte == value).count() as u64
}

/// How many bytes of the target's memory have each of these values, seen by somebody who has nothing to do with
/// what went before.
fn look(target: &Target, bytes: u64, values: [u8; 2]) -> [u64; 2] {
    let engine = Engine::new(Config::named("witness").without("shm")).expect("an engine starts");
    let address = format!("{}/mem", target.address());
    let remote = engine.open_segment(&address).expect("the target answers");
    let local = engine.allocate("piece", PIECE, Access::Local);
    let local = local.expect("memory");
    let mut found = [0; 2];
    for offset in (0..bytes).step_by(PIECE as usize) {
        let length = PIECE.min(bytes - offset);
        let read = Request {
            op: Op::Read,
            local,
            local_offset: 0,
            remote,
            remote_offset: offset,
            length,
        };
        let batch = engine.submit(&[read]).expect("there is room");
        let status = batch.wait(BOUND).expect("it ends").status;
        assert_eq!(status, Status::Completed, "{:?}", batch.report(0));
        for (found, value) in found.iter_mut().zip(values) {
            *found += count(&engine, local, length, value);
        }
    }
    found
}

/// What came of a write that its target was stopped in the middle of, and whose memory was used for something
/// else before the target went on.
struct Haunted {
    reports: Vec<Report>,
    /// Bytes in the target's memory: as they were meant, and of the other use.
    meant: u64,
    reused: u64,
}

impl Haunted {
    fn delivered_bytes(&self) -> u64 {
        self.reports.iter().map(|r| r.delivered_bytes).sum()
    }
}

fn haunt(bytes: u64, faults: &Arc<Faults>) -> Haunted {
    let target = Target::start(&format!("--memory {bytes}"));
    let initiator = Initiator::with_faults(&target, bytes, faults);
    initiator.fill(initiator.source, MEANT);
    let (batch, took) = initiator.stopped_in_the_middle(&target, Op::Write);
    let status = batch.status();
    assert_eq!(status.status, Status::Indeterminate);
    // The program uses for something else what it was told is its own again.
    let requests = status.requests as usize;
    let reports: Vec<_> = (0..requests).filter_map(|i| batch.report(i)).collect();
    assert!(reports.iter().all(|report| report.local == Local::Released));
    initiator.fill(initiator.source, REUSED);
    target.signal(Signal::CONT);
    // What was on its way arrives before what this asks for, or soon after.
    let mut seen = look(&target, bytes, [MEANT, REUSED]);
    for _ in 0..2 {
        if seen[1] == 0 {
            seen = look(&target, bytes, [MEANT, REUSED]);
        }
    }
    println!(
        "{} MiB: ended after {took:?}, {} bytes delivered, {} arrived as meant, {} of reused memory",
        bytes / MIB,
        reports.iter().map(|r| r.delivered_bytes).sum::<u64>(),
        seen[0],
        seen[1]
    );
    Haunted {
        reports,
        meant: seen[0],
        reused: seen[1],
    }
}

#[test]
fn a_stopped_target_gets_no_byte_of_a_gigabyte_that_was_used_again() {
    const BYTES: u64 = 1 << 30;
    let haunted = haunt(BYTES, &Arc::default());
    assert_eq!(haunted.reused, 0, "bytes of reused memory arrived");
    // What was said to have arrived is there.
    assert!(haunted.delivered_bytes() < BYTES);
    assert!(haunted.meant >= haunted.delivered_bytes());
    for report in &haunted.reports {
        // Ended without proof, or before it ever began.
        let unproven = (Status::Indeterminate, Remote::Unknown);
        let proven = [Status::Completed, Status::Failed].map(|status| (status, Remote::Settled));
        let got = (report.status, report.remote);
        assert!(got == unproven || proven.contains(&got), "{report:?}");
    }
}

#[test]
fn without_fences_bytes_of_reused_memory_do_arrive() {
    // So the test above can fail: this is it, with an engine that says "released" and does not mean it.
    let faults = Arc::new(Faults::new());
    faults.ignore_fences(true);
    let haunted = haunt(256 * MIB, &faults);
    assert!(haunted.reused > 0, "the fences were not ignored");
}

#[test]
fn a_read_from_a_stopped_target_fails_and_writes_nothing_later() {
    let target = Target::start("--memory 256MiB");
    let initiator = Initiator::new(&target, 256 * MIB);
    initiator.fill(initiator.source, MEANT);
    let write = initiator.submit(Op::Write);
    assert_eq!(
        write.wait(BOUND).expect("it ends").status,
        Status::Completed
    );
    let (batch, _) = initiator.stopped_in_the_middle(&target, Op::Read);
    let status = batch.status().status;
    assert_eq!(status, Status::Failed, "{:?}", batch.report(0));
    let last = batch.report(3).expect("it has four requests");
    assert_eq!(last.cause, Some(polyrail::Cause::PeerSilent), "{last:?}");
    initiator.fill(initiator.sink, REUSED);
    target.signal(Signal::CONT);
    // Its memory is the program's again. Traffic that follows shows that the target has gone on.
    initiator.fill(initiator.source, MEANT);
    let until = Instant::now() + BOUND;
    while {
        let write = initiator.submit(Op::Write);
        write.wait(BOUND).expect("it ends").status != Status::Completed
    } {
        assert!(Instant::now() < until, "the target does not come back");
    }
    assert_eq!(initiator.count(initiator.sink, REUSED), initiator.bytes);
}

#[test]
fn a_target_that_goes_on_is_used_again_without_being_opened_again() {
    let target = Target::start("--memory 64MiB");
    let initiator = Initiator::new(&target, 64 * MIB);
    for round in 0..2 {
        initiator.fill(initiator.source, round);
        initiator.until_back();
        target.signal(Signal::STOP);
        let start = Instant::now();
        let write = initiator.submit(Op::Write);
        let status = write.wait(BOUND).expect("it ends").status;
        let took = start.elapsed();
        println!("stopped: {status:?} after {took:?}");
        assert_ne!(status, Status::Completed);
        assert!(took < END_MAX, "{took:?}");
        target.signal(Signal::CONT);
        let start = Instant::now();
        initiator.until_back();
        println!("back after {:?}", start.elapsed());
        let write = initiator.submit(Op::Write);
        let status = write.wait(BOUND).expect("it ends").status;
        assert_eq!(status, Status::Completed, "{:?}", write.report(0));
        assert_eq!(
            look(&target, initiator.bytes, [round, !round])[0],
            initiator.bytes
        );
    }
}
