//! The figures of a run that a row can have: what CSV files and spreads over seeds are made of.

use super::Outcome;

/// A number that runs have; some have it not.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// What it is called in output.
    pub name: &'static str,
    /// It, of a run.
    pub of: fn(&Outcome) -> Option<f64>,
}

const fn figure(name: &'static str, of: fn(&Outcome) -> Option<f64>) -> Figure {
    Figure { name, of }
}

/// All of them, in the order in which they are written.
pub const FIGURES: [Figure; 15] = [
    figure("gbytes_per_sec", |run| Some(run.report.gbytes_per_sec)),
    figure("goodput_gbytes_per_sec", |run| {
        Some(run.report.goodput_gbytes_per_sec)
    }),
    figure("fluid_limit_gbytes_per_sec", |run| {
        Some(run.report.fluid_limit_gbytes_per_sec)
    }),
    figure("efficiency", |run| Some(run.report.efficiency)),
    figure("p50_us", |run| Some(run.report.p50_us)),
    figure("p99_us", |run| Some(run.report.p99_us)),
    figure("p999_us", |run| Some(run.report.p999_us)),
    figure("max_us", |run| Some(run.report.max_us)),
    figure("requests", |run| Some(run.report.requests as f64)),
    figure("failed_requests", |run| {
        Some(run.report.failed_requests as f64)
    }),
    figure("violations", |run| Some(run.report.violations as f64)),
    figure("dips", |run| Some(run.report.dips.len() as f64)),
    figure("longest_dip_ms", |run| {
        let lengths = run.report.dips.iter().map(|dip| dip.length_ms as f64);
        Some(lengths.fold(0.0, f64::max))
    }),
    figure("longest_found_ms", |run| {
        most(run.returns.iter().map(|row| row.found_ms))
    }),
    figure("longest_share_back_ms", |run| {
        most(run.returns.iter().map(|row| row.share_back_ms))
    }),
];

/// The most; nothing of nothing, and nothing if one of them never came.
fn most(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Option<Vec<f64>> = values.collect();
    values?.into_iter().reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_what_never_came_is_not_known() {
        assert_eq!(most([Some(2.0), Some(7.5)].into_iter()), Some(7.5));
        assert_eq!(most([Some(2.0), None].into_iter()), None);
        assert_eq!(most(std::iter::empty()), None);
    }
}
