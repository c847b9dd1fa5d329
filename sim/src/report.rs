//! What came of a run: the numbers that `INTERFACES.md` fixes, and some more for people.

mod figures;
mod series;
mod text;
mod workloads;

use polyrail_core::rail::health::RailState;
use serde::Serialize;

use crate::fluid::{self, Capacity};
use crate::model::History;
use crate::setup::{Cut, Setup};
use crate::{posting, staging};
pub use figures::{FIGURES, Figure};
pub use series::{FaultSpan, Moment, Series, StateChange};
pub(crate) use text::Column;
pub use text::{table, tables};
pub use workloads::WorkloadRow;

/// A bucket below this part of what the surviving rails allow belongs to a dip.
const DIP_BELOW: f64 = 0.9;
/// A rail carries its share again at this part of its former one.
const SHARE_BACK: f64 = 0.8;
const NS_PER_MS: f64 = 1_000_000.0;

/// A run in numbers; one JSON object.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// The policy's name.
    pub policy: String,
    /// The seed.
    pub seed: u64,
    /// Bytes of all requests over the time from the first submission to the last report, without the spans in which no
    /// submitter had work.
    pub gbytes_per_sec: f64,
    /// Bytes of requests that completed over the least time for them.
    pub fluid_limit_gbytes_per_sec: f64,
    /// That least time over the time that it took.
    pub efficiency: f64,
    /// Median of the times from a batch's submission to its observed end.
    pub p50_us: f64,
    /// Their 99th percentile.
    pub p99_us: f64,
    /// Their 99.9th percentile.
    pub p999_us: f64,
    /// Requests reported.
    pub requests: u64,
    /// Those of them that did not complete.
    pub failed_requests: u64,
    /// Bytes lost, bytes written after their report, requests reported twice or never, invariants broken.
    pub violations: u64,
    /// When the throughput was low.
    pub dips: Vec<Dip>,
    /// What went over which rail.
    pub rails: Vec<RailShare>,
    /// Bytes of requests that completed, over the same time.
    pub goodput_gbytes_per_sec: f64,
    /// The longest time of a batch.
    pub max_us: f64,
    /// Each workload by itself, in the order of the file.
    pub workloads: Vec<WorkloadRow>,
    /// What is seen of send queues, where a scenario is about these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_queue: Option<posting::Figures>,
    /// What is seen of staging, where a scenario is about that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staging: Option<staging::Figures>,
}

/// Buckets of a millisecond (in runs of more than ten minutes: a second) in a row that are below 0.9 of what the
/// surviving rails allow.
///
/// "Allow" is the fluid capacity times the part of it that was used before the first fault (or in all, without
/// one): few small requests never fill the rails, and that is no dip. Where submitters pause there are none, for
/// it is them that leave the rails empty.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Dip {
    /// When it began.
    pub at_ms: u64,
    /// How much was missing in its worst bucket, 0 to 1.
    pub depth: f64,
    /// How long it lasted.
    pub length_ms: u64,
}

/// What went over one rail.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RailShare {
    /// `host/device>host/device`.
    pub rail: String,
    /// Bytes acknowledged.
    pub bytes: u64,
    /// The part of all.
    pub share: f64,
}

/// How a rail that had been cut came back.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Return {
    /// Which rail, `host/device>host/device`.
    pub rail: String,
    /// When it was restored, in milliseconds.
    pub at_ms: f64,
    /// How long it took until a probe found it; `None`: none has.
    pub found_ms: Option<f64>,
    /// And from then until it carried its share again, to the end of a bucket; `None`: it never did.
    pub share_back_ms: Option<f64>,
}

/// A run: its report, and what is not in it.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// The numbers.
    pub report: Report,
    /// Rails that came back.
    pub returns: Vec<Return>,
    /// What happened over time.
    pub series: Series,
    /// The first violation in words.
    pub violation: Option<String>,
    /// Slices that carried user bytes.
    pub slices: u64,
    /// Bytes acknowledged in each bucket, by rail.
    pub acknowledged: Vec<Vec<u64>>,
    /// How long a bucket is.
    pub bucket_ms: u64,
    /// More lines for people.
    pub notes: Vec<String>,
}

