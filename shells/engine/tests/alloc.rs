//! Nothing is allocated for a slice, neither where it is submitted nor where it is worked on.
//!
//! The allocator counts what the submitting thread and the workers' threads ask for. The rule, after
//! warm-up: a batch costs its submitting thread the same number of allocations however many requests it has
//! and however many slices they are cut into, at most [`BATCH_MAX`]; and the worker's thread none at all. A transfer
//! that was prepared costs neither of them any.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

use polyrail::{Access, Batch, Config, Engine, Op, Request, SegmentId, Status};

/// Allocations of one batch on the thread that submits it and waits for it: its requests as the worker takes
/// them, their segments, their reports, and what the handles share.
const BATCH_MAX: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(30);
const SLICE: u64 = 64 << 10;
/// Requests of the largest batch here.
const REQUESTS: u64 = 64;
const BYTES: u64 = REQUESTS * 4 * SLICE;
/// Batches that are counted together.
const ROUNDS: u64 = 20;

struct Counting;

thread_local! {
    /// Whether allocations of this thread count as the submitter's.
    static SUBMITS: Cell<bool> = const { Cell::new(false) };
}

static ON: AtomicU64 = AtomicU64::new(0);
static SUBMITTER: AtomicU64 = AtomicU64::new(0);
static WORKER: AtomicU64 = AtomicU64::new(0);

/// One at a time: what is counted is the whole process's.
static ALONE: Mutex<()> = Mutex::new(());

impl Counting {
    fn count() {
        if ON.load(Relaxed) == 0 {
            return;
        }
        if SUBMITS.try_with(Cell::get).unwrap_or(false) {
            SUBMITTER.fetch_add(1, Relaxed);
        } else if is_worker() {
            WORKER.fetch_add(1, Relaxed);
        }
    }
}

/// Whether this is a worker's thread, by the name that the kernel knows it by.
fn is_worker() -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: the call writes at most 16 bytes to a buffer of 16.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name.starts_with(b"polyrail-work")
}

// SAFETY: all calls go to the system's allocator as they came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Pair {
    _target: Engine,
    initiator: Engine,
    local: SegmentId,
    remote: SegmentId,
}

impl Pair {
    /// Over TCP.
    fn new() -> Self {
        Self::of(|name| Config {
            workers: 1,
            ..Config::named(name).without("shm")
        })
    }

    /// Over memory that both ends map, where small batches are over when they are submitted.
    fn of_one_host() -> Self {
        Self::of(|name| Config {
            workers: 1,
            ..Config::named(name)
        })
    }

    fn of(config: impl Fn(&'static str) -> Config) -> Self {
        let target = Engine::new(Config {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            ..config("target")
        })
        .unwrap();
        target
            .allocate("mem", BYTES, Access::RemoteReadWrite)
            .unwrap();
        let initiator = Engine::new(config("initiator")).unwrap();
        let address = format!("{}/mem", target.listening().unwrap());
        Self {
            local: initiator.allocate("here", BYTES, Access::Local).unwrap(),
            remote: initiator.open_segment(&address).unwrap(),
            initiator,
            _target: target,
        }
    }

    fn requests(&self, op: Op, count: u64, length: u64) -> Vec<Request> {
        (0..count)
            .map(|index| Request {
                op,
                local: self.local,
                local_offset: index * length,
                remote: self.remote,
                remote_offset: index * length,
                length,
            })
            .collect()
    }

    /// Allocations of [`ROUNDS`] batches: (the submitting thread's, the worker's thread's).
    fn count(&self, requests: &[Request], end: impl Fn(&Batch)) -> (u64, u64) {
        count(|| self.initiator.submit(requests).unwrap(), end)
    }
}

/// Allocations of [`ROUNDS`] batches that `begin` makes: (the submitting thread's, the worker's thread's).
fn count(mut begin: impl FnMut() -> Batch, end: impl Fn(&Batch)) -> (u64, u64) {
    SUBMITS.set(true);
    ON.fetch_add(1, SeqCst);
    let before = (SUBMITTER.load(SeqCst), WORKER.load(SeqCst));
    for _ in 0..ROUNDS {
        let batch = begin();
        end(&batch);
        assert_eq!(batch.status().status, Status::Completed);
    }
    let after = (SUBMITTER.load(SeqCst), WORKER.load(SeqCst));
    ON.fetch_sub(1, SeqCst);
    SUBMITS.set(false);
    (after.0 - before.0, after.1 - before.1)
}

/// What `counts` says, of a few times the first one in which no more was allocated than may be for each batch: a worker's tables and
/// buffers grow with the windows, which are found by trying, a few times and no more, on the thread that drives it. What is
/// allocated for each batch is there each time.
fn settled(for_each: u64, mut counts: impl FnMut() -> (u64, u64)) -> (u64, u64) {
    let mut counted = counts();
    for _ in 0..4 {
        if counted.0 > ROUNDS * for_each || counted.1 > 0 {
            counted = counts();
        }
    }
    counted
}

/// Waits, and so drives the worker itself.
fn wait(batch: &Batch) {
    batch.wait(PATIENCE).unwrap();
}

/// Looks only, so that the worker's thread has to do it all.
fn look(batch: &Batch) {
    while batch.status().status == Status::Pending {
        std::thread::yield_now();
    }
}

#[test]
fn a_batch_costs_the_same_few_allocations_whatever_its_size() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    for pair in [Pair::new(), Pair::of_one_host()] {
        costs_the_same(&pair);
    }
}

