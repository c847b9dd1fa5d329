//! What is seen of send queues, in numbers.

use polyrail_core::work::Cause;
use serde::Serialize;

use crate::model::{Failure, History};
use crate::report::{Column, Report, ratio, rounded};

/// What is seen of send queues, beside what every scenario says.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figures {
    /// Times that a submitter was told that there is no room: at once, or after its time for waiting.
    pub queue_full_errors: u64,
    /// Times that a submitter waited for room.
    pub admission_waits: u64,
    /// How long, on average.
    pub admission_wait_us: f64,
    /// Times that a lane held as many works as it can, so that what it was to carry waited.
    pub reserve_waits: u64,
    /// How long, on average.
    pub reserve_wait_us: f64,
    /// Standard deviation of the works posted from rail to rail, and under a split policy of those admitted to it, averaged over
    /// the time in which there were any.
    pub depth_spread_works: f64,
    /// Completions for each thousand works.
    pub completions_per_1000_works: f64,
    /// Lanes that ended.
    pub ended_queue_pairs: u64,
    /// Requests that failed for a cause of their own, once their worker had them.
    pub root_causes: u64,
    /// Those that failed because a neighbour had.
    pub flushed_requests: u64,
}

fn mean_us(sum_ns: u64, count: u64) -> f64 {
    rounded(ratio(sum_ns, count) / 1e3, 3)
}

impl Figures {
    /// What a run came to.
    pub(super) fn of(history: &History) -> Self {
        let seen = &history.queues;
        let (spread, span) = seen.spread;
        let flushed = |failure: &&Failure| failure.cause == Some(Cause::Flushed);
        let flushed_requests = history.failures.iter().filter(flushed).count();
        Self {
            queue_full_errors: seen.refused,
            admission_waits: seen.waits,
            admission_wait_us: mean_us(seen.waited_ns, seen.waits),
            reserve_waits: seen.fills,
            reserve_wait_us: mean_us(seen.filled_ns, seen.fills),
            depth_spread_works: rounded(spread / span.max(1) as f64, 3),
            completions_per_1000_works: rounded(1e3 * ratio(seen.completions, seen.works), 3),
            ended_queue_pairs: seen.ended,
            root_causes: (history.failures.len() - flushed_requests) as u64,
            flushed_requests: flushed_requests as u64,
        }
    }
}

/// The columns of rows for people.
pub(crate) const COLUMNS: [Column; 18] = [
    ("send queues", 24),
    ("setting", 12),
    ("GB/s", 9),
    ("limit", 9),
    ("eff", 6),
    ("p50 µs", 10),
    ("p99 µs", 10),
    ("requests", 9),
    ("failed", 6),
    ("viol", 5),
    ("full", 5),
    ("adm", 6),
    ("µs each", 9),
    ("held", 6),
    ("µs each", 9),
    ("spread", 7),
    ("cqe/k", 7),
    ("ended", 5),
];

/// One row for people; nothing of a report that is not about send queues.
pub fn row(report: &Report) -> Option<String> {
    let figures = report.send_queue.as_ref()?;
    Some(format!(
        "{:<24} {:<12} {:>9.3} {:>9.3} {:>6.4} {:>10.3} {:>10.3} {:>9} {:>6} {:>5} {:>5} {:>6} {:>9.1} {:>6} {:>9.1} \
         {:>7.2} {:>7.1} {:>5}",
        report.scenario,
        report.policy,
        report.gbytes_per_sec,
        report.fluid_limit_gbytes_per_sec,
        report.efficiency,
        report.p50_us,
        report.p99_us,
        report.requests,
        report.failed_requests,
        report.violations,
        figures.queue_full_errors,
        figures.admission_waits,
        figures.admission_wait_us,
        figures.reserve_waits,
        figures.reserve_wait_us,
        figures.depth_spread_works,
        figures.completions_per_1000_works,
        figures.ended_queue_pairs,
    ))
}
