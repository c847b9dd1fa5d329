//! Those who wait for batches of a worker, or look at them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use super::{AT_ONCE, Post};

/// Of one worker.
pub(crate) struct Waiters {
    /// One of them drives.
    pub(crate) drives: AtomicBool,
    /// How often they have driven.
    pub(crate) turns: AtomicU64,
    /// Those that ask the thread for the drive lock.
    pub(crate) asking: AtomicU32,
    /// Who submitted last waited at once.
    pub(super) trusted: AtomicBool,
    /// Somebody looks at batches, or sleeps for one, who does not drive. Until all have ended.
    pub(super) watched: AtomicBool,
    /// When somebody last submitted, in nanoseconds since `start`.
    submitted_at: AtomicU64,
    start: std::time::Instant,
}

impl Waiters {
    pub(super) fn new() -> Self {
        Self {
            drives: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            asking: AtomicU32::new(0),
            trusted: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            submitted_at: AtomicU64::new(0),
            start: std::time::Instant::now(),
        }
    }

    /// Somebody has submitted something just now.
    pub(super) fn submitted(&self) {
        let now = self.nanos(std::time::Instant::now());
        self.submitted_at.store(now, Relaxed);
    }

    /// How long after the last submission that is.
    pub(super) fn since_submission(&self, at: std::time::Instant) -> std::time::Duration {
        let submitted = self.submitted_at.load(Relaxed);
        std::time::Duration::from_nanos(self.nanos(at).saturating_sub(submitted))
    }

    /// Somebody looks at a batch. Whether that is no sign that he does not wait for it: who submitted last waited at once the time
    /// before, and has had no time for that yet.
    pub(super) fn may_wait_at_once(&self) -> bool {
        if !self.trusted.load(Relaxed) {
            return false;
        }
        let may = self.since_submission(std::time::Instant::now()) <= AT_ONCE;
        if !may {
            self.trusted.store(false, Relaxed);
        }
        may
    }

    fn nanos(&self, at: std::time::Instant) -> u64 {
        let since = at.saturating_duration_since(self.start);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A waiter releases the drive lock: the thread is woken if there is work for it, or if the waiter panicked.
pub(super) struct Rising<'a> {
    post: &'a Post,
    pub(super) rouse: bool,
}

impl<'a> Rising<'a> {
    pub(super) fn begin(post: &'a Post) -> Self {
        Self { post, rouse: true }
    }
}

impl Drop for Rising<'_> {
    fn drop(&mut self) {
        if self.rouse {
            self.post.alarm.call_thread();
        }
    }
}

/// A waiter that wants the drive lock.
pub(super) struct Asking<'a>(&'a Post);

impl<'a> Asking<'a> {
    pub(super) fn begin(post: &'a Post) -> Self {
        post.waiters.asking.fetch_add(1, Relaxed);
        Self(post)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.waiters.asking.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use polyrail_transport::clock::Clock;

    use super::*;
    use crate::config::SendQueueConfig;
    use crate::post::Pulse;

    #[test]
    fn a_look_behind_a_submission_calls_no_thread_if_the_program_waits_at_once() {
        let pulse = Pulse::new(Some(0), Clock::start());
        let post = Post::new(64, &SendQueueConfig::default(), pulse, Arc::default()).unwrap();
        let waiters = &post.waiters;
        let calls = || {
            waiters.watched.store(false, Relaxed);
            post.look_after();
            waiters.watched.load(Relaxed)
        };
        // As if it had been submitted a day from now: however slow this machine is, that is not long ago.
        let just_now = || waiters.submitted_at.store(86_400_000_000_000, Relaxed);
        just_now();
        assert!(calls(), "nobody has waited yet");
        waiters.trusted.store(true, Relaxed);
        assert!(!calls());
        waiters.submitted_at.store(0, Relaxed);
        while waiters.start.elapsed() <= AT_ONCE {
            std::hint::spin_loop();
        }
        assert!(calls(), "it could have waited by now");
        just_now();
        assert!(calls(), "it only looks");
    }
}
