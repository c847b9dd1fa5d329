//! Every scenario of the library under every policy: as the golden table says, to the byte, and under `spray`
//! within the scenario's own bounds.
//!
//! After a change that is meant to change numbers, write the table anew and look at the difference:
//!
//! ```sh
//! cargo run --release -- sim compare $(cargo run --release -- sim list) > sim/tests/golden.txt
//! ```

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use polyrail_sim::scenario::{self, Scenario};
use polyrail_sim::{Options, Outcome, POLICIES, Policy, Setup, expect, report, simulate};

fn load(name: &str) -> (Scenario, Setup) {
    let text = scenario::text(name).expect("a scenario of the library");
    let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let setup = Setup::new(text, &scenario, None).unwrap_or_else(|error| panic!("{name}: {error}"));
    (scenario, setup)
}

fn run(setup: &Setup, policy: Policy) -> Outcome {
    simulate(setup, Options::new(policy), &mut |_, _| {})
}

/// Runs all cells on all cores: rows of the table, and what is missed of bounds.
fn run_all() -> Vec<(String, Vec<String>)> {
    let cells: Vec<_> = scenario::NAMES
        .iter()
        .flat_map(|name| POLICIES.iter().map(move |policy| (*name, *policy)))
        .collect();
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(vec![(String::new(), Vec::new()); cells.len()]);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    let Some((name, policy)) = cells.get(index) else {
                        break;
                    };
                    let (scenario, setup) = load(name);
                    let outcome = run(&setup, *policy);
                    let misses = match policy {
                        Policy::Spray => {
                            expect::misses(&setup, &scenario.expect, &outcome, *policy, run)
                        }
                        _ => Vec::new(),
                    };
                    rows.lock().unwrap()[index] = (outcome.report.row(), misses);
                }
            });
        }
    });
    rows.into_inner().unwrap()
}

#[test]
fn the_library_is_as_the_golden_table_says_and_within_its_bounds() {
    let rows = run_all();
    let mut table = report::header() + "\n";
    for (row, misses) in &rows {
        assert_eq!(misses, &Vec::<String>::new(), "{row}");
        table += row;
        table += "\n";
    }
    let golden = include_str!("golden.txt");
    for (got, expected) in table.lines().zip(golden.lines()) {
        assert_eq!(
            got, expected,
            "if this is meant, write the table anew (see the top of this file)"
        );
    }
    assert_eq!(table.lines().count(), golden.lines().count());
}

#[test]
fn every_scenario_carries_its_own_name_and_says_what_it_shows() {
    for name in scenario::NAMES {
        let (scenario, _) = load(name);
        assert_eq!(scenario.name, *name);
        assert!(!scenario.shows.is_empty(), "{name}");
    }
}
