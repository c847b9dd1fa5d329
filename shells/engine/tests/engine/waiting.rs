//! The ways to learn that a batch has ended: each tells once, and none is needed for another.

use std::collections::BTreeSet;
use std::future::Future;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use polyrail::{
    Batch, BatchStatus, CompletionQueue, Config, Engine, Local, Op, ReleaseError, Remote, Request,
    Status, SubmitError,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use crate::fixture::*;
use crate::silence::far;

/// Wakes a thread, and counts how often.
struct Bell {
    thread: Thread,
    rings: AtomicUsize,
}

impl Bell {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            thread: thread::current(),
            rings: AtomicUsize::new(0),
        })
    }

    fn rings(&self) -> usize {
        self.rings.load(SeqCst)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rings.fetch_add(1, SeqCst);
        self.thread.unpark();
    }
}

/// The smallest executor: what a future gives, and how often it had to be polled.
fn block_on<T>(future: impl Future<Output = T>) -> (T, usize) {
    let bell = Bell::new();
    let waker = Waker::from(bell.clone());
    let mut future = pin!(future);
    for polls in 1.. {
        let rings = bell.rings();
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (value, polls);
        }
        while bell.rings() == rings {
            thread::park_timeout(PATIENCE);
        }
    }
    unreachable!()
}

fn poll_once(batch: &mut Batch, bell: &Arc<Bell>) -> Poll<BatchStatus> {
    let waker = Waker::from(bell.clone());
    Pin::new(batch).poll(&mut Context::from_waker(&waker))
}

/// How often a batch's callback was called, and with what.
fn calls(batch: &Batch) -> Receiver<(BatchStatus, thread::ThreadId)> {
    let (call, calls) = channel();
    batch.on_done(move |status| call.send((status, thread::current().id())).unwrap());
    calls
}

fn is_readable(fd: &impl AsFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).unwrap() == 1
}

/// A pair whose rails are cut, so that nothing ends before it is told to.
fn held() -> Pair {
    let pair = Pair::new(MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.cut(rail));
    pair
}

fn let_go(pair: &Pair) {
    pair.each_rail(|faults, rail| faults.restore(rail));
}

#[test]
fn every_way_tells_once_and_all_tell_the_same() {
    let pair = held();
    let batch = pair.initiator.submit(&[pair.write(0, 1000); 3]).unwrap();
    let queue = CompletionQueue::new().unwrap();
    queue.add(&batch, 7);
    let calls = calls(&batch);
    assert_eq!((queue.poll(), is_readable(&queue)), (None, false));
    assert!(calls.try_recv().is_err());
    let waiter = thread::spawn({
        let batch = batch.clone();
        move || batch.wait(PATIENCE).unwrap()
    });
    let task = thread::spawn({
        let batch = batch.clone();
        move || block_on(batch)
    });
    let_go(&pair);
    let status = waiter.join().unwrap();
    assert_eq!(status.status, Status::Completed);
    assert_eq!((status.requests, status.ended), (3, 3));
    let (awaited, polls) = task.join().unwrap();
    assert_eq!(awaited, status);
    assert!(polls <= 2, "it is woken, it does not spin: {polls}");
    let completion = queue.wait(PATIENCE).unwrap();
    assert_eq!((completion.tag, completion.status), (7, status));
    assert_eq!(calls.recv_timeout(PATIENCE).unwrap().0, status);
    assert_eq!(batch.status(), status);
    // And that was all: the senders are gone.
    assert_eq!(calls.recv_timeout(PATIENCE).ok(), None);
    assert_eq!((queue.poll(), is_readable(&queue)), (None, false));
}

#[test]
fn a_batch_that_has_ended_tells_at_once_and_as_often_as_it_is_asked() {
    let pair = Pair::new(MIB);
    let mut batch = pair.submit(pair.write_all());
    completed(&batch);
    let calls = calls(&batch);
    let (status, on) = calls.try_recv().unwrap();
    assert_eq!(on, thread::current().id());
    let queue = CompletionQueue::new().unwrap();
    for tag in 0..2 {
        queue.add(&batch, tag);
        assert!(is_readable(&queue));
        assert_eq!(queue.poll().unwrap().tag, tag);
    }
    for _ in 0..3 {
        assert_eq!(block_on(batch.clone()), (status, 1));
        assert_eq!(block_on(&mut batch), (status, 1));
        assert_eq!(batch.wait(Duration::ZERO).unwrap(), status);
        assert_eq!(batch.wait_released(Duration::ZERO).unwrap(), status);
    }
}

