//! `polyrail sim compare`: scenarios × policies, on all cores.

use clap::Args;
use polyrail_sim::{Options, Outcome, Policy, on_all_cores, report};

use super::load::Loaded;
use super::{print, showing, verdict};
use crate::exit::Failure;

/// Arguments of `sim compare`.
#[derive(Args)]
pub(super) struct CompareArgs {
    /// Scenarios: names, or files.
    #[arg(required = true)]
    scenarios: Vec<String>,
    /// Policies, or settings of the scenarios, with commas between; without it all.
    #[arg(long, value_delimiter = ',')]
    policies: Vec<String>,
    /// One JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let loaded = args
        .scenarios
        .iter()
        .map(|name| Loaded::new(name, None))
        .collect::<Result<Vec<_>, _>>()?;
    let mut cells = Vec::new();
    for loaded in &loaded {
        let mut variants = Vec::new();
        for name in &args.policies {
            let variant = loaded.variant(name)?;
            if !variants.contains(&variant) {
                variants.push(variant);
            }
        }
        if args.policies.is_empty() {
            variants = loaded.simulation.variants();
        }
        cells.extend(variants.into_iter().map(|variant| (loaded, variant)));
    }
    let outcomes = run_cells(&cells);
    let reports = || outcomes.iter().map(|outcome| &outcome.report);
    if args.json {
        for report in reports() {
            print(&report.to_json())?;
        }
    } else {
        print(report::table(reports()).trim_end())?;
    }
    verdict(&reports().collect::<Vec<_>>())
}

/// Runs cells on all cores; their outcomes in order.
fn run_cells(cells: &[(&Loaded, &str)]) -> Vec<Outcome> {
    let run = |number: u64| {
        let (loaded, variant) = cells.get(usize::try_from(number).ok()?)?;
        Some(loaded.simulation.run(variant, Options::new(Policy::Spray)))
    };
    let count = cells.len() as u64;
    let outcomes = showing("cells", count, |show| on_all_cores(count, run, show));
    outcomes.into_iter().flatten().collect()
}
