//! Whether the bounds of a setting hold.

use std::collections::BTreeMap;

use super::{Figures, Setup};
use crate::expect::Bounds;
use crate::report::Report;

/// What a run of `setting` misses of what the scenario expects; nothing: all is well. `others` are the runs that
/// bounds are relative to, by setting.
pub fn misses(setup: &Setup, report: &Report, others: &BTreeMap<String, Report>) -> Vec<String> {
    let case = setup
        .settings
        .iter()
        .find(|case| case.name == report.policy);
    let (Some(case), Some(figures)) = (case, &report.send_queue) else {
        return vec!["it is not about send queues".to_owned()];
    };
    let expect = &case.expect;
    let mut bounds = Bounds::new(report, expect.failed_requests);
    for (what, got, range) in [
        (
            "queue_full_errors",
            figures.queue_full_errors,
            expect.queue_full_errors,
        ),
        (
            "ended_queue_pairs",
            figures.ended_queue_pairs,
            expect.ended_queue_pairs,
        ),
        (
            "admission_waits",
            figures.admission_waits,
            [expect.admission_waits_min, u64::MAX],
        ),
    ] {
        bounds.within(what, got, range);
    }
    bounds.at_least("efficiency", report.efficiency, expect.efficiency_min);
    type Measure = fn(&Report, &Figures) -> f64;
    let ratios: [(&str, &BTreeMap<String, f64>, Measure, bool); 3] = [
        (
            "throughput",
            &expect.gbytes_per_sec_min_ratio_to,
            |report, _| report.gbytes_per_sec,
            true,
        ),
        (
            "spread of depths",
            &expect.depth_spread_max_ratio_to,
            |_, figures| figures.depth_spread_works,
            false,
        ),
        (
            "completions",
            &expect.completions_max_ratio_to,
            |_, figures| figures.completions_per_1000_works,
            false,
        ),
    ];
    for (what, ratios_to, measure, is_least) in ratios {
        for (name, bound) in ratios_to {
            let other = others
                .get(name)
                .and_then(|other| Some(measure(other, other.send_queue.as_ref()?)));
            let ratio = measure(report, figures) / other.unwrap_or(f64::NAN);
            let holds = if is_least {
                ratio >= *bound
            } else {
                ratio <= *bound
            };
            bounds.check(&format!("{what} against {name}"), ratio, holds, *bound);
        }
    }
    bounds.misses
}
