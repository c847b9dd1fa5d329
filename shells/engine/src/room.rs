//! Room with one worker: the credits that a submission takes and the reports of its requests give back.
//!
//! Who finds too few waits in line (core's `send_queue`), so that no newcomer overtakes, and sleeps in between.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use polyrail_core::send_queue::SendQueueConfig as Core;
use polyrail_core::send_queue::credit::{CreditLimits, Credits, Grant, Refused, Revision};
use polyrail_core::time::Instant;
use polyrail_transport::clock::Clock;

use crate::config::{LimitsConfig, SendQueueConfig};
use crate::lock::lock;
use crate::post::{Post, Pulse};
use crate::stats::{Backlog, WorkerLoad};
use crate::wakers::WakerThread;

/// So long nobody has to wait before it is said that submissions are taken again: at most two lines a second.
const QUIET: Duration = Duration::from_secs(1);

/// How much of room for so many requests is free when who waits goes on: the part that is configured. With the number itself
/// little room would have to be empty, and a large batch, which keeps a quarter to its end, would hold up all who wait.
fn watermark(requests: u16, config: &SendQueueConfig) -> u16 {
    let configured = usize::from(config.admission_resume_watermark_works);
    let part = configured * usize::from(requests) / LimitsConfig::REQUESTS;
    part.min(requests.into()) as u16
}

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
    counts: Counts,
    /// While submissions are held back, or have been lately.
    holding: Mutex<Option<Holding>>,
    is_holding: AtomicBool,
    pulse: Arc<Pulse>,
    waker_thread: Arc<WakerThread>,
}

/// What has happened here, for people, beside what the credits count.
#[derive(Default)]
struct Counts {
    /// When somebody first found no room; nanoseconds, 0: whoever asked last found some.
    full_since: AtomicU64,
    /// Requests whose room came back while somebody waited.
    ended: AtomicU64,
}

/// A time in which submissions are held back.
#[derive(Clone, Copy)]
struct Holding {
    since: Instant,
    /// When the last one stopped waiting.
    until: Instant,
    waits_before: u32,
    timeouts_before: u32,
}

/// Why there is no room.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoRoom {
    /// Not now, or not in time.
    Full(Box<Backlog>),
    /// The worker takes nothing any more.
    Closed,
}

impl Room {
    /// For so many requests.
    pub(crate) fn new(
        requests: u16,
        config: &SendQueueConfig,
        pulse: Arc<Pulse>,
        waker_thread: Arc<WakerThread>,
    ) -> Self {
        let limits = CreditLimits {
            max_works: requests,
            resume_watermark_works: watermark(requests, config),
        };
        Self {
            credits: Credits::new(limits),
            gate: Mutex::default(),
            changed: Condvar::new(),
            callers: Mutex::default(),
            has_callers: AtomicBool::new(false),
            look: Core::DEFAULT.admission_wait_slice.into(),
            counts: Counts::default(),
            holding: Mutex::default(),
            is_holding: AtomicBool::new(false),
            pulse,
            waker_thread,
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
            Ok(grant) => {
                self.found();
                return Ok(grant);
            }
            Err(Refused::Full { .. }) => self.not_found(clock.now()),
            Err(refused) => return Err(self.no_room(refused, requests, Duration::ZERO, 0)),
        }
        if patience.is_zero() {
            return Err(NoRoom::Full(self.backlog(requests, patience, 0)));
        }
        wait();
        self.holds_back(clock.now());
        let answer = self.wait(clock, requests, patience);
        self.held_back(clock.now(), &answer);
        answer
    }

    /// Waits in line for room.
    fn wait(&self, clock: &Clock, requests: u16, patience: Duration) -> Result<Grant, NoRoom> {
        let start = clock.now();
        let deadline = start + patience.into();
        let ended = self.counts.ended.load(Relaxed);
        let mut waiter = self.credits.waiter(requests, deadline);
        let answer = loop {
            let now = clock.now();
            match waiter.poll(now) {
                Ok(grant) => break Ok(grant),
                Err(Refused::Full { at, .. }) => {
                    let left = Duration::from(deadline.since(now));
                    self.sleep(at.revision, left.min(self.look));
                }
                Err(refused) => break Err(refused),
            }
        };
        drop(waiter);
        // What is left may do for the next in line.
        self.tell();
        let waited = Duration::from(clock.now().since(start));
        if let Ok(grant) = answer {
            self.found();
            return Ok(grant);
        }
        let ended = self.counts.ended.load(Relaxed).saturating_sub(ended);
        answer.map_err(|refused| self.no_room(refused, requests, waited, ended))
    }

    fn no_room(&self, refused: Refused, requests: u16, waited: Duration, ended: u64) -> NoRoom {
        match refused {
            Refused::Closed => NoRoom::Closed,
            Refused::TimedOut { .. } => {
                let backlog = self.backlog(requests, waited, ended);
                // The program hears of it by the answer, and may wait in many short turns.
                log::debug!("{backlog}");
                NoRoom::Full(backlog)
            }
            Refused::TooLarge { .. } | Refused::Full { .. } => {
                NoRoom::Full(self.backlog(requests, waited, ended))
            }
        }
    }

    fn backlog(&self, asked: u16, waited: Duration, ended: u64) -> Box<Backlog> {
        Box::new(Backlog {
            load: self.load(),
            asked,
            waited,
            ended,
        })
    }

