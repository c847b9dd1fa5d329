//! A transport that panics takes its worker with it, and nobody else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use polyrail::{Access, Config, Engine, Hooks, Op, Plugin, Region, Request, SubmitError};
use polyrail_core::time::Instant;
use polyrail_core::transport::Capabilities;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{Cause, PostBatch, Posted, Scope, Stop};
use polyrail_transport::clock::Clock;
use polyrail_transport::{
    Endpoint, FenceAnswer, InboundLane, Polled, RailAddress, RemoteRegion, RetireAnswer, SessionId,
    Transport, Waits,
};
use rustix::event::{EventfdFlags, eventfd};

use crate::fixture::*;

/// Whether the first worker is to panic when it looks next.
static IS_ARMED: AtomicBool = AtomicBool::new(false);

/// It reaches nobody: the other end does not have it.
struct Bomb;

struct BombEndpoint {
    worker: u16,
    /// Never readable.
    fd: OwnedFd,
}

impl Transport for Bomb {
    fn name(&self) -> &'static str {
        "bomb"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::HOST
    }

    fn endpoint(&self, worker: u16, _: Clock) -> io::Result<Box<dyn Endpoint>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Box::new(BombEndpoint { worker, fd }))
    }

    fn admit(&self, _: InboundLane) {}

    fn fence_inbound(&self, _: SessionId, _: LaneId, _: Epoch, answer: FenceAnswer) {
        answer(0);
    }

    fn retire_session(&self, _: SessionId, answer: RetireAnswer) {
        answer();
    }
}

impl Endpoint for BombEndpoint {
    fn attach_local(&mut self, _: SegmentRef, _: Arc<Region>) {}

    fn detach_local(&mut self, _: SegmentRef) {}

    fn attach_remote(&mut self, _: SegmentRef, _: RemoteRegion) {}

    fn attach_rail(&mut self, _: RailId, _: RailAddress) {}

    fn open(&mut self, _: LaneId, _: Epoch, _: Instant) {}

    fn post(&mut self, _: &PostBatch) -> Posted {
        Posted {
            accepted: 0,
            stop: Stop::Rejected(Cause::LocalOperation),
        }
    }

    fn poll(&mut self, _: Instant, _: &mut Polled) {
        let is_hit = self.worker == 0 && IS_ARMED.swap(false, SeqCst);
        assert!(!is_hit, "on purpose");
    }

    fn fence(&mut self, _: LaneId, _: Epoch, _: Scope) {}

    fn close(&mut self, _: LaneId, _: Epoch) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn waits(&self) -> Waits {
        Waits::Nothing
    }
}

#[test]
fn the_other_workers_carry_out_what_is_submitted_after_one_has_panicked() {
    // It had nothing to do any more, so threads whose own it was were sent there for ever.
    let target = target("target");
    target
        .allocate("mem", MIB, Access::RemoteReadWrite)
        .unwrap();
    let config = Config {
        workers: 3,
        ..initiator_config()
    };
    let plugin = Plugin {
        make: |_| Arc::new(Bomb),
        faults: None,
    };
    let hooks = Hooks {
        transports: vec![plugin],
        ..Hooks::default()
    };
    let engine = Engine::with_hooks(config, hooks).unwrap();
    let local = engine.allocate("here", MIB, Access::Local).unwrap();
    let remote = engine.open_segment(&address(&target, "mem")).unwrap();
    let request = Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: 4096,
    };
    completed(&engine.submit(&[request]).unwrap());
    IS_ARMED.store(true, SeqCst);
    // All workers hear of that.
    engine.allocate("word", 4096, Access::Local).unwrap();
    until("the first worker has looked", || !IS_ARMED.load(SeqCst));

    let submit = |count: usize| (0..count).map(|_| engine.submit(&[request]));
    let in_threads = |count: usize| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|_| scope.spawn(move || submit(count).collect::<Vec<_>>()))
                .collect();
            let answers = threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap());
            answers.collect::<Vec<_>>()
        })
    };
    // What is submitted before its end is known ends with it.
    until("nobody is sent to the worker that has ended", || {
        let answers = in_threads(1);
        let batches = answers
            .into_iter()
            .map(|answer| answer.map(|batch| ended(&batch)));
        batches
            .into_iter()
            .all(|answer| answer.is_ok_and(|status| status.failed == 0))
    });
    for answer in in_threads(20) {
        assert!(!matches!(answer, Err(SubmitError::ShutDown)));
        completed(&answer.unwrap());
    }
    engine.shutdown();
}
