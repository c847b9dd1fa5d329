//! When a worker looks again, spins or sleeps.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use polyrail_core::time::{Duration, Instant};
use polyrail_transport::Waits;
use polyrail_transport::peek::Peek;

use crate::post::{Post, WAITER};
use crate::spin::{Idle, Progress, SpinTuner, WaitMode};

/// Who waits again so soon after a wait is expected to go on so: what is under way meanwhile need not be looked after.
const SOON: Duration = Duration::from_micros(50);

/// How a worker's rounds follow each other.
pub(super) struct WaitPolicy {
    /// Processors that this process may use.
    processors: usize,
    tuner: SpinTuner,
    /// What was posted so far.
    pub(super) done: Progress,
    /// The endpoint had something in the last round.
    pub(super) moved: bool,
    /// When the last round looked.
    pub(super) looked: Instant,
    /// When a waiter last released the drive lock.
    left_at: Instant,
    /// Whether looking once more before sleeping pays.
    pub(super) peek: Peek,
}

impl WaitPolicy {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            tuner: SpinTuner::default(),
            done: Progress::default(),
            moved: false,
            looked: now,
            left_at: Instant::ZERO,
            peek: Peek::default(),
        }
    }

    /// A waiter takes the drive lock, `at_once` after something was submitted. Whether it is expected to come back soon.
    pub(super) fn begin(&mut self, now: Instant, at_once: bool) -> bool {
        self.tuner.begin(now, self.done);
        at_once && now.since(self.left_at) <= SOON
    }

    /// Lets the tuner look at what was done. Whether it has changed the mode.
    pub(super) fn count(&mut self, now: Instant) -> bool {
        let before = self.tuner.mode();
        self.tuner.count(now, self.done);
        self.tuner.mode() != before
    }

    /// A waiter goes to sleep.
    pub(super) fn sleeps(&mut self) {
        self.tuner.sleeps();
    }

    /// A waiter releases the drive lock.
    pub(super) fn end(&mut self) {
        self.left_at = self.looked;
        self.tuner.end(self.looked, self.done);
    }

    /// Whether those who wait look again rather than sleep.
    pub(super) fn is_spinning(&self) -> bool {
        self.tuner.mode() == WaitMode::Spin
    }

    /// For how long to look again after the last thing that there was to do.
    pub(super) fn idle(&self, who: u8, waits: Waits, posts: &[Arc<Post>]) -> Idle {
        match who {
            WAITER => Idle::of_waiter(waits, self.tuner.mode(), || self.has_processors(posts)),
            _ => Idle::of_thread(waits, self.tuner.mode()),
        }
    }

    /// Whether there are processors for all who wait for a worker, and for as many peers that are at their works.
    fn has_processors(&self, posts: &[Arc<Post>]) -> bool {
        let waiters = posts.iter();
        let waiters = waiters.filter(|post| post.waiters.drives.load(Relaxed));
        2 * waiters.count() <= self.processors
    }

    /// Whether to look again instead of sleeping. `due`: whether the endpoint has something to do.
    pub(super) fn spins(
        &self,
        now: Instant,
        busy: bool,
        idle: Idle,
        due: impl FnOnce() -> bool,
        idle_since: &mut Option<Instant>,
    ) -> bool {
        // What was posted just now is hardly there yet, and the sleep notices if it is.
        if busy && (self.moved || idle != Idle::Sleep || due()) {
            *idle_since = None;
            return true;
        }
        let since = *idle_since.get_or_insert(now);
        let longest = match idle {
            Idle::Sleep => return false,
            Idle::Spin(longest) => {
                std::hint::spin_loop();
                longest
            }
            Idle::Yield(longest) => {
                std::thread::yield_now();
                longest
            }
        };
        now.since(since) < longest
    }
}