    /// How it stands, and its worker.
    pub(crate) fn load(&self) -> WorkerLoad {
        let (now, at) = (self.pulse.now(), self.credits.snapshot());
        let full_since = self.counts.full_since.load(Relaxed);
        let full_for = now.since(Instant::from_nanos(full_since));
        let (held, counted) = (u32::from(at.held_works), self.credits.counters().report());
        WorkerLoad {
            held,
            limit: at.max_works.into(),
            held_high: counted.held_works_high.max(held),
            waiting: self.credits.waiting() as u32,
            full_for: (full_since > 0).then(|| full_for.into()),
            admission_waits: counted.waits.into(),
            admission_waited: counted.waited.into(),
            admission_timeouts: counted.timeouts.into(),
            ..self.pulse.load(now)
        }
    }

    /// Somebody has found room.
    fn found(&self) {
        if self.counts.full_since.load(Relaxed) != 0 && self.credits.waiting() == 0 {
            self.counts.full_since.store(0, Relaxed);
        }
        if self.is_holding.load(Relaxed) {
            self.stop_holding(false);
        }
    }

    /// Somebody has found none.
    fn not_found(&self, now: Instant) {
        let since = &self.counts.full_since;
        // Another may have been first.
        let _ = since.compare_exchange(0, now.as_nanos().max(1), Relaxed, Relaxed);
    }

    /// Somebody is going to wait. The first one is told of.
    fn holds_back(&self, now: Instant) {
        let mut holding = lock(&self.holding);
        if holding.is_some() {
            return;
        }
        let counted = self.credits.counters().report();
        *holding = Some(Holding {
            since: now,
            until: Instant::MAX,
            waits_before: counted.waits,
            timeouts_before: counted.timeouts,
        });
        self.is_holding.store(true, Relaxed);
        drop(holding);
        log::warn!(
            "submissions are held back: {} (limits/requests)",
            self.load()
        );
    }

    /// Somebody has waited.
    fn held_back(&self, now: Instant, answer: &Result<Grant, NoRoom>) {
        if let Some(holding) = &mut *lock(&self.holding) {
            holding.until = now;
        }
        if matches!(answer, Err(NoRoom::Closed)) {
            self.stop_holding(true);
        }
    }

    /// Submissions are taken again, if nobody waits, nor has for a while, or all room is free.
    #[cold]
    fn stop_holding(&self, at_once: bool) {
        if self.credits.waiting() > 0 {
            return;
        }
        let now = self.pulse.now();
        let mut holding = lock(&self.holding);
        let is_over = |held: &Holding| {
            held.until != Instant::MAX && (at_once || now.since(held.until) >= QUIET.into())
        };
        let Some(over) = holding.filter(is_over) else {
            return;
        };
        *holding = None;
        self.is_holding.store(false, Relaxed);
        drop(holding);
        let counted = self.credits.counters().report();
        log::warn!(
            "submissions are taken again after {:?}: {} waits for room, {} in vain; {}",
            Duration::from(over.until.since(over.since)),
            counted.waits.wrapping_sub(over.waits_before),
            counted.timeouts.wrapping_sub(over.timeouts_before),
            self.load(),
        );
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
        self.waker_thread.room_came();
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
        let works = grant.works();
        if works == 0 {
            return;
        }
        self.credits.release(grant);
        if self.credits.waiting() > 0 {
            self.counts.ended.fetch_add(works.into(), Relaxed);
        }
        self.tell();
        if self.is_holding.load(Relaxed) && self.credits.is_free() {
            self.stop_holding(true);
        }
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
        Room::new(
            requests,
            &config,
            Arc::new(Pulse::new(Some(0), Clock::start())),
            Arc::default(),
        )
    }

    #[test]
    fn who_does_not_fit_is_refused_or_waits() {
        let (room, clock) = (room(4), Clock::start());
        let three = room.take(&clock, 3, LONG, || {}).unwrap();
        assert!(!room.is_free());
        let refused = room.take(&clock, 2, Duration::ZERO, || panic!("it waits"));
        let NoRoom::Full(backlog) = refused.unwrap_err() else {
            panic!("it is open");
        };
        assert_eq!((backlog.load.held, backlog.load.limit), (3, 4));
        assert!(backlog.load.full_for.is_some());
        let late = room.take(&clock, 2, Duration::from_millis(1), || {});
        assert!(matches!(late, Err(NoRoom::Full(late)) if late.load.admission_timeouts == 1));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                room.take(&clock, 2, LONG, || {})
                    .map(|grant| room.give_back(grant))
            });
            while room.credits.waiting() == 0 {
                std::thread::yield_now();
            }
            // It would fit, but another was first.
            let next = room.take(&clock, 1, Duration::ZERO, || {});
            assert!(matches!(next, Err(NoRoom::Full(next)) if next.load.waiting == 1));
            room.give_back(three);
            waits.join().unwrap().unwrap();
        });
        assert!(room.is_free());
    }

    #[test]
    fn who_waits_goes_on_at_the_same_part_of_any_room() {
        // (requests, configured, of that room)
        let cases = [
            (16_384, 2_048, 2_048),
            (16_384, 16_384, 16_384),
            (64, 2_048, 8),
            (256, 16_384, 256),
            (32_704, 2_048, 4_088),
            (64, 100, 0),
            (64, u16::MAX, 64),
        ];
        for (requests, configured, expected) in cases {
            let config = SendQueueConfig {
                admission_resume_watermark_works: configured,
                ..SendQueueConfig::default()
            };
            let name = format!("{configured} of {requests}");
            assert_eq!(watermark(requests, &config), expected, "{name}");
        }
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
