//! Whether the bounds of a setting hold.

use super::setup::Setup;
use crate::expect::Bounds;
use crate::report::Report;

/// What a run misses of what the scenario expects of its setting; nothing: all is well.
pub fn misses(setup: &Setup, report: &Report) -> Vec<String> {
    let expect = setup
        .expect
        .get(&report.policy)
        .cloned()
        .unwrap_or_default();
    let Some(figures) = &report.staging else {
        return vec!["it is not about staging".to_owned()];
    };
    let mut bounds = Bounds::new(report, expect.failed_requests);
    let least = |bound| [bound, u64::MAX];
    for (what, got, range) in [
        (
            "quarantined_slots",
            figures.quarantined_slots,
            expect.quarantined_slots,
        ),
        (
            "repeated_hops",
            figures.repeated_hops,
            least(expect.repeated_hops_min),
        ),
        (
            "staging_lost",
            figures.staging_lost,
            least(expect.staging_lost_min),
        ),
    ] {
        bounds.within(what, got, range);
    }
    bounds.at_least("efficiency", report.efficiency, expect.efficiency_min);
    bounds.at_most("efficiency", report.efficiency, expect.efficiency_max);
    bounds.misses
}
