//! Whether a rail may carry user slices: one packed word, changed by compare-and-swap, so that workers share it.
//!
//! Source: TENT failover document, "RDMA rail recovery", for the states and the two recovery signals. We
//! differ (mode `decay`): a rail is looked at after its first error and pauses if that look is bad or errors go on, probes of a
//! scratch word decide about its return instead of user memory, and the memory of earlier outages decays instead of vanishing.
//! Mode `reset` is the document's.

use core::sync::atomic::Ordering::*;

use crate::sync::AtomicU64;
use crate::time::{Duration, Instant};
use record::{FLAPS_MAX, Record, WRONGS_MAX, WRONGS_UNKNOWN_MAX};

/// Where a rail stands with the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RailState {
    /// Takes slices.
    Healthy,
    /// Takes none; a probe is due at some time.
    Paused,
    /// A worker is probing it with scratch transfers.
    Probing,
}

impl RailState {
    /// The state in one word, as JSON says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Paused => "paused",
            Self::Probing => "probing",
        }
    }
}

/// How a rail is paused and comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HealthMode {
    /// It pauses when it falls silent, fails a look, or errs several times in a row, and comes back after a good probe.
    #[default]
    Decay,
    /// It pauses after several errors, and comes back after a cooldown or a success: the TENT failover document.
    Reset(ResetConfig),
}

/// The document's parameters, under its names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ResetConfig {
    /// Errors within the window that pause the rail. At least 1.
    pub rail_error_threshold: u16,
    /// An error that comes later than this after the one before counts as the first.
    pub rail_error_window: Duration,
    /// First pause. Doubles with every further trip while it lasts, up to 300 s.
    pub rail_cooldown: Duration,
}

impl ResetConfig {
    /// The document's defaults.
    pub const DEFAULT: Self = Self {
        rail_error_threshold: 3,
        rail_error_window: Duration::from_secs(10),
        rail_cooldown: Duration::from_secs(30),
    };
}

/// Longest pause of mode `reset`.
const COOLDOWN_MAX: Duration = Duration::from_secs(300);
/// Shortest time between probes.
const PROBE_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Longest time between probes.
const PROBE_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// Probes come every (time paused / this).
const PROBE_INTERVAL_PART: u64 = 100;
/// A rail to whose peer no other is healthy is looked at again after this.
const LONE_INTERVAL_MIN: Duration = Duration::from_millis(1);
/// The wait that flaps cause is at most (time well since the last return / this), so that caution takes no more of the rail's time.
const CAUTION_PART: u64 = 10;
/// So many errors are an outage, whatever looks say, if each comes sooner after the look before than that took: a rail is to be in
/// use for half of its time.
const ERRORS_MAX: u8 = 3;
/// A rail that stays healthy this long has one outage forgotten.
const FLAP_MEMORY: Duration = Duration::from_secs(10);
/// Doublings of the first wait that lanes can cause that carry nothing: up to 1.28 s, so that no lane is opened more than
/// twenty times in ten seconds for nothing.
const BARREN_DOUBLINGS_MAX: u8 = 7;
/// Doublings of the first wait that flaps can cause.
const FLAP_DOUBLINGS_MAX: u8 = 5;

/// What speaks against a rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incident {
    /// Something failed, and that was said: the rail may be as well as before. A look decides.
    Error,
    /// Nothing comes of what is sent there.
    Silence,
}

/// The health of one rail.
///
/// `Healthy` → (silence) → `Paused` → (probe due, one worker claims it) → `Probing` → (good) → `Healthy`, or
/// (bad) → `Paused` with the next probe later. An error goes the same way, but the probe is due at once, and if it is good the
/// rail was never out. The healthy success path does not come here at all.
#[derive(Debug)]
pub struct RailHealth {
    pub(super) word: AtomicU64,
    /// While paused: when the next probe is due; while one looks into an error: when that was. While healthy: until when an error
    /// counts as one more of those before. In nanoseconds.
    pub(super) probe_at: AtomicU64,
}

