//! `polyrail sim arena`: random fabrics and loads under every policy, and how `spray` stands.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use polyrail_sim::Policy;
use polyrail_sim::arena::{self, Floor, Summary, Trial, Verdict};

use super::{parse_policy, print, showing};
use crate::exit::Failure;

/// Arguments of `sim arena`.
#[derive(Args)]
pub(super) struct ArenaArgs {
    /// How many.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Policies that spray is compared with, with commas between; without it all.
    #[arg(long, value_delimiter = ',', value_parser = parse_policy)]
    policies: Vec<Policy>,
    /// Only seeds whose trial has this feature, as the table names it.
    #[arg(long)]
    feature: Option<String>,
    /// One JSON object a line: one for each seed, then one with the summary.
    #[arg(long)]
    json: bool,
    /// Writes the scenarios of the worst into this folder.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Prints the scenario of the first seed, and runs nothing.
    #[arg(long, conflicts_with_all = ["json", "out", "at_least"])]
    print: bool,
    /// Ends with exit code 1 if less is reached: median, 5th percentile and worst of the throughput against the better
    /// of both, and the part of trials whose p99 is at most 1.25 times the best.
    #[arg(long, value_name = "MEDIAN,P5,WORST,P99", value_parser = parse_floor)]
    at_least: Option<Floor>,
}

fn parse_floor(text: &str) -> Result<Floor, String> {
    let numbers: Result<Vec<f64>, _> = text.split(',').map(str::parse).collect();
    match numbers.as_deref() {
        Ok([median, p5, least, p99_good]) => Ok(Floor {
            median: *median,
            p5: *p5,
            least: *least,
            p99_good: *p99_good,
        }),
        _ => Err("four numbers with commas between, like 0.99,0.95,0.85,0.95".to_owned()),
    }
}

/// Runs the command.
pub(super) fn run(args: &ArenaArgs) -> Result<(), Failure> {
    if args.print {
        let trial = Trial::draw(args.start);
        print(&format!("# {}", trial.features.join(", ")))?;
        return print(trial.text.trim_end());
    }
    let policies = match args.policies.is_empty() {
        true => polyrail_sim::POLICIES,
        false => &args.policies,
    };
    let began = Instant::now();
    let feature = args.feature.as_deref();
    let verdicts = showing("seeds", args.seeds, |show| {
        arena::search(args.start, args.seeds, policies, feature, show)
    });
    if verdicts.is_empty() {
        let text = "no seed has this feature: the table of a run without it names them";
        return Err(Failure::Usage(text.to_owned()));
    }
    if args.json {
        tell_json(&verdicts)?;
    } else {
        tell(args, &verdicts, began.elapsed().as_secs_f64())?;
    }
    if let Some(folder) = &args.out {
        save(folder, &verdicts)?;
    }
    conclude(args, &Summary::of(&verdicts))
}

fn tell_json(verdicts: &[Verdict]) -> Result<(), Failure> {
    for verdict in verdicts {
        print(&arena::to_json(verdict))?;
    }
    print(&arena::to_json(&Summary::of(verdicts)))
}

fn tell(args: &ArenaArgs, verdicts: &[Verdict], seconds: f64) -> Result<(), Failure> {
    let end = args.start.wrapping_add(args.seeds);
    print(&format!(
        "{} trials of seeds {} to {} in {seconds:.1} s\n",
        verdicts.len(),
        args.start,
        end.wrapping_sub(1)
    ))?;
    print(&arena::table(verdicts))?;
    print("the worst in throughput:")?;
    for verdict in arena::worst(verdicts) {
        print(&format!("  {}", verdict.row()))?;
    }
    print("the worst in p99:")?;
    for verdict in arena::worst_p99(verdicts) {
        print(&format!("  {}", verdict.row()))?;
    }
    for verdict in verdicts.iter().filter(|row| row.broken.is_some()) {
        print(&format!("broken: {}", verdict.row()))?;
    }
    print("the file of one: polyrail sim arena --start SEED --print")
}

/// The scenarios of the worst, in throughput and in p99, and of all that are broken.
fn save(folder: &Path, verdicts: &[Verdict]) -> Result<(), Failure> {
    let failed = |path: &Path, error| Failure::Environment(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    let worst = arena::worst(verdicts)
        .into_iter()
        .chain(arena::worst_p99(verdicts));
    let broken = verdicts.iter().filter(|row| row.broken.is_some());
    for verdict in worst.chain(broken) {
        let path = folder.join(format!("arena-{}.toml", verdict.seed));
        let text = format!("# {}\n{}", verdict.row(), Trial::draw(verdict.seed).text);
        std::fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

fn conclude(args: &ArenaArgs, summary: &Summary) -> Result<(), Failure> {
    let floor = args.at_least.unwrap_or(Floor::NONE);
    let misses = summary.misses(&floor);
    match misses.is_empty() {
        true => Ok(()),
        false => Err(Failure::Verdict(format!(
            "seeds from {}: {}",
            args.start,
            misses.join("; ")
        ))),
    }
}
