//! Why there was no room: counters, and one line that tells three situations apart.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phases 1A and 3. The rework prints the counters and leaves the verdict to the
//! reader; here it is said. Of its ten counters the records of the ledger are what is held, and how often a queue pair was
//! chosen by its load went with that policy, which the simulator keeps for comparison.

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::credit::{Credits, Refused, Snapshot};
use crate::time::{Duration, Instant};

/// What is counted. Shared; every store is relaxed, since people read them.
#[derive(Debug)]
pub struct Counters {
    /// Nanoseconds plus one; 0: never.
    polled_at: AtomicU64,
    released_at: AtomicU64,
    recent_releases: AtomicU32,
    recent_released_works: AtomicU32,
    waits: AtomicU32,
    waited_ns: AtomicU64,
    timeouts: AtomicU32,
    held_works_high: AtomicU32,
}

impl Counters {
    pub(super) const fn new() -> Self {
        Self {
            polled_at: AtomicU64::new(0),
            released_at: AtomicU64::new(0),
            recent_releases: AtomicU32::new(0),
            recent_released_works: AtomicU32::new(0),
            waits: AtomicU32::new(0),
            waited_ns: AtomicU64::new(0),
            timeouts: AtomicU32::new(0),
            held_works_high: AtomicU32::new(0),
        }
    }

    /// It was looked for what has ended.
    pub(super) fn handle_poll(&self, now: Instant) {
        self.polled_at
            .store(now.as_nanos().saturating_add(1), Relaxed);
    }

    /// So much came back of what was found at the last look.
    pub(super) fn handle_release(&self, works: u16) {
        self.released_at
            .store(self.polled_at.load(Relaxed), Relaxed);
        self.recent_releases.fetch_add(1, Relaxed);
        self.recent_released_works
            .fetch_add(u32::from(works), Relaxed);
    }

    /// Somebody begins to wait.
    pub(super) fn handle_wait(&self) {
        self.waits.fetch_add(1, Relaxed);
    }

    /// Somebody has waited so long, in vain or not.
    pub(super) fn handle_wait_end(&self, waited: Duration) {
        if waited > Duration::ZERO {
            self.waited_ns.fetch_add(waited.as_nanos(), Relaxed);
        }
    }

    /// Somebody has waited in vain.
    pub(super) fn handle_timeout(&self) {
        self.timeouts.fetch_add(1, Relaxed);
    }

    /// So much is held now.
    pub(super) fn handle_held(&self, works: u16) {
        // Mostly it is not news, and the line of memory stays with everybody.
        if self.held_works_high.load(Relaxed) < u32::from(works) {
            self.held_works_high.fetch_max(u32::from(works), Relaxed);
        }
    }

    /// Reads all of them; the recent ones start anew.
    pub fn report(&self) -> CounterReport {
        let instant = |stamp: u64| stamp.checked_sub(1).map(Instant::from_nanos);
        CounterReport {
            polled_at: instant(self.polled_at.load(Relaxed)),
            released_at: instant(self.released_at.load(Relaxed)),
            recent_releases: self.recent_releases.swap(0, Relaxed),
            recent_released_works: self.recent_released_works.swap(0, Relaxed),
            waits: self.waits.load(Relaxed),
            waited: Duration::from_nanos(self.waited_ns.load(Relaxed)),
            timeouts: self.timeouts.load(Relaxed),
            held_works_high: self.held_works_high.load(Relaxed),
        }
    }
}

/// What [`Counters::report`] read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CounterReport {
    /// When it was last looked for what has ended, while somebody waited.
    pub polled_at: Option<Instant>,
    /// When something of that last came back.
    pub released_at: Option<Instant>,
    /// How often something came back since the report before, while somebody waited.
    pub recent_releases: u32,
    /// How much.
    pub recent_released_works: u32,
    /// How often somebody waited.
    pub waits: u32,
    /// How long, all of them together.
    pub waited: Duration,
    /// How often in vain.
    pub timeouts: u32,
    /// The most that was ever held at once.
    pub held_works_high: u32,
}

