//! The workers of an engine, and which one a batch goes to.

use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polyrail_core::time::Instant;
use polyrail_transport::clock::Clock;

use crate::afterwards::Afterwards;
use crate::config::SendQueueConfig;
use crate::ending::is_called;
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
    pub(crate) fn choose(&self) -> &Arc<Post> {
        self.idle().unwrap_or_else(|| self.next())
    }

    /// Each in turn.
    fn next(&self) -> &Arc<Post> {
        let next = self.next.fetch_add(1, Relaxed);
        let open = self.beginning_with(next).find(|post| !post.is_closed());
        open.unwrap_or(&self.posts[next % self.posts.len()])
    }

    /// That of the submitting thread, or the next one, if it has nothing to do. `None`: all have.
    pub(crate) fn idle(&self) -> Option<&Arc<Post>> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD: usize = THREADS.fetch_add(1, Relaxed);
        }
        let home = THREAD.with(|thread| *thread);
        self.beginning_with(home)
            .find(|post| post.is_idle() && !post.is_closed())
    }

    /// All, this one first.
    fn beginning_with(&self, first: usize) -> impl Iterator<Item = &Arc<Post>> {
        let (before, rest) = self.posts.split_at(first % self.posts.len());
        rest.iter().chain(before)
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
        threads.drain(..).for_each(Thread::join);
    }

    /// How long a submission waits for room.
    pub(crate) fn patience(&self, terms: &Terms<'_>) -> Duration {
        if is_called() {
            return Duration::ZERO;
        }
        terms.room_within.unwrap_or(self.patience)
    }
}
