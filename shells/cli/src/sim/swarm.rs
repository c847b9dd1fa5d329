//! `polyrail sim swarm`: random scenarios on all cores, until one goes wrong.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use polyrail_sim::swarm::{self, Case, Found, Kind};

use super::{print, showing};
use crate::exit::Failure;

/// Making a scenario smaller may take so long.
const SHRINK_MAX: Duration = Duration::from_secs(60);

/// Arguments of `sim swarm`.
#[derive(Args)]
pub(super) struct SwarmArgs {
    /// How many.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Runs seeds of the other kind: something is gone for good.
    #[arg(long)]
    endings: bool,
    /// Goes on after a failing seed, and names all of them, one a line, without making them smaller.
    #[arg(long)]
    all: bool,
}

impl SwarmArgs {
    fn kind(&self) -> Kind {
        match self.endings {
            true => Kind::Endings,
            false => Kind::Healing,
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &SwarmArgs) -> Result<(), Failure> {
    // A panic is a finding, which is told with its seed.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let found = showing("seeds", args.seeds, |show| {
        swarm::search(args.kind(), args.start, args.seeds, args.all, show)
    });
    let seconds = began.elapsed().as_secs_f64();
    let verdict = conclude(args, &found, seconds);
    std::panic::set_hook(hook);
    verdict
}

fn conclude(args: &SwarmArgs, found: &Found, seconds: f64) -> Result<(), Failure> {
    let Found {
        done,
        tally,
        failures,
    } = found;
    print(&format!(
        "{done} seeds from {} in {seconds:.1} s ({:.0} a second): {} requests, {} of them not completed, \
         {} slices, {} changes of rails",
        args.start,
        *done as f64 / seconds.max(1e-9),
        tally.requests,
        tally.failed_requests,
        tally.slices,
        tally.rail_changes,
    ))?;
    let Some((seed, violation)) = failures.first() else {
        return Ok(());
    };
    if args.all {
        for (seed, violation) in failures {
            print(&format!("seed {seed}: {violation}"))?;
        }
    } else {
        tell(args, *seed, violation)?;
    }
    Err(Failure::Verdict(format!(
        "{} of {done} seeds failed, the first of them {seed}",
        failures.len()
    )))
}

/// A failing seed, as small as it gets, and how to see it again.
fn tell(args: &SwarmArgs, seed: u64, violation: &str) -> Result<(), Failure> {
    print(&format!("seed {seed}: {violation}"))?;
    let endings = if args.endings { " --endings" } else { "" };
    print(&format!(
        "  again: polyrail sim swarm{endings} --start {seed} --seeds 1"
    ))?;
    if let Some(text) = swarm::room_file(seed, violation) {
        let path = save(seed, &text)?;
        return print(&format!("  or:    polyrail sim run {}", path.display()));
    }
    let (case, violation) = swarm::shrink(&Case::draw(args.kind(), seed), violation, SHRINK_MAX);
    let Ok(text) = swarm::file(&case) else {
        return Ok(());
    };
    let path = save(seed, &text)?;
    print(&format!("made smaller: {violation}"))?;
    print(&format!(
        "  again: polyrail sim run {} --policy {} --audit",
        path.display(),
        case.policy.name()
    ))?;
    print(&text)
}

fn save(seed: u64, text: &str) -> Result<PathBuf, Failure> {
    let path = std::env::temp_dir().join(format!("polyrail-swarm-{seed}.toml"));
    std::fs::write(&path, text)
        .map_err(|error| Failure::Environment(format!("{}: {error}", path.display())))?;
    Ok(path)
}
