//! What came of a run, in numbers.

use serde::Serialize;

use super::History;
use super::hop::Where;
use super::setup::Setup;
use crate::report::{Column, Outcome, Report, drained, ratio, rounded};
use crate::settings::Came;

/// What is seen of staging, beside what every scenario says.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figures {
    /// Hops that were carried out.
    pub hops: u64,
    /// Those of them that failed, with proof that nothing of them moves any more.
    pub failed_hops: u64,
    /// Those that failed without.
    pub unfenced_hops: u64,
    /// Hops beyond those that the requests that completed needed.
    pub repeated_hops: u64,
    /// Slots that are quarantined in the end, of both hosts.
    pub quarantined_slots: u64,
    /// Slots that were quarantined until there was proof.
    pub restored_slots: u64,
    /// Requests that failed because no slot was left.
    pub staging_lost: u64,
    /// Sessions that were over before their host knew.
    pub forgotten_sessions: u64,
    /// Requests reported without proof that were settled after.
    pub settled_requests: u64,
    /// Messages for each thousand hops.
    pub messages_per_1000_hops: f64,
}

pub(super) fn outcome(setup: &Setup, setting: &str, history: &History) -> Outcome {
    let bytes: u64 = history.arrived.iter().map(|(_, bytes, _)| bytes).sum();
    let least = (0..2).map(|host| least_ns(setup, history, host)).max();
    let rails = (0..2).map(|host| {
        let from = history.arrived.iter().filter(|(.., from)| *from == host);
        let own = from.map(|(_, bytes, _)| bytes).sum();
        (format!("{host}>{}", 1 - host), own)
    });
    let figures = Figures {
        hops: history.hops,
        failed_hops: history.failed_hops,
        unfenced_hops: history.unfenced_hops,
        repeated_hops: history.hops.saturating_sub(history.needed_hops),
        quarantined_slots: history.quarantined_slots,
        restored_slots: history.restored_slots,
        staging_lost: history.staging_lost,
        forgotten_sessions: history.forgotten,
        settled_requests: history.settled,
        messages_per_1000_hops: rounded(1e3 * ratio(history.messages, history.hops), 1),
    };
    let came = Came {
        scenario: &setup.name,
        setting,
        seed: setup.seed,
        bytes,
        took_ns: history.ended_at.saturating_sub(history.began_at),
        least_ns: least.unwrap_or(0),
        times_ns: &history.request_ns,
        requests: history.requests,
        failed_requests: history.failed_requests,
        violations: history.violations,
        violation: history.violation.as_ref(),
        slices: history.hops,
        rails: rails.collect(),
    };
    let mut outcome = came.outcome();
    outcome.report.staging = Some(figures);
    outcome
}

/// The least time for what has arrived from `host`: at the rate of the slowest hop on its way, never idle while there
/// is something of a request that has begun; and the delays of all three hops.
fn least_ns(setup: &Setup, history: &History, host: usize) -> u64 {
    let mut changes: Vec<u64> = setup
        .faults
        .iter()
        .flat_map(|fault| [fault.from, fault.to])
        .collect();
    changes.sort_unstable();
    let rate = |at: u64| -> f64 {
        let copy = |host| setup.copy.0 as f64 * setup.factor(at, host, Where::Copy);
        let network = setup.network.0 as f64 * setup.factor(at, host, Where::Network);
        copy(0).min(copy(1)).min(network) / 1e9
    };
    let mut own: Vec<(u64, u64)> = history
        .arrived
        .iter()
        .filter(|(_, bytes, from)| *from == host && *bytes > 0)
        .map(|(began_at, bytes, _)| (*began_at, *bytes))
        .collect();
    if own.is_empty() {
        return 0;
    }
    own.sort_unstable();
    let now = drained(history.began_at, &own, &changes, rate);
    now - history.began_at + 2 * setup.copy.1 + setup.network.1
}

/// The columns of rows for people.
pub(crate) const COLUMNS: [Column; 17] = [
    ("staging", 24),
    ("setting", 12),
    ("GB/s", 9),
    ("limit", 9),
    ("eff", 6),
    ("p50 µs", 10),
    ("p99 µs", 10),
    ("requests", 9),
    ("failed", 6),
    ("viol", 5),
    ("hops", 8),
    ("fail", 6),
    ("unfenced", 8),
    ("repeated", 8),
    ("quar", 6),
    ("restored", 8),
    ("lost", 5),
];

/// One row for people; nothing of a report that is not about staging.
pub fn row(report: &Report) -> Option<String> {
    let figures = report.staging.as_ref()?;
    Some(format!(
        "{:<24} {:<12} {:>9.3} {:>9.3} {:>6.4} {:>10.3} {:>10.3} {:>9} {:>6} {:>5} {:>8} {:>6} {:>8} {:>8} {:>6} {:>8} \
         {:>5}",
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
        figures.hops,
        figures.failed_hops,
        figures.unfenced_hops,
        figures.repeated_hops,
        figures.quarantined_slots,
        figures.restored_slots,
        figures.staging_lost,
    ))
}
