//! Whether a scenario's bounds hold.

use polyrail_core::rail::select::Policy;

use crate::fluid::Capacity;
use crate::report::{Outcome, Report};
use crate::scenario::{Expect, ExpectShare};
use crate::setup::Setup;

/// What a run under `policy` misses of what its scenario expects; nothing: all is well. `run` runs what a bound
/// is relative to: the same without faults, or under another policy.
pub fn misses(
    setup: &Setup,
    expect: &Expect,
    outcome: &Outcome,
    policy: Policy,
    mut run: impl FnMut(&Setup, Policy) -> Outcome,
) -> Vec<String> {
    let report = &outcome.report;
    let mut bounds = Bounds::new(report, expect.failed_requests);
    bounds.at_least("efficiency", report.efficiency, expect.efficiency_min);
    let mut check = |what: &str, got: f64, holds: bool, bound: f64| {
        bounds.check(what, got, holds, bound);
    };
    if let Some(max) = expect.p50_us_max {
        check("p50_us", report.p50_us, report.p50_us <= max, max);
    }
    if let Some(max) = expect.p99_us_max_ratio {
        let reference = run(&setup.undisturbed(), policy).report.p99_us;
        let ratio = report.p99_us * worst_share(setup) / reference.max(0.001);
        check(
            "p99 against the scaled undisturbed one",
            ratio,
            ratio <= max,
            max,
        );
    }
    for (name, max) in &expect.p99_us_max_ratio_to {
        let other = crate::policy(name).map(|policy| run(setup, policy).report.p99_us);
        let ratio = report.p99_us / other.unwrap_or(0.0).max(0.001);
        check(
            &format!("p99 against that of {name}"),
            ratio,
            ratio <= *max,
            *max,
        );
    }
    for (name, min) in &expect.gbytes_per_sec_min_ratio_to {
        let other = crate::policy(name).map(|policy| run(setup, policy).report.gbytes_per_sec);
        let ratio = report.gbytes_per_sec / other.unwrap_or(f64::INFINITY).max(0.001);
        check(
            &format!("throughput against that of {name}"),
            ratio,
            ratio >= *min,
            *min,
        );
    }
    if let Some(max) = expect.dip_ms_max {
        // While a rail is back and not found the throughput is low too; that has a bound of its own.
        let at_return = |at_ms: u64| outcome.returns.iter().any(|row| row.at_ms as u64 == at_ms);
        let dips = report.dips.iter().filter(|dip| !at_return(dip.at_ms));
        let longest = dips.map(|dip| dip.length_ms).max().unwrap_or(0);
        check(
            "the longest dip in ms",
            longest as f64,
            longest <= max,
            max as f64,
        );
    }
    for row in &outcome.returns {
        for (what, got, max) in [
            (
                "finding a returned rail in ms",
                row.found_ms,
                expect.found_ms_max,
            ),
            (
                "giving it its share in ms",
                row.share_back_ms,
                expect.share_back_ms_max,
            ),
        ] {
            if let Some(max) = max {
                let got = got.unwrap_or(f64::INFINITY);
                check(what, got, got <= max, max);
            }
        }
    }
    let share_of = |rail: &str| {
        let row = report.rails.iter().find(|row| row.rail == rail);
        row.map_or(0.0, |row| row.share)
    };
    for (rail, min) in &expect.share_min {
        let share = share_of(rail);
        check(&format!("the share of {rail}"), share, share >= *min, *min);
    }
    for row in &expect.share {
        let share = share_between(outcome, row);
        let what = format!(
            "the share of {:?} from {} to {} ms",
            row.rails, row.from_ms, row.to_ms
        );
        let bound = if share < row.min { row.min } else { row.max };
        check(&what, share, (row.min..=row.max).contains(&share), bound);
    }
    bounds.misses
}

/// Bounds that are checked one after the other.
pub(crate) struct Bounds {
    /// Those that do not hold, in words.
    pub(crate) misses: Vec<String>,
}

impl Bounds {
    /// Begins with what every scenario is held to: nothing is violated, and so many requests fail.
    pub(crate) fn new(report: &Report, failed_requests: [u64; 2]) -> Self {
        let mut bounds = Self { misses: Vec::new() };
        bounds.within("violations", report.violations, [0, 0]);
        bounds.within("failed_requests", report.failed_requests, failed_requests);
        bounds
    }

    pub(crate) fn check(&mut self, what: &str, got: f64, holds: bool, bound: f64) {
        if !holds {
            self.misses
                .push(format!("{what} is {got}, the bound {bound}"));
        }
    }

    /// From the one to the other, both in.
    pub(crate) fn within(&mut self, what: &str, got: u64, [least, most]: [u64; 2]) {
        self.check(what, got as f64, got >= least, least as f64);
        self.check(what, got as f64, got <= most, most as f64);
    }

    pub(crate) fn at_least(&mut self, what: &str, got: f64, min: Option<f64>) {
        if let Some(min) = min {
            self.check(what, got, got >= min, min);
        }
    }

    pub(crate) fn at_most(&mut self, what: &str, got: f64, max: Option<f64>) {
        if let Some(max) = max {
            self.check(what, got, got <= max, max);
        }
    }
}

/// What part of the bytes acknowledged between two times some rails carried; not a number if there were none.
fn share_between(outcome: &Outcome, row: &ExpectShare) -> f64 {
    let names = outcome.report.rails.iter().map(|rail| &rail.rail);
    let of_rails = |words: &[String]| -> u64 {
        let fits = |name: &str| words.iter().all(|word| name.contains(word.as_str()));
        let buckets = outcome.acknowledged.iter().enumerate();
        let within = |(index, _): &(usize, _)| {
            let at_ms = *index as u64 * outcome.bucket_ms;
            (row.from_ms..row.to_ms).contains(&at_ms)
        };
        let bytes = |bucket: &Vec<u64>| -> u64 {
            let own = names.clone().zip(bucket).filter(|(name, _)| fits(name));
            own.map(|(_, bytes)| bytes).sum()
        };
        buckets
            .filter(within)
            .map(|(_, bucket)| bytes(bucket))
            .sum()
    };
    of_rails(&row.rails) as f64 / of_rails(&row.of) as f64
}

/// The part of the capacity that is left at worst.
pub fn worst_share(setup: &Setup) -> f64 {
    let capacity = Capacity::of_all(setup);
    let worst = capacity.rates().iter().copied().min().unwrap_or(0);
    worst as f64 / capacity.rates().first().copied().unwrap_or(0).max(1) as f64
}
