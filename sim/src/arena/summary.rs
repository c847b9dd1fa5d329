//! What came of many trials: how `spray`'s regret is spread, by feature too, and what the worst share.

use std::cmp::Ordering;
use std::fmt::Write;

use serde::Serialize;

use super::verdict::{P99_RATIO_MAX, Verdict};
use crate::spread::Spread;

/// So many of the worst are named.
pub const WORST: usize = 10;

/// Trials that share a feature, or all of them.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// Which; empty: all.
    pub feature: &'static str,
    /// Of the best policy's goodput.
    pub of_best: Spread,
    /// Of what could be reached.
    pub of_bound: Spread,
    /// Of the better of both.
    pub of_both: Spread,
    /// Of the best 99th percentile among policies that are as fast.
    pub p99: Spread,
    /// The part of trials in which that is good.
    pub p99_good: f64,
    /// Trials in which something is broken.
    pub broken: usize,
    /// The part of the ten worst trials that have the feature.
    pub of_worst: f64,
}

/// What a summary has to reach.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Floor {
    /// Of the median of the better of both.
    pub median: f64,
    /// Of its 5th percentile.
    pub p5: f64,
    /// Of its least.
    pub least: f64,
    /// Of the part of trials whose 99th percentile is good.
    pub p99_good: f64,
}

impl Floor {
    /// Anything will do that is not broken.
    pub const NONE: Self = Self {
        median: 0.0,
        p5: 0.0,
        least: 0.0,
        p99_good: 0.0,
    };
}

impl Summary {
    /// Of all trials.
    pub fn of(verdicts: &[Verdict]) -> Self {
        Self::over("", &verdicts.iter().collect::<Vec<_>>(), 1.0)
    }

    /// Of the trials of each feature, the worst first.
    pub fn by_feature(verdicts: &[Verdict]) -> Vec<Self> {
        let worst = worst(verdicts);
        let mut features: Vec<_> = verdicts.iter().flat_map(|row| &row.features).collect();
        features.sort_unstable();
        features.dedup();
        let summary = |feature: &&'static str| {
            let has = |verdict: &&Verdict| verdict.features.contains(feature);
            let rows: Vec<_> = verdicts.iter().filter(has).collect();
            let of_worst = worst.iter().copied().filter(|row| has(row)).count();
            let part = of_worst as f64 / worst.len().max(1) as f64;
            Self::over(feature, &rows, part)
        };
        let mut rows: Vec<_> = features.into_iter().map(summary).collect();
        rows.sort_by(|a, b| a.of_both.p5.total_cmp(&b.of_both.p5));
        rows
    }

    fn over(feature: &'static str, rows: &[&Verdict], of_worst: f64) -> Self {
        let spread = |of: fn(&Verdict) -> f64| Spread::of(rows.iter().map(|row| of(row)));
        let p99 = || rows.iter().filter_map(|row| row.p99.as_ref());
        let good = p99().filter(|row| row.ratio <= P99_RATIO_MAX).count();
        Self {
            feature,
            of_best: spread(|row| row.of_best.ratio),
            of_bound: spread(|row| row.of_bound),
            of_both: spread(|row| row.of_both),
            p99: Spread::of(p99().map(|row| row.ratio)),
            p99_good: match p99().count() {
                0 => 1.0,
                count => good as f64 / count as f64,
            },
            broken: rows.iter().filter(|row| row.broken.is_some()).count(),
            of_worst,
        }
    }

    /// What it misses of a floor, in words; nothing: all is well.
    pub fn misses(&self, floor: &Floor) -> Vec<String> {
        let rows = [
            (
                "the median of the better of both",
                self.of_both.median,
                floor.median,
            ),
            ("its 5th percentile", self.of_both.p5, floor.p5),
            ("its least", self.of_both.least, floor.least),
            ("the part with a good p99", self.p99_good, floor.p99_good),
        ];
        let below = rows.into_iter().filter(|(_, got, floor)| got < floor);
        let mut misses: Vec<_> = below
            .map(|(what, got, floor)| format!("{what} is {got:.3}, below {floor}"))
            .collect();
        if self.broken > 0 {
            misses.push(format!("{} trials are broken", self.broken));
        }
        misses
    }
}