impl RailHealth {
    /// A healthy rail.
    pub const fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            probe_at: AtomicU64::new(0),
        }
    }

    /// Forgets everything: the word is another rail's from now on.
    pub(crate) fn reset(&self) {
        self.word.store(0, Release);
        self.probe_at.store(0, Release);
    }

    /// Where it stands.
    pub fn state(&self) -> RailState {
        Record::unpack(self.word.load(Acquire)).state
    }

    /// Whether it takes slices.
    pub fn is_healthy(&self) -> bool {
        self.state() == RailState::Healthy
    }

    /// Something happened that speaks against the rail. `true` if it was healthy until now: the same incident
    /// reported by more workers, or by flushed neighbours, counts once.
    pub fn handle_incident(&self, now: Instant, incident: Incident) -> bool {
        let goes_on = now < Instant::from_nanos(self.probe_at.load(Acquire));
        let changed = self.change(|record| match record.state {
            RailState::Healthy => {
                let errors = if goes_on { record.errors + 1 } else { 1 };
                if incident == Incident::Error && errors < ERRORS_MAX {
                    self.set_probe_at(now);
                    return Some(Record {
                        state: RailState::Paused,
                        errors,
                        worker: 0,
                        ..record
                    });
                }
                Some(self.out(now, record))
            }
            RailState::Paused | RailState::Probing => None,
        });
        changed.is_some()
    }

    /// What is remembered of a rail that is out from now on. When the first probe is due is set.
    fn out(&self, now: Instant, record: Record) -> Record {
        let doublings = record.flaps_left(now).min(FLAP_DOUBLINGS_MAX);
        let caution = now.since(record.since()).divided_by(CAUTION_PART);
        let wait = PROBE_INTERVAL_MIN.times(1 << doublings);
        self.set_probe_at(now + wait.min(caution).max(PROBE_INTERVAL_MIN));
        record.out(now)
    }

    /// Whether a look decides that was caused by an error: if it is good, the rail was never out.
    pub(crate) fn is_doubted(&self) -> bool {
        Record::unpack(self.word.load(Acquire)).is_doubted()
    }

    /// An error in mode `reset`. `true` if it paused the rail.
    pub fn handle_error(&self, now: Instant, config: &ResetConfig) -> bool {
        let since_ms = now.as_nanos() / 1_000_000;
        let changed = self.change(|record| {
            let stale = record.state == RailState::Healthy
                && now.since(record.since()) > config.rail_error_window;
            let errors = if stale {
                1
            } else {
                record.worker.saturating_add(1)
            };
            let trips = errors >= config.rail_error_threshold;
            if trips {
                let cooldown = config
                    .rail_cooldown
                    .times(1 << record.flaps.min(FLAPS_MAX - 1));
                self.set_probe_at(now + cooldown.min(COOLDOWN_MAX));
            }
            Some(Record {
                state: if trips {
                    RailState::Paused
                } else {
                    record.state
                },
                flaps: (record.flaps + u8::from(trips)).min(FLAPS_MAX),
                errors: 0,
                wrongs: 0,
                worker: if trips { 0 } else { errors },
                since_ms,
            })
        });
        changed.is_some_and(|record| record.worker == 0 && record.flaps == 1)
    }

    /// A success in mode `reset`: forgets all errors. `true` if the rail was paused.
    pub fn handle_success(&self) -> bool {
        let record = Record::unpack(self.word.load(Acquire));
        if record.state == RailState::Healthy {
            if record.worker > 0 {
                self.change(|record| (record.state == RailState::Healthy).then_some(Record::FRESH));
            }
            return false;
        }
        self.change(|record| (record.state != RailState::Healthy).then_some(Record::FRESH))
            .is_some()
    }

    /// Ends the cooldown of mode `reset` if it is due, and forgets all errors. `true`: this call did.
    pub fn handle_expiry(&self, now: Instant) -> bool {
        if self.probe_at().is_none_or(|at| now < at) {
            return false;
        }
        self.change(|record| (record.state == RailState::Paused).then_some(Record::FRESH))
            .is_some()
    }

    /// When a probe is due, or the cooldown over, if the rail is paused.
    pub fn probe_at(&self) -> Option<Instant> {
        (self.state() == RailState::Paused)
            .then(|| Instant::from_nanos(self.probe_at.load(Acquire)))
    }

    /// When the error was that is being looked into; later, if the look has been put off.
    pub(crate) fn doubted_at(&self) -> Option<Instant> {
        self.is_doubted()
            .then(|| Instant::from_nanos(self.probe_at.load(Acquire)))
    }

    /// Something speaks for a paused rail: the next probe is due at `at` if it was not before.
    pub(crate) fn hasten_probe(&self, at: Instant) {
        if self.state() == RailState::Paused {
            self.probe_at.fetch_min(at.as_nanos(), AcqRel);
        }
    }

    /// Claims the probe that is due for `worker`. `true` for one worker only. Should it fail, the next one is
    /// due an interval from now.
    pub fn claim_probe(&self, now: Instant, worker: u16) -> bool {
        if self.probe_at().is_none_or(|at| now < at) {
            return false;
        }
        let claimed = self.change(|record| match record.state {
            RailState::Paused => Some(Record {
                state: RailState::Probing,
                worker,
                ..record
            }),
            RailState::Healthy | RailState::Probing => None,
        });
        if claimed.is_some_and(|record| !record.is_doubted()) {
            // Nobody looks at it while the probe is out.
            self.set_probe_at(now + self.probe_interval(now));
        }
        claimed.is_some()
    }

    /// How long a probe may take, and how long until the next one: a hundredth of the time paused so far,
    /// within bounds.
    pub fn probe_interval(&self, now: Instant) -> Duration {
        self.interval(now, PROBE_INTERVAL_MIN)
    }

    /// The same of a rail to whose peer none is healthy, whatever earlier outages say.
    pub(crate) fn lone_interval(&self, now: Instant) -> Duration {
        self.interval(now, LONE_INTERVAL_MIN)
    }

    fn interval(&self, now: Instant, least: Duration) -> Duration {
        self.paused_for(now)
            .divided_by(PROBE_INTERVAL_PART)
            .clamp(least, PROBE_INTERVAL_MAX)
    }

    /// How long it has been paused; [`Duration::ZERO`] while an error is being looked into.
    pub(crate) fn paused_for(&self, now: Instant) -> Duration {
        let record = Record::unpack(self.word.load(Acquire));
        match record.is_doubted() {
            true => Duration::ZERO,
            false => now.since(record.since()),
        }
    }

    /// The probe that `worker` had claimed came back well: re-admits the rail.
    pub fn handle_probe_good(&self, now: Instant, worker: u16) -> bool {
        let took = now.since(Instant::from_nanos(self.probe_at.load(Acquire)));
        self.change(|record| match record.state {
            RailState::Probing if record.worker == worker && record.is_doubted() => {
                // Before the word says `Healthy`: nobody else looks at it until then.
                self.set_probe_at(now + took);
                Some(Record {
                    state: RailState::Healthy,
                    worker: 0,
                    ..record
                })
            }
            RailState::Probing if record.worker == worker => Some(Record {
                state: RailState::Healthy,
                worker: 0,
                since_ms: now.as_nanos() / 1_000_000,
                ..record
            }),
            _ => None,
        })
        .is_some()
    }

    /// The probe that `worker` had claimed failed, or was given up. One that took its whole interval is
    /// followed by the next at once, so a link that returns meanwhile is not missed for another one. After an error, a bad one
    /// means that the rail is out.
    pub fn handle_probe_bad(&self, now: Instant, worker: u16) -> bool {
        self.change(|record| match record.state {
            RailState::Probing if record.worker == worker && record.is_doubted() => {
                Some(self.out(now, record))
            }
            RailState::Probing if record.worker == worker => Some(Record {
                state: RailState::Paused,
                worker: 0,
                ..record
            }),
            _ => None,
        })
        .is_some()
    }

    /// Outages that still count at `now`: one is forgotten for each span of health. A rail with more of them gets its full window
    /// back more slowly.
    pub fn flaps(&self, now: Instant) -> u8 {
        Record::unpack(self.word.load(Acquire)).flaps_left(now)
    }

    /// It was suspected of being silent, and was not: it is given twice as much time from now on, so many times.
    pub(crate) fn handle_wrong_suspicion(&self, doublings: u8) {
        self.give_time(doublings, WRONGS_MAX);
    }

    /// A look at it was not answered in time, and it has never carried anything: it may be farther away than was told.
    pub(crate) fn handle_no_answer(&self) {
        self.give_time(1, WRONGS_UNKNOWN_MAX);
    }

    fn give_time(&self, doublings: u8, most: u8) {
        self.change(|record| {
            let wrongs = (record.wrongs + doublings).min(most);
            (wrongs > record.wrongs).then_some(Record { wrongs, ..record })
        });
    }

    /// How much more time than another one a rail is given before it is suspected: 1, doubled for each wrong suspicion that still
    /// counts at `now`.
    pub fn patience(&self, now: Instant) -> u64 {
        1 << Record::unpack(self.word.load(Acquire)).wrongs_left(now)
    }

    /// A lane over the rail has ended `times` times in a row without carrying anything: the next probe is not due before a wait
    /// that doubles with each.
    pub(crate) fn defer_probe(&self, now: Instant, times: u8) {
        let doublings = times.saturating_sub(1).min(BARREN_DOUBLINGS_MAX);
        if !self.is_healthy() {
            let at = (now + PROBE_INTERVAL_MIN.times(1 << doublings)).as_nanos();
            self.probe_at.fetch_max(at, AcqRel);
        }
    }

    /// Before the word says `Paused`: who sees that must not find the time of an earlier pause, and take it for
    /// over. Two that pause the rail at once may leave the time of either.
    fn set_probe_at(&self, at: Instant) {
        self.probe_at.store(at.as_nanos(), Release);
    }

    /// The only place that writes the word. Gives the new record if there is one.
    fn change(&self, next: impl Fn(Record) -> Option<Record>) -> Option<Record> {
        let mut changed = None;
        let swapped = self.word.fetch_update(AcqRel, Acquire, |word| {
            changed = next(Record::unpack(word));
            changed.map(Record::pack)
        });
        swapped.ok().and(changed)
    }
}

impl Default for RailHealth {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
mod record;
#[cfg(test)]
mod tests;
