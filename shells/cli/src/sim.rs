//! `polyrail sim`: simulated histories of the shipped core.

mod arena;
mod compare;
mod exhaust;
mod figures;
mod load;
mod pictures;
mod replay;
mod swarm;
mod vary;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use clap::{Args, Subcommand};
use polyrail_sim::{Options, Outcome, Policy, Setup, Simulation, picture, report, scenario};

use crate::exit::Failure;
use load::Loaded;
use vary::{Seeds, Varied, VaryArgs};

/// Arguments of `sim`.
#[derive(Args)]
#[command(after_help = "Example:\n  polyrail sim run slowed-rail --policy spray")]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Subcommand)]
enum SimCommand {
    /// Names the scenarios that come with the program, one a line.
    #[command(after_help = "Example:\n  polyrail sim list --long")]
    List(ListArgs),
    /// Runs one history of a scenario.
    #[command(
        after_help = "Example:\n  polyrail sim run fig10-rail-fails --seed 7 --json\n  \
                            polyrail sim run background-bursts --seeds 100\n  \
                            polyrail sim run slowed-rail --set fault.0.factor=0.05,0.1,0.5 --seeds 1..20 --csv\n  \
                            polyrail sim run slowed-rail --html slowed.html --trace slowed.json"
    )]
    Run(RunArgs),
    /// Runs scenarios under several policies, in one table.
    #[command(
        after_help = "Example:\n  polyrail sim compare steady-uniform slowed-rail --policies round-robin,spray"
    )]
    Compare(compare::CompareArgs),
    /// Runs random scenarios until one goes wrong, and makes that one small.
    #[command(after_help = "Example:\n  polyrail sim swarm --seeds 1000")]
    Swarm(swarm::SwarmArgs),
    /// Draws fabrics and loads at random, runs every policy on each, and says how far spray is from the best of them and
    /// from what can be reached.
    #[command(
        after_help = "Example:\n  polyrail sim arena --seeds 200 --start 1000 --out worst\n  \
                            polyrail sim arena --start 1042 --print"
    )]
    Arena(arena::ArenaArgs),
    /// Makes the figures of the paper on TENT anew: a page and a CSV each, with every statement of the paper beside what is seen.
    #[command(after_help = "Example:\n  polyrail sim figures figures --only 5,10")]
    Figures(figures::FiguresArgs),
    /// Tries every order of events on a fabric of two rails, with two requests of three slices.
    #[command(after_help = "Example:\n  polyrail sim exhaust --policy spray")]
    Exhaust(exhaust::ExhaustArgs),
    /// Makes the calls of a flight recording on core once more: equal or not, and what happened.
    #[command(after_help = "Example:\n  polyrail demo --record flights\n  \
                            polyrail sim replay flights/demo.flight --events")]
    Replay(replay::ReplayArgs),
}

#[derive(Args)]
struct ListArgs {
    /// Says what each shows, too.
    #[arg(long)]
    long: bool,
}

