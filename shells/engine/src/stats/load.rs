//! Who holds what, and since when: each worker's room and each of its lanes.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phases 1A and 3, for what is counted and the three situations
//! that it tells apart.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use polyrail_core::orchestrator::LaneState;
pub use polyrail_core::send_queue::diagnostics::Pressure;
use serde::{Serialize, Serializer};

/// A worker's room for requests, and its work, at one moment. [`fmt::Display`] gives it as one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct WorkerLoad {
    /// Its number; `None`: the thread that carries what is staged.
    pub worker: Option<u16>,
    /// Requests of the program that it holds, from submission to report.
    pub held: u32,
    /// The most that it takes.
    pub limit: u32,
    /// The most that it has held when somebody submitted.
    pub held_high: u32,
    /// Submissions that wait for room now.
    pub waiting: u32,
    /// How long there has not been room for somebody; `None`: whoever asked last found some.
    #[serde(serialize_with = "maybe_seconds")]
    pub full_for: Option<Duration>,
    /// How long ago it last looked for completions; `None`: never.
    #[serde(serialize_with = "maybe_seconds")]
    pub looked: Option<Duration>,
    /// It sleeps until there is something to do.
    pub sleeps: bool,
    /// How long ago works of it last completed; `None`: never.
    #[serde(serialize_with = "maybe_seconds")]
    pub completed: Option<Duration>,
    /// Completions so far.
    pub completions: u64,
    /// How often a submission has waited for room.
    pub admission_waits: u64,
    /// How long, all of them together.
    #[serde(serialize_with = "seconds")]
    pub admission_waited: Duration,
    /// How often in vain.
    pub admission_timeouts: u64,
}

/// Somebody found no room with a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// How the worker stood at the end.
    pub load: WorkerLoad,
    /// Requests that room was asked for.
    pub asked: u16,
    /// How long it was waited for.
    pub waited: Duration,
    /// Requests that have ended meanwhile.
    pub ended: u64,
}

impl Backlog {
    /// Why no room came.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn pressure(&self) -> Pressure {
        let load = &self.load;
        // Who sleeps is woken by what comes; the thread for what is staged has nothing to look at.
        let has_looked = load.sleeps || load.worker.is_none();
        let looked = match has_looked {
            true => Some(Duration::ZERO),
            false => load.looked,
        };
        Pressure::of(
            self.waited.into(),
            looked.map(Into::into),
            load.completed.map(Into::into),
            self.ended >= u64::from(self.asked),
        )
    }
}

impl fmt::Display for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            load,
            asked,
            waited,
            ended,
        } = self;
        write!(
            f,
            "no room for {asked} requests after {waited:?}, while {ended} ended; {load}; {}",
            self.pressure()
        )
    }
}

pub(crate) fn seconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

pub(crate) fn all_seconds<S: Serializer>(
    times: &BTreeMap<&'static str, Duration>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(times.iter().map(|(of, time)| (of, time.as_secs_f64())))
}

pub(super) fn maybe_seconds<S: Serializer>(
    time: &Option<Duration>,
    to: S,
) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs_f64()).serialize(to)
}

fn lane_state<S: Serializer>(state: &LaneState, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(state.name())
}

/// "12ms ago", or "never".
struct Ago(Option<Duration>);

impl fmt::Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ago) => write!(f, "{ago:?} ago"),
            None => f.write_str("never"),
        }
    }
}

impl fmt::Display for WorkerLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.worker {
            Some(worker) => write!(f, "worker {worker}")?,
            None => f.write_str("staging")?,
        }
        write!(
            f,
            " holds {} of {} requests ({} at most so far)",
            self.held, self.limit, self.held_high
        )?;
        if let Some(full) = self.full_for {
            write!(f, ", full for {full:?}")?;
        }
        let sleeps = if self.sleeps { ", sleeps" } else { "" };
        write!(
            f,
            ", {} waiting; looked {}{sleeps}, last completion {}, {} in all; {} waits for room, {:?} together, {} in vain",
            self.waiting,
            Ago(self.looked),
            Ago(self.completed),
            self.completions,
            self.admission_waits,
            self.admission_waited,
            self.admission_timeouts,
        )
    }
}

/// One worker's lane on one rail. [`fmt::Display`] gives it as one line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LaneStatus {
    /// Whose it is.
    pub worker: u16,
    /// Its rail, `TRANSPORT:LOCAL>REMOTE`.
    pub rail: String,
    /// Where it stands.
    #[serde(serialize_with = "lane_state")]
    pub state: LaneState,
    /// Works that it holds.
    pub held: u32,
    /// The most that it takes.
    pub limit: u32,
    /// Bytes of those that it holds.
    pub held_bytes: u64,
    /// The most works that it has held.
    pub held_high: u32,
    /// How long ago works on it last completed; `None`: never.
    #[serde(serialize_with = "maybe_seconds")]
    pub completed: Option<Duration>,
    /// How often works have ended there, several at a time counting once.
    pub releases: u64,
    /// How many works that was.
    pub released: u64,
    /// How long it has taken no more works, if so.
    #[serde(serialize_with = "maybe_seconds")]
    pub full_for: Option<Duration>,
}

impl fmt::Display for LaneStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "lane of worker {} on {} ({}): {} of {} works ({} at most so far), {} bytes",
            self.worker,
            self.rail,
            self.state.name(),
            self.held,
            self.limit,
            self.held_high,
            self.held_bytes,
        )?;
        if let Some(full) = self.full_for {
            write!(f, ", full for {full:?}")?;
        }
        write!(
            f,
            "; last completion {}, {} works in {} releases",
            Ago(self.completed),
            self.released,
            self.releases,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn three_situations_are_told_apart() {
        use Pressure::{Burst, PollStall, SlowDrain};
        // (name, looked ms ago, sleeps, completed ms ago, ended, verdict), of a wait of 100 ms for 4 requests
        let cases = [
            ("never looked", None, false, None, 0, PollStall),
            (
                "looked before the latter half",
                Some(50),
                false,
                Some(60),
                9,
                PollStall,
            ),
            (
                "sleeps, since nothing comes",
                Some(90),
                true,
                Some(90),
                9,
                SlowDrain,
            ),
            (
                "looks, and nothing comes",
                Some(0),
                false,
                Some(99),
                9,
                SlowDrain,
            ),
            (
                "less ended than was asked for",
                Some(0),
                false,
                Some(1),
                3,
                SlowDrain,
            ),
            ("as much ended", Some(0), false, Some(1), 4, Burst),
        ];
        for (name, looked, sleeps, completed, ended, verdict) in cases {
            let backlog = Backlog {
                load: WorkerLoad {
                    worker: Some(2),
                    held: 7,
                    limit: 8,
                    full_for: Some(MS(300)),
                    looked: looked.map(MS),
                    sleeps,
                    completed: completed.map(MS),
                    ..WorkerLoad::default()
                },
                asked: 4,
                waited: MS(100),
                ended,
            };
            assert_eq!(backlog.pressure(), verdict, "{name}");
            let text = backlog.to_string();
            for part in [
                "no room for 4 requests after 100ms",
                "worker 2 holds 7 of 8 requests",
                "full for 300ms",
                verdict.name(),
            ] {
                assert!(text.contains(part), "{name}: {part} is not in {text}");
            }
        }
    }
}
