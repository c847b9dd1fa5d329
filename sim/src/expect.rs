//! Whether a scenario's bounds hold.

use polyrail_core::rail::select::Policy;

use crate::fluid::Capacity;
use crate::report::Outcome;
use crate::scenario::Expect;
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
    let mut misses = Vec::new();
    let mut check = |what: &str, got: f64, holds: bool, bound: f64| {
        if !holds {
            misses.push(format!("{what} is {got}, the bound {bound}"));
        }
    };
    check(
        "violations",
        report.violations as f64,
        report.violations == 0,
        0.0,
    );
    let [least, most] = expect.failed_requests;
    for (holds, bound) in [
        (report.failed_requests >= least, least),
        (report.failed_requests <= most, most),
    ] {
        check(
            "failed_requests",
            report.failed_requests as f64,
            holds,
            bound as f64,
        );
    }
    if let Some(min) = expect.efficiency_min {
        check(
            "efficiency",
            report.efficiency,
            report.efficiency >= min,
            min,
        );
    }
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
    misses
}

/// The part of the capacity that is left at worst.
pub fn worst_share(setup: &Setup) -> f64 {
    let capacity = Capacity::of_all(setup);
    let worst = capacity.rates().iter().copied().min().unwrap_or(0);
    worst as f64 / capacity.rates().first().copied().unwrap_or(0).max(1) as f64
}
