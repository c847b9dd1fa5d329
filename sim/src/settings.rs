//! The frame of scenarios that are not about rails: a file with settings that are compared, and a report like all others.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use toml::Spanned;

use crate::report::{Outcome, RailShare, Report, Series, nearest_rank, ratio, rounded};
use crate::scenario::ScenarioError;

const NS_PER_MS: f64 = 1e6;

/// Milliseconds of a file in nanoseconds; at most a day.
pub(crate) fn ns(ms: f64) -> u64 {
    (ms.clamp(0.0, 86_400e3) * NS_PER_MS) as u64
}

/// A rate of a file, in gigabits a second, in bytes a second.
pub(crate) fn bytes_per_sec(
    text: &str,
    rate: &Spanned<f64>,
    range: RangeInclusive<f64>,
) -> Result<u64, ScenarioError> {
    if !range.contains(rate.get_ref()) {
        let message = format!("from {} to {}", range.start(), range.end());
        return Err(ScenarioError::at(text, rate.span(), message));
    }
    Ok((rate.get_ref() * 1e9 / 8.0) as u64)
}

/// What a file expects of each setting, by its name. There has to be a setting, and each that something is expected of.
pub(crate) fn expected<T>(
    text: &str,
    settings: &[&str],
    expect: BTreeMap<Spanned<String>, T>,
) -> Result<BTreeMap<String, T>, ScenarioError> {
    if settings.is_empty() {
        return Err(ScenarioError::at(text, 0..0, "no [[setting]]"));
    }
    let unknown = |name: &&Spanned<String>| !settings.contains(&name.get_ref().as_str());
    if let Some(name) = expect.keys().find(unknown) {
        let message = format!("no setting is named {}", name.get_ref());
        return Err(ScenarioError::at(text, name.span(), message));
    }
    let rows = expect.into_iter();
    Ok(rows
        .map(|(name, expect)| (name.into_inner(), expect))
        .collect())
}

/// What a run came to, of what every scenario says.
pub(crate) struct Came<'a> {
    pub(crate) scenario: &'a str,
    pub(crate) setting: &'a str,
    pub(crate) seed: u64,
    pub(crate) bytes: u64,
    pub(crate) took_ns: u64,
    /// In how long these bytes could have passed.
    pub(crate) least_ns: u64,
    /// Of each call or request.
    pub(crate) times_ns: &'a [u64],
    pub(crate) requests: u64,
    pub(crate) failed_requests: u64,
    pub(crate) violations: u64,
    pub(crate) violation: Option<&'a String>,
    pub(crate) slices: u64,
    /// Names, and bytes of each.
    pub(crate) rails: Vec<(String, u64)>,
}

impl Came<'_> {
    pub(crate) fn outcome(self) -> Outcome {
        let mut times = self.times_ns.to_vec();
        times.sort_unstable();
        let percentile = |per_mille| rounded(nearest_rank(&times, per_mille) as f64 / 1e3, 3);
        let all: u64 = self.rails.iter().map(|rail| rail.1).sum();
        let rails = self.rails.into_iter().map(|(rail, bytes)| RailShare {
            rail,
            bytes,
            share: rounded(ratio(bytes, all), 4),
        });
        let report = Report {
            scenario: self.scenario.to_owned(),
            policy: self.setting.to_owned(),
            seed: self.seed,
            gbytes_per_sec: rounded(ratio(self.bytes, self.took_ns), 3),
            fluid_limit_gbytes_per_sec: rounded(ratio(self.bytes, self.least_ns), 3),
            efficiency: rounded(ratio(self.least_ns, self.took_ns), 4),
            p50_us: percentile(500),
            p99_us: percentile(990),
            p999_us: percentile(999),
            requests: self.requests,
            failed_requests: self.failed_requests,
            violations: self.violations,
            dips: Vec::new(),
            rails: rails.collect(),
            goodput_gbytes_per_sec: rounded(ratio(self.bytes, self.took_ns), 6),
            max_us: percentile(1_000),
            workloads: Vec::new(),
            send_queue: None,
            staging: None,
        };
        Outcome {
            report,
            returns: Vec::new(),
            series: Series::default(),
            acknowledged: Vec::new(),
            bucket_ms: 1,
            violation: self.violation.cloned(),
            slices: self.slices,
            notes: Vec::new(),
        }
    }
}

/// Runs what some seeds draw, and gives the reports to `count`: nothing is violated, and a seed gives the same run twice.
#[cfg(test)]
pub(crate) fn check_drawn(
    draw: fn(u64) -> String,
    run: impl Fn(&str) -> Result<Outcome, ScenarioError>,
    mut count: impl FnMut(&Report),
) {
    for seed in 0..400 {
        let text = draw(seed);
        let run = || run(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        let outcome = run();
        assert_eq!(outcome.violation, None, "seed {seed}\n{text}");
        if seed % 20 == 0 {
            assert_eq!(outcome, run(), "seed {seed}");
        }
        count(&outcome.report);
    }
}
