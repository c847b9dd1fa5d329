//! The page about staging: what each hop passed over time under each setting, and what came of it.

use super::axis::{number, time_us};
use super::settings::{self, About, Column, Shown};
use crate::report::Report;
use crate::staging::{Figures, Run, Setup, hop_names};

const COLUMNS: &[Column] = &[
    ("GB/s", |report| number(report.gbytes_per_sec)),
    ("% of the limit", |report| number(report.efficiency * 100.0)),
    ("p50 of a request", |report| time_us(report.p50_us)),
    ("p99", |report| time_us(report.p99_us)),
    ("requests", |report| report.requests.to_string()),
    ("failed", |report| report.failed_requests.to_string()),
    ("hops", |report| figure(report, |of| of.hops)),
    ("failed hops", |report| figure(report, |of| of.failed_hops)),
    ("without proof", |report| {
        figure(report, |of| of.unfenced_hops)
    }),
    ("done again", |report| figure(report, |of| of.repeated_hops)),
    ("slots quarantined", |report| {
        figure(report, |of| of.quarantined_slots)
    }),
    ("slots restored", |report| {
        figure(report, |of| of.restored_slots)
    }),
    ("without a slot", |report| {
        figure(report, |of| of.staging_lost)
    }),
    ("violations", |report| report.violations.to_string()),
];

fn figure(report: &Report, of: fn(&Figures) -> u64) -> String {
    report
        .staging
        .as_ref()
        .map_or(String::new(), |figures| of(figures).to_string())
}

/// A page about a staging scenario: all of `runs`, one for each setting, `chosen` in front.
pub fn page(setup: &Setup, runs: &[Run], chosen: usize) -> String {
    let about = About {
        name: &setup.name,
        shows: &setup.shows,
        calls: "requests",
        title: "What each hop passed",
        drawn: "Gigabytes a second, of host 0, then of host 1.",
        lines: hop_names().map(str::to_owned).collect(),
        unit: "GB/s",
        // From bytes a microsecond.
        scale: 1e-3,
        limit: 0.0,
        columns: COLUMNS,
    };
    let shown = runs.iter().map(|run| Shown {
        outcome: &run.outcome,
        ns: &run.history.request_ns,
        began_at: run.history.began_at,
        lines: &run.history.passed,
    });
    settings::page(&about, &shown.collect::<Vec<_>>(), chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::text;
    use crate::staging::run;

    #[test]
    fn a_page_shows_every_setting_and_every_hop() {
        let file = text("staged-gpu").expect("a scenario of the library");
        let setup = Setup::new(file, None).expect("it is right");
        let runs: Vec<Run> = (0..3).map(|setting| run(&setup, setting)).collect();
        let text = page(&setup, &runs, 0);
        for words in ["8-slots", "1-slot", "network 1 to 0", "GPU to slot"] {
            assert!(text.contains(words), "{words}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }
}
