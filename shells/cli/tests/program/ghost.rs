//! Promise 3 between real processes: after a report that calls the remote side settled nothing of the request
//! is written any more, and after one that does not, nothing but the bytes that were meant.

use std::time::{Duration, Instant};

use polyrail::{Access, Batch, Config, Engine, Local, Op, Remote, Request, SegmentId, Status};
use rustix::process::Signal;

use crate::harness::{BOUND, Target};

const BYTES: u64 = 256 << 20;
const MEANT: u8 = 0x11;
const REUSED: u8 = 0x55;

/// An engine with a source and a sink, and a target's memory.
struct Initiator {
    engine: Engine,
    source: SegmentId,
    sink: SegmentId,
    address: String,
}

impl Initiator {
    fn new(target: &Target) -> Self {
        let engine = Engine::new(Config::named("initiator")).expect("an engine starts");
        let allocate = |name| engine.allocate(name, BYTES, Access::Local).expect("memory");
        let (source, sink) = (allocate("source"), allocate("sink"));
        Self {
            engine,
            source,
            sink,
            address: format!("{}/mem", target.address()),
        }
    }

    fn submit(&self, op: Op, local: SegmentId) -> Batch {
        let remote = self
            .engine
            .open_segment(&self.address)
            .expect("the target answers");
        let request = Request {
            op,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: BYTES,
        };
        self.engine.submit(&[request]).expect("there is room")
    }

    fn fill(&self, segment: SegmentId, value: u8) {
        let region = self.engine.region(segment).expect("it exists");
        let entered = region.enter().expect("it is open");
        let start = entered.pointer(0, BYTES).expect("it is so large");
        // SAFETY: `BYTES` of memory that the region keeps mapped while it is entered; bytes may be written by
        // anybody at any time, and no reference is made.
        unsafe { std::ptr::write_bytes(start, value, BYTES as usize) };
    }

    /// How many bytes of a segment have this value.
    fn count(&self, segment: SegmentId, value: u8) -> usize {
        let region = self.engine.region(segment).expect("it exists");
        let entered = region.enter().expect("it is open");
        let start = entered.pointer(0, BYTES).expect("it is so large");
        let mut bytes = vec![0; BYTES as usize];
        // SAFETY: as above, read into memory of our own.
        unsafe { std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), bytes.len()) };
        bytes.iter().filter(|byte| **byte == value).count()
    }

    /// Waits until some of a batch has arrived, but not all.
    fn in_the_middle(&self, before: u64) {
        let until = Instant::now() + BOUND;
        let moved = || {
            self.engine
                .rails()
                .iter()
                .map(|rail| rail.bytes)
                .sum::<u64>()
        };
        while moved() < before + BYTES / 16 {
            assert!(Instant::now() < until, "nothing moves");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_stopped_target_gets_no_byte_of_memory_that_was_used_again() {
    let target = Target::start("--memory 256MiB");
    let initiator = Initiator::new(&target);
    initiator.fill(initiator.source, MEANT);
    let batch = initiator.submit(Op::Write, initiator.source);
    initiator.in_the_middle(0);
    target.signal(Signal::STOP);
    let status = batch
        .wait(Duration::from_secs(10))
        .expect("it ends within its bound");
    let report = batch.report(0).expect("it has one request");
    if status.status == Status::Completed {
        // It was quicker than the signal; then there is nothing left that could be late.
        assert_eq!(report.delivered_bytes, BYTES);
    } else {
        assert_eq!(
            (report.status, report.local, report.remote),
            (Status::Indeterminate, Local::Released, Remote::Unknown)
        );
        assert!(report.delivered_bytes < BYTES);
    }
    // Released: the program uses the memory for something else, and the target wakes up.
    initiator.fill(initiator.source, REUSED);
    target.signal(Signal::CONT);
    // A read over a lane of its own is served after what the old lane's socket still held was given up.
    let read = initiator.submit(Op::Read, initiator.sink);
    let status = read.wait(BOUND).expect("the target is back").status;
    assert_eq!(status, Status::Completed, "{:?}", read.report(0));
    assert_eq!(
        initiator.count(initiator.sink, REUSED),
        0,
        "bytes of reused memory arrived"
    );
    assert!(initiator.count(initiator.sink, MEANT) as u64 >= report.delivered_bytes);
}

#[test]
fn a_read_from_a_stopped_target_fails_and_writes_nothing_later() {
    let target = Target::start("--memory 256MiB");
    let initiator = Initiator::new(&target);
    initiator.fill(initiator.source, MEANT);
    let write = initiator.submit(Op::Write, initiator.source);
    assert_eq!(
        write.wait(BOUND).expect("it ends").status,
        Status::Completed
    );
    let batch = initiator.submit(Op::Read, initiator.sink);
    initiator.in_the_middle(BYTES);
    target.signal(Signal::STOP);
    let status = batch
        .wait(Duration::from_secs(10))
        .expect("it ends within its bound")
        .status;
    assert!(
        matches!(status, Status::Failed | Status::Completed),
        "{:?}",
        batch.report(0)
    );
    initiator.fill(initiator.sink, REUSED);
    target.signal(Signal::CONT);
    // Its memory is the program's again. Traffic that follows shows that the target has gone on.
    let write = initiator.submit(Op::Write, initiator.source);
    assert_eq!(
        write.wait(BOUND).expect("the target is back").status,
        Status::Completed
    );
    assert_eq!(initiator.count(initiator.sink, REUSED) as u64, BYTES);
}
