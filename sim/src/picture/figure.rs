//! The page of a figure of the paper: its charts, and each of its statements beside what is seen here.

use std::fmt::Write;

use super::axis::{Axis as Scale, number};
use super::page::framed;
use super::svg::{Anchor, Svg, escaped, line_class, line_key};
use crate::figures::{Axis, Chart, Curve, Figure};

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 1050.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 270.0;
/// Points of a curve that are marked; more would hide it.
const MARKED_MAX: usize = 20;
/// Where the largest value of a chart is so many times the least, its axis is by logarithm.
const WIDE: f64 = 30.0;

/// A page about a figure.
pub fn page(figure: &Figure) -> String {
    let mut body = format!(
        "<p>Figure {} of \u{201c}TENT\u{201d}, made anew on a simulated fabric. {}</p>\n",
        number_of(figure),
        escaped(figure.fabric)
    );
    body += &statements(figure);
    for chart in &figure.charts {
        let _ = write!(
            body,
            "<h2>{}</h2>\n<div class=\"keys\">",
            escaped(&capital(chart.y))
        );
        for (index, curve) in chart.curves.iter().enumerate() {
            let _ = write!(
                body,
                "<span>{}{}</span>",
                line_key(index),
                escaped(&curve.name)
            );
        }
        body += "</div>\n";
        body += &draw(chart);
    }
    let name = format!("Figure {}: {}", figure.name, figure.title);
    let _ = writeln!(
        body,
        "<p>The points: figure-{}.csv. Made by <code>polyrail sim figures</code>.</p>",
        figure.name
    );
    framed(&name, "", &body)
}

/// The number alone.
fn number_of(figure: &Figure) -> &str {
    figure.name.split('-').next().unwrap_or(figure.name)
}