/// Why no credits came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pressure {
    /// Nobody looked for what has ended in the latter half of the wait: look at the worker's thread.
    PollStall,
    /// It was looked, and less came back than was needed: look at the fabric and the peer.
    SlowDrain,
    /// As much came back as was needed, and others who were first took it, or nobody waited: too much is submitted.
    Burst,
}

impl Pressure {
    /// After a wait of `waited`, how long ago it was last looked and something last came back (`None`: never), and whether as
    /// much came back as was needed.
    pub fn of(
        waited: Duration,
        polled: Option<Duration>,
        released: Option<Duration>,
        came_back: bool,
    ) -> Self {
        let stalled = waited.divided_by(2).max(STALL_MIN);
        let old = |ago: Option<Duration>| ago.is_none_or(|ago| ago >= stalled);
        if old(polled) {
            Self::PollStall
        } else if old(released) || !came_back {
            Self::SlowDrain
        } else {
            Self::Burst
        }
    }

    /// In two words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PollStall => "poll stall",
            Self::SlowDrain => "slow drain",
            Self::Burst => "burst",
        }
    }
}

/// With where to look.
impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let look = match self {
            Self::PollStall => {
                "the worker's thread does not get to look; see what keeps it or its processor"
            }
            Self::SlowDrain => "little ends; see the fabric and the peer",
            Self::Burst => "requests end, and more are submitted",
        };
        write!(f, "{}: {look}", self.name())
    }
}

/// Everything about one refusal for want of room. [`fmt::Display`] gives it as one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Diagnosis {
    /// When.
    pub now: Instant,
    /// How long it was waited.
    pub waited: Duration,
    /// Credits asked for.
    pub asked_works: u16,
    /// Credits that should have been free.
    pub required_works: u16,
    /// How they stood in the end.
    pub at: Snapshot,
    /// What was counted.
    pub counters: CounterReport,
}

/// A wait shorter than this proves no stall: nobody looks at every instant.
const STALL_MIN: Duration = Duration::from_micros(100);

impl Diagnosis {
    /// Of who was refused so many credits. `None`: not for want of room.
    pub fn of(
        now: Instant,
        credits: &Credits,
        asked_works: u16,
        refused: &Refused,
    ) -> Option<Self> {
        let (required_works, waited, at) = match *refused {
            Refused::Full { required_works, at } => (required_works, Duration::ZERO, at),
            Refused::TimedOut {
                required_works,
                waited,
                at,
            } => (required_works, waited, at),
            Refused::TooLarge { .. } | Refused::Closed => return None,
        };
        Some(Self {
            now,
            waited,
            asked_works,
            required_works,
            at,
            counters: credits.counters().report(),
        })
    }

    /// The verdict.
    pub fn pressure(&self) -> Pressure {
        if self.waited == Duration::ZERO {
            return Pressure::Burst;
        }
        let ago = |at: Option<Instant>| at.map(|at| self.now.since(at));
        let counters = &self.counters;
        let came_back = counters.recent_released_works >= u32::from(self.required_works);
        Pressure::of(
            self.waited,
            ago(counters.polled_at),
            ago(counters.released_at),
            came_back,
        )
    }
}

/// "12ms ago", or "never".
struct Ago(Instant, Option<Instant>);

