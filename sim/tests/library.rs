//! Every scenario of the library under `spray`, as the golden table says, to the byte, and within its own bounds; those about
//! send queues and staging under every setting. The rows of the other policies are four fifths of the table: `.ci/run` looks at
//! those with the program that is shipped.
//!
//! After a change that is meant to change numbers, write the table anew and look at the difference:
//!
//! ```sh
//! cargo run --release -- sim compare $(cargo run --release -- sim list) > sim/tests/golden.txt
//! ```

use polyrail_sim::scenario::{self, Scenario};
use polyrail_sim::{
    Options, Outcome, Policy, Setup, Simulation, expect, on_all_cores, posting, report, simulate,
    staging,
};

fn load(name: &str) -> Simulation {
    let text = scenario::text(name).expect("a scenario of the library");
    Simulation::new(text, None).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn run(setup: &Setup, policy: Policy) -> Outcome {
    simulate(setup, Options::new(policy), &mut |_, _| {})
}

/// The variants of a scenario that are run here.
fn variants(loaded: &Simulation) -> Vec<&str> {
    match loaded {
        Simulation::Fabric(_) => vec![Policy::Spray.name()],
        Simulation::Posting(_) | Simulation::Staging(_) => loaded.variants(),
    }
}

/// Runs them on all cores: what came of each, and what is missed of bounds.
fn run_all() -> Vec<(Outcome, Vec<String>)> {
    let loaded: Vec<_> = scenario::NAMES.iter().map(|name| load(name)).collect();
    let cells: Vec<_> = (loaded.iter())
        .flat_map(|loaded| (variants(loaded).into_iter()).map(move |variant| (loaded, variant)))
        .collect();
    let run = |number: u64| {
        let (loaded, variant) = cells[number as usize];
        let outcome = loaded.run(variant, Options::new(Policy::Spray));
        let misses = misses(loaded, &outcome);
        (outcome, misses)
    };
    on_all_cores(cells.len() as u64, run, |_| {})
}

/// Whether a line of the golden table is of another policy. Scenario and policy, or setting, are its first words.
fn is_of_another_policy(line: &str) -> bool {
    let word = line.split_whitespace().nth(1).unwrap_or_default();
    polyrail_sim::policy(word).is_some_and(|policy| policy != Policy::Spray)
}

/// What a run misses of what its scenario expects.
fn misses(loaded: &Simulation, outcome: &Outcome) -> Vec<String> {
    let report = &outcome.report;
    match loaded {
        Simulation::Fabric(setup) if report.policy == Policy::Spray.name() => {
            let text = scenario::text(&report.scenario).expect("a scenario of the library");
            let expected = Scenario::parse(text).expect("it parses").expect;
            expect::misses(setup, &expected, outcome, Policy::Spray, run)
        }
        Simulation::Fabric(_) => Vec::new(),
        Simulation::Posting(setup) => {
            let others = setup.settings().enumerate();
            let others = others
                .map(|(index, name)| (name.to_owned(), posting::run(setup, index).outcome.report));
            posting::misses(setup, report, &others.collect())
        }
        Simulation::Staging(setup) => staging::misses(setup, report),
    }
}

#[test]
fn the_library_is_as_the_golden_table_says_and_within_its_bounds() {
    let rows = run_all();
    let missed: Vec<String> = rows
        .iter()
        .filter(|(_, misses)| !misses.is_empty())
        .map(|(outcome, misses)| format!("{}: {misses:?}", outcome.report.row()))
        .collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    let table = report::table(rows.iter().map(|(outcome, _)| &outcome.report));
    let golden = include_str!("golden.txt").lines();
    let golden: Vec<_> = golden.filter(|line| !is_of_another_policy(line)).collect();
    for (got, expected) in table.lines().zip(&golden) {
        assert_eq!(
            got, *expected,
            "if this is meant, write the table anew (see the top of this file)"
        );
    }
    assert_eq!(table.lines().count(), golden.len());
}

#[test]
fn every_scenario_carries_its_own_name_and_says_what_it_shows() {
    for name in scenario::NAMES {
        let loaded = load(name);
        assert_eq!(loaded.name(), *name);
        assert!(!loaded.shows().is_empty(), "{name}");
    }
}
