//! Reports as text for people.

use std::fmt::Write;

use super::{Outcome, Report};
use crate::{posting, staging};

/// A column of a table for people, and how wide it is.
pub(crate) type Column = (&'static str, usize);

/// The columns of rows about fabrics.
const COLUMNS: [Column; 14] = [
    ("scenario", 24),
    ("policy", 12),
    ("GB/s", 9),
    ("good GB/s", 9),
    ("limit", 9),
    ("eff", 6),
    ("p50 µs", 10),
    ("p99 µs", 10),
    ("p99.9 µs", 10),
    ("max µs", 10),
    ("requests", 9),
    ("failed", 6),
    ("viol", 5),
    ("worst dip", 9),
];

/// The columns of all tables: of fabrics, of send queues, of staging.
pub fn tables() -> [(&'static str, Vec<&'static str>); 3] {
    let kinds: [(_, &[Column]); 3] = [
        ("fabrics", &COLUMNS),
        ("send queues", &posting::COLUMNS),
        ("staging", &staging::COLUMNS),
    ];
    kinds.map(|(kind, columns)| (kind, columns.iter().map(|column| column.0).collect()))
}

/// The line above rows: the first two columns are names, all others numbers.
fn header(columns: &[Column]) -> String {
    let cell = |(index, (name, width)): (usize, &Column)| match index {
        0 | 1 => format!("{name:<width$}"),
        _ => format!("{name:>width$}"),
    };
    let cells: Vec<_> = columns.iter().enumerate().map(cell).collect();
    cells.join(" ")
}

/// Reports as a table for people: a row each, and a header wherever the columns change.
pub fn table<'a>(reports: impl IntoIterator<Item = &'a Report>) -> String {
    let mut text = String::new();
    let mut columns = String::new();
    for report in reports {
        let header = report.header();
        if header != columns {
            text += &header;
            text += "\n";
            columns = header;
        }
        text += &report.row();
        text += "\n";
    }
    text
}

impl Report {
    /// The line above its row.
    pub fn header(&self) -> String {
        match (&self.send_queue, &self.staging) {
            (Some(_), _) => header(&posting::COLUMNS),
            (None, Some(_)) => header(&staging::COLUMNS),
            (None, None) => header(&COLUMNS),
        }
    }

    /// One row for people.
    pub fn row(&self) -> String {
        if let Some(row) = posting::row(self).or_else(|| staging::row(self)) {
            return row;
        }
        let dip = self.dips.iter().map(|dip| dip.length_ms).max();
        format!(
            "{:<24} {:<12} {:>9.3} {:>9.3} {:>9.3} {:>6.4} {:>10.3} {:>10.3} {:>10.3} {:>10.3} {:>9} {:>6} {:>5} {:>9}",
            self.scenario,
            self.policy,
            self.gbytes_per_sec,
            self.goodput_gbytes_per_sec,
            self.fluid_limit_gbytes_per_sec,
            self.efficiency,
            self.p50_us,
            self.p99_us,
            self.p999_us,
            self.max_us,
            self.requests,
            self.failed_requests,
            self.violations,
            dip.map_or("none".to_owned(), |length| format!("{length} ms"))
        )
    }
}

impl Outcome {
    /// What is below a single run's row: workloads, rails, dips and returns.
    pub fn details(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        for (number, row) in self.report.workloads.iter().enumerate() {
            let _ = writeln!(text, "  workload {}: {}", number + 1, row.row());
        }
        for rail in &self.report.rails {
            let _ = writeln!(
                text,
                "  {:<32} {:>5.1} %  {} bytes",
                rail.rail,
                rail.share * 100.0,
                rail.bytes
            );
        }
        for dip in &self.report.dips {
            let _ = writeln!(
                text,
                "  dip at {} ms, {} ms long, {:.1} % deep",
                dip.at_ms,
                dip.length_ms,
                dip.depth * 100.0
            );
        }
        for row in &self.returns {
            let name = &row.rail;
            let _ = match (row.found_ms, row.share_back_ms) {
                (Some(found), Some(back)) => {
                    writeln!(
                        text,
                        "  {name} restored at {} ms: found after {found} ms, share back {back} ms later",
                        row.at_ms
                    )
                }
                (Some(found), None) => writeln!(
                    text,
                    "  {name} restored at {} ms: found after {found} ms",
                    row.at_ms
                ),
                _ => writeln!(text, "  {name} restored at {} ms: not found", row.at_ms),
            };
        }
        for note in &self.notes {
            let _ = writeln!(text, "  {note}");
        }
        if let Some(violation) = &self.violation {
            let _ = writeln!(text, "  first violation: {violation}");
        }
        text
    }
}
