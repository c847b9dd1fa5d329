//! Whether a rail may carry user slices: one packed word, changed by compare-and-swap, so that workers share it.
//!
//! Source: TENT failover document, "RDMA rail recovery", for the states and the two recovery signals. We
//! differ (mode `decay`): a rail pauses at its first incident, probes of a scratch word decide about its
//! return instead of user memory, and the memory of earlier incidents decays instead of vanishing. Mode `reset`
//! is the document's.

use core::sync::atomic::Ordering::*;

use crate::sync::AtomicU64;
use crate::time::{Duration, Instant};

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
    /// It pauses at its first incident, and comes back after a good probe.
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
/// A rail that stays healthy this long has one incident forgotten.
const FLAP_MEMORY: Duration = Duration::from_secs(10);
/// Incidents remembered.
const FLAPS_MAX: u8 = 15;
/// Doublings of the first wait that lanes can cause that carry nothing: up to 1.28 s, so that no lane is opened more than
/// twenty times in ten seconds for nothing.
const BARREN_DOUBLINGS_MAX: u8 = 7;
/// Doublings of the first wait that flaps can cause.
const FLAP_DOUBLINGS_MAX: u8 = 5;

/// The word's content: when the state began, and what led to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    state: RailState,
    /// Incidents remembered. Mode `reset`: trips.
    flaps: u8,
    /// While probing: by whom. Mode `reset`: errors counted towards the next trip.
    worker: u16,
    /// Healthy: since the return. Paused and probing: since the incident. Mode `reset`: of the last error.
    /// Milliseconds, 40 bits.
    since_ms: u64,
}

const SINCE_BITS: u32 = 40;

impl Record {
    /// Of a rail that nothing has ever happened to.
    const FRESH: Self = Self {
        state: RailState::Healthy,
        flaps: 0,
        worker: 0,
        since_ms: 0,
    };

    const fn pack(self) -> u64 {
        let state = match self.state {
            RailState::Healthy => 0,
            RailState::Paused => 1,
            RailState::Probing => 2,
        };
        state << 62
            | (self.flaps as u64) << 56
            | (self.worker as u64) << SINCE_BITS
            | self.since_ms & ((1 << SINCE_BITS) - 1)
    }

    const fn unpack(word: u64) -> Self {
        let state = match word >> 62 {
            0 => RailState::Healthy,
            1 => RailState::Paused,
            _ => RailState::Probing,
        };
        Self {
            state,
            flaps: (word >> 56 & 0x3f) as u8,
            worker: (word >> SINCE_BITS) as u16,
            since_ms: word & ((1 << SINCE_BITS) - 1),
        }
    }

    const fn since(self) -> Instant {
        Instant::from_nanos(self.since_ms * 1_000_000)
    }

    /// How many of the remembered incidents still count after a healthy time.
    const fn flaps_left(self, now: Instant) -> u8 {
        let forgotten = now.since(self.since()).as_nanos() / FLAP_MEMORY.as_nanos();
        if forgotten >= self.flaps as u64 {
            0
        } else {
            self.flaps - forgotten as u8
        }
    }
}

