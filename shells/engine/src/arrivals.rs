//! Batches of peers that have arrived here, counted by the tags that they carry.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use polyrail_transport::SessionId;
use polyrail_transport::tally::Tally;
use rustix::event::{EventfdFlags, eventfd};

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
    sessions: Tally<SessionId>,
    /// None will come any more.
    closed: bool,
    watches: Vec<Watch>,
}

/// Somebody's descriptor, to be made readable.
#[derive(Debug)]
struct Watch {
    tag: u64,
    count: u64,
    /// Gone: nobody looks at it any more.
    ready: Weak<OwnedFd>,
}

/// Makes it readable.
fn raise(ready: &OwnedFd) {
    // Cannot fail: that is done once.
    let _ = rustix::io::write(ready, &1_u64.to_ne_bytes());
}

/// A descriptor ([`AsFd`]) that is readable from when so many batches have arrived with a tag, or none will come any more: see
/// [`Engine::watch_arrivals`]. Only to be looked at.
#[derive(Debug)]
pub struct ArrivalWatch {
    ready: Arc<OwnedFd>,
}

impl AsFd for ArrivalWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
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
        let own = self.sessions.of(&from);
        let room = self.tags.len() < TAGS_MAX && own < SESSION_TAGS_MAX;
        if room {
            self.tags.insert(tag, Tag { count: 1, from });
            self.sessions.add(from, 1);
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
        self.sessions.take(&from, 1);
        count
    }

    /// Tells those watches whose time has come, of this tag or of all, and forgets them and those that have gone.
    fn tell(&mut self, tag: Option<u64>) {
        let Self {
            tags,
            closed,
            watches,
            ..
        } = self;
        watches.retain(|watch| {
            let Some(ready) = watch.ready.upgrade() else {
                return false;
            };
            if tag.is_some_and(|tag| tag != watch.tag) {
                return true;
            }
            let seen = tags.get(&watch.tag).map_or(0, |tag| tag.count);
            let is_due = *closed || seen >= watch.count;
            if is_due {
                raise(&ready);
            }
            !is_due
        });
    }
}

impl Arrivals {
    /// A batch of a session has arrived; `false`: there is no room for another tag.
    pub(crate) fn add(&self, from: SessionId, tag: u64) -> bool {
        let mut counts = lock(&self.counts);
        if !counts.add(from, tag) {
            return false;
        }
        counts.tell(Some(tag));
        drop(counts);
        self.changed.notify_all();
        true
    }

    /// Nothing will come any more.
    pub(crate) fn close(&self) {
        let mut counts = lock(&self.counts);
        counts.closed = true;
        counts.tell(None);
        drop(counts);
        self.changed.notify_all();
    }

    fn watch(&self, tag: u64, count: u64, ready: &Arc<OwnedFd>) {
        let mut counts = lock(&self.counts);
        counts.watches.push(Watch {
            tag,
            count,
            ready: Arc::downgrade(ready),
        });
        counts.tell(None);
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
    ///
    /// Example: [guide](crate::guide#telling-the-peers-program).
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

    /// For an event loop: what is readable once [`Self::wait_arrivals`] would not wait, and stays so. It takes one descriptor
    /// until it is dropped. In a forked child: readable at once.
    ///
    /// Example: [guide](crate::guide#telling-the-peers-program).
    pub fn watch_arrivals(&self, tag: u64, count: u64) -> io::Result<ArrivalWatch> {
        let ready = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        match self.inner.is_ours() {
            true => {
                let inbox = &self.inner.mail.desk.inbox;
                inbox.arrivals.watch(tag, count, &ready);
            }
            false => raise(&ready),
        }
        Ok(ArrivalWatch { ready })
    }

    /// Forgets a tag: how many batches had arrived with it. 65,536 are counted at a time, of which each session may have been the
    /// first to tell of 4,096; with more, those who tell of another are held up, as by notifications that nobody takes.
    ///
    /// Example: [guide](crate::guide#telling-the-peers-program).
    pub fn forget_arrivals(&self, tag: u64) -> u64 {
        if !self.inner.is_ours() {
            return 0;
        }
        lock(&self.inner.mail.desk.inbox.arrivals.counts).forget(tag)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn watch(arrivals: &Arrivals, tag: u64, count: u64) -> Arc<OwnedFd> {
        let ready = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        arrivals.watch(tag, count, &ready);
        ready
    }

    fn is_readable(ready: &OwnedFd) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(ready, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn a_watch_is_readable_from_when_its_count_is_reached_on() {
        let arrivals = Arrivals::default();
        let (two, other, gone) = (
            watch(&arrivals, 7, 2),
            watch(&arrivals, 8, 1),
            watch(&arrivals, 7, 9),
        );
        arrivals.add(session(1), 7);
        assert!(!is_readable(&two) && !is_readable(&other));
        drop(gone);
        arrivals.add(session(1), 7);
        assert!(is_readable(&two) && !is_readable(&other));
        assert!(is_readable(&watch(&arrivals, 7, 1)), "it has been already");
        lock(&arrivals.counts).forget(7);
        assert!(is_readable(&two), "it stays so");
        assert_eq!(
            lock(&arrivals.counts).watches.len(),
            1,
            "who is told or gone is forgotten"
        );
        arrivals.close();
        assert!(
            is_readable(&other) && is_readable(&watch(&arrivals, 9, 1)),
            "none will come"
        );
    }

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
