//! Processes whose end matters, and to whom.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::PeerId;
use polyrail_transport::SessionId;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::timers::{Timer, Timers};
use super::wires::Key;
use crate::process::{Process, Watch};

/// Keys from this on are not sockets but watches on processes.
pub(super) const FIRST_WATCH: Key = 1 << 63;

/// After a thread of a watched process has ended, it is looked at again after this, then after twice as long,
const AGAIN_MIN: Duration = Duration::from_millis(1);

/// and so on up to this.
const AGAIN_MAX: Duration = Duration::from_millis(64);

/// Whose process is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Watched {
    /// That of a peer we have a session with.
    Peer(PeerId),
    /// That of an initiator, by its session.
    Session(SessionId),
}

struct Watching {
    process: Process,
    watch: Watch,
    /// All whose process it is: engines of one process share a watch.
    whose: Vec<Watched>,
    /// When to look again, after a thread has ended and not yet all of them.
    again: Duration,
}

/// All watches of a plane.
pub(super) struct Watches {
    watches: HashMap<Key, Watching>,
    keys: HashMap<Process, Key>,
    next: Key,
}

impl Watches {
    pub(super) fn new() -> Self {
        Self {
            watches: HashMap::new(),
            keys: HashMap::new(),
            next: FIRST_WATCH,
        }
    }

    /// Watches the process that a peer says it is, which is connected from or at `address`. `own` is this process. Why
    /// not, if there is no telling from here: its end shows in its silence only then.
    pub(super) fn add(
        &mut self,
        epoll: &OwnedFd,
        process: Process,
        own: Option<Process>,
        address: IpAddr,
        whose: Watched,
    ) -> Result<Key, String> {
        process.check(own, address).map_err(|why| why.to_string())?;
        if let Some(key) = self.keys.get(&process).copied()
            && let Some(watching) = self.watches.get_mut(&key)
        {
            watching.whose.push(whose);
            return Ok(key);
        }
        let watch = process.watch().map_err(|why| why.to_string())?;
        let key = self.next;
        for fd in watch.descriptors() {
            heed(epoll, fd, key)?;
        }
        self.next += 1;
        self.keys.insert(process, key);
        let watching = Watching {
            process,
            watch,
            whose: vec![whose],
            again: AGAIN_MIN,
        };
        self.watches.insert(key, watching);
        Ok(key)
    }

    /// Whose process has ended, if that of a watch has.
    pub(super) fn ended(
        &mut self,
        epoll: &OwnedFd,
        timers: &mut Timers,
        now: Instant,
        key: Key,
    ) -> Vec<Watched> {
        let Some(watching) = self.watches.get_mut(&key) else {
            return Vec::new();
        };
        if watching.watch.has_ended() {
            return watching.whose.clone();
        }
        // Others may be about to. If not, a thread has merely ended, as threads do, and others are watched in its place.
        if watching.again <= AGAIN_MAX {
            timers.set(Timer::Exited(key), Some(now + watching.again));
            watching.again = watching.again.times(2);
            return Vec::new();
        }
        watching.again = AGAIN_MIN;
        for thread in watching.watch.choose_threads() {
            if let Err(why) = heed(epoll, thread, key) {
                log::debug!("control: a thread is not watched: {why}");
            }
        }
        Vec::new()
    }

    /// Ends a watch for one of those whose process it is; for the last of them it goes.
    pub(super) fn take(&mut self, timers: &mut Timers, key: Key, whose: Watched) {
        let Some(watching) = self.watches.get_mut(&key) else {
            return;
        };
        watching.whose.retain(|other| *other != whose);
        if watching.whose.is_empty() {
            timers.set(Timer::Exited(key), None);
            self.keys.remove(&watching.process);
            // Closing takes it out of the epoll set.
            self.watches.remove(&key);
        }
    }

    /// Ends all watches.
    pub(super) fn clear(&mut self, timers: &mut Timers) {
        for key in self.watches.keys() {
            timers.set(Timer::Exited(*key), None);
        }
        self.watches.clear();
        self.keys.clear();
    }
}

fn heed(epoll: &OwnedFd, fd: BorrowedFd<'_>, key: Key) -> Result<(), String> {
    epoll::add(epoll, fd, EventData::new_u64(key), EventFlags::IN).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time;

    use rustix::buffer::spare_capacity;
    use rustix::event::Timespec;
    use rustix::event::epoll::CreateFlags;

    use super::*;
    use crate::process::tests::{Threads, has_threads};

    /// Waits until so many descriptors are readable; their keys.
    fn keys(epoll: &OwnedFd, count: usize) -> Vec<Key> {
        let mut events = Vec::with_capacity(8);
        let deadline = time::Instant::now() + time::Duration::from_secs(20);
        loop {
            events.clear();
            let longest = Timespec::try_from(time::Duration::from_millis(1)).unwrap();
            epoll::wait(epoll, spare_capacity(&mut events), Some(&longest)).unwrap();
            if events.len() >= count {
                return events.iter().map(|event| event.data.u64()).collect();
            }
            let many = events.len();
            assert!(time::Instant::now() < deadline, "{many} of {count}");
        }
    }

    #[test]
    fn threads_that_are_watched_in_place_of_others_are_heard() {
        if !has_threads() {
            return;
        }
        let mut threads = Threads::start(0, 6);
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let (mut watches, mut timers) = (Watches::new(), Timers::default());
        let whose = Watched::Peer(PeerId(1));
        let (own, here) = (Process::own(), Ipv4Addr::LOCALHOST.into());
        let key = watches.add(&epoll, threads.process, own, here, whose);
        let key = key.unwrap();
        (0..3).for_each(|number| threads.end(number));
        assert_eq!(keys(&epoll, 3), [key; 3]);
        let mut look =
            |watches: &mut Watches| watches.ended(&epoll, &mut timers, Instant::ZERO, key);
        // Others could be about to end. At the last look they are not.
        for _ in 0..8 {
            assert_eq!(look(&mut watches), []);
        }
        assert_eq!(keys(&epoll, 0), []);
        (3..6).for_each(|number| threads.end(number));
        assert_eq!(keys(&epoll, 3), [key; 3]);
        assert_eq!(look(&mut watches), []);
        drop(threads);
        keys(&epoll, 1);
        assert_eq!(look(&mut watches), [whose]);
    }
}
