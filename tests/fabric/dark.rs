//! Runs of the experiment in which all links to a target go dark for ever.

use std::path::Path;

use crate::case::cases;
use crate::experiment::run;

/// Of each number of rails; `.ci/deep` has fifty.
const REPETITIONS: usize = 5;

#[test]
fn a_target_that_goes_dark_is_reported_in_time_and_truly_and_the_other_one_does_not_notice() {
    let mut wrong = 0;
    for case in cases(REPETITIONS) {
        let Some(outcome) = run(Path::new(env!("CARGO_BIN_EXE_blackout")), case) else {
            return;
        };
        println!("{case}: {outcome}");
        wrong += outcome.wrong.len();
    }
    assert_eq!(wrong, 0, "see above");
}
