//! The page about send queues: how full the lanes of each rail were over time under each setting, and what came of it.

use super::axis::{number, time_us};
use super::settings::{self, About, Column, Shown};
use crate::posting::{Figures, Run, Setup};
use crate::report::Report;

const COLUMNS: &[Column] = &[
    ("GB/s", |report| number(report.gbytes_per_sec)),
    ("% of the limit", |report| number(report.efficiency * 100.0)),
    ("p50 of a batch", |report| time_us(report.p50_us)),
    ("p99", |report| time_us(report.p99_us)),
    ("requests", |report| report.requests.to_string()),
    ("failed", |report| report.failed_requests.to_string()),
    ("queue-full errors", |report| {
        figure(report, |of| of.queue_full_errors as f64)
    }),
    ("waits for room", |report| {
        figure(report, |of| of.admission_waits as f64)
    }),
    ("µs each", |report| {
        figure(report, |of| of.admission_wait_us)
    }),
    ("times a lane was full", |report| {
        figure(report, |of| of.reserve_waits as f64)
    }),
    ("µs each of these", |report| {
        figure(report, |of| of.reserve_wait_us)
    }),
    ("spread, works", |report| {
        figure(report, |of| of.depth_spread_works)
    }),
    ("completions per 1000", |report| {
        figure(report, |of| of.completions_per_1000_works)
    }),
    ("lanes ended", |report| {
        figure(report, |of| of.ended_queue_pairs as f64)
    }),
    ("violations", |report| report.violations.to_string()),
];

fn figure(report: &Report, of: fn(&Figures) -> f64) -> String {
    report
        .send_queue
        .as_ref()
        .map_or(String::new(), |figures| number(of(figures)))
}

/// A page about a scenario of send queues: all of `runs`, one for each setting, `chosen` in front.
pub fn page(setup: &Setup, runs: &[Run], chosen: usize) -> String {
    let about = About {
        name: setup.name(),
        shows: setup.shows(),
        calls: "batches",
        title: "How full lanes were",
        drawn: "Works posted, under a split policy also those admitted; all lanes of a rail together.",
        lines: setup.rail_names().collect(),
        unit: "works",
        scale: 1.0,
        limit: f64::from(setup.depth_max()),
        columns: COLUMNS,
    };
    let shown = runs.iter().map(|run| Shown {
        outcome: &run.outcome,
        ns: &run.history.batch_ns,
        began_at: run.history.began_at,
        lines: &run.history.queues.depths,
    });
    settings::page(&about, &shown.collect::<Vec<_>>(), chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posting::run;
    use crate::scenario::text;

    #[test]
    fn a_page_shows_every_setting_and_why_a_queue_was_full() {
        let file = text("sq-burst-2048").expect("a scenario of the library");
        let setup = Setup::new(file, None).expect("it is right");
        let runs: Vec<Run> = (0..2).map(|setting| run(&setup, setting)).collect();
        let text = page(&setup, &runs, 1);
        for words in [
            "no-admission",
            "no room (burst)",
            "a/qp3",
            "queue-full errors",
        ] {
            assert!(text.contains(words), "{words}");
        }
        for tag in ["html", "svg", "table", "div", "p"] {
            let opened = text.matches(&format!("<{tag} ")).count()
                + text.matches(&format!("<{tag}>")).count();
            assert_eq!(opened, text.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        assert!(!text.contains("NaN") && !text.contains("http"));
    }
}
