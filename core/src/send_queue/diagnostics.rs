//! Why a send queue was full: counters of a lane, and one line that tells three situations apart.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phase 1A (the first five counters) and phase 3
//! (the other five). The rework prints the counters and leaves the verdict to the reader; here it is said.

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::levels::{Snapshot, Standing};
use crate::time::{Duration, Instant};

/// A lane's counters. Shared; every store is relaxed, since people read them.
#[derive(Debug)]
pub struct Counters {
    /// Nanoseconds plus one; 0: never.
    polled_at: AtomicU64,
    completed_at: AtomicU64,
    recent_completions: AtomicU32,
    recent_released_works: AtomicU32,
    admission_waits: AtomicU32,
    admission_waited_ns: AtomicU64,
    admission_timeouts: AtomicU32,
    load_selections: AtomicU32,
    admitted_works_high: AtomicU32,
}

impl Counters {
    pub(super) const fn new() -> Self {
        Self {
            polled_at: AtomicU64::new(0),
            completed_at: AtomicU64::new(0),
            recent_completions: AtomicU32::new(0),
            recent_released_works: AtomicU32::new(0),
            admission_waits: AtomicU32::new(0),
            admission_waited_ns: AtomicU64::new(0),
            admission_timeouts: AtomicU32::new(0),
            load_selections: AtomicU32::new(0),
            admitted_works_high: AtomicU32::new(0),
        }
    }

    /// The completion queue was polled; that gave so many completions, which gave back so many works.
    pub fn handle_poll(&self, now: Instant, completions: u32, released_works: u32) {
        let stamp = now.as_nanos().saturating_add(1);
        self.polled_at.store(stamp, Relaxed);
        if completions > 0 {
            self.completed_at.store(stamp, Relaxed);
            self.recent_completions.fetch_add(completions, Relaxed);
            self.recent_released_works
                .fetch_add(released_works, Relaxed);
        }
    }

    /// Somebody begins to wait for admission.
    pub(super) fn handle_admission_wait(&self) {
        self.admission_waits.fetch_add(1, Relaxed);
    }

    /// Somebody has waited for admission, in vain or not.
    pub(super) fn handle_admission_end(&self, waited: Duration, timed_out: bool) {
        self.admission_waited_ns
            .fetch_add(waited.as_nanos(), Relaxed);
        self.admission_timeouts
            .fetch_add(u32::from(timed_out), Relaxed);
    }

    /// The lane was chosen by its load.
    pub(super) fn handle_selection(&self) {
        self.load_selections.fetch_add(1, Relaxed);
    }

    /// So many works are admitted now.
    pub(super) fn handle_admitted(&self, works: u16) {
        self.admitted_works_high
            .fetch_max(u32::from(works), Relaxed);
    }

    /// Reads all of them; the recent ones start anew.
    pub fn report(&self) -> CounterReport {
        let instant = |stamp: u64| stamp.checked_sub(1).map(Instant::from_nanos);
        CounterReport {
            polled_at: instant(self.polled_at.load(Relaxed)),
            completed_at: instant(self.completed_at.load(Relaxed)),
            recent_completions: self.recent_completions.swap(0, Relaxed),
            recent_released_works: self.recent_released_works.swap(0, Relaxed),
            admission_waits: self.admission_waits.load(Relaxed),
            admission_waited: Duration::from_nanos(self.admission_waited_ns.load(Relaxed)),
            admission_timeouts: self.admission_timeouts.load(Relaxed),
            load_selections: self.load_selections.load(Relaxed),
            admitted_works_high: self.admitted_works_high.load(Relaxed),
        }
    }
}

/// What [`Counters::report`] read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CounterReport {
    /// When the completion queue was last polled.
    pub polled_at: Option<Instant>,
    /// When that last gave something.
    pub completed_at: Option<Instant>,
    /// Completions since the report before.
    pub recent_completions: u32,
    /// Works they gave back.
    pub recent_released_works: u32,
    /// How often somebody waited for admission.
    pub admission_waits: u32,
    /// How long, all of them together.
    pub admission_waited: Duration,
    /// How often in vain.
    pub admission_timeouts: u32,
    /// How often the lane was chosen by its load.
    pub load_selections: u32,
    /// Most works that were ever admitted at once.
    pub admitted_works_high: u32,
}

/// Lanes and workers, which are easily taken for one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneCounts {
    /// Lanes (queue pairs) that the worker in question posts on.
    pub worker_lanes: u16,
    /// Lanes (queue pairs) of the whole session.
    pub session_lanes: u16,
    /// Workers of the engine.
    pub workers: u16,
}

/// Why no credits came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pressure {
    /// Nobody polled the completion queue in the latter half of the wait: look at the polling thread.
    PollStall,
    /// It was polled, and less came back than was needed: look at the fabric and the peer.
    SlowDrain,
    /// As much came back as was needed, and others who were first took it: too much is submitted.
    Burst,
}

impl Pressure {
    /// In two words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::PollStall => "poll stall",
            Self::SlowDrain => "slow drain",
            Self::Burst => "burst",
        }
    }
}

/// Everything about one wait that ended without credits. [`fmt::Display`] gives it as one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Diagnosis {
    /// When.
    pub now: Instant,
    /// How long it was waited.
    pub waited: Duration,
    /// Works asked for.
    pub asked_works: u16,
    /// Works that should have been free.
    pub required_works: u16,
    /// The lane at the end.
    pub at: Snapshot,
    /// Its counters.
    pub counters: CounterReport,
    /// Records in its ledger.
    pub records: u32,
    /// What surrounds it.
    pub lanes: LaneCounts,
}

/// A wait shorter than this proves no stall: nobody polls at every instant.
const STALL_MIN: Duration = Duration::from_micros(100);

