//! A report for people.

use std::fmt::Write;

use super::report::Report;
use crate::chart;
use crate::sizes::show_size;

/// Columns of a timeline.
const CHART_WIDTH: usize = 72;

/// The line above the rows.
pub(super) fn header() -> String {
    format!(
        "{:<6} {:>9} {:>6} {:>7} {:>9} {:>10} {:>10} {:>10} {:>10} {:>7} {:>8}",
        "op",
        "block",
        "batch",
        "threads",
        "GB/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "requests",
        "failed",
        "verified"
    )
}

/// A cell's row, the shares of its rails below it, then its timeline if there is one.
pub(super) fn row(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{:<6} {:>9} {:>6} {:>7} {:>9.3} {:>10.1} {:>10.1} {:>10.1} {:>10} {:>7} {:>8}",
        report.op,
        show_size(report.block_bytes),
        report.batch,
        report.threads,
        report.gbytes_per_sec,
        report.p50_us,
        report.p99_us,
        report.p999_us,
        report.requests,
        report.failed_requests,
        if report.verified { "yes" } else { "no" },
    );
    for rail in &report.rails {
        let percent = rail.share * 100.0;
        let _ = writeln!(
            text,
            "       {:<40} {:<8} {percent:>5.1} % {:>9.3} GB/s",
            rail.rail, rail.standing, rail.gbytes_per_sec
        );
    }
    write_timeline(&mut text, report);
    text
}

fn write_timeline(text: &mut String, report: &Report) {
    let Some(timeline) = &report.timeline else {
        return;
    };
    let rates = |rail: usize| -> Vec<f64> {
        let rate = |moment: &super::report::Moment| moment.rails.get(rail).copied().unwrap_or(0.0);
        timeline.iter().map(rate).collect()
    };
    let max = (0..report.rails.len()).flat_map(rates).fold(0.0, f64::max);
    let _ = writeln!(text, "       GB/s over time, full bars are {max:.3}");
    for (i, rail) in report.rails.iter().enumerate() {
        let bars = chart::bars(&rates(i), max, CHART_WIDTH);
        let _ = writeln!(text, "       {:<40} |{bars}|", rail.rail);
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn a_row_lines_up_with_the_header_and_is_followed_by_rails_and_timeline() {
        let text = row(&report("--verify"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert_eq!(lines[0].chars().count(), header().chars().count());
        assert!(
            lines[0].contains("4KiB") && lines[0].ends_with("yes"),
            "{text}"
        );
        assert!(lines[1].contains("75.0 %"), "{text}");
        assert!(
            lines[4].ends_with("|█|") && lines[5].ends_with("|▃|"),
            "{text}"
        );
    }
}
