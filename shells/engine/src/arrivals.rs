//! Batches of peers that have arrived here, counted by the tags that they carry.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use polyrail_transport::SessionId;

use crate::engine::Engine;
use crate::error::ReceiveError;
use crate::lock::lock;

/// Tags that are counted at a time.
const TAGS_MAX: usize = 65_536;
/// Of these, tags that one session was the first to tell of, so that no peer takes the room of others.
const SESSION_TAGS_MAX: usize = 4_096;

/// How many batches have arrived with each tag.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    tags: HashMap<u64, Tag>,
    /// How many of them each session has brought.
    sessions: HashMap<SessionId, usize>,
    /// None will come any more.
    closed: bool,
}

#[derive(Debug)]
struct Tag {
    count: u64,
    /// Whose share it is of.
    from: SessionId,
}

impl Counts {
    fn add(&mut self, from: SessionId, tag: u64) -> bool {
        if let Some(known) = self.tags.get_mut(&tag) {
            known.count += 1;
            return true;
        }
        let own = self.sessions.get(&from).copied().unwrap_or_default();
        let room = self.tags.len() < TAGS_MAX && own < SESSION_TAGS_MAX;
        if room {
            self.tags.insert(tag, Tag { count: 1, from });
            self.sessions.insert(from, own + 1);
        }
        room
    }

    fn get(&self, tag: u64) -> u64 {
        self.tags.get(&tag).map_or(0, |tag| tag.count)
    }

    fn forget(&mut self, tag: u64) -> u64 {
        let Some(Tag { count, from }) = self.tags.remove(&tag) else {
            return 0;
        };
        if let Some(own) = self.sessions.get_mut(&from) {
            *own -= 1;
            if *own == 0 {
                self.sessions.remove(&from);
            }
        }
        count
    }
}

impl Arrivals {
    /// A batch of a session has arrived; `false`: there is no room for another tag.
    pub(crate) fn add(&self, from: SessionId, tag: u64) -> bool {
        if !lock(&self.counts).add(from, tag) {
            return false;
        }
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
            let seen = counts.get(tag);
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
        lock(&self.inner.mail.desk.inbox.arrivals.counts).get(tag)
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

    /// Forgets a tag: how many batches had arrived with it. 65,536 are counted at a time, of which each session may have been the
    /// first to tell of 4,096; with more, those who tell of another are held up, as by notifications that nobody takes.
    pub fn forget_arrivals(&self, tag: u64) -> u64 {
        if !self.inner.is_ours() {
            return 0;
        }
        lock(&self.inner.mail.desk.inbox.arrivals.counts).forget(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64) -> SessionId {
        SessionId(u128::from(number).to_le_bytes())
    }

    #[test]
    fn a_table_that_is_full_goes_on_counting_what_it_knows() {
        let arrivals = Arrivals::default();
        let of = |tag: u64| session(tag / SESSION_TAGS_MAX as u64);
        assert!((0..TAGS_MAX as u64).all(|tag| arrivals.add(of(tag), tag)));
        assert!(!arrivals.add(session(1000), TAGS_MAX as u64));
        assert!(arrivals.add(session(1000), 7));
        assert_eq!(arrivals.wait(7, 2, Duration::ZERO), Ok(2));
        lock(&arrivals.counts).forget(7);
        assert!(arrivals.add(session(1000), TAGS_MAX as u64));
        assert!(!arrivals.add(session(1001), 7));
    }

    #[test]
    fn a_session_that_fills_its_share_leaves_room_for_others() {
        let arrivals = Arrivals::default();
        let share = SESSION_TAGS_MAX as u64;
        assert!((0..share).all(|tag| arrivals.add(session(1), tag)));
        assert!(!arrivals.add(session(1), share), "its share is full");
        assert!(arrivals.add(session(2), share));
        // What others have brought costs it nothing.
        assert!(arrivals.add(session(1), share));
        assert_eq!(lock(&arrivals.counts).forget(3), 1);
        assert!(arrivals.add(session(1), share + 1));
        (0..share + 2).for_each(|tag| {
            lock(&arrivals.counts).forget(tag);
        });
        assert!(lock(&arrivals.counts).sessions.is_empty());
    }

    #[test]
    fn who_waits_is_told_of_the_end() {
        let arrivals = Arrivals::default();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| arrivals.wait(1, 2, Duration::from_secs(60)));
            arrivals.add(session(1), 1);
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
