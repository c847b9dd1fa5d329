//! The page about a scenario that compares settings: its numbers, one drawing for each setting, and a table.

use super::axis::{Axis, highest_shown, limit_words, number, time_unit};
use super::latency::Times;
use super::page::{framed, how_long, tiled};
use super::svg::{Anchor, Svg, escaped, line_class, line_key, stairs};
use crate::report::{Outcome, Report};
use crate::spans::Spans;

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 1004.0;
/// A drawing's height, and where its frame is in it.
const HEIGHT: f64 = 196.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 160.0;
/// Steps of a line.
const STEPS_MAX: usize = 270;

/// A run under one setting.
pub(super) struct Shown<'a> {
    pub(super) outcome: &'a Outcome,
    /// How long each call or request took.
    pub(super) ns: &'a [u64],
    pub(super) began_at: u64,
    /// What is drawn over time: a line for each column.
    pub(super) lines: &'a Spans,
}

/// A column of the table, and how it is read from a report.
pub(super) type Column = (&'static str, fn(&Report) -> String);

/// What a page is about.
pub(super) struct About<'a> {
    pub(super) name: &'a str,
    pub(super) shows: &'a str,
    /// What batches are called here.
    pub(super) calls: &'static str,
    /// The title of the drawings, and what they are of.
    pub(super) title: &'static str,
    pub(super) drawn: &'static str,
    /// What the lines are of, the unit of their heights and how many of it a level of one is, and what no line can be
    /// above; 0: not known.
    pub(super) lines: Vec<String>,
    pub(super) unit: &'static str,
    pub(super) scale: f64,
    pub(super) limit: f64,
    pub(super) columns: &'static [Column],
}

/// The page, `chosen` in front.
pub(super) fn page(about: &About<'_>, runs: &[Shown<'_>], chosen: usize) -> String {
    let body = match runs.get(chosen) {
        Some(run) => body(about, runs, chosen, run.outcome),
        None => "<p>There is no such run.</p>\n".to_owned(),
    };
    framed(about.name, about.shows, &body)
}

fn body(about: &About<'_>, runs: &[Shown<'_>], chosen: usize, outcome: &Outcome) -> String {
    let report = &outcome.report;
    let setting = escaped(&report.policy);
    let mut text = format!(
        "<p>simulated, setting <b>{setting}</b>, seed {}</p>\n",
        report.seed
    );
    let tiles = about
        .columns
        .iter()
        .map(|(name, of)| (of(report), *name, false));
    text += &tiled(&tiles.collect::<Vec<_>>());
    text += &format!(
        "<h2>{}</h2>\n<p>{}</p>\n<div class=\"keys\">",
        about.title, about.drawn
    );
    for (index, name) in about.lines.iter().enumerate() {
        text += &format!("<span>{}{}</span>", line_key(index), escaped(name));
    }
    text += "</div>\n";
    for run in runs {
        text += &format!("<p><b>{}</b></p>\n", escaped(&run.outcome.report.policy));
        text += &draw(about, run);
    }
    let times = runs.iter().map(|run| Times {
        report: &run.outcome.report,
        ns: run.ns,
    });
    text += &how_long(about.calls, &times.collect::<Vec<_>>(), chosen);
    text += "<h2>Settings</h2>\n<div class=\"scroll\">";
    text += &table(about, runs, chosen);
    text += "</div>\n";
    for note in &outcome.notes {
        text += &format!("<p>{}</p>\n", escaped(note));
    }
    if let Some(violation) = &outcome.violation {
        text += &format!("<h2>First violation</h2>\n<p>{}</p>\n", escaped(violation));
    }
    text
}

/// The lines of one run over time.
fn draw(about: &About<'_>, run: &Shown<'_>) -> String {
    let spans = run.lines.rows(run.began_at);
    let each = spans.len().div_ceil(STEPS_MAX).max(1);
    let rows: Vec<&[Vec<u64>]> = spans.chunks(each).collect();
    let width = run.lines.width_ns() * each as u64;
    let span = rows.len().max(1) as u64 * width;
    let (unit, unit_ns) = time_unit(span);
    let mean = |row: &[Vec<u64>], line: usize| {
        let sum: u64 = row.iter().filter_map(|span| span.get(line)).sum();
        let span = run.lines.width_ns() * row.len() as u64;
        sum as f64 * about.scale / span as f64
    };
    let lines = || 0..about.lines.len();
    let highest = rows
        .iter()
        .flat_map(|row| lines().map(move |line| mean(row, line)));
    let seen = highest.fold(1e-3, f64::max);
    let heights = Axis::linear(0.0, highest_shown(seen, about.limit), (BOTTOM, TOP));
    let time = Axis::linear(0.0, span as f64 / unit_ns, (LEFT, RIGHT));
    let mut svg = Svg::new(WIDTH, HEIGHT, about.title);
    for tick in heights.ticks(4) {
        let y = heights.at(tick);
        svg.line("grid", (LEFT, y), (RIGHT, y));
        svg.text("tick", (LEFT - 8.0, y + 3.5), Anchor::End, &number(tick));
    }
    for tick in time.ticks(8) {
        let words = format!("{} {unit}", number(tick));
        svg.text(
            "tick",
            (time.at(tick), BOTTOM + 16.0),
            Anchor::Middle,
            &words,
        );
    }
    svg.line("frame", (LEFT, BOTTOM), (RIGHT, BOTTOM));
    svg.text("axis", (LEFT - 8.0, TOP - 10.0), Anchor::End, about.unit);
    if about.limit > 0.0 {
        let y = heights.at(about.limit);
        svg.line("limit", (LEFT, y), (RIGHT, y));
        svg.text(
            "axis",
            (RIGHT, y - 5.0),
            Anchor::End,
            &limit_words(&heights, about.limit, about.unit),
        );
    }
    let at = |row: usize| time.at(row as f64 * width as f64 / unit_ns);
    let xs: Vec<f64> = (0..=rows.len()).map(at).collect();
    for line in lines() {
        let ys: Vec<f64> = rows.iter().map(|row| heights.at(mean(row, line))).collect();
        let class = format!("curve {}", line_class(line));
        svg.path(&class, &stairs(&xs, &ys, BOTTOM), "", &about.lines[line]);
    }
    svg.close()
}

fn table(about: &About<'_>, runs: &[Shown<'_>], chosen: usize) -> String {
    let mut text = String::from("<table><thead><tr><th>setting</th>");
    for (name, _) in about.columns {
        text += &format!("<th>{name}</th>");
    }
    text += "</tr></thead><tbody>\n";
    for (index, run) in runs.iter().enumerate() {
        let report = &run.outcome.report;
        let class = if index == chosen {
            " class=\"front\""
        } else {
            ""
        };
        let setting = escaped(&report.policy);
        text += &format!("<tr{class}><th>{}{setting}</th>", line_key(index));
        for (_, of) in about.columns {
            text += &format!("<td>{}</td>", of(report));
        }
        text += "</tr>\n";
    }
    text + "</tbody></table>\n"
}
