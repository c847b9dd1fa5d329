//! `docs/performance.svg` is drawn from the table on its page. `WRITE=1 cargo test -p polyrail-tests-book --test graph` draws it anew.

use std::fmt::Write;
use std::fs;

use polyrail_tests_book::{Page, root};

/// Columns of the table that are drawn, with what they are called and their colour.
const ENGINES: [(&str, &str, &str); 4] = [
    ("polyrail", "polyrail, 1 rail", "#0969da"),
    ("polyrail-4-rails", "polyrail, 4 rails", "#54aeff"),
    ("mooncake", "Mooncake TE", "#bc4c00"),
    (
        "nixl-no-progress",
        "NIXL over UCX, no progress thread",
        "#8250df",
    ),
];
const LEFT: f64 = 120.0;
/// Pixels for a ratio of 1.
const ONE: f64 = 280.0;
const BAR: f64 = 8.0;
const ROW: f64 = ENGINES.len() as f64 * BAR + 12.0;
const TOP: f64 = 62.0;

#[test]
fn the_graph_shows_the_table() {
    let svg = draw(&rows(&Page::read("docs/performance.md").text));
    let path = root().join("docs/performance.svg");
    if std::env::var_os("WRITE").is_some() {
        fs::write(&path, &svg).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == svg,
        "docs/performance.svg is not of its table: WRITE=1 cargo test -p polyrail-tests-book --test graph"
    );
}

/// Each cell with the ratio of each engine, which the table has in bold.
fn rows(page: &str) -> Vec<(String, Vec<f64>)> {
    let head = page.lines().position(|line| {
        line.starts_with("| cell | best bare socket | polyrail | polyrail-4-rails")
    });
    let lines: Vec<&str> = page
        .lines()
        .skip(head.expect("the table"))
        .take_while(|line| line.starts_with('|'))
        .collect();
    let fields = |line: &str| {
        line.trim_matches('|')
            .split('|')
            .map(|field| field.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let names = fields(lines[0]);
    let row = |line: &&str| {
        let row = fields(line);
        let ratio = |engine: &(&str, &str, &str)| {
            let column = names
                .iter()
                .position(|name| name == engine.0)
                .expect(engine.0);
            let bold = row[column].split("**").nth(1).expect("a ratio in bold");
            bold.parse::<f64>().unwrap()
        };
        (row[0].clone(), ENGINES.iter().map(ratio).collect())
    };
    lines[2..].iter().map(row).collect()
}

fn draw(rows: &[(String, Vec<f64>)]) -> String {
    let height = TOP + rows.len() as f64 * ROW + 14.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 880 {height}\" width=\"880\" height=\"{height}\" role=\"img\">\n\
         <title>Throughput over TCP on loopback as a ratio to the best bare socket</title>\n\
         <style>text {{ font: 12px system-ui, \"DejaVu Sans\", sans-serif; fill: #1f2328; }} .end {{ text-anchor: end; }} \
         .mid {{ text-anchor: middle; }}</style>\n\
         <rect width=\"880\" height=\"{height}\" rx=\"10\" fill=\"#f6f8fa\" stroke=\"#d0d7de\"/>\n"
    );
    let mut x = LEFT;
    for (_, name, colour) in ENGINES {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"14\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"
        );
        let _ = writeln!(svg, "<text x=\"{}\" y=\"25\">{name}</text>", x + 18.0);
        x += 44.0 + name.len() as f64 * 7.0;
    }
    for step in 0..=5 {
        let (ratio, width) = (f64::from(step) * 0.5, if step == 2 { 2 } else { 1 });
        let x = LEFT + ratio * ONE;
        let (colour, end) = (if step == 2 { "#57606a" } else { "#d0d7de" }, height - 10.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"50\" x2=\"{x}\" y2=\"{end}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        );
        let label = if step == 2 {
            "1 = best bare socket".to_owned()
        } else {
            ratio.to_string()
        };
        let _ = writeln!(svg, "<text class=\"mid\" x=\"{x}\" y=\"46\">{label}</text>");
    }
    for (index, (cell, ratios)) in rows.iter().enumerate() {
        let y = TOP + index as f64 * ROW;
        let middle = y + ENGINES.len() as f64 * BAR / 2.0 + 4.0;
        let _ = writeln!(
            svg,
            "<text class=\"end\" x=\"{}\" y=\"{middle}\">{cell}</text>",
            LEFT - 8.0
        );
        for (place, (ratio, (_, _, colour))) in ratios.iter().zip(ENGINES).enumerate() {
            let (y, width) = (y + place as f64 * BAR, (ratio * ONE).round());
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{width}\" height=\"{BAR}\" fill=\"{colour}\"/>"
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}
