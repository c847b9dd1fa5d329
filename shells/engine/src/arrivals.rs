//! Batches of peers that have arrived here, counted by the tags that they carry.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::ReceiveError;
use crate::lock::lock;

/// Tags that are counted at a time.
const TAGS_MAX: usize = 65_536;

/// How many batches have arrived with each tag.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    tags: HashMap<u64, u64>,
    /// None will come any more.
    closed: bool,
}

impl Arrivals {
    /// A batch has arrived; `false`: there is no room for another tag.
    pub(crate) fn add(&self, tag: u64) -> bool {
        let mut counts = lock(&self.counts);
        let room = counts.tags.len() < TAGS_MAX;
        match counts.tags.get_mut(&tag) {
            Some(count) => *count += 1,
            None if room => drop(counts.tags.insert(tag, 1)),
            None => return false,
        }
        drop(counts);
        self.changed.notify_all();
        true
    }

    /// Nothing will come any more.
    pub(crate) fn close(&self) {
        lock(&self.counts).closed = true;
        self.changed.notify_all();
    }

    fn wait(&self, tag: u64, count: u64, timeout: Duration) -> Result<u64, ReceiveError> {
        let start = Instant::now();
        let mut counts = lock(&self.counts);
        loop {
            let seen = counts.tags.get(&tag).copied().unwrap_or_default();
            if seen >= count {
                return Ok(seen);
            }
            if counts.closed {
                return Err(ReceiveError::ShutDown);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(ReceiveError::TimedOut { after: timeout });
            }
            let waited = self.changed.wait_timeout(counts, left);
            (counts, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Engine {
    /// How many batches have arrived with this tag ([`Terms::arrival`](crate::Terms::arrival)), of all peers, since it was last
    /// [forgotten](Self::forget_arrivals). In a forked child: none.
    pub fn arrivals(&self, tag: u64) -> u64 {
        if !self.inner.is_ours() {
            return 0;
        }
        let counts = lock(&self.inner.mail.desk.inbox.arrivals.counts);
        counts.tags.get(&tag).copied().unwrap_or_default()
    }

    /// Waits until so many batches have arrived with this tag: how many have. All that they wrote can be seen then.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use polyrail::{Access, Config, Engine, Op, Request, Terms};
    /// # let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
    /// # target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
    /// # let engine = Engine::new(Config::named("initiator"))?;
    /// # let local = engine.allocate("here", 1 << 20, Access::Local)?;
    /// # let remote = engine.open_segment(&format!("{}/mem", target.listening().unwrap()))?;
    /// # let request = Request { op: Op::Write, local, local_offset: 0, remote, remote_offset: 0, length: 65_536 };
    /// let terms = Terms { arrival: Some(7), ..Terms::default() };
    /// for _ in 0..3 {
    ///     engine.submit_with(&[request], &terms)?;
    /// }
    /// assert_eq!(target.wait_arrivals(7, 3, Duration::from_secs(5))?, 3);
    /// target.forget_arrivals(7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_arrivals(
        &self,
        tag: u64,
        count: u64,
        timeout: Duration,
    ) -> Result<u64, ReceiveError> {
        if !self.inner.is_ours() {
            return Err(ReceiveError::Forked);
        }
        let inbox = &self.inner.mail.desk.inbox;
        inbox.arrivals.wait(tag, count, timeout)
    }

    /// Forgets a tag: how many batches had arrived with it. 65,536 are counted at a time; with more, those who tell of another
    /// are held up, as by notifications that nobody takes.
    pub fn forget_arrivals(&self, tag: u64) -> u64 {
        if !self.inner.is_ours() {
            return 0;
        }
        let mut counts = lock(&self.inner.mail.desk.inbox.arrivals.counts);
        counts.tags.remove(&tag).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_full_goes_on_counting_what_it_knows() {
        let arrivals = Arrivals::default();
        assert!((0..TAGS_MAX as u64).all(|tag| arrivals.add(tag)));
        assert!(!arrivals.add(TAGS_MAX as u64));
        assert!(arrivals.add(7));
        assert_eq!(arrivals.wait(7, 2, Duration::ZERO), Ok(2));
        lock(&arrivals.counts).tags.remove(&7);
        assert!(arrivals.add(TAGS_MAX as u64));
        assert!(!arrivals.add(7));
    }

    #[test]
    fn who_waits_is_told_of_the_end() {
        let arrivals = Arrivals::default();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| arrivals.wait(1, 2, Duration::from_secs(60)));
            arrivals.add(1);
            arrivals.close();
            assert_eq!(waits.join().unwrap(), Err(ReceiveError::ShutDown));
        });
        assert_eq!(
            arrivals.wait(1, 1, Duration::ZERO),
            Ok(1),
            "what has come counts"
        );
    }
}
