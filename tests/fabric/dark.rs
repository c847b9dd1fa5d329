//! Runs of the experiment in which all links to a target go dark for ever.

use std::path::Path;

use crate::case::cases;
use crate::experiment::{clinging, run};

/// Of each number of rails; `.ci/deep` has fifty.
const REPETITIONS: usize = 5;

#[test]
fn a_target_that_goes_dark_is_reported_in_time_and_truly_and_the_other_one_does_not_notice() {
    let mut runs = Vec::new();
    for case in cases(REPETITIONS) {
        let Some(outcome) = run(Path::new(env!("CARGO_BIN_EXE_blackout")), case) else {
            return;
        };
        println!("{case}: {outcome}");
        runs.push((case, outcome));
    }
    let wrong = runs.iter().map(|(_, outcome)| outcome.wrong.len());
    assert_eq!(wrong.sum::<usize>(), 0, "see above");
    let (clinging, holding) = clinging(&runs);
    assert!(holding > 0, "no memory was held in {clinging} runs");
}