#[derive(Args)]
struct RunArgs {
    /// A scenario's name, or a file.
    scenario: String,
    /// How rails are chosen, by core or by programs that name them (`static`, `least-loaded`, `capacity`); where settings are
    /// compared, one of these.
    #[arg(long, default_value = Policy::Spray.name())]
    policy: String,
    /// The seed, instead of the scenario's own.
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    vary: VaryArgs,
    /// Checks all of core's invariants at every step, and that all comes right in the end. Slow.
    #[arg(long)]
    audit: bool,
    /// Writes a page with charts, for which the other policies run too.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Writes a trace that Perfetto opens.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// The policy of this name, or which there are.
fn parse_policy(name: &str) -> Result<Policy, String> {
    polyrail_sim::policy(name).ok_or_else(|| {
        let known: Vec<_> = polyrail_sim::POLICIES
            .iter()
            .map(|policy| policy.name())
            .collect();
        format!("known are {}", known.join(", "))
    })
}

/// Runs the command.
pub(crate) fn run(args: &SimArgs) -> Result<(), Failure> {
    match &args.command {
        SimCommand::List(args) => list(args.long),
        SimCommand::Run(args) => run_one(args),
        SimCommand::Compare(args) => compare::run(args),
        SimCommand::Swarm(args) => swarm::run(args),
        SimCommand::Arena(args) => arena::run(args),
        SimCommand::Exhaust(args) => exhaust::run(args),
        SimCommand::Figures(args) => figures::run(args),
        SimCommand::Replay(args) => replay::run(args),
    }
}

fn list(long: bool) -> Result<(), Failure> {
    for name in scenario::NAMES {
        if long {
            let shows = Loaded::new(name, None)?.simulation.shows().to_owned();
            print(&format!("{name:<24} {shows}"))?;
        } else {
            print(name)?;
        }
    }
    Ok(())
}

fn run_one(args: &RunArgs) -> Result<(), Failure> {
    if args.seed.is_some() && matches!(args.vary.seeds, Some(Seeds::Range(..))) {
        let text = "--seed is the first of --seeds N; --seeds A..B says itself which is the first";
        return Err(Failure::Usage(text.to_owned()));
    }
    let all = args
        .vary
        .load(std::slice::from_ref(&args.scenario), args.seed)?;
    match all.as_slice() {
        [varied] if !args.vary.csv && !args.vary.is_many() => run_single(args, varied),
        _ => run_many(args, &all),
    }
}

/// Runs with many seeds or values, or as rows of CSV.
fn run_many(args: &RunArgs, all: &[Varied]) -> Result<(), Failure> {
    if args.html.is_some() || args.trace.is_some() {
        let text = "--html and --trace show one run: leave out --seeds, --csv, and all but one value of each --set";
        return Err(Failure::Usage(text.to_owned()));
    }
    let mut cells = Vec::new();
    for varied in all {
        cells.push((varied, varied.loaded.variant(&args.policy)?));
    }
    let options = Options {
        audit: args.audit,
        strict: args.audit,
        ..Options::new(Policy::Spray)
    };
    args.vary.run(&cells, options)
}

fn run_single(args: &RunArgs, varied: &Varied) -> Result<(), Failure> {
    let loaded = &varied.loaded;
    let variant = loaded.variant(&args.policy)?;
    match &loaded.simulation {
        Simulation::Fabric(setup) => run_fabric(args, varied, variant, setup),
        Simulation::Posting(setup) => {
            let run = |place| polyrail_sim::posting::run(setup, place);
            run_settings(
                args,
                varied,
                variant,
                run,
                |run| &run.outcome,
                |runs, chosen| picture::posting_page(setup, runs, chosen),
            )
        }
        Simulation::Staging(setup) => {
            let run = |place| polyrail_sim::staging::run(setup, place);
            run_settings(
                args,
                varied,
                variant,
                run,
                |run| &run.outcome,
                |runs, chosen| picture::staging_page(setup, runs, chosen),
            )
        }
    }
}

/// A scenario without rails to choose from: `page` draws the runs of all its settings.
fn run_settings<R>(
    args: &RunArgs,
    varied: &Varied,
    variant: &str,
    run: impl Fn(usize) -> R,
    outcome: impl Fn(&R) -> &Outcome,
    page: impl Fn(&[R], usize) -> String,
) -> Result<(), Failure> {
    let loaded = &varied.loaded;
    if args.trace.is_some() {
        let name = &loaded.name;
        return Err(Failure::Usage(format!(
            "{name} has no rails, and so no trace"
        )));
    }
    let variants = loaded.simulation.variants();
    let chosen = variants
        .iter()
        .position(|name| *name == variant)
        .unwrap_or(0);
    let began = std::time::Instant::now();
    let chosen_run = run(chosen);
    let seconds = began.elapsed().as_secs_f64();
    show(args, varied, outcome(&chosen_run), seconds)?;
    if let Some(file) = &args.html {
        let runs: Vec<R> = (0..variants.len()).map(run).collect();
        pictures::write(file, &page(&runs, chosen))?;
    }
    verdict(&[&outcome(&chosen_run).report])
}

fn run_fabric(
    args: &RunArgs,
    varied: &Varied,
    variant: &str,
    setup: &Setup,
) -> Result<(), Failure> {
    let named = Options::named(variant).unwrap_or(Options::new(Policy::Spray));
    let options = Options {
        audit: args.audit,
        // Whoever names one rail has to do without a way around it.
        strict: args.audit && named.split.is_none(),
        traced_slices_max: match args.trace {
            Some(_) => picture::TRACED_SLICES_MAX,
            None => 0,
        },
        ..named
    };
    let mut progress = Progress::new(&varied.loaded.name);
    let began = std::time::Instant::now();
    let run = polyrail_sim::run(setup, options, &mut |done, of| progress.show(done, of));
    let seconds = began.elapsed().as_secs_f64();
    progress.clear();
    if let Some(file) = &args.trace {
        pictures::write(file, &picture::trace(setup, &run))?;
    }
    let outcome = run.outcome.clone();
    if let Some(file) = &args.html {
        pictures::write(file, &pictures::page(setup, run))?;
    }
    show(args, varied, &outcome, seconds)?;
    verdict(&[&outcome.report])
}

/// One run on standard output.
fn show(args: &RunArgs, varied: &Varied, outcome: &Outcome, seconds: f64) -> Result<(), Failure> {
    if args.vary.json {
        return print(&varied.json(outcome));
    }
    print(report::table([&outcome.report]).trim_end())?;
    print(outcome.details().trim_end())?;
    let per_second = outcome.slices as f64 / seconds.max(1e-9);
    print(&format!(
        "  {} slices simulated in {seconds:.3} s: {per_second:.0} a second",
        outcome.slices
    ))
}

/// Bad if something was violated or failed.
fn verdict(reports: &[&polyrail_sim::Report]) -> Result<(), Failure> {
    let bad = reports
        .iter()
        .find(|report| report.violations > 0 || report.failed_requests > 0);
    match bad {
        Some(report) => Err(Failure::Verdict(format!(
            "{} under {} with seed {}: {} violations, {} failed requests",
            report.scenario, report.policy, report.seed, report.violations, report.failed_requests
        ))),
        None => Ok(()),
    }
}

fn print(line: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{line}").map_err(Failure::output)
}

/// Lets several threads show how many of so many they have done.
fn showing<T>(name: &str, of: u64, run: impl FnOnce(&(dyn Fn(u64) + Sync)) -> T) -> T {
    let progress = Mutex::new(Progress::new(name));
    let done = run(&|done| {
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.show(done, of);
    });
    let progress = progress.into_inner();
    progress.unwrap_or_else(PoisonError::into_inner).clear();
    done
}

/// How far a run is, on standard error if that is a terminal.
struct Progress {
    name: String,
    percent: u64,
    wanted: bool,
}

impl Progress {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            percent: 0,
            wanted: std::io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, done: u64, of: u64) {
        let percent = u128::from(done) * 100 / u128::from(of.max(1));
        if self.wanted && percent as u64 > self.percent {
            self.percent = percent as u64;
            let _ = write!(std::io::stderr(), "\r{}: {percent} % simulated", self.name);
        }
    }

    fn clear(&self) {
        if self.percent > 0 {
            let _ = write!(
                std::io::stderr(),
                "\r{:width$}\r",
                "",
                width = self.name.len() + 20
            );
        }
    }
}
