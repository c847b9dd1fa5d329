//! `polyrail sim compare`: scenarios × policies, on all cores.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use clap::Args;
use polyrail_sim::{Options, Outcome, Policy, report};

use super::load::Loaded;
use super::{Progress, print, verdict};
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
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(cells.len());
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    let progress = Mutex::new(Progress::new("cells"));
    let work = || {
        while let Some((index, (loaded, variant))) =
            Some(next.fetch_add(1, Relaxed)).and_then(|index| Some((index, cells.get(index)?)))
        {
            let outcome = loaded.simulation.run(variant, Options::new(Policy::Spray));
            let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            outcomes.push((index, outcome));
            let done = outcomes.len() as u64;
            progress
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .show(done, cells.len() as u64);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    progress
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
    let mut outcomes = outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}