fn capital(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters
        .next()
        .map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

fn statements(figure: &Figure) -> String {
    let mut text = String::from(
        "<div class=\"scroll\"><table class=\"words\"><thead><tr><th>the paper</th><th>here</th><th></th></tr></thead><tbody>\n",
    );
    for statement in &figure.statements {
        let why = statement.differs.filter(|_| !statement.holds);
        let _ = writeln!(
            text,
            "<tr><th>{}</th><td>{}</td><td><b>{}</b></td></tr>",
            escaped(statement.paper),
            escaped(&format!(
                "{}{}{}",
                statement.here,
                if why.is_some() { ". " } else { "" },
                why.unwrap_or_default()
            )),
            statement.verdict()
        );
    }
    text + "</tbody></table></div>\n"
}

/// What is to the right of the origin: from a value to pixels, and the labels.
fn across(chart: &Chart) -> (Scale, Vec<(f64, String)>) {
    let mut xs: Vec<f64> = values(chart).map(|(x, _)| x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (first, last) = (
        xs.first().copied().unwrap_or(0.0),
        xs.last().copied().unwrap_or(1.0),
    );
    let pixels = (LEFT, RIGHT);
    let scale = match chart.x {
        Axis::Block | Axis::Count(_) => Scale::logarithmic(first, last, pixels),
        Axis::Number(_) | Axis::Time => Scale::linear(first, last, pixels),
    };
    let ticks = match chart.x {
        Axis::Time => scale.ticks(10),
        _ => xs,
    };
    let label = |x: f64| match chart.x {
        Axis::Block => bytes(x),
        _ => number(x),
    };
    (scale, ticks.into_iter().map(|x| (x, label(x))).collect())
}

/// A power of two in the unit that it is written in.
fn bytes(value: f64) -> String {
    match value {
        value if value >= 1024.0 * 1024.0 => format!("{} MiB", number(value / 1024.0 / 1024.0)),
        value => format!("{} KiB", number(value / 1024.0)),
    }
}

fn x_name(axis: Axis) -> &'static str {
    match axis {
        Axis::Block => "bytes of a request",
        Axis::Count(name) | Axis::Number(name) => name,
        Axis::Time => "ms",
    }
}

fn values(chart: &Chart) -> impl Iterator<Item = (f64, f64)> {
    chart
        .curves
        .iter()
        .flat_map(|curve| curve.points.iter().copied())
}

fn draw(chart: &Chart) -> String {
    let (x, ticks) = across(chart);
    let ys = || values(chart).map(|(_, y)| y);
    let most = ys().fold(0.0, f64::max);
    let least = ys().fold(most, f64::min);
    let y = match least > 0.0 && most / least > WIDE {
        true => Scale::logarithmic(least, most, (BOTTOM, TOP)),
        false => Scale::linear(0.0, most * 1.05, (BOTTOM, TOP)),
    };
    let mut svg = Svg::new(WIDTH, BOTTOM + 44.0, chart.y);
    for tick in y.ticks(5) {
        let at = y.at(tick);
        svg.line("grid", (LEFT, at), (RIGHT, at));
        svg.text("tick", (LEFT - 8.0, at + 3.5), Anchor::End, &number(tick));
    }
    for (value, label) in &ticks {
        let at = x.at(*value);
        svg.line("grid", (at, TOP), (at, BOTTOM));
        svg.text("tick", (at, BOTTOM + 16.0), Anchor::Middle, label);
    }
    svg.line("frame", (LEFT, BOTTOM), (RIGHT, BOTTOM));
    let middle = (LEFT + RIGHT) / 2.0;
    svg.text(
        "axis",
        (middle, BOTTOM + 36.0),
        Anchor::Middle,
        x_name(chart.x),
    );
    // The last one is in front.
    for (index, curve) in chart.curves.iter().enumerate() {
        draw_curve(
            &mut svg,
            curve,
            index,
            index + 1 == chart.curves.len(),
            (&x, &y),
        );
    }
    svg.close()
}

fn draw_curve(
    svg: &mut Svg,
    curve: &Curve,
    index: usize,
    is_front: bool,
    (x, y): (&Scale, &Scale),
) {
    let mut commands = String::new();
    for (place, (right, up)) in curve.points.iter().enumerate() {
        let command = if place == 0 { 'M' } else { 'L' };
        // Writing to a string does not fail.
        let _ = write!(commands, "{command}{:.1} {:.1}", x.at(*right), y.at(*up));
    }
    let class = line_class(index);
    let front = if is_front { " front" } else { "" };
    svg.path(&format!("curve{front} {class}"), &commands, "", &curve.name);
    if curve.points.len() <= MARKED_MAX {
        for (right, up) in &curve.points {
            svg.dot(&format!("mark {class}"), (x.at(*right), y.at(*up)), 3.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Statement;

    fn figure() -> Figure {
        let curve = |name: &str, factor: f64| Curve {
            name: name.to_owned(),
            points: (0..5)
                .map(|step| (4096.0 * f64::from(1 << step), factor))
                .collect(),
        };
        Figure {
            name: "9-batches",
            title: "A <title>",
            fabric: "Two hosts.",
            charts: vec![Chart {
                y: "throughput, GB/s",
                x: Axis::Block,
                curves: vec![curve("round-robin", 2.0), curve("spray", 3.0)],
            }],
            statements: vec![Statement {
                paper: "It is ahead.",
                here: "1.5 times".to_owned(),
                holds: false,
                differs: Some("Another fabric."),
            }],
        }
    }

    #[test]
    fn a_page_has_every_curve_label_and_statement() {
        let text = page(&figure());
        let words = [
            "Figure 9-batches: A &lt;title&gt;",
            "round-robin",
            "64 KiB",
            "Throughput, GB/s",
            "bytes of a request",
            "It is ahead.",
            "1.5 times. Another fabric.",
            "holds not",
            "figure-9-batches.csv",
        ];
        for words in words {
            assert!(text.contains(words), "{words}");
        }
        assert!(!text.contains("NaN") && !text.contains("http"));
        assert_eq!(text.matches("<circle").count(), 10);
        assert_eq!(
            text.matches("class=\"curve front p1\" d=").count(),
            2,
            "and its key"
        );
    }
}
