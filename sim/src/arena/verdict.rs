//! What came of one trial: `spray` against the best of the others and against what can be reached.

use serde::Serialize;

use super::Trial;
use crate::report::Report;
use crate::scenario::{Scenario, ScenarioError};
use crate::swarm::caught;
use crate::{Options, Policy, Setup, simulate};

/// A 99th percentile up to so many times the best policy's is good.
pub const P99_RATIO_MAX: f64 = 1.25;
/// A policy is as fast as another one if it moves this part of each workload's bytes in the same time.
const AS_FAST: f64 = 0.95;
/// Fewer batches than this have no 99th percentile worth comparing.
const BATCHES_MIN: u64 = 200;
/// A run of more events does not end.
const EVENTS_MAX: u64 = 100_000_000;

/// Another policy, and how `spray` stands to it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Rival {
    /// Its name.
    pub policy: &'static str,
    /// `spray`'s figure as a part or a multiple of its.
    pub ratio: f64,
}

/// What came of one trial.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Verdict {
    /// Its seed.
    pub seed: u64,
    /// What is special in it.
    pub features: Vec<&'static str>,
    /// What `spray` got through of requests that completed.
    pub goodput_gbytes_per_sec: f64,
    /// `spray`'s goodput as a part of the best of all policies', 1 if it is the best itself, and whose that is.
    pub of_best: Rival,
    /// As a part of what could be reached.
    pub of_bound: f64,
    /// As a part of the better of both.
    pub of_both: f64,
    /// `spray`'s 99th percentile against the least of policies that were as fast, of the workload in which it is worst;
    /// `None`: no workload has enough batches.
    pub p99: Option<Rival>,
    /// What is wrong besides: something violated, a panic.
    pub broken: Option<String>,
}

/// A trial's scenario, checked.
pub(super) fn setup(trial: &Trial) -> Result<Setup, ScenarioError> {
    Setup::new(&trial.text, &Scenario::parse(&trial.text)?, None)
}

/// A run's report, and what is wrong with it.
type Run = (Policy, Report, Option<String>);

impl Verdict {
    /// Runs a trial under these policies, and `spray` in any case.
    pub fn of(trial: &Trial, policies: &[Policy]) -> Self {
        let runs = setup(trial).map_err(|error| format!("not a scenario: {error}"));
        let runs = runs.and_then(|setup| runs_of(&setup, policies));
        let mut verdict = Self {
            seed: trial.seed,
            features: trial.features.clone(),
            goodput_gbytes_per_sec: 0.0,
            of_best: Rival {
                policy: Policy::Spray.name(),
                ratio: 0.0,
            },
            of_bound: 0.0,
            of_both: 0.0,
            p99: None,
            broken: None,
        };
        match runs {
            Ok(runs) => verdict.compare(&runs),
            Err(error) => verdict.broken = Some(error),
        }
        verdict
    }

    fn compare(&mut self, runs: &[Run]) {
        let Some((spray, others)) = runs.split_first() else {
            return;
        };
        self.broken = runs.iter().find_map(|(policy, _, broken)| {
            let text = broken.as_ref()?;
            Some(format!("{}: {text}", policy.name()))
        });
        let own = &spray.1;
        self.goodput_gbytes_per_sec = own.goodput_gbytes_per_sec;
        let goodput = |run: &&Run| run.1.goodput_gbytes_per_sec;
        let best = others
            .iter()
            .max_by(|a, b| goodput(a).total_cmp(&goodput(b)));
        self.of_best.ratio = 1.0;
        if let Some(best) = best.filter(|best| goodput(best) > goodput(&spray)) {
            self.of_best = Rival {
                policy: best.0.name(),
                ratio: goodput(&spray) / goodput(&best),
            };
        }
        self.of_bound = own.efficiency.min(1.0);
        self.of_both = self.of_bound.min(self.of_best.ratio);
        self.p99 = worst_p99(own, others);
    }
}

/// Of each workload with enough batches: against the least of policies that are as fast in all of them.
fn worst_p99(own: &Report, others: &[Run]) -> Option<Rival> {
    let as_fast = |other: &&Run| {
        let mut rows = own.workloads.iter().zip(&other.1.workloads);
        rows.all(|(own, other)| {
            other.goodput_gbytes_per_sec >= AS_FAST * own.goodput_gbytes_per_sec
        })
    };
    let ratios = own.workloads.iter().enumerate().filter_map(|(index, row)| {
        let enough = |row: &crate::report::WorkloadRow| row.batches >= BATCHES_MIN;
        if !enough(row) {
            return None;
        }
        let rivals = others.iter().filter(as_fast).filter_map(|other| {
            let theirs = other.1.workloads.get(index).filter(|row| enough(row))?;
            let ratio = row.p99_us / theirs.p99_us.max(0.001);
            Some(Rival {
                policy: other.0.name(),
                ratio,
            })
        });
        let worst = rivals.max_by(|a, b| a.ratio.total_cmp(&b.ratio));
        Some(worst.filter(|worst| worst.ratio > 1.0).unwrap_or(Rival {
            policy: Policy::Spray.name(),
            ratio: 1.0,
        }))
    });
    ratios.max_by(|a, b| a.ratio.total_cmp(&b.ratio))
}

/// One run under each policy, `spray` first.
fn runs_of(setup: &Setup, policies: &[Policy]) -> Result<Vec<Run>, String> {
    let others = policies.iter().filter(|policy| **policy != Policy::Spray);
    let policies = std::iter::once(&Policy::Spray).chain(others);
    let run = |policy: &Policy| {
        let options = Options {
            events_max: EVENTS_MAX,
            ..Options::new(*policy)
        };
        let outcome = caught(|| simulate(setup, options, &mut |_, _| {}))
            .map_err(|panic| format!("{}: {panic}", policy.name()))?;
        Ok((*policy, outcome.report, outcome.violation))
    };
    policies.map(run).collect()
}
