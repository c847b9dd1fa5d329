//! What came of a run, in numbers.

use serde::Serialize;

use super::History;
use super::scenario::{Fault, FaultKind};
use super::setup::Setup;
use crate::report::{Outcome, Report, drained, ratio, rounded};
use crate::settings::{Came, ns};

/// What is seen of send queues, beside what every scenario says.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figures {
    /// Times that somebody was told that a queue is full: a worker after its time for reserving, a caller after its
    /// time for admission.
    pub queue_full_errors: u64,
    /// Times that a caller waited for admission.
    pub admission_waits: u64,
    /// How long, on average.
    pub admission_wait_us: f64,
    /// Times that a worker waited for credits.
    pub reserve_waits: u64,
    /// How long, on average.
    pub reserve_wait_us: f64,
    /// Standard deviation of the works held and admitted from queue pair to queue pair, averaged over the time in
    /// which there were any.
    pub depth_spread_works: f64,
    /// Completions for each thousand works.
    pub completions_per_1000_works: f64,
    /// Queue pairs that ended.
    pub ended_queue_pairs: u64,
    /// Failures that were told as somebody's own.
    pub root_causes: u64,
    /// Requests that failed because a neighbour had.
    pub flushed_requests: u64,
}

fn mean_us(sum_ns: u64, count: u64) -> f64 {
    rounded(ratio(sum_ns, count) / 1e3, 3)
}

pub(super) fn outcome(setup: &Setup, setting: &str, history: &History) -> Outcome {
    let bytes: u64 = history.arrived.iter().map(|(_, bytes)| bytes).sum();
    let (spread, span) = history.spread;
    let figures = Figures {
        queue_full_errors: history.queue_full_errors,
        admission_waits: history.admission_waits,
        admission_wait_us: mean_us(history.admission_waited_ns, history.admission_waits),
        reserve_waits: history.reserve_waits,
        reserve_wait_us: mean_us(history.reserve_waited_ns, history.reserve_waits),
        depth_spread_works: rounded(spread / span.max(1) as f64, 3),
        completions_per_1000_works: rounded(1e3 * ratio(history.completions, history.works), 3),
        ended_queue_pairs: history.ended_queue_pairs,
        root_causes: history.root_causes,
        flushed_requests: history.flushed_requests,
    };
    let pairs = setup.pairs.iter().zip(&history.pair_bytes);
    let came = Came {
        scenario: &setup.name,
        setting,
        seed: setup.seed,
        bytes,
        took_ns: history.ended_at.saturating_sub(history.began_at),
        least_ns: least_ns(setup, history),
        times_ns: &history.call_ns,
        requests: history.requests,
        failed_requests: history.failed_requests,
        violations: history.violations,
        violation: history.violation.as_ref(),
        slices: history.works,
        rails: pairs
            .map(|(pair, bytes)| (pair.name.clone(), *bytes))
            .collect(),
    };
    let mut outcome = came.outcome();
    outcome.report.send_queue = Some(figures);
    outcome.notes.extend(history.diagnosis.clone());
    outcome
}

/// The least time for what has arrived: all queue pairs together, at the rates that they had, never idle while there
/// is something of a call that has begun; and the delay of one.
fn least_ns(setup: &Setup, history: &History) -> u64 {
    let slow: Vec<(u64, u64, &Fault)> = (setup.faults.iter())
        .filter(|fault| fault.kind == FaultKind::Slow)
        .map(|fault| {
            let from = ns(fault.at_ms);
            let to = fault.for_ms.map_or(u64::MAX, |for_ms| from + ns(for_ms));
            (from, to, fault)
        })
        .collect();
    let mut changes: Vec<u64> = slow.iter().flat_map(|(from, to, _)| [*from, *to]).collect();
    changes.sort_unstable();
    let rate = |at: u64| -> f64 {
        let factor = |pair: usize| {
            let mut slow = slow.iter().rev();
            let found =
                slow.find(|(from, to, fault)| fault.target == pair && (*from..*to).contains(&at));
            found.map_or(1.0, |(.., fault)| fault.factor)
        };
        let rates = setup.pairs.iter().enumerate();
        rates
            .map(|(index, pair)| pair.bytes_per_sec as f64 * factor(index))
            .sum::<f64>()
            / 1e9
    };
    let mut calls = history.arrived.clone();
    calls.sort_unstable();
    let now = drained(history.began_at, &calls, &changes, rate);
    let delay = setup
        .pairs
        .iter()
        .map(|pair| pair.delay_ns)
        .min()
        .unwrap_or(0);
    now - history.began_at + delay
}

/// The line above rows for people.
pub fn header() -> String {
    format!(
        "{:<24} {:<12} {:>9} {:>9} {:>6} {:>10} {:>10} {:>9} {:>6} {:>5} {:>5} {:>6} {:>9} {:>6} {:>9} \
         {:>7} {:>7} {:>5}",
        "send queues",
        "setting",
        "GB/s",
        "limit",
        "eff",
        "p50 µs",
        "p99 µs",
        "requests",
        "failed",
        "viol",
        "full",
        "adm",
        "µs each",
        "held",
        "µs each",
        "spread",
        "cqe/k",
        "ended"
    )
}

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