impl fmt::Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(at) => write!(f, "{:?} ago", self.0.since(at)),
            None => f.write_str("never"),
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, counters) = (&self.at, &self.counters);
        write!(
            f,
            "no room ({}): asked for {}, {} must be free, waited {:?}; {} of {} under way; ",
            self.pressure().name(),
            self.asked_works,
            self.required_works,
            self.waited,
            at.held_works,
            at.max_works,
        )?;
        write!(
            f,
            "looked {}, something back {}, recently {} times and {} in all; ",
            Ago(self.now, counters.polled_at),
            Ago(self.now, counters.released_at),
            counters.recent_releases,
            counters.recent_released_works,
        )?;
        write!(
            f,
            "so far {} waits of {:?} together, {} in vain, {} under way at most",
            counters.waits, counters.waited, counters.timeouts, counters.held_works_high,
        )
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::send_queue::credit::CreditLimits;
    use Pressure::{Burst, PollStall, SlowDrain};
    use std::string::ToString;

    fn ms(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn diagnosis(counters: &Counters, required_works: u16) -> Diagnosis {
        let limits = CreditLimits {
            max_works: 64,
            resume_watermark_works: 0,
        };
        Diagnosis {
            now: ms(100),
            waited: Duration::from_millis(10),
            asked_works: 4,
            required_works,
            at: Credits::new(limits).snapshot(),
            counters: counters.report(),
        }
    }

    /// Looks at so many milliseconds, and what came back then.
    fn looks(counters: &Counters, looks: &[(u64, u16)]) {
        for (at, works) in looks {
            counters.handle_poll(ms(*at));
            if *works > 0 {
                counters.handle_release(*works);
            }
        }
    }

    #[test]
    fn three_situations_are_told_apart() {
        // (name, looks as (at ms, works), works that must be free, verdict); waited 90..100 ms
        type Looks<'a> = &'a [(u64, u16)];
        let cases: [(_, Looks<'_>, _, _); 8] = [
            ("never looked", &[], 4, PollStall),
            ("not since long", &[(50, 90)], 4, PollStall),
            ("nor in the latter half", &[(95, 90)], 4, PollStall),
            ("looked in vain", &[(99, 0)], 4, SlowDrain),
            ("nothing came for long", &[(50, 90), (99, 0)], 4, SlowDrain),
            ("less came than needed", &[(99, 3)], 4, SlowDrain),
            ("enough came, others took it", &[(99, 4)], 4, Burst),
            ("not enough for the watermark", &[(99, 4)], 32, SlowDrain),
        ];
        for (name, rows, required, verdict) in cases {
            let counters = Counters::new();
            looks(&counters, rows);
            assert_eq!(diagnosis(&counters, required).pressure(), verdict, "{name}");
        }
    }

    #[test]
    fn a_wait_of_no_length_is_no_stall() {
        let instant = Diagnosis {
            waited: Duration::ZERO,
            ..diagnosis(&Counters::new(), 4)
        };
        assert_eq!(instant.pressure(), Burst);
        let counters = Counters::new();
        looks(&counters, &[(100, 4)]);
        let short = Diagnosis {
            waited: Duration::from_nanos(1),
            ..diagnosis(&counters, 4)
        };
        assert_eq!(short.pressure(), Burst);
    }

    #[test]
    fn recent_counters_start_anew_with_each_report() {
        let counters = Counters::new();
        looks(&counters, &[(1, 12), (2, 8)]);
        counters.handle_wait();
        counters.handle_wait_end(Duration::from_micros(7));
        counters.handle_timeout();
        counters.handle_held(9);
        counters.handle_held(5);
        let first = counters.report();
        assert_eq!(
            (first.recent_releases, first.recent_released_works),
            (2, 20)
        );
        let kept = CounterReport {
            recent_releases: 0,
            recent_released_works: 0,
            ..first
        };
        assert_eq!(counters.report(), kept);
        let waits = (
            first.waits,
            first.waited,
            first.timeouts,
            first.held_works_high,
        );
        assert_eq!(waits, (1, Duration::from_micros(7), 1, 9));
    }

    #[test]
    fn it_is_one_line() {
        let counters = Counters::new();
        looks(&counters, &[(99, 2), (99, 1)]);
        assert_eq!(
            diagnosis(&counters, 32).to_string(),
            "no room (slow drain): asked for 4, 32 must be free, waited 10ms; 0 of 64 under way; looked 1ms ago, something back \
             1ms ago, recently 2 times and 3 in all; so far 0 waits of 0ns together, 0 in vain, 0 under way at most"
        );
    }
}
