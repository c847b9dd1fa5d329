//! Runs seeds on all cores.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::{Case, Kind, Tally, run, run_rooms};

/// What the seeds have come to together.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Seeds that were run.
    pub done: u64,
    /// What those came to that did not fail.
    pub tally: Tally,
    /// Those that failed, in order, with their violations.
    pub failures: Vec<(u64, String)>,
}

/// Runs so many seeds from `start` on, on all cores. Ends with the first one that fails, unless `all` are
/// wanted; those before it have been run then. `progress` is told how many have been run.
pub fn search(
    kind: Kind,
    start: u64,
    seeds: u64,
    all: bool,
    progress: impl Fn(u64) + Sync,
) -> Found {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(0);
    // Seeds from here on need not be run: an earlier one has failed.
    let end = AtomicU64::new(seeds);
    let found = Mutex::new(Found::default());
    let work = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            if index >= end.load(Relaxed) {
                return;
            }
            let seed = start.wrapping_add(index);
            let result = run(&Case::draw(kind, seed)).and_then(|tally| match kind {
                Kind::Healing => run_rooms(seed).map(|()| tally),
                Kind::Endings => Ok(tally),
            });
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.done += 1;
            match result {
                Ok(tally) => found.tally.add(&tally),
                Err(violation) => {
                    found.failures.push((seed, violation));
                    if !all {
                        end.fetch_min(index, Relaxed);
                    }
                }
            }
            progress(found.done);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found
        .failures
        .sort_by_key(|(seed, _)| seed.wrapping_sub(start));
    found
}
