//! Room with one worker: the credits that a submission takes and the reports of its requests give back.
//!
//! Who finds too few waits in line (core's `send_queue`), so that no newcomer overtakes, and sleeps in between.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use polyrail_core::send_queue::SendQueueConfig as Core;
use polyrail_core::send_queue::credit::{CreditLimits, Credits, Grant, Refused, Revision};
use polyrail_core::send_queue::diagnostics::Diagnosis;
use polyrail_core::time::Instant;
use polyrail_transport::clock::Clock;

use crate::config::SendQueueConfig;
use crate::lock::lock;
use crate::post::Post;

/// The room of one worker.
pub(crate) struct Room {
    credits: Credits,
    /// Held while somebody looks whether something has changed, and goes to sleep if not.
    gate: Mutex<()>,
    changed: Condvar,
    /// Those who found none, do not sleep here, and are called when something has changed.
    callers: Mutex<Vec<Arc<Post>>>,
    has_callers: AtomicBool,
    /// The longest sleep without a look.
    look: Duration,
}

/// Why there is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoRoom {
    /// Not now, or not in time.
    Full,
    /// The worker takes nothing any more.
    Closed,
}

impl Room {
    /// For so many requests.
    pub(crate) fn new(requests: u16, config: &SendQueueConfig) -> Self {
        let limits = CreditLimits {
            max_works: requests,
            resume_watermark_works: config.admission_resume_watermark_works,
        };
        Self {
            credits: Credits::new(limits),
            gate: Mutex::default(),
            changed: Condvar::new(),
            callers: Mutex::default(),
            has_callers: AtomicBool::new(false),
            look: Core::DEFAULT.admission_wait_slice.into(),
        }
    }

    /// Takes room for a batch, all or nothing, within `patience`. `wait` is called before the first sleep.
    pub(crate) fn take(
        &self,
        clock: &Clock,
        requests: u16,
        patience: Duration,
        wait: impl Fn(),
    ) -> Result<Grant, NoRoom> {
        match self.credits.reserve(requests) {
            Ok(grant) => return Ok(grant),
            Err(Refused::Full { .. }) if !patience.is_zero() => {}
            Err(refused) => return Err(no_room(refused)),
        }
        wait();
        let start = clock.now();
        let deadline = start + patience.into();
        let mut waiter = self.credits.waiter(requests, deadline);
        loop {
            let now = clock.now();
            match waiter.poll(now) {
                Ok(grant) => {
                    // What is left may do for the next in line.
                    self.tell();
                    return Ok(grant);
                }
                Err(Refused::Full { at, .. }) => {
                    let left = Duration::from(deadline.since(now));
                    self.sleep(at.revision, left.min(self.look));
                }
                Err(refused) => {
                    drop(waiter);
                    self.tell();
                    if let Some(why) = Diagnosis::of(now, &self.credits, requests, &refused) {
                        log::warn!("a submission was refused; in requests: {why}");
                    }
                    return Err(no_room(refused));
                }
            }
        }
    }

    /// The worker looks for what has ended.
    pub(crate) fn looked(&self, now: Instant) {
        self.credits.polled(now);
    }

    fn sleep(&self, revision: Revision, longest: Duration) {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        if self.credits.revision() == revision {
            drop(self.changed.wait_timeout(gate, longest));
        }
    }

    /// Wakes who waits: something has changed.
    fn tell(&self) {
        if self.credits.waiting() > 0 {
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
        if self.has_callers.load(SeqCst) && self.has_callers.swap(false, SeqCst) {
            let callers = std::mem::take(&mut *lock(&self.callers));
            callers.iter().for_each(|caller| caller.rouse());
        }
    }

    /// Rouses somebody, once, when something has changed. What came back before that is not told: they look once more.
    pub(crate) fn call(&self, caller: &Arc<Post>) {
        let mut callers = lock(&self.callers);
        if !callers.iter().any(|known| Arc::ptr_eq(known, caller)) {
            callers.push(caller.clone());
        }
        // Who gives back sees that after the change, or whoever calls for it finds what has come back.
        self.has_callers.store(true, SeqCst);
    }

    /// Gives back what [`Self::take`] gave, or a part of it.
    pub(crate) fn give_back(&self, grant: Grant) {
        self.credits.release(grant);
        self.tell();
    }

    /// Nothing is taken any more; who waits is told.
    pub(crate) fn close(&self) {
        self.credits.close();
        self.tell();
    }

    /// Whether all of it is free.
    pub(crate) fn is_free(&self) -> bool {
        self.credits.is_free()
    }
}

fn no_room(refused: Refused) -> NoRoom {
    match refused {
        Refused::Closed => NoRoom::Closed,
        Refused::TooLarge { .. } | Refused::Full { .. } | Refused::TimedOut { .. } => NoRoom::Full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    const LONG: Duration = Duration::from_secs(60);

    fn room(requests: u16) -> Room {
        let config = SendQueueConfig {
            admission_resume_watermark_works: 0,
            ..SendQueueConfig::default()
        };
        Room::new(requests, &config)
    }

    #[test]
    fn who_does_not_fit_is_refused_or_waits() {
        let (room, clock) = (room(4), Clock::start());
        let three = room.take(&clock, 3, LONG, || {}).unwrap();
        assert!(!room.is_free());
        let refused = room.take(&clock, 2, Duration::ZERO, || panic!("it waits"));
        assert_eq!(refused.unwrap_err(), NoRoom::Full);
        let late = room.take(&clock, 2, Duration::from_millis(1), || {});
        assert_eq!(late.unwrap_err(), NoRoom::Full);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                room.take(&clock, 2, LONG, || {})
                    .map(|grant| room.give_back(grant))
            });
            while room.credits.waiting() == 0 {
                std::thread::yield_now();
            }
            // It would fit, but another was first.
            assert_eq!(
                room.take(&clock, 1, Duration::ZERO, || {}).unwrap_err(),
                NoRoom::Full
            );
            room.give_back(three);
            waits.join().unwrap().unwrap();
        });
        assert!(room.is_free());
    }

    #[test]
    fn all_are_served_and_nothing_is_lost() {
        let (room, clock) = (room(5), Clock::start());
        let most = AtomicUsize::new(0);
        let held = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..6_usize {
                let (room, clock, held, most) = (&room, &clock, &held, &most);
                scope.spawn(move || {
                    for round in 0..300 {
                        let want = 1 + (thread + round) % 5;
                        let grant = room.take(clock, want as u16, LONG, || {}).unwrap();
                        most.fetch_max(held.fetch_add(want, SeqCst) + want, SeqCst);
                        held.fetch_sub(want, SeqCst);
                        room.give_back(grant);
                    }
                });
            }
        });
        assert!(room.is_free());
        assert_eq!(most.into_inner(), 5);
    }

    #[test]
    fn who_waits_when_it_closes_is_told() {
        let (room, clock) = (room(1), Clock::start());
        let grant = room.take(&clock, 1, LONG, || {}).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| room.take(&clock, 1, LONG, || {}).map(drop));
            while room.credits.waiting() == 0 {
                std::thread::yield_now();
            }
            room.close();
            assert_eq!(waits.join().unwrap(), Err(NoRoom::Closed));
        });
        room.give_back(grant);
        assert!(room.is_free());
    }
}
