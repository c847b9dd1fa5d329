//! `polyrail sim run --html` and `--trace`: pictures of a run.

use std::path::Path;

use polyrail_sim::{Options, POLICIES, Run, Setup, picture};

use crate::exit::Failure;

/// A page about `run`, and runs under the other policies beside it.
pub(super) fn page(setup: &Setup, run: Run) -> String {
    let own = run.outcome.report.policy.clone();
    let others = POLICIES.iter().filter(|other| other.name() != own);
    let mut runs: Vec<Run> = std::thread::scope(|scope| {
        let begun: Vec<_> = others
            .map(|other| {
                scope.spawn(|| polyrail_sim::run(setup, Options::new(*other), &mut |_, _| {}))
            })
            .collect();
        // One that panics has said so on standard error, and has no row.
        begun
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    });
    runs.insert(0, run);
    picture::page(setup, &runs, 0)
}

/// Writes a picture.
pub(super) fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text)
        .map_err(|error| Failure::Environment(format!("{}: {error}", file.display())))
}
