//! The workers of an engine, and which one a batch goes to.

use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polyrail_core::time::Instant;
use polyrail_transport::clock::Clock;

use crate::afterwards::Afterwards;
use crate::config::SendQueueConfig;
use crate::ending::is_called;
use crate::hints::Hints;
use crate::lock::lock;
use crate::post::{Command, Post, Submission};
use crate::request::Terms;
use crate::stats::Failovers;
use crate::thread::Thread;

/// Workers that one engine can have.
pub(crate) const WORKERS_MAX: usize = 64;

/// The workers.
pub(crate) struct Workers {
    pub(crate) posts: Vec<Arc<Post>>,
    /// Until somebody waits for them to end.
    threads: Mutex<Vec<Thread>>,
    next: AtomicUsize,
    /// How long a submission waits for room, if its terms do not say.
    patience: Duration,
    /// What they have counted.
    pub(crate) failovers: Arc<Failovers>,
    /// What an agent says, if one is asked.
    pub(crate) hints: Option<Arc<Hints>>,
}

impl Workers {
    pub(crate) fn new(
        posts: Vec<Arc<Post>>,
        threads: Vec<Thread>,
        failovers: Arc<Failovers>,
        config: &SendQueueConfig,
        hints: Option<Arc<Hints>>,
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
            hints,
        }
    }

    /// Tells every worker something.
    pub(crate) fn tell(&self, command: impl Fn() -> Command) {
        for post in &self.posts {
            post.send(command());
        }
    }

    /// The worker that a batch goes to: that of the submitting thread, so that threads which wait for their
    /// batches do not meet; if that one is at work, the next one that is not; if all are, the one that the fewest bytes wait for.
    /// One that has ended by a panic is left out.
    pub(crate) fn choose(&self, submissions: &[Submission]) -> &Arc<Post> {
        let post = self.idle().unwrap_or_else(|| self.least_behind());
        if self.posts.len() > 1 {
            post.backlog.add(submissions);
        }
        post
    }

    /// The one that the fewest bytes wait for; of equal ones each in turn.
    fn least_behind(&self) -> &Arc<Post> {
        let next = self.next.fetch_add(1, Relaxed);
        let open = self.beginning_with(next).filter(|post| !post.is_closed());
        open.min_by_key(|post| post.backlog.bytes())
            .unwrap_or(&self.posts[next % self.posts.len()])
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::Config;
    use crate::batch::Batch;
    use crate::pair::Pair;
    use polyrail_core::report::Status;
    use polyrail_core::work::Op;

    const LARGE: u64 = 64 << 20;

    #[test]
    fn small_batches_go_to_the_worker_that_is_not_behind() {
        // In turns, each second one stood in line behind the gibibyte.
        let config = |workers| Config {
            workers,
            ..Config::default()
        };
        let pair = Pair::over_tcp(config(1), config(2), LARGE);
        let engine = &pair.engine;
        let request = |length| pair.request(Op::Read, length);
        let patience = Duration::from_secs(60);
        let completed = |batch: &Batch| {
            assert_eq!(batch.wait(patience).unwrap().status, Status::Completed);
        };
        completed(&engine.submit(&[request(4096)]).unwrap());
        let large = engine.submit(&[request(LARGE); 16]).unwrap();
        let slow = &engine.inner.workers.posts;
        let slow = slow.iter().position(|post| !post.is_idle()).unwrap();
        let slow = &engine.inner.workers.posts[slow];
        let deadline = Instant::now() + patience;
        while slow.backlog.bytes() == 0 {
            assert!(Instant::now() < deadline && large.status().status == Status::Pending);
            std::hint::spin_loop();
        }
        for round in 0..20 {
            // All at once: the other worker is at work too, but for the first.
            let small: Vec<_> = (0..8)
                .map(|_| engine.submit(&[request(4096)]).unwrap())
                .collect();
            // What is on its way keeps nobody.
            if slow.backlog.bytes() < LARGE {
                assert!(round > 0, "it was over before anything could be seen");
                break;
            }
            for batch in &small {
                assert!(!batch.is_with(slow), "round {round}");
                completed(batch);
            }
        }
        completed(&large);
    }
}