#[test]
fn a_handle_is_woken_for_who_polled_it_last_and_not_after_it_is_gone() {
    let pair = held();
    let mut batch = pair.submit(pair.write_all());
    let (first, last, other, gone) = (Bell::new(), Bell::new(), Bell::new(), Bell::new());
    // As `select!` does in a loop: a new handle each time, that is given up.
    for _ in 0..1000 {
        assert!(poll_once(&mut batch.clone(), &gone).is_pending());
    }
    assert_eq!(Arc::strong_count(&gone), 1, "their wakers are dropped");
    let mut clone = batch.clone();
    assert!(poll_once(&mut batch, &first).is_pending());
    assert!(poll_once(&mut clone, &other).is_pending());
    assert!(poll_once(&mut batch, &last).is_pending());
    assert_eq!(Arc::strong_count(&first), 1);
    let_go(&pair);
    until("both are woken", || (last.rings(), other.rings()) == (1, 1));
    assert_eq!((first.rings(), gone.rings()), (0, 0));
    for handle in [&mut batch, &mut clone] {
        let Poll::Ready(status) = poll_once(handle, &gone) else {
            panic!("woken, and not ready");
        };
        assert_eq!(status.status, Status::Completed);
    }
}

#[test]
fn who_drops_every_handle_is_still_told() {
    let pair = held();
    let queue = CompletionQueue::new().unwrap();
    let batch = pair.submit(pair.write_all());
    queue.add(&batch, 1);
    let calls = calls(&batch);
    let mut awaited = batch.clone();
    assert!(poll_once(&mut awaited, &Bell::new()).is_pending());
    drop((batch, awaited));
    let_go(&pair);
    assert_eq!(
        queue.wait(PATIENCE).unwrap().status.status,
        Status::Completed
    );
    let (status, on) = calls.recv_timeout(PATIENCE).unwrap();
    assert_eq!(status.status, Status::Completed);
    assert_ne!(on, thread::current().id());
    assert!(bytes(&pair.source()) == bytes(&pair.destination()));
}

#[test]
fn callbacks_run_in_order_and_one_that_panics_harms_nobody() {
    let pair = held();
    let batch = pair.submit(pair.write_all());
    let order = Arc::new(Mutex::new(Vec::new()));
    for number in 0..10 {
        let order = order.clone();
        batch.on_done(move |_| order.lock().unwrap().push(number));
        batch.on_done(|_| panic!("on purpose"));
    }
    let calls = calls(&batch);
    let_go(&pair);
    calls.recv_timeout(PATIENCE).unwrap();
    assert!(order.lock().unwrap().iter().copied().eq(0..10));
    // The worker is alive.
    pair.exchange(3);
}

#[test]
fn a_callback_can_submit_the_next_batch() {
    fn go_on(engine: &Engine, request: Request, left: u32, done: std::sync::mpsc::Sender<u32>) {
        let batch = engine.submit(&[request]).unwrap();
        let engine = engine.clone();
        batch.on_done(move |status| {
            assert_eq!(status.status, Status::Completed);
            match left {
                0 => done.send(left).unwrap(),
                left => go_on(&engine, request, left - 1, done),
            }
        });
    }
    let pair = Pair::new(MIB);
    let (done, all_done) = channel();
    go_on(&pair.initiator, pair.write(0, 4096), 500, done);
    all_done.recv_timeout(PATIENCE).unwrap();
    // The row of each was free when its callback ran.
    pair.exchange(1);
}

#[test]
fn the_last_handle_of_an_engine_can_be_dropped_by_a_callback() {
    let pair = Pair::new(MIB);
    let engine = Engine::new(Config {
        rails: rails(),
        workers: 2,
        ..Config::named("brief")
    });
    let engine = engine.unwrap();
    let local = engine.allocate("here", MIB, polyrail::Access::Local);
    let remote = engine.open_segment(&address(&pair.target, "mem"));
    let request = Request {
        op: Op::Write,
        local: local.unwrap(),
        local_offset: 0,
        remote: remote.unwrap(),
        remote_offset: 0,
        length: MIB,
    };
    let batch = engine.submit(&[request]).unwrap();
    let (ended, has_ended) = channel();
    batch.on_done(move |_| {
        drop(engine);
        ended.send(()).unwrap();
    });
    has_ended.recv_timeout(PATIENCE).unwrap();
    completed(&batch);
}

#[test]
fn followers_are_told_of_a_shutdown() {
    let pair = held();
    let batch = pair.submit(pair.write_all());
    let queue = CompletionQueue::new().unwrap();
    queue.add(&batch, 1);
    let calls = calls(&batch);
    let task = thread::spawn({
        let batch = batch.clone();
        move || block_on(batch).0
    });
    pair.initiator.shutdown();
    let status = batch.wait(Duration::ZERO).unwrap();
    assert_ne!(status.status, Status::Completed);
    assert_eq!(task.join().unwrap(), status);
    assert_eq!(queue.wait(PATIENCE).unwrap().status, status);
    assert_eq!(calls.recv_timeout(PATIENCE).unwrap().0, status);
}

