//! A short run of chaos; `.ci/deep` has a long one.

use std::process::Command;

#[test]
fn whatever_fails_every_byte_and_every_report_is_true() {
    for seed in ["1", "2"] {
        let run = Command::new(env!("CARGO_BIN_EXE_chaos"))
            .args(["run", "--seconds", "16", "--seed", seed])
            .status();
        assert!(run.expect("it can be run").success(), "seed {seed}");
    }
}