/// The health of one rail.
///
/// `Healthy` → (incident) → `Paused` → (probe due, one worker claims it) → `Probing` → (good) → `Healthy`, or
/// (bad) → `Paused` with the next probe later. The healthy success path does not come here at all.
#[derive(Debug)]
pub struct RailHealth {
    word: AtomicU64,
    /// When the next probe is due, in nanoseconds. Only meaningful while paused.
    probe_at: AtomicU64,
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
    pub fn handle_incident(&self, now: Instant) -> bool {
        let changed = self.change(|record| match record.state {
            RailState::Healthy => {
                let flaps = record.flaps_left(now);
                let wait = PROBE_INTERVAL_MIN.times(1 << flaps.min(FLAP_DOUBLINGS_MAX));
                self.set_probe_at(now + wait);
                Some(Record {
                    state: RailState::Paused,
                    flaps: (flaps + 1).min(FLAPS_MAX),
                    worker: 0,
                    since_ms: now.as_nanos() / 1_000_000,
                })
            }
            RailState::Paused | RailState::Probing => None,
        });
        changed.is_some()
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

    /// Something speaks for a paused rail: the next probe is due at once.
    pub(crate) fn hasten_probe(&self, now: Instant) {
        if self.state() == RailState::Paused {
            self.set_probe_at(now);
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
        if claimed.is_some() {
            // Nobody looks at it while the probe is out.
            self.set_probe_at(now + self.probe_interval(now));
        }
        claimed.is_some()
    }

    /// How long a probe may take, and how long until the next one: a hundredth of the time paused so far,
    /// within bounds.
    pub fn probe_interval(&self, now: Instant) -> Duration {
        let record = Record::unpack(self.word.load(Acquire));
        now.since(record.since())
            .divided_by(PROBE_INTERVAL_PART)
            .clamp(PROBE_INTERVAL_MIN, PROBE_INTERVAL_MAX)
    }

    /// The probe that `worker` had claimed came back well: re-admits the rail.
    pub fn handle_probe_good(&self, now: Instant, worker: u16) -> bool {
        self.change(|record| match record.state {
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
    /// followed by the next at once, so a link that returns meanwhile is not missed for another one.
    pub fn handle_probe_bad(&self, worker: u16) -> bool {
        self.change(|record| match record.state {
            RailState::Probing if record.worker == worker => Some(Record {
                state: RailState::Paused,
                worker: 0,
                ..record
            }),
            _ => None,
        })
        .is_some()
    }

    /// Incidents that still count at `now`: one is forgotten for each span of health. A rail with more of them gets its full window
    /// back more slowly, and is given more time before it is suspected.
    pub fn flaps(&self, now: Instant) -> u8 {
        let record = Record::unpack(self.word.load(Acquire));
        match record.state {
            RailState::Healthy => record.flaps_left(now),
            RailState::Paused | RailState::Probing => record.flaps,
        }
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

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use RailState::{Healthy, Paused, Probing};
    use quickcheck::quickcheck;
    use std::vec::Vec;

    fn ms(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Incident,
        Claim(u16),
        Good(u16),
        Bad(u16),
    }
    use Event::*;

    /// A rail brought to a state at t = 0; a probe is due from 10 ms on.
    fn rail(state: RailState) -> RailHealth {
        let health = RailHealth::new();
        if state != Healthy {
            assert!(health.handle_incident(ms(0)));
        }
        if state == Probing {
            assert!(health.claim_probe(ms(10), 1));
        }
        health
    }

    #[test]
    fn every_state_answers_every_event() {
        // (name, state before, event, at ms, whether it changed something, state after)
        let cases = [
            ("first incident pauses", Healthy, Incident, 5, true, Paused),
            ("nothing to claim", Healthy, Claim(1), 50, false, Healthy),
            ("late good probe", Healthy, Good(1), 50, false, Healthy),
            ("late bad probe", Healthy, Bad(1), 50, false, Healthy),
            (
                "an incident counts once",
                Paused,
                Incident,
                5,
                false,
                Paused,
            ),
            ("not due yet", Paused, Claim(1), 9, false, Paused),
            ("due", Paused, Claim(1), 10, true, Probing),
            ("a probe nobody claimed", Paused, Good(1), 50, false, Paused),
            (
                "a failure nobody claimed",
                Paused,
                Bad(1),
                50,
                false,
                Paused,
            ),
            (
                "incident while probing",
                Probing,
                Incident,
                50,
                false,
                Probing,
            ),
            ("one worker probes", Probing, Claim(2), 50, false, Probing),
            ("good probe re-admits", Probing, Good(1), 50, true, Healthy),
            (
                "good probe of a stranger",
                Probing,
                Good(2),
                50,
                false,
                Probing,
            ),
            ("bad probe pauses again", Probing, Bad(1), 50, true, Paused),
            (
                "bad probe of a stranger",
                Probing,
                Bad(2),
                50,
                false,
                Probing,
            ),
        ];
        for (name, before, event, at, changed, after) in cases {
            let health = rail(before);
            let did = match event {
                Incident => health.handle_incident(ms(at)),
                Claim(worker) => health.claim_probe(ms(at), worker),
                Good(worker) => health.handle_probe_good(ms(at), worker),
                Bad(worker) => health.handle_probe_bad(worker),
            };
            assert_eq!((did, health.state()), (changed, after), "{name}");
        }
    }

    #[test]
    fn probes_come_less_often_the_longer_the_pause() {
        let health = rail(Paused);
        // (paused for ms, interval in ms)
        for (paused, interval) in [
            (0, 10),
            (900, 10),
            (10_000, 100),
            (50_000, 500),
            (3_600_000, 500),
        ] {
            assert_eq!(
                health.probe_interval(ms(paused)),
                Duration::from_millis(interval),
                "{paused}"
            );
        }
    }

    #[test]
    fn a_failed_probe_is_followed_an_interval_after_it_was_claimed() {
        let health = rail(Paused);
        let claimed = ms(10_000);
        assert!(health.claim_probe(claimed, 1) && health.handle_probe_bad(1));
        assert_eq!(
            health.probe_at(),
            Some(claimed + Duration::from_millis(100))
        );
    }

    #[test]
    fn flaps_delay_the_first_probe_and_are_forgotten_one_by_one() {
        let health = RailHealth::new();
        let mut now = ms(0);
        for wait in [10, 20, 40, 80, 160, 320, 320] {
            assert!(health.handle_incident(now));
            let due = now + Duration::from_millis(wait);
            assert_eq!(health.probe_at(), Some(due));
            assert!(health.claim_probe(due, 1) && health.handle_probe_good(due, 1));
            now = due;
        }
        // Healthy for five spans: five of seven incidents are forgotten, the next is the third.
        now = now + FLAP_MEMORY.times(5);
        assert!(health.handle_incident(now));
        assert_eq!(
            (health.flaps(now), health.probe_at()),
            (3, Some(now + Duration::from_millis(40)))
        );
    }

    #[test]
    fn reset_mode_follows_the_document() {
        let config = ResetConfig::DEFAULT;
        let secs = |secs: u64| ms(secs * 1000);
        let health = RailHealth::new();
        // Two errors and a success: nothing is remembered.
        assert!(!health.handle_error(secs(20), &config));
        assert!(!health.handle_error(secs(21), &config));
        assert!(!health.handle_success());
        // Two, and one that comes too late: it is the first again.
        for at in [30, 31, 42] {
            assert!(!health.handle_error(secs(at), &config), "{at}");
        }
        assert!(!health.handle_error(secs(43), &config));
        assert!(
            health.handle_error(secs(44), &config),
            "three within ten seconds"
        );
        assert_eq!(health.state(), Paused);
        assert_eq!(health.probe_at(), Some(secs(74)), "from the trip");
        // What was posted before goes on failing: a second trip doubles the pause, and so on up to the cap.
        for (trip, resume_at) in [(2, 44 + 60), (3, 44 + 120), (4, 44 + 240), (5, 44 + 300)] {
            for _ in 0..3 {
                assert!(
                    !health.handle_error(secs(44), &config),
                    "it was paused before"
                );
            }
            assert_eq!(health.probe_at(), Some(secs(resume_at)), "trip {trip}");
        }
        assert!(!health.handle_expiry(secs(343)));
        assert!(health.handle_expiry(secs(344)) && !health.handle_expiry(secs(344)));
        assert_eq!(health.state(), Healthy);
        // All is forgotten, so the next trip pauses for the first time again.
        for at in [350, 351] {
            assert!(!health.handle_error(secs(at), &config));
        }
        assert!(health.handle_error(secs(352), &config));
        assert_eq!(health.probe_at(), Some(secs(382)));
        assert!(health.handle_success(), "any success un-pauses");
        assert_eq!(health.state(), Healthy);
    }

    #[test]
    fn the_word_holds_what_goes_in() {
        let record = Record {
            state: Probing,
            flaps: FLAPS_MAX,
            worker: u16::MAX,
            since_ms: (1 << 40) - 1,
        };
        assert_eq!(Record::unpack(record.pack()), record);
    }

    quickcheck! {
        fn any_record_survives_its_word(state: u8, flaps: u8, worker: u16, since: u64) -> bool {
            let record = Record {
                state: [Healthy, Paused, Probing][usize::from(state % 3)],
                flaps: flaps % 64,
                worker,
                since_ms: since >> 24,
            };
            Record::unpack(record.pack()) == record
        }

        fn only_who_claimed_a_probe_when_it_was_due_readmits(steps: Vec<(u8, u8, u16)>) -> bool {
            let health = RailHealth::new();
            // What a plain account of the same events says: the state, who probes, when the next one is due.
            let (mut state, mut prober, mut now) = (Healthy, 0, ms(1));
            steps.into_iter().all(|(event, worker, later)| {
                now = now + Duration::from_millis(u64::from(later));
                let worker = u16::from(worker % 3);
                let due = health.probe_at().is_some_and(|at| at <= now);
                let (did, expected) = match event % 4 {
                    0 => (health.handle_incident(now), state == Healthy),
                    1 => (health.claim_probe(now, worker), state == Paused && due),
                    2 => (health.handle_probe_good(now, worker), state == Probing && prober == worker),
                    _ => (health.handle_probe_bad(worker), state == Probing && prober == worker),
                };
                if did {
                    state = [Paused, Probing, Healthy, Paused][usize::from(event % 4)];
                    prober = worker;
                }
                let first_wait = event % 4 != 0 || !did || health.probe_at() >= Some(now + PROBE_INTERVAL_MIN);
                did == expected && health.state() == state && health.flaps(now) <= FLAPS_MAX && first_wait
            })
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    extern crate std;
    use super::*;
    use loom::thread;
    use std::sync::Arc;
    use std::vec::Vec;

    const RESET: ResetConfig = ResetConfig {
        rail_error_threshold: 1,
        ..ResetConfig::DEFAULT
    };

    fn ms(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// What three workers answer that do so at once, this thread being one of them.
    fn three(
        health: RailHealth,
        call: fn(&RailHealth, u16) -> bool,
    ) -> (Arc<RailHealth>, Vec<bool>) {
        let health = Arc::new(health);
        let start = |worker| {
            let health = Arc::clone(&health);
            thread::spawn(move || call(&health, worker))
        };
        let others = [start(1), start(2)];
        let own = call(&health, 0);
        let mut answers: Vec<bool> = others.map(|other| other.join().unwrap()).into();
        answers.push(own);
        (health, answers)
    }

    fn healthy() -> RailHealth {
        let health = RailHealth::new();
        health.reset();
        health
    }

    fn paused() -> RailHealth {
        let health = healthy();
        assert!(health.handle_incident(ms(0)));
        health
    }

    fn count(answers: &[bool]) -> usize {
        answers.iter().filter(|answer| **answer).count()
    }

    #[test]
    fn an_incident_that_all_workers_report_counts_once() {
        loom::model(|| {
            let (health, answers) = three(healthy(), |health, _| health.handle_incident(ms(5)));
            assert_eq!(count(&answers), 1);
            assert_eq!(
                (health.state(), health.flaps(ms(5))),
                (RailState::Paused, 1)
            );
        });
    }

    #[test]
    fn one_worker_claims_a_probe_and_only_it_decides() {
        loom::model(|| {
            let (health, answers) = three(paused(), |health, worker| {
                let claimed = health.claim_probe(ms(10), worker);
                assert!(claimed || !health.handle_probe_good(ms(11), worker));
                claimed
            });
            assert_eq!(count(&answers), 1);
            assert_eq!(health.state(), RailState::Probing);
        });
    }

    #[test]
    fn no_error_of_several_workers_is_lost() {
        loom::model(|| {
            let (health, answers) = three(healthy(), |health, _| {
                health.handle_error(ms(5), &ResetConfig::DEFAULT)
            });
            assert_eq!(count(&answers), 1, "the third one trips");
            assert_eq!(health.state(), RailState::Paused);
        });
    }

    #[test]
    fn nobody_probes_before_it_is_due() {
        loom::model(|| {
            let health = Arc::new(healthy());
            let other = Arc::clone(&health);
            let prober = thread::spawn(move || other.claim_probe(ms(6), 1));
            assert!(health.handle_incident(ms(5)));
            assert!(!prober.join().unwrap());
        });
    }

    #[test]
    fn a_trip_is_not_over_before_its_cooldown() {
        loom::model(|| {
            let health = Arc::new(healthy());
            let other = Arc::clone(&health);
            let timer = thread::spawn(move || other.handle_expiry(ms(6)));
            assert!(health.handle_error(ms(5), &RESET));
            assert!(!timer.join().unwrap());
        });
    }
}