#[test]
fn a_program_drains_a_queue_from_its_own_epoll() {
    const BATCHES: u64 = 3000;
    let pair = Pair::new(MIB);
    for edge in [epoll::EventFlags::empty(), epoll::EventFlags::ET] {
        let queue = CompletionQueue::new().unwrap();
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let interest = epoll::EventFlags::IN | edge;
        epoll::add(&poller, &queue, epoll::EventData::new_u64(1), interest).unwrap();
        let mut tags = BTreeSet::new();
        thread::scope(|scope| {
            let (queue, pair) = (&queue, &pair);
            scope.spawn(move || {
                for tag in 0..BATCHES {
                    let request = pair.write(tag * 64, 64);
                    let batch = pair.submit(request);
                    queue.add(&batch, tag);
                }
            });
            while tags.len() < BATCHES as usize {
                let mut events = Vec::with_capacity(4);
                let patience = Timespec {
                    tv_sec: PATIENCE.as_secs() as i64,
                    tv_nsec: 0,
                };
                let room = rustix::buffer::spare_capacity(&mut events);
                let count = epoll::wait(&poller, room, Some(&patience)).unwrap();
                assert_eq!(count, 1, "a wake-up was lost after {}", tags.len());
                while let Some(completion) = queue.poll() {
                    assert_eq!(completion.status.status, Status::Completed);
                    assert!(tags.insert(completion.tag), "{} came twice", completion.tag);
                }
            }
        });
        assert!(tags.into_iter().eq(0..BATCHES));
        assert!(!is_readable(&queue));
    }
}

#[test]
fn ten_thousand_batches_can_be_outstanding_and_awaited() {
    const BATCHES: usize = 10_000;
    let pair = held();
    let mut batches: Vec<_> = (0..BATCHES)
        .map(|_| pair.submit(pair.write(0, 1)))
        .collect();
    let bell = Bell::new();
    for batch in &mut batches {
        assert!(poll_once(batch, &bell).is_pending());
    }
    let queue = CompletionQueue::new().unwrap();
    for (tag, batch) in (0..).zip(&batches) {
        queue.add(batch, tag);
    }
    // And beyond what one worker holds there is an answer that says so.
    let mut more = 0;
    let error = loop {
        match pair.initiator.submit(&[pair.write(0, 1)]) {
            Ok(_) => more += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SubmitError::Full(_)), "{error}");
    assert_eq!(more + BATCHES, 16_384, "each worker holds 16,384 requests");
    let_go(&pair);
    let mut tags: Vec<_> = (0..BATCHES)
        .map(|_| queue.wait(PATIENCE).unwrap().tag)
        .collect();
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..BATCHES as u64));
    until("all are woken", || bell.rings() == BATCHES);
    for batch in &mut batches {
        assert!(poll_once(batch, &bell).is_ready());
    }
}

#[test]
fn released_is_waited_for_until_the_peer_has_proved_it() {
    let far = far();
    let batch = far.cut_in_the_middle(Op::Write);
    let early = batch.wait_released(Duration::ZERO).unwrap_err();
    assert!(
        matches!(
            early,
            ReleaseError::TimedOut {
                held: 1,
                unsettled: 1,
                ..
            }
        ),
        "it has not ended: {early:?}"
    );
    assert_eq!(ended(&batch).status, Status::Indeterminate);
    let short = Duration::from_millis(20);
    let open = batch.wait_released(short).unwrap_err();
    assert_eq!(
        open,
        ReleaseError::TimedOut {
            after: short,
            held: 0,
            unsettled: 1
        }
    );
    thread::scope(|scope| {
        let start = Instant::now();
        let waiter = scope.spawn(|| batch.wait_released(PATIENCE));
        far.link.restore();
        let status = waiter.join().unwrap().unwrap();
        assert!(start.elapsed() < PATIENCE / 2, "nobody woke it");
        // What was said once stays said; the report tells the rest.
        assert_eq!(status.status, Status::Indeterminate);
    });
    let report = batch.report(0).unwrap();
    assert_eq!(
        (report.local, report.remote),
        (Local::Released, Remote::Settled)
    );
}

#[test]
fn nobody_waits_for_proof_that_cannot_come() {
    let far = far();
    let batch = far.cut_in_the_middle(Op::Write);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| batch.wait_released(PATIENCE));
        assert_eq!(ended(&batch).status, Status::Indeterminate);
        far.initiator.shutdown();
        let start = Instant::now();
        let error = waiter.join().unwrap().unwrap_err();
        assert!(start.elapsed() < PATIENCE / 2, "nobody woke it");
        assert_eq!(error, ReleaseError::Unprovable { requests: 1 });
    });
    let start = Instant::now();
    assert!(batch.wait_released(PATIENCE).is_err());
    assert!(start.elapsed() < PATIENCE / 2, "it waited in vain");
}