impl Outcome {
    pub(crate) fn new(setup: &Setup, policy: &str, history: &History) -> Self {
        let capacity = Capacity::of_all(setup);
        let bytes: u64 = history.done.iter().map(|done| done.bytes).sum();
        let good_bytes: u64 = history.done.iter().map(|done| done.good_bytes).sum();
        let took = fluid::busy_time(history);
        let least = fluid::least_time(setup, history);
        let mut batch_ns = history.batch_ns.clone();
        batch_ns.sort_unstable();
        let percentile =
            |per_mille| rounded(nearest_rank(&batch_ns, per_mille) as f64 / 1_000.0, 3);
        let report = Report {
            scenario: setup.name.clone(),
            policy: policy.to_owned(),
            seed: setup.seed,
            gbytes_per_sec: rounded(ratio(bytes, took), 3),
            fluid_limit_gbytes_per_sec: rounded(
                least.map_or(0.0, |least| ratio(good_bytes, least)),
                3,
            ),
            efficiency: rounded(least.map_or(0.0, |least| ratio(least, took)), 4),
            p50_us: percentile(500),
            p99_us: percentile(990),
            p999_us: percentile(999),
            requests: history.requests,
            failed_requests: history.failed_requests,
            violations: history.violations,
            dips: dips(setup, history, &capacity),
            rails: shares(setup, history),
            goodput_gbytes_per_sec: rounded(ratio(good_bytes, took), 6),
            max_us: percentile(1_000),
            workloads: workloads::rows(setup, history),
            send_queue: None,
            staging: None,
        };
        Self {
            report,
            returns: returns(setup, history),
            series: Series::new(setup, history, &capacity),
            violation: history.first_violation.clone(),
            slices: history.slices,
            acknowledged: history.buckets.clone(),
            bucket_ms: setup.bucket_ns() / 1_000_000,
            notes: Vec::new(),
        }
    }
}

/// The JSON object of a run.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    report: &'a Report,
    returns: &'a [Return],
    #[serde(flatten)]
    series: &'a Series,
}

impl Outcome {
    /// As one line of JSON: the report, the rails that came back, and what happened over time.
    pub fn to_json(&self) -> String {
        let line = Line {
            report: &self.report,
            returns: &self.returns,
            series: &self.series,
        };
        // Plain fields always serialise.
        serde_json::to_string(&line).unwrap_or_default()
    }
}