impl Diagnosis {
    /// The verdict.
    pub fn pressure(&self) -> Pressure {
        let half = self.waited.divided_by(2);
        let stalled = half.max(STALL_MIN);
        let old = |at: Option<Instant>| at.is_none_or(|at| self.now.since(at) >= stalled);
        let counters = &self.counters;
        if old(counters.polled_at) {
            Pressure::PollStall
        } else if old(counters.completed_at)
            || counters.recent_released_works < u32::from(self.required_works)
        {
            Pressure::SlowDrain
        } else {
            Pressure::Burst
        }
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
        let (at, counters, lanes) = (&self.at, &self.counters, &self.lanes);
        let standing = match at.standing {
            Standing::Open => "open",
            Standing::Degraded => "degraded",
            Standing::Terminal => "terminal",
        };
        write!(
            f,
            "send queue full ({}): asked {} works, {} must be free, waited {:?}; {} of {} held, {} admitted, {}; ",
            self.pressure().text(),
            self.asked_works,
            self.required_works,
            self.waited,
            at.held.works,
            at.max.works,
            at.admitted_works,
            standing,
        )?;
        write!(
            f,
            "polled {}, completion {}, recently {} completions for {} works, {} records; ",
            Ago(self.now, counters.polled_at),
            Ago(self.now, counters.completed_at),
            counters.recent_completions,
            counters.recent_released_works,
            self.records,
        )?;
        write!(
            f,
            "admission: {} waits, {:?} in all, {} timed out, {} chosen by load, {} works at most; ",
            counters.admission_waits,
            counters.admission_waited,
            counters.admission_timeouts,
            counters.load_selections,
            counters.admitted_works_high,
        )?;
        write!(
            f,
            "worker's queue pairs {}, session's queue pairs {}, workers {}",
            lanes.worker_lanes, lanes.session_lanes, lanes.workers,
        )
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::send_queue::credit::{Amount, CreditLimits, Credits};
    use crate::units::Epoch;
    use Pressure::{Burst, PollStall, SlowDrain};
    use std::string::ToString;

    fn ms(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn diagnosis(counters: &Counters, required_works: u16) -> Diagnosis {
        let limits = CreditLimits {
            max: Amount::writes(64),
            resume_watermark_works: 0,
        };
        Diagnosis {
            now: ms(100),
            waited: Duration::from_millis(10),
            asked_works: 4,
            required_works,
            at: Credits::new(limits, Epoch(1)).snapshot(),
            counters: counters.report(),
            records: 3,
            lanes: LaneCounts {
                worker_lanes: 1,
                session_lanes: 4,
                workers: 2,
            },
        }
    }

    #[test]
    fn three_situations_are_told_apart() {
        // (name, polls as (at ms, completions, works), works that must be free, verdict); waited 90..100 ms
        type Polls<'a> = &'a [(u64, u32, u32)];
        let cases: [(_, Polls<'_>, _, _); 8] = [
            ("never polled", &[], 4, PollStall),
            ("not polled since long", &[(50, 9, 90)], 4, PollStall),
            ("nor in the latter half", &[(95, 9, 90)], 4, PollStall),
            ("polled in vain", &[(99, 0, 0)], 4, SlowDrain),
            (
                "nothing came for long",
                &[(50, 9, 90), (99, 0, 0)],
                4,
                SlowDrain,
            ),
            ("less came than needed", &[(99, 1, 3)], 4, SlowDrain),
            ("enough came, others took it", &[(99, 1, 4)], 4, Burst),
            ("not enough for the watermark", &[(99, 1, 4)], 32, SlowDrain),
        ];
        for (name, polls, required, verdict) in cases {
            let counters = Counters::new();
            for (at, completions, works) in polls {
                counters.handle_poll(ms(*at), *completions, *works);
            }
            assert_eq!(diagnosis(&counters, required).pressure(), verdict, "{name}");
        }
    }

    #[test]
    fn a_wait_of_no_length_is_no_stall() {
        let counters = Counters::new();
        counters.handle_poll(ms(100), 1, 4);
        let instant = Diagnosis {
            waited: Duration::ZERO,
            ..diagnosis(&counters, 4)
        };
        assert_eq!(instant.pressure(), Burst);
    }

    #[test]
    fn recent_counters_start_anew_with_each_report() {
        let counters = Counters::new();
        counters.handle_poll(ms(1), 2, 20);
        counters.handle_admission_wait();
        counters.handle_admission_end(Duration::from_micros(7), true);
        counters.handle_admitted(9);
        counters.handle_admitted(5);
        counters.handle_selection();
        let first = counters.report();
        assert_eq!(
            (first.recent_completions, first.recent_released_works),
            (2, 20)
        );
        let kept = CounterReport {
            recent_completions: 0,
            recent_released_works: 0,
            ..first
        };
        assert_eq!(counters.report(), kept);
        let admission = (
            first.admission_waits,
            first.admission_waited,
            first.admission_timeouts,
            first.load_selections,
            first.admitted_works_high,
        );
        assert_eq!(admission, (1, Duration::from_micros(7), 1, 1, 9));
    }

    #[test]
    fn it_is_one_line() {
        let counters = Counters::new();
        counters.handle_poll(ms(99), 2, 3);
        assert_eq!(
            diagnosis(&counters, 32).to_string(),
            "send queue full (slow drain): asked 4 works, 32 must be free, waited 10ms; 0 of 64 held, 0 admitted, \
             open; polled 1ms ago, completion 1ms ago, recently 2 completions for 3 works, 3 records; admission: \
             0 waits, 0ns in all, 0 timed out, 0 chosen by load, 0 works at most; worker's queue pairs 1, \
             session's queue pairs 4, workers 2"
        );
    }
}
