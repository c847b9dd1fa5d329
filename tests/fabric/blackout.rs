//! A target whose links all go dark for ever, many times over, and all values: how soon each request was reported, and
//! what the rate to another target did meanwhile. Also the processes that the experiment consists of.
//!
//! Needs what the tests of this package need.
//!
//! ```text
//! cargo run --release -p polyrail-tests-fabric --bin blackout -- run --repetitions 50
//! ```
//!
//! Ends with 1 if a promise was not kept.

mod case;
mod clinging;
mod experiment;
#[expect(dead_code, reason = "the tests of this package use more of it")]
mod fabric;
mod initiator;
#[expect(dead_code, reason = "the program `distance` uses more of it")]
mod link;
mod marks;
mod packet;
#[expect(dead_code, reason = "the program `chaos` uses more of it")]
mod party;
mod target;
mod transports;
mod tun;
mod voice;
#[cfg(test)]
mod waiting;

use std::env;
use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use case::{Load, Transports};
use experiment::Outcome;

/// Lets a target's links go dark while requests are on their way.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Runs the experiment over 1, 2 and 4 rails, with the faults and transports by turns.
    Run {
        /// With each number of rails.
        #[arg(long, default_value_t = 5)]
        repetitions: usize,
    },
    /// Offers memory.
    Target {
        #[arg(long, value_enum)]
        transports: Transports,
        #[arg(long, value_delimiter = ',')]
        rails: Vec<IpAddr>,
    },
    /// Reads and writes the memory of two targets.
    Initiator {
        #[arg(long, value_enum)]
        transports: Transports,
        #[arg(long, value_enum)]
        load: Load,
        /// `HOST:PORT` of the one whose links go dark.
        #[arg(long)]
        dying: String,
        /// `HOST:PORT` of the one that stays.
        #[arg(long)]
        other: String,
    },
}

fn main() -> ExitCode {
    env_logger::init();
    let done = match Args::parse().role {
        Role::Run { repetitions } => repeat(repetitions),
        Role::Target { transports, rails } => target::run(&rails, transports).map(|()| true),
        Role::Initiator {
            transports,
            load,
            dying,
            other,
        } => initiator::run(&dying, &other, transports, load).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all promises were kept.
fn repeat(repetitions: usize) -> Result<bool, Box<dyn Error>> {
    let program = env::current_exe()?;
    let mut runs = Vec::new();
    for case in case::cases(repetitions) {
        let Some(outcome) = experiment::run(&program, case) else {
            return Ok(true);
        };
        println!("{case}: {outcome}");
        runs.push((case, outcome));
    }
    let (clinging, holding) = experiment::clinging(&runs);
    println!("memory was held in {holding} of {clinging} runs with a transport that keeps some");
    let outcomes: Vec<&Outcome> = runs.iter().map(|(_, outcome)| outcome).collect();
    let wrong = outcomes.iter().filter(|outcome| !outcome.wrong.is_empty());
    let wrong = wrong.count();
    let all =
        |of: fn(&Outcome) -> Vec<f64>| outcomes.iter().flat_map(|outcome| of(outcome)).collect();
    print_sorted(
        "reported, ms after the cut",
        all(|outcome| outcome.reported_ms.iter().map(|ms| *ms as f64).collect()),
    );
    print_sorted(
        "rate to the other target in windows of 250 ms, as part of that before the cut",
        all(|outcome| outcome.other_parts.clone()),
    );
    println!("{wrong} of {} runs were not as promised", outcomes.len());
    Ok(wrong == 0 && (clinging == 0 || holding > 0))
}

fn print_sorted(what: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let at = |part: f64| values.get((part * last as f64) as usize).copied();
    let parts = [0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0];
    let shown = parts.map(|part| format!("{part}: {:.2}", at(part).unwrap_or(f64::NAN)));
    println!(
        "{what}: {} values, by rank {}",
        values.len(),
        shown.join(", ")
    );
}