/// The worst trials in throughput: by the better of both.
pub fn worst(verdicts: &[Verdict]) -> Vec<&Verdict> {
    first(verdicts, |a, b| a.of_both.total_cmp(&b.of_both))
}

/// The worst trials by their 99th percentile.
pub fn worst_p99(verdicts: &[Verdict]) -> Vec<&Verdict> {
    let ratio = |row: &Verdict| row.p99.as_ref().map_or(0.0, |p99| p99.ratio);
    first(verdicts, |a, b| ratio(b).total_cmp(&ratio(a)))
}

fn first(verdicts: &[Verdict], order: impl Fn(&Verdict, &Verdict) -> Ordering) -> Vec<&Verdict> {
    let mut rows: Vec<_> = verdicts.iter().collect();
    rows.sort_by(|a, b| order(a, b));
    rows.truncate(WORST);
    rows
}

/// Everything about many trials, for people.
pub fn table(verdicts: &[Verdict]) -> String {
    let all = Summary::of(verdicts);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{:<24} {:>7} {:>7} {:>7} {:>7}",
        "spray's throughput", "trials", "median", "5th", "worst"
    );
    let rows = [
        ("of the best policy's", all.of_best),
        ("of what can be reached", all.of_bound),
        ("of the better of both", all.of_both),
    ];
    for (name, row) in rows {
        let _ = writeln!(
            text,
            "{name:<24} {:>7} {:>7.3} {:>7.3} {:>7.3}",
            row.count, row.median, row.p5, row.least
        );
    }
    let _ = writeln!(
        text,
        "{:<24} {:>7} {:>7} {:>7} {:>7} {:>7}\n{:<24} {:>7} {:>7.3} {:>7.3} {:>7.2} {:>7.3}\n",
        "spray's p99",
        "trials",
        "median",
        "95th",
        "worst",
        "≤ 1.25",
        "of the best at its speed",
        all.p99.count,
        all.p99.median,
        all.p99.p95,
        all.p99.most,
        all.p99_good
    );
    by_feature(&mut text, verdicts);
    text
}

fn by_feature(text: &mut String, verdicts: &[Verdict]) {
    let _ = writeln!(
        text,
        "{:<36} {:>7} | {:>23} | {:>23} | {:>15} | {:>6}",
        "", "", "of the best", "of the better of both", "p99", "of the"
    );
    let _ = writeln!(
        text,
        "{:<36} {:>7} | {:>7} {:>7} {:>7} | {:>7} {:>7} {:>7} | {:>7} {:>7} | {:>6}",
        "feature",
        "trials",
        "median",
        "5th",
        "worst",
        "median",
        "5th",
        "worst",
        "95th",
        "≤ 1.25",
        "worst"
    );
    for row in Summary::by_feature(verdicts) {
        let (best, both) = (row.of_best, row.of_both);
        let _ = writeln!(
            text,
            "{:<36} {:>7} | {:>7.3} {:>7.3} {:>7.3} | {:>7.3} {:>7.3} {:>7.3} | {:>7.2} {:>7.3} | {:>4.0} %",
            row.feature,
            both.count,
            best.median,
            best.p5,
            best.least,
            both.median,
            both.p5,
            both.least,
            row.p99.p95,
            row.p99_good,
            row.of_worst * 100.0
        );
    }
}

impl Verdict {
    /// One line for people.
    pub fn row(&self) -> String {
        let p99 = match &self.p99 {
            Some(p99) => format!("p99 {:.2} of {}'s", p99.ratio, p99.policy),
            None => "no p99".to_owned(),
        };
        let broken = self.broken.as_ref();
        let broken = broken.map_or(String::new(), |text| format!("; BROKEN: {text}"));
        format!(
            "seed {}: {:.3} of {}'s, {:.3} of what can be reached, {p99}{broken}: {}",
            self.seed,
            self.of_best.ratio,
            self.of_best.policy,
            self.of_bound,
            self.features.join(", ")
        )
    }
}
