//! `polyrail sim compare`: scenarios × policies, on all cores.

use clap::Args;
use polyrail_sim::{Options, Policy};

use super::vary::{Cell, VaryArgs};
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
    #[command(flatten)]
    vary: VaryArgs,
}

pub(super) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let loaded = args.vary.load(&args.scenarios, None)?;
    let mut cells: Vec<Cell<'_>> = Vec::new();
    for varied in &loaded {
        let mut variants = Vec::new();
        for name in &args.policies {
            let variant = varied.loaded.variant(name)?;
            if !variants.contains(&variant) {
                variants.push(variant);
            }
        }
        if args.policies.is_empty() {
            variants = varied.loaded.simulation.variants();
        }
        cells.extend(variants.into_iter().map(|variant| (varied, variant)));
    }
    args.vary.run(&cells, Options::new(Policy::Spray))
}
