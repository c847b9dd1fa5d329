//! The arena: fabrics and loads drawn at random, far beyond what the library has, under every policy.
//!
//! A *trial* is a scenario that a seed draws, with the names of what is special in it. Each policy runs it once, and
//! `spray` is compared with the best of the others and with what can be reached: in throughput, and in the 99th percentile
//! of batches where others are as fast. Rules that hold only where somebody tuned them are seen here.

mod draw;
mod summary;
mod trouble;
mod verdict;

use serde::Serialize;

use crate::{Policy, on_all_cores};

pub use summary::{Floor, Summary, WORST, table, worst, worst_p99};
pub use verdict::{P99_RATIO_MAX, Rival, Verdict};

/// A scenario that a seed draws.
#[derive(Clone, PartialEq, Debug)]
pub struct Trial {
    /// What it was drawn from.
    pub seed: u64,
    /// Its file.
    pub text: String,
    /// What is special in it.
    pub features: Vec<&'static str>,
}

impl Trial {
    /// The trial of this seed.
    pub fn draw(seed: u64) -> Self {
        draw::draw(seed)
    }
}

/// A verdict or a summary as one line of JSON.
pub fn to_json(row: &impl Serialize) -> String {
    // Plain fields without maps always serialise.
    serde_json::to_string(row).unwrap_or_default()
}

/// Runs the trials of so many seeds from `start` on, on all cores: of those that have the feature, if one is asked for. In
/// order of seeds. `progress` is told how many have been run.
pub fn search(
    start: u64,
    seeds: u64,
    policies: &[Policy],
    feature: Option<&str>,
    progress: impl Fn(u64) + Sync,
) -> Vec<Verdict> {
    let of = |number| {
        let trial = Trial::draw(start.wrapping_add(number));
        let is_wanted = feature.is_none_or(|feature| trial.features.contains(&feature));
        is_wanted.then(|| Verdict::of(&trial, policies))
    };
    let verdicts = on_all_cores(seeds, of, progress);
    verdicts.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::POLICIES;

    #[test]
    fn every_seed_is_a_scenario_and_gives_the_same_verdict_twice() {
        let twice = [(); 2].map(|()| search(0, 6, POLICIES, None, |_| {}));
        assert_eq!(twice[0], twice[1]);
        assert_eq!(twice[0].len(), 6);
        for verdict in &twice[0] {
            assert_eq!(verdict.broken, None, "seed {}", verdict.seed);
        }
    }

    #[test]
    fn thousands_of_seeds_are_scenarios() {
        for seed in 0..2_000 {
            let trial = Trial::draw(seed);
            let setup = verdict::setup(&trial);
            assert!(setup.is_ok(), "seed {seed}: {setup:?}\n{}", trial.text);
            assert!(!trial.features.is_empty());
        }
    }
}
