//! The swarm without the program around it: what `.ci/mutations` builds again and again.
//!
//! `swarm SEEDS` prints the first seed that fails and its violation, and ends with 1; else with 0.

use std::process::ExitCode;

use polyrail_sim::swarm::search;

fn main() -> ExitCode {
    let seeds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    std::panic::set_hook(Box::new(|_| {}));
    let found = search(0, seeds.unwrap_or(1_000), false, |_| {});
    match found.failures.first() {
        Some((seed, violation)) => {
            println!("seed {seed}: {violation}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}
