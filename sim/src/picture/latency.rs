//! How long batches took: the time that a part of them is within, for each policy.

use super::axis::{Axis, time_us};
use super::svg::{Anchor, Svg, line_class};
use crate::report::Report;

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 1004.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 300.0;
/// Points of a curve.
const POINTS: usize = 240;
/// Parts that get a label.
const PARTS: [(f64, &str); 5] = [
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
];

/// A run: what it came to, and how long each batch took.
pub(super) struct Times<'a> {
    pub(super) report: &'a Report,
    pub(super) ns: &'a [u64],
}

/// A drawing of all runs, `chosen` the one in front.
pub(super) fn draw(runs: &[Times<'_>], chosen: usize) -> String {
    let sorted: Vec<Vec<u64>> = runs
        .iter()
        .map(|run| {
            let mut times = run.ns.to_vec();
            times.sort_unstable();
            times
        })
        .collect();
    let most_batches = sorted.iter().map(Vec::len).max().unwrap_or(0);
    // The last nine that the batches can tell: 0.999 needs a thousand of them.
    let nines = libm::log10(most_batches.max(10) as f64);
    let nines = nines.max(libm::round(nines)).clamp(1.0, 4.0);
    let parts = Axis::linear(0.0, nines, (LEFT, RIGHT));
    let all = || sorted.iter().flatten().map(|ns| *ns as f64 / 1e3);
    let (least, most) = (
        all().fold(f64::INFINITY, f64::min),
        all().fold(0.0, f64::max),
    );
    // Room for labels above and below the curves.
    let spread = (most / least.min(most).max(1e-3)).max(1.5);
    let low = least.min(most) / libm::pow(spread, 0.14);
    let times = Axis::logarithmic(low, most * libm::pow(spread, 0.06), (BOTTOM, TOP));
    let mut svg = Svg::new(WIDTH, BOTTOM + 44.0, "times of batches by percentile");
    for tick in times.ticks(0) {
        let y = times.at(tick);
        svg.line("grid", (LEFT, y), (RIGHT, y));
        svg.text("tick", (LEFT - 8.0, y + 3.5), Anchor::End, &time_us(tick));
    }
    for (part, words) in PARTS
        .iter()
        .filter(|(part, _)| depth(*part) <= nines + 1e-9)
    {
        let x = parts.at(depth(*part));
        svg.line("grid", (x, TOP), (x, BOTTOM));
        svg.text("tick", (x, BOTTOM + 16.0), Anchor::Middle, words);
    }
    svg.text("tick", (LEFT, BOTTOM + 16.0), Anchor::Middle, "0 %");
    svg.line("frame", (LEFT, BOTTOM), (RIGHT, BOTTOM));
    svg.text("axis", (LEFT - 8.0, TOP - 12.0), Anchor::End, "batch took");
    let words = "part of the batches that took at most so long";
    svg.text(
        "axis",
        ((LEFT + RIGHT) / 2.0, BOTTOM + 35.0),
        Anchor::Middle,
        words,
    );
    let front = |index: &usize| *index == chosen;
    for index in (0..runs.len())
        .filter(|index| !front(index))
        .chain([chosen])
    {
        let class = format!(
            "curve {}{}",
            line_class(index),
            if front(&index) { " front" } else { "" }
        );
        let name = &runs[index].report.policy;
        let curve = curve(&sorted[index], &parts, &times, nines);
        svg.path(&class, &curve, "", name);
    }
    marks(&mut svg, runs[chosen].report, chosen, &parts, &times, nines);
    svg.close()
}

/// 0.9 is 1, 0.99 is 2: each nine as far again.
fn depth(part: f64) -> f64 {
    -libm::log10(1.0 - part)
}

fn curve(sorted: &[u64], parts: &Axis, times: &Axis, nines: f64) -> String {
    let Some(last) = sorted.len().checked_sub(1) else {
        return String::new();
    };
    let mut commands = String::new();
    for point in 0..=POINTS {
        let deep = nines * point as f64 / POINTS as f64;
        let rank = libm::ceil((1.0 - libm::pow(10.0, -deep)) * sorted.len() as f64) as usize;
        let ns = sorted[rank.saturating_sub(1).min(last)];
        let letter = if point == 0 { 'M' } else { 'L' };
        commands += &format!(
            "{letter}{:.1} {:.1}",
            parts.at(deep),
            times.at(ns as f64 / 1e3)
        );
    }
    commands
}

/// The percentiles of the report, with their values.
fn marks(svg: &mut Svg, report: &Report, index: usize, parts: &Axis, times: &Axis, nines: f64) {
    for (part, us, name) in [
        (0.5, report.p50_us, "p50"),
        (0.99, report.p99_us, "p99"),
        (0.999, report.p999_us, "p99.9"),
    ] {
        if depth(part) > nines + 1e-9 {
            continue;
        }
        let (x, y) = (parts.at(depth(part)), times.at(us));
        svg.dot(&format!("mark {}", line_class(index)), (x, y), 4.0);
        // The curve rises from left to right: below it on the right is room, or above it on the left.
        let (x, y, anchor) = match x > RIGHT - 120.0 {
            true => (x - 8.0, y - 9.0, Anchor::End),
            false => (x + 8.0, y + 18.0, Anchor::Start),
        };
        svg.text("marked", (x, y), anchor, &format!("{name} {}", time_us(us)));
    }
}
