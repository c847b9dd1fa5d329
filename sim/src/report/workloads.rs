//! Each workload by itself: how fast, how long its batches took, and how equal its submitters were.

use serde::Serialize;

use super::{nearest_rank, ratio, rounded};
use crate::fluid;
use crate::model::History;
use crate::setup::Setup;

/// What came of one workload.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WorkloadRow {
    /// Bytes of requests that completed, over the time of the run.
    pub goodput_gbytes_per_sec: f64,
    /// Batches that ended.
    pub batches: u64,
    /// Requests that did not complete.
    pub failed_requests: u64,
    /// Median of the times from a batch's submission to its observed end.
    pub p50_us: f64,
    /// Their 99th percentile.
    pub p99_us: f64,
    /// Their 99.9th percentile.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
    /// The least that one of its submitters got, as a part of an equal share; 0 where nothing completed.
    pub least_share: f64,
    /// The most.
    pub most_share: f64,
    /// Jain's index of fairness among its submitters: 1 if all got the same, 1 / their number if one got everything.
    pub jain: f64,
}

impl WorkloadRow {
    /// In words for people.
    pub(super) fn row(&self) -> String {
        format!(
            "{:.3} GB/s, {} batches of p50 {:.3}, p99 {:.3}, p99.9 {:.3}, max {:.3} µs; each submitter {:.3} to {:.3} of an \
             equal share (Jain {:.4})",
            self.goodput_gbytes_per_sec,
            self.batches,
            self.p50_us,
            self.p99_us,
            self.p999_us,
            self.max_us,
            self.least_share,
            self.most_share,
            self.jain
        )
    }
}

/// One row for each workload of a file, in order.
pub(super) fn rows(setup: &Setup, history: &History) -> Vec<WorkloadRow> {
    let numbers = setup.submitters.iter().map(|row| row.workload + 1);
    let count = numbers.max().unwrap_or(0);
    let mut times = vec![Vec::new(); count];
    for (ns, submitter) in history.batch_ns.iter().zip(&history.batch_of) {
        times[setup.submitters[*submitter as usize].workload].push(*ns);
    }
    let row = |(workload, mut ns): (usize, Vec<u64>)| {
        ns.sort_unstable();
        let time = |per_mille| rounded(nearest_rank(&ns, per_mille) as f64 / 1_000.0, 3);
        let own = || {
            let rows = setup.submitters.iter().zip(&history.done);
            rows.filter(|(submitter, _)| submitter.workload == workload)
                .map(|(_, done)| done)
        };
        let bytes: Vec<u64> = own().map(|done| done.good_bytes).collect();
        let all: u64 = bytes.iter().sum();
        let share = |bytes: Option<&u64>| {
            let equal = ratio(all, own().count() as u64);
            rounded(bytes.map_or(0.0, |bytes| *bytes as f64 / equal.max(1.0)), 4)
        };
        let took = fluid::busy_time(history);
        WorkloadRow {
            goodput_gbytes_per_sec: rounded(ratio(all, took), 6),
            batches: ns.len() as u64,
            failed_requests: own().map(|done| done.failed_requests).sum(),
            p50_us: time(500),
            p99_us: time(990),
            p999_us: time(999),
            max_us: time(1_000),
            least_share: share(bytes.iter().min()),
            most_share: share(bytes.iter().max()),
            jain: rounded(jain(&bytes), 4),
        }
    };
    times.into_iter().enumerate().map(row).collect()
}

/// The square of the sum, over their number times the sum of squares.
fn jain(values: &[u64]) -> f64 {
    let sum: f64 = values.iter().map(|value| *value as f64).sum();
    let squares: f64 = values.iter().map(|value| (*value as f64).powi(2)).sum();
    match squares > 0.0 {
        true => sum * sum / (values.len() as f64 * squares),
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_for_equal_parts_and_little_for_one_winner() {
        assert_eq!(jain(&[5, 5, 5, 5]), 1.0);
        assert_eq!(jain(&[8, 0, 0, 0]), 0.25);
        assert_eq!(jain(&[0, 0]), 0.0);
    }
}
