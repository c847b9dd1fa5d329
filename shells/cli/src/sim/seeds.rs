//! `polyrail sim run --seeds`: one scenario with many seeds, and how its figures are spread.

use polyrail_sim::{Options, Policy, Report, Spread, on_all_cores};

use super::load::Loaded;
use super::{RunArgs, print, showing, verdict};
use crate::exit::Failure;

/// A figure of a report.
type Figure = (&'static str, fn(&Report) -> f64);

const FIGURES: [Figure; 7] = [
    ("gbytes_per_sec", |row| row.gbytes_per_sec),
    ("goodput_gbytes_per_sec", |row| row.goodput_gbytes_per_sec),
    ("efficiency", |row| row.efficiency),
    ("p50_us", |row| row.p50_us),
    ("p99_us", |row| row.p99_us),
    ("p999_us", |row| row.p999_us),
    ("max_us", |row| row.max_us),
];

/// Runs so many seeds, from the scenario's own or `--seed` on, on all cores.
pub(super) fn run(args: &RunArgs, seeds: u64) -> Result<(), Failure> {
    let loaded = Loaded::new(&args.scenario, args.seed)?;
    let variant = loaded.variant(&args.policy)?.to_owned();
    let first = loaded.seed;
    let run = |number| {
        let loaded = Loaded::new(&args.scenario, Some(first.wrapping_add(number)))?;
        let options = Options {
            audit: args.audit,
            strict: args.audit,
            ..Options::new(Policy::Spray)
        };
        Ok(loaded.simulation.run(&variant, options).report)
    };
    let rows = showing("seeds", seeds, |show| on_all_cores(seeds, run, show));
    let rows = rows.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    tell(args, &rows)?;
    verdict(&rows.iter().collect::<Vec<_>>())
}

fn tell(args: &RunArgs, rows: &[Report]) -> Result<(), Failure> {
    if args.json {
        for row in rows {
            print(&row.to_json())?;
        }
        return Ok(());
    }
    if let Some(row) = rows.first() {
        let (count, first) = (rows.len(), row.seed);
        let (scenario, policy) = (&row.scenario, &row.policy);
        print(&format!(
            "{scenario} under {policy}, {count} seeds from {first}"
        ))?;
    }
    print(&format!(
        "  {:<24} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "", "least", "5th", "median", "95th", "most"
    ))?;
    for (name, figure) in FIGURES {
        let row = Spread::of(rows.iter().map(figure));
        print(&format!(
            "  {name:<24} {:>12.4} {:>12.4} {:>12.4} {:>12.4} {:>12.4}",
            row.least, row.p5, row.median, row.p95, row.most
        ))?;
    }
    Ok(())
}
