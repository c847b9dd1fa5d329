//! `polyrail sim exhaust`: every order of events on a small fabric.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use clap::Args;
use polyrail_sim::Policy;
use polyrail_sim::exhaustive::{Bounds, explore, kinds};

use super::{parse_policy, print};
use crate::exit::Failure;

/// Arguments of `sim exhaust`.
#[derive(Args)]
pub(super) struct ExhaustArgs {
    /// How rails are chosen.
    #[arg(long, default_value = Policy::RoundRobin.name(), value_parser = parse_policy)]
    policy: Policy,
    /// How many things may go wrong, be cancelled, or happen to the peer, on one way. With 2 it takes hours.
    #[arg(long, default_value_t = 1)]
    faults: u8,
    /// How often the earliest timer may go off, on one way.
    #[arg(long, default_value_t = 1)]
    timers: u8,
}

/// Runs the command.
pub(super) fn run(args: &ExhaustArgs) -> Result<(), Failure> {
    let bounds = Bounds {
        faults: args.faults,
        timers: args.timers,
    };
    let wanted = std::io::stderr().is_terminal();
    let began = Instant::now();
    let explored = explore(args.policy, bounds, |states| {
        if wanted {
            let _ = write!(std::io::stderr(), "\r{states} states");
        }
    });
    if wanted {
        let _ = write!(std::io::stderr(), "\r{:24}\r", "");
    }
    print(&format!(
        "{} states, {} events tried in them, {} events deep, {:.1} s",
        explored.states,
        explored.steps,
        explored.depth,
        began.elapsed().as_secs_f64()
    ))?;
    for kind in kinds() {
        let count = explored.used.get(kind).copied().unwrap_or(0);
        print(&format!("  {kind:<24} {count:>9}"))?;
    }
    match explored.violation {
        None => Ok(()),
        Some((violation, events)) => {
            print(&format!("the way there: {}", events.join(", ")))?;
            Err(Failure::Verdict(violation))
        }
    }
}
