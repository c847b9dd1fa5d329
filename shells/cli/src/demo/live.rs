//! What is shown while it runs: a table that is redrawn on a terminal, else a line a second.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use polyrail::{RailState, RailStatus};

use super::script::{CUT, Script};
use crate::chart;
use crate::timeline::Bucket;

/// Columns of the bars.
const CHART_WIDTH: usize = 40;

/// The display.
#[derive(Debug)]
pub(super) struct Live {
    terminal: bool,
    every: Duration,
    shown_at: Duration,
    /// Lines of the table that is on the screen now.
    lines: usize,
}

impl Live {
    /// Nothing shown yet.
    pub(super) fn new() -> Self {
        let terminal = io::stdout().is_terminal();
        Self {
            terminal,
            every: Duration::from_millis(if terminal { 200 } else { 1000 }),
            shown_at: Duration::ZERO,
            lines: 0,
        }
    }

    /// Shows how things stand, if it is time to.
    pub(super) fn show(
        &mut self,
        elapsed: Duration,
        rails: &[RailStatus],
        buckets: &[Bucket],
        script: &Script<'_>,
    ) -> io::Result<()> {
        let since = self.shown_at;
        if elapsed < since + self.every {
            return Ok(());
        }
        self.shown_at = elapsed;
        let recent = buckets
            .iter()
            .rposition(|bucket| bucket.start < since)
            .map_or(0, |i| i + 1);
        let cut = script.is_cut();
        let mut out = io::stdout().lock();
        if self.terminal {
            let table = table(elapsed, rails, buckets, recent, cut);
            if self.lines > 0 {
                write!(out, "\x1b[{}A\x1b[J", self.lines)?;
            }
            self.lines = table.lines().count();
            write!(out, "{table}")?;
        } else {
            writeln!(out, "{}", line(elapsed, rails, &buckets[recent..], cut))?;
        }
        out.flush()
    }
}

/// Mean GB/s of a rail.
fn rate(buckets: &[Bucket], rail: usize) -> f64 {
    let rates = buckets.iter().map(|bucket| bucket.rate(rail)).sum::<f64>();
    rates / buckets.len().max(1) as f64
}

fn line(elapsed: Duration, rails: &[RailStatus], recent: &[Bucket], cut: bool) -> String {
    let rates: Vec<f64> = (0..rails.len()).map(|rail| rate(recent, rail)).collect();
    let mut text = format!(
        "{:>5.1} s  {:.3} GB/s  by rail:",
        elapsed.as_secs_f64(),
        rates.iter().sum::<f64>()
    );
    for (i, rate) in rates.iter().enumerate() {
        let mark = if cut && i == CUT.index() {
            " (cut)"
        } else {
            ""
        };
        // Writing to a string does not fail.
        let _ = write!(text, "  {rate:.3}{mark}");
    }
    text
}

fn table(
    elapsed: Duration,
    rails: &[RailStatus],
    buckets: &[Bucket],
    recent: usize,
    cut: bool,
) -> String {
    let max = buckets.iter().flat_map(Bucket::rates).fold(0.0, f64::max);
    let mut text = format!("{:>5.1} s\n", elapsed.as_secs_f64());
    for (i, rail) in rails.iter().enumerate() {
        let state = match rail.state {
            _ if cut && i == CUT.index() => "cut",
            RailState::Healthy => "healthy",
            RailState::Paused => "paused",
            RailState::Probing => "probing",
        };
        let rates: Vec<f64> = buckets.iter().map(|bucket| bucket.rate(i)).collect();
        let bars = chart::bars(&rates, max, CHART_WIDTH);
        let now = rate(&buckets[recent..], i);
        let _ = writeln!(text, "{:<28} {state:<8} {now:>6.3} GB/s  {bars}", rail.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn rails() -> Vec<RailStatus> {
        let rail = |i| RailStatus {
            name: format!("tcp:127.0.0.{i}>127.0.0.{i}"),
            is_spare: false,
            is_withdrawn: false,
            state: RailState::Healthy,
            bytes: 0,
            inflight_bytes: 0,
            bytes_per_sec: 0,
            sent_again: 0,
            state_for: Duration::ZERO,
            in_states: BTreeMap::new(),
            pauses: BTreeMap::new(),
        };
        (1..=4).map(rail).collect()
    }

    fn buckets() -> Vec<Bucket> {
        let bucket = |i: u64| Bucket {
            start: Duration::from_millis(i * 100),
            length: Duration::from_millis(100),
            bytes: vec![10_000_000, 5_000_000, 0, 10_000_000],
        };
        (0..10).map(bucket).collect()
    }

    #[test]
    fn a_line_has_the_total_and_each_rail_and_marks_the_cut() {
        let text = line(Duration::from_secs(1), &rails(), &buckets(), true);
        assert_eq!(
            text,
            "  1.0 s  0.250 GB/s  by rail:  0.100  0.050  0.000 (cut)  0.100"
        );
    }

    #[test]
    fn a_table_has_a_row_per_rail() {
        let text = table(Duration::from_secs(1), &rails(), &buckets(), 5, false);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 5, "{text}");
        assert!(rows[1].ends_with("██████████"), "{text}");
        assert!(
            rows[2].contains("0.050 GB/s") && rows[2].ends_with("▄▄▄▄▄▄▄▄▄▄"),
            "{text}"
        );
    }
}