fn costs_the_same(pair: &Pair) {
    let shapes = [
        (1, 4096),
        (1, 64 * SLICE),
        (REQUESTS, 4096),
        (REQUESTS, 4 * SLICE),
    ];
    for (name, end) in [("waiting", wait as fn(&Batch)), ("looking", look)] {
        for op in [Op::Write, Op::Read] {
            // Tables and buffers grow to what the largest batch needs.
            pair.count(&pair.requests(op, REQUESTS, 4 * SLICE), end);
            for (count, length) in shapes {
                let requests = pair.requests(op, count, length);
                let (submitter, worker) = settled(BATCH_MAX, || pair.count(&requests, end));
                let what = format!("{name}, {op:?}, {count} requests of {length} bytes");
                assert!(submitter > 0, "{what}: nothing was counted");
                assert!(submitter <= ROUNDS * BATCH_MAX, "{what}: {submitter}");
                assert_eq!(worker, 0, "{what}: on the worker's thread");
            }
        }
    }
}

#[test]
fn a_prepared_transfer_costs_no_allocation() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    for pair in [Pair::new(), Pair::of_one_host()] {
        prepared_costs_nothing(&pair);
    }
}

fn prepared_costs_nothing(pair: &Pair) {
    for (name, end) in [("waiting", wait as fn(&Batch)), ("looking", look)] {
        for op in [Op::Write, Op::Read] {
            // Tables and buffers grow to what the largest batch needs.
            pair.count(&pair.requests(op, REQUESTS, 4 * SLICE), end);
            for (requests, length) in [(1, 4096), (REQUESTS, 4 * SLICE)] {
                let requests = pair.requests(op, requests, length);
                let mut transfer = pair.initiator.prepare_transfer(&requests).unwrap();
                let counted = settled(0, || count(|| transfer.post().unwrap(), end));
                let what = format!("{name}, {op:?}, {} requests", requests.len());
                assert_eq!(counted, (0, 0), "{what}");
            }
        }
    }
}

#[test]
fn the_counters_see_the_submitter_and_the_worker() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let count = |thread: &'static str, submits: bool| {
        let builder = std::thread::Builder::new().name(thread.into());
        let counted = builder.spawn(move || {
            SUBMITS.set(submits);
            ON.fetch_add(1, SeqCst);
            let before = (SUBMITTER.load(SeqCst), WORKER.load(SeqCst));
            drop(std::hint::black_box(Box::new(7)));
            let after = (SUBMITTER.load(SeqCst), WORKER.load(SeqCst));
            ON.fetch_sub(1, SeqCst);
            (after.0 - before.0, after.1 - before.1)
        });
        counted.unwrap().join().unwrap()
    };
    assert_eq!(count("somebody", true), (1, 0));
    assert_eq!(count("polyrail-work-7", false), (0, 1));
    assert_eq!(count("somebody", false), (0, 0));
}
