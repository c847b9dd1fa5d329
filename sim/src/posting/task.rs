//! A chunk of a call on its way through a worker and a queue pair, and what is told of it.

use std::ops::Range;

use polyrail_core::send_queue::failure::ends_lane;
use polyrail_core::send_queue::promise::{Answer, Promise};
use polyrail_core::units::Epoch;
use polyrail_core::work::Cause;

use super::World;
use super::wait::Thread;

/// A chunk, by number. It is the owner of its works.
pub(super) type TaskId = u32;

/// A chunk.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) caller: usize,
    pub(super) pair: usize,
    pub(super) requests: Range<u32>,
    /// Works that were admitted for it, and in which epoch.
    pub(super) admitted: (u16, Epoch),
    pub(super) promise: Promise,
    pub(super) answer: Option<Answer>,
    /// Requests whose end has been told.
    told: u32,
    /// Those of them that did not arrive.
    pub(super) failed: u32,
    /// Works of it that a device has.
    pub(super) live: u32,
    /// Works of it that records stand for.
    pub(super) recorded: u32,
    /// Requests that were not posted whole. They end when nothing of the chunk is recorded any more: of one that
    /// makes several works the first may be out.
    unposted: u32,
}

impl Task {
    pub(super) fn new(
        caller: usize,
        pair: usize,
        requests: Range<u32>,
        admitted: (u16, Epoch),
    ) -> Self {
        Self {
            caller,
            pair,
            admitted,
            promise: Promise::new(requests.end - requests.start),
            requests,
            answer: None,
            told: 0,
            failed: 0,
            live: 0,
            recorded: 0,
            unposted: 0,
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.requests.end - self.requests.start
    }
}

impl World<'_> {
    /// The works of a record have ended, and with them so many requests.
    pub(super) fn tell_record(&mut self, id: TaskId, works: u32, requests: u32, answer: Answer) {
        let task = &mut self.tasks[id as usize];
        task.recorded -= works;
        self.tell(id, requests, answer);
        self.tell_unposted(id);
    }

    /// Requests of a chunk have ended.
    fn tell(&mut self, id: TaskId, requests: u32, answer: Answer) {
        let task = &mut self.tasks[id as usize];
        task.told += requests;
        if answer.is_err() {
            task.failed += requests;
        }
        if task.told > task.count() {
            let (told, count) = (task.told, task.count());
            return self.violate(format!("chunk {id} of {count} requests is told of {told}"));
        }
        let Some(answer) = task.promise.handle_end(requests, answer) else {
            return;
        };
        task.answer = Some(answer);
        if task.live > 0 {
            let live = task.live;
            return self.violate(format!(
                "chunk {id} is answered while {live} of its works can move"
            ));
        }
        let caller = task.caller;
        self.call_up(Thread::Caller(caller));
    }

    /// Requests that were not posted, or not whole, fail.
    pub(super) fn fail_unposted(&mut self, id: TaskId, requests: u32, cause: Cause) {
        self.hint_failure(id, requests, cause);
        self.tasks[id as usize].unposted += requests;
        self.tell_unposted(id);
    }

    fn tell_unposted(&mut self, id: TaskId) {
        let task = &mut self.tasks[id as usize];
        if let (0, Some(cause)) = (task.recorded, task.promise.failure()) {
            let requests = std::mem::take(&mut task.unposted);
            if requests > 0 {
                self.tell(id, requests, Err(cause));
            }
        }
    }

    /// Something of a chunk has failed; what it was may still move, so its end is told later.
    pub(super) fn hint_failure(&mut self, id: TaskId, requests: u32, cause: Cause) {
        self.count_failure(cause, requests);
        self.tasks[id as usize].promise.handle_failure(cause);
    }

    fn count_failure(&mut self, cause: Cause, requests: u32) {
        match cause {
            Cause::Flushed => self.history.flushed_requests += u64::from(requests),
            cause if ends_lane(cause) => self.history.root_causes += 1,
            _ => {}
        }
    }
}
