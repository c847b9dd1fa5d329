//! The swarm without the program around it: what `.ci/mutations` builds again and again.
//!
//! `swarm SEEDS` runs so many seeds of each kind. It prints the first one that fails and its violation, and ends with 1;
//! else with 0. `swarm SEEDS START KIND` prints all of one kind that fail, from this one on.

use std::process::ExitCode;

use polyrail_sim::swarm::{Kind, search};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().collect();
    let number = |place: usize| args.get(place).and_then(|text| text.parse().ok());
    let (seeds, start) = (number(1).unwrap_or(1_000), number(2).unwrap_or(0));
    let kinds = match args.get(3).map(String::as_str) {
        Some("endings") => &[Kind::Endings][..],
        Some(_) => &[Kind::Healing],
        None => &[Kind::Healing, Kind::Endings],
    };
    std::panic::set_hook(Box::new(|_| {}));
    let mut code = ExitCode::SUCCESS;
    for kind in kinds {
        let found = search(*kind, start, seeds, kinds.len() == 1, |_| {});
        for (seed, violation) in &found.failures {
            println!("{kind:?}, seed {seed}: {violation}");
            code = ExitCode::FAILURE;
        }
        if code != ExitCode::SUCCESS {
            break;
        }
    }
    code
}
