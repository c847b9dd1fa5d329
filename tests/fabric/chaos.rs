//! Two targets and two initiators, in processes of their own, while links go down, slow and silent, processes are stopped,
//! killed and started again, and segments are given back and made anew. All at random, from a seed. Every byte that is read is
//! compared with what may be there, and every report with what has arrived.
//!
//! Needs what the tests of this package need.
//!
//! ```text
//! cargo run --release -p polyrail-tests-fabric --bin chaos -- run --seconds 300 --seed 7
//! ```
//!
//! Ends with 1 and what was wrong, if anything was. A seed draws the same faults again; when they meet what is under way is the
//! machine's business.

#[expect(dead_code, reason = "the tests of this package use more of it")]
mod fabric;
mod hoard;
#[expect(dead_code, reason = "the program `distance` uses more of it")]
mod link;
mod packet;
#[expect(dead_code, reason = "the program `blackout` uses more of it")]
mod party;
mod tun;
mod voice;
#[cfg(test)]
mod waiting;

mod havoc;
mod ledger;
mod prober;

use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Lets everything fail at random, and looks at every byte.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Runs the experiment.
    Run {
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// What is drawn from; without it, the clock.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Offers memory.
    Target {
        #[arg(long)]
        port: u16,
        #[arg(long, value_delimiter = ',')]
        rails: Vec<IpAddr>,
    },
    /// Reads and writes the memory of targets.
    Initiator {
        /// Which part of all memory is its own.
        #[arg(long)]
        area: usize,
        /// Nobody else has it: what it writes is unlike all that others write.
        #[arg(long)]
        life: u64,
        /// `HOST:PORT` of each.
        #[arg(long, value_delimiter = ',')]
        targets: Vec<String>,
    },
}

fn main() -> ExitCode {
    env_logger::init();
    let done: Result<bool, Box<dyn Error>> = match Args::parse().role {
        Role::Run { seconds, seed } => Ok(havoc::run(seconds, seed)),
        Role::Target { port, rails } => hoard::run(port, &rails).map(|()| true),
        Role::Initiator {
            area,
            life,
            targets,
        } => prober::run(area, life, &targets).map(|()| true),
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
