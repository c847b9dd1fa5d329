//! The page: what a run came to at a glance, then its charts.

use super::axis::{number, time_us};
use super::latency::Times;
use super::svg::{escaped, line_key};
use super::{Run, latency, policies, rails};
use crate::setup::Setup;

const STYLE: &str = include_str!("page.css");

/// A page about one scenario: all of `runs` compared, `chosen` of them in every detail.
///
/// HTML in one piece: it loads nothing and runs nothing. An index beyond the runs, or no runs at all, give a
/// page that says so.
pub fn page(setup: &Setup, runs: &[Run], chosen: usize) -> String {
    let body = match runs.get(chosen) {
        Some(run) => body(setup, runs, chosen, run),
        None => "<p>There is no such run.</p>\n".to_owned(),
    };
    framed(&setup.name, &setup.shows, &body)
}

/// A page with this title, what it shows in a line, and all the rest.
pub(super) fn framed(name: &str, shows: &str, body: &str) -> String {
    let (name, shows) = (escaped(name), escaped(shows));
    let shows = match shows.is_empty() {
        true => shows,
        false => format!("<p>{shows}</p>\n"),
    };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{name}</title>\n<style>\n{STYLE}</style></head>\n<body>\n<h1>{name}</h1>\n{shows}{body}</body></html>\n"
    )
}

fn body(setup: &Setup, runs: &[Run], chosen: usize, run: &Run) -> String {
    let report = &run.outcome.report;
    let mut text = String::new();
    text += &format!(
        "<p>simulated, policy <b>{}</b>, seed {}, {} rails</p>\n",
        escaped(&report.policy),
        report.seed,
        setup.rails.len()
    );
    text += &tiles(run);
    text += "<h2>Throughput over time</h2>\n";
    text += "<div class=\"keys\"><span><i class=\"key line\"></i>what the fabric allows</span><span>numbers: rails</span>\
             <span><i class=\"key slowed\"></i>rail slowed</span><span><i class=\"key cut\"></i>rail cut, host in trouble</span>\
             <span>strip below each rail, what the engine thinks:</span>\
             <span><i class=\"key healthy\"></i>healthy</span><span><i class=\"key probing\"></i>probing</span>\
             <span><i class=\"key paused\"></i>paused</span></div>\n";
    text += &rails::draw(setup, run);
    let left_out = rails::rows_left_out(setup);
    if left_out > 0 {
        text += &format!(
            "<p>{left_out} more rails have no row; those with faults and pauses come first.</p>\n"
        );
    }
    let times = runs.iter().map(|run| Times {
        report: &run.outcome.report,
        ns: &run.history.batch_ns,
    });
    text += &how_long("batches", &times.collect::<Vec<_>>(), chosen);
    text += "<h2>Policies</h2>\n<div class=\"scroll\">";
    text += &policies::table(runs, chosen);
    text += "</div>\n";
    if let Some(violation) = &run.outcome.violation {
        text += &format!("<h2>First violation</h2>\n<p>{}</p>\n", escaped(violation));
    }
    text
}

/// The numbers that matter most.
fn tiles(run: &Run) -> String {
    let report = &run.outcome.report;
    let dip = report.dips.iter().max_by_key(|dip| dip.length_ms);
    let rows = [
        (
            format!("{} GB/s", number(report.gbytes_per_sec)),
            "throughput",
            false,
        ),
        (
            format!("{:.1} %", report.efficiency * 100.0),
            "of fluid limit",
            false,
        ),
        (time_us(report.p50_us), "p50 of a batch", false),
        (time_us(report.p99_us), "p99", false),
        (time_us(report.p999_us), "p99.9", false),
        (
            dip.map_or("none".to_owned(), |dip| format!("{} ms", dip.length_ms)),
            "longest dip",
            false,
        ),
        (report.requests.to_string(), "requests", false),
        (
            report.failed_requests.to_string(),
            "failed",
            report.failed_requests > 0,
        ),
        (
            report.violations.to_string(),
            "violations",
            report.violations > 0,
        ),
    ];
    tiled(&rows)
}

/// Numbers with their names; those that are bad stand out.
pub(super) fn tiled(rows: &[(String, &str, bool)]) -> String {
    let tile = |(value, name, bad): &(String, &str, bool)| {
        let class = if *bad { " class=\"bad\"" } else { "" };
        format!("<div{class}><b>{value}</b><span>{name}</span></div>")
    };
    let tiles: String = rows.iter().map(tile).collect();
    format!("<div class=\"tiles\">{tiles}</div>\n")
}

/// How long `what` took in each of the runs, with a key of their names.
pub(super) fn how_long(what: &str, runs: &[Times<'_>], chosen: usize) -> String {
    let mut text = format!("<h2>How long {what} took</h2>\n<div class=\"keys\">");
    for (index, run) in runs.iter().enumerate() {
        let policy = escaped(&run.report.policy);
        text += &format!("<span>{}{policy}</span>", line_key(index));
    }
    text += "</div>\n";
    text + &latency::draw(runs, chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Scenario, text};
    use crate::{Options, Policy, run};

    fn pictured(name: &str, duration_ms: u64) -> (Setup, String) {
        let file = text(name).expect("a scenario of the library");
        let scenario = Scenario::parse(file).expect("it parses");
        let mut setup = Setup::new(file, &scenario, None).expect("it is right");
        setup.shorten(duration_ms);
        let policies = [Policy::Spray, Policy::RoundRobin];
        let runs = policies.map(|policy| run(&setup, Options::new(policy), &mut |_, _| {}));
        let page = page(&setup, &runs, 0);
        (setup, page)
    }

    #[test]
    fn a_page_is_whole_and_loads_nothing() {
        let (setup, page) = pictured("silent-rail", 62);
        for tag in ["html", "body", "svg", "table", "style", "div", "text", "p"] {
            let opened = page.matches(&format!("<{tag} ")).count()
                + page.matches(&format!("<{tag}>")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        for outside in [
            "http:", "https:", "<script", "<link", "<img", "url(", "@import", "NaN", "inf",
        ] {
            assert!(!page.contains(outside), "{outside}");
        }
        for rail in 0..setup.rails.len() {
            assert!(page.contains(&escaped(&setup.rail_name(rail))));
        }
        // The rail that is cut is seen to be, and so is what the engine made of it.
        assert!(page.contains("<title>silent</title>") && page.contains("<title>paused</title>"));
    }

    #[test]
    fn rows_of_many_rails_do_not_overlap() {
        let (setup, page) = pictured("sixty-four-rails", 3);
        let places: Vec<f64> = page
            .lines()
            .filter(|line| line.starts_with("<text class=\"name"))
            .filter_map(|line| line.split(" y=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(places.len(), setup.rails.len());
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 12.0));
    }

    #[test]
    fn a_run_that_is_not_there_is_a_page_too() {
        let file = text("small-requests").expect("a scenario of the library");
        let scenario = Scenario::parse(file).expect("it parses");
        let setup = Setup::new(file, &scenario, None).expect("it is right");
        assert!(page(&setup, &[], 0).contains("no such run"));
    }
}
