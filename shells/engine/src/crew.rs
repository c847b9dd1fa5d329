//! The workers of an engine, and which one a batch goes to.

use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polyrail_core::time::Instant;
use polyrail_transport::clock::Clock;

use crate::afterwards::Afterwards;
use crate::config::SendQueueConfig;
use crate::ending::{JOIN_MAX, is_called};
use crate::lock::lock;
use crate::post::{Command, Post};
use crate::request::Terms;
use crate::stats::Failovers;
use crate::thread::Thread;

/// Workers that one engine can have.
pub(crate) const WORKERS_MAX: usize = 64;

/// The workers.
pub(crate) struct Crew {
    pub(crate) posts: Vec<Arc<Post>>,
    /// Until somebody waits for them to end.
    threads: Mutex<Vec<Thread>>,
    next: AtomicUsize,
    /// How long a submission waits for room, if its terms do not say.
    patience: Duration,
    /// What they have counted.
    pub(crate) failovers: Arc<Failovers>,
}

impl Crew {
    pub(crate) fn new(
        posts: Vec<Arc<Post>>,
        threads: Vec<Thread>,
        failovers: Arc<Failovers>,
        config: &SendQueueConfig,
    ) -> Self {
        let patience = match config.admission {
            true => config.admission_timeout,
            false => Duration::ZERO,
        };
        Self {
            posts,
            threads: Mutex::new(threads),
            next: AtomicUsize::new(0),
            patience,
            failovers,
        }
    }

    /// Tells every worker something.
    pub(crate) fn tell(&self, command: impl Fn() -> Command) {
        for post in &self.posts {
            post.send(command());
        }
    }

    /// The worker that a batch goes to: that of the submitting thread, so that threads which wait for their
    /// batches do not meet; if that one is at work, the next one that is not. One that has ended by a panic is left out.
    pub(crate) fn choose(&self) -> usize {
        self.idle().unwrap_or_else(|| self.next())
    }

    /// Each in turn.
    fn next(&self) -> usize {
        let count = self.posts.len();
        let next = self.next.fetch_add(1, Relaxed);
        let mut others = (0..count).map(|more| next.wrapping_add(more) % count);
        let open = others.find(|number| !self.posts[*number].is_closed());
        open.unwrap_or(next % count)
    }

    /// That of the submitting thread, or the next one, if it has nothing to do. `None`: all have.
    pub(crate) fn idle(&self) -> Option<usize> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD: usize = THREADS.fetch_add(1, Relaxed);
        }
        let home = THREAD.with(|thread| *thread);
        let count = self.posts.len();
        let mut others = (home..home + count).map(|number| number % count);
        others.find(|number| self.posts[*number].is_idle() && !self.posts[*number].is_closed())
    }

    /// Tells all to end until then, and to take nothing any more.
    pub(crate) fn close(&self, until: Instant) {
        for post in &self.posts {
            post.close_room();
            post.send(Command::ShutDown(until));
        }
    }

    /// Sees that they do. The answer is what the program is to be told.
    pub(crate) fn end(&self, clock: &Clock, until: Instant) -> Afterwards {
        let mut afterwards = Afterwards::default();
        for post in &self.posts {
            afterwards.append(post.end(clock, until));
        }
        afterwards
    }

    /// Whether some worker has not ended.
    pub(crate) fn goes_on(&self) -> bool {
        self.posts.iter().any(|post| !post.is_closed())
    }

    /// Waits for their threads.
    pub(crate) fn join(&self) {
        let mut threads = lock(&self.threads);
        threads.drain(..).for_each(|thread| thread.join(JOIN_MAX));
    }

    /// How long a submission waits for room.
    pub(crate) fn patience(&self, terms: &Terms<'_>) -> Duration {
        if is_called() {
            return Duration::ZERO;
        }
        terms.room_within.unwrap_or(self.patience)
    }
}