impl Report {
    /// As one line of JSON. Numbers are rounded to a fixed number of places, so equal runs give equal bytes.
    pub fn to_json(&self) -> String {
        // Plain fields without maps always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Rounds half up to so many places. The quotient of two integers is the same double everywhere.
pub(crate) fn rounded(value: f64, places: i32) -> f64 {
    let scale = 10_f64.powi(places.clamp(0, 6));
    (value * scale + 0.5).floor() / scale
}

pub(crate) fn ratio(numerator: u64, denominator: u64) -> f64 {
    if denominator == 0 {
        0.0
    } else {
        numerator as f64 / denominator as f64
    }
}

/// When one server has passed all of `bytes`, each of which comes at its time, in order. `rate` is its bytes in each
/// nanosecond at a time, and `changes` are the times at which that changes, in order.
pub(crate) fn drained(
    from: u64,
    bytes: &[(u64, u64)],
    changes: &[u64],
    rate: impl Fn(u64) -> f64,
) -> u64 {
    let mut now = from as f64;
    for (at, bytes) in bytes {
        now = now.max(*at as f64);
        let mut left = *bytes as f64;
        while left > 0.0 {
            let rate = rate(now as u64);
            let change = changes.iter().find(|at| **at as f64 > now);
            let next = change.map_or(f64::INFINITY, |at| *at as f64);
            if (next - now) * rate >= left {
                now += left / rate;
                break;
            }
            left -= (next - now) * rate;
            now = next;
        }
    }
    now as u64
}

/// The value that so many of a thousand are not above.
pub(crate) fn nearest_rank(sorted: &[u64], per_mille: usize) -> u64 {
    let rank = (sorted.len() * per_mille).div_ceil(1_000);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

fn shares(setup: &Setup, history: &History) -> Vec<RailShare> {
    let all: u64 = history.rail_bytes.iter().sum();
    let share = |(rail, bytes): (usize, &u64)| RailShare {
        rail: setup.rail_name(rail),
        bytes: *bytes,
        share: rounded(ratio(*bytes, all), 4),
    };
    history.rail_bytes.iter().enumerate().map(share).collect()
}

fn bucket_bytes(history: &History, bucket: usize) -> u64 {
    history
        .buckets
        .get(bucket)
        .map_or(0, |rails| rails.iter().sum())
}

/// Whole buckets between the first submission and the last report, without the first of them, in which lanes
/// open.
fn whole_buckets(setup: &Setup, history: &History) -> std::ops::Range<usize> {
    let first = history.began_at.div_ceil(setup.bucket_ns()) + 1;
    first as usize..(history.ended_at / setup.bucket_ns()) as usize
}

/// Whole buckets before the first fault.
fn undisturbed_buckets(setup: &Setup, history: &History) -> std::ops::Range<usize> {
    let whole = whole_buckets(setup, history);
    let first_fault = setup
        .intervals
        .get(1)
        .map_or(u64::MAX, |interval| interval.starts_at);
    whole.start..whole.end.min((first_fault / setup.bucket_ns()) as usize)
}

fn dips(setup: &Setup, history: &History, capacity: &Capacity) -> Vec<Dip> {
    if setup.submitters.iter().any(|row| row.pause_ns > 0) {
        return Vec::new();
    }
    let bucket_ms = setup.bucket_ns() / 1_000_000;
    let allowed = |bucket: usize| {
        let from = bucket as u64 * setup.bucket_ns();
        capacity.bytes_between(from, from + setup.bucket_ns()) as f64
    };
    let undisturbed = undisturbed_buckets(setup, history);
    let base = if undisturbed.is_empty() {
        whole_buckets(setup, history)
    } else {
        undisturbed
    };
    let used: u64 = base
        .clone()
        .map(|bucket| bucket_bytes(history, bucket))
        .sum();
    let could: f64 = base.map(allowed).sum();
    let part = if could > 0.0 {
        (used as f64 / could).min(1.0)
    } else {
        0.0
    };
    let mut dips: Vec<Dip> = Vec::new();
    for bucket in whole_buckets(setup, history) {
        let allowed = allowed(bucket) * part;
        let got = bucket_bytes(history, bucket) as f64;
        if got >= allowed * DIP_BELOW {
            continue;
        }
        let (at_ms, depth) = (bucket as u64 * bucket_ms, rounded(1.0 - got / allowed, 3));
        match dips
            .last_mut()
            .filter(|dip| dip.at_ms + dip.length_ms == at_ms)
        {
            Some(dip) => {
                dip.length_ms += bucket_ms;
                dip.depth = dip.depth.max(depth);
            }
            None => dips.push(Dip {
                at_ms,
                depth,
                length_ms: bucket_ms,
            }),
        }
    }
    dips
}

fn returns(setup: &Setup, history: &History) -> Vec<Return> {
    let mut returns = Vec::new();
    for pair in setup.intervals.windows(2) {
        for rail in 0..setup.rails.len() {
            if pair[0].cuts[rail] != Cut::No && pair[1].cuts[rail] == Cut::No {
                returns.extend(return_of(setup, history, rail, pair[1].starts_at));
            }
        }
    }
    returns
}

/// How a rail came back; `None`: nobody had noticed that it was gone.
fn return_of(setup: &Setup, history: &History, rail: usize, restored_at: u64) -> Option<Return> {
    let own = || history.rail_states.iter().filter(|(_, of, _)| *of == rail);
    own().rfind(|(at, _, state)| *at < restored_at && *state != RailState::Healthy)?;
    let found_at = own()
        .find(|(at, _, state)| *at >= restored_at && *state == RailState::Healthy)
        .map(|row| row.0);
    let share = |buckets: std::ops::Range<usize>| {
        let own: u64 = buckets
            .clone()
            .map(|bucket| history.buckets.get(bucket).map_or(0, |row| row[rail]))
            .sum();
        ratio(
            own,
            buckets.map(|bucket| bucket_bytes(history, bucket)).sum(),
        )
    };
    let former = share(undisturbed_buckets(setup, history));
    let share_back_ms = found_at.and_then(|found_at| {
        let first = (found_at / setup.bucket_ns()) as usize;
        let back = (first..history.buckets.len())
            .find(|bucket| share(*bucket..bucket + 1) >= SHARE_BACK * former)?;
        Some(rounded(
            ((back as u64 + 1) * setup.bucket_ns() - found_at) as f64 / NS_PER_MS,
            3,
        ))
    });
    Some(Return {
        rail: setup.rail_name(rail),
        at_ms: rounded(restored_at as f64 / NS_PER_MS, 3),
        found_ms: found_at.map(|found_at| rounded((found_at - restored_at) as f64 / NS_PER_MS, 3)),
        share_back_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<u64> = (1..=100).collect();
        assert_eq!(
            [500, 990, 999, 1_000].map(|rank| nearest_rank(&values, rank)),
            [50, 99, 100, 100]
        );
        assert_eq!(nearest_rank(&[], 500), 0);
    }

    #[test]
    fn numbers_have_a_fixed_number_of_places() {
        assert_eq!(rounded(198.399_999_9, 3), 198.4);
        assert_eq!(rounded(0.000_05, 4), 0.000_1);
    }
}
