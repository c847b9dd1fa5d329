//! Random scenarios: fabrics, workloads and faults drawn from a seed, run with every check there is.
//!
//! While things go wrong it is about safety: no byte lost, none written and no source read after the report
//! that says so, each request and batch reported once and truly, room never given twice, core's own audit after every step. Once
//! nothing goes wrong any more it is about liveness: within a bound every request is reported, every rail is
//! healthy, all room is given back, and what is submitted then completes. Each seed draws a scenario of staging
//! besides.

mod draw;
mod search;
mod shrink;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use search::{Found, search};
pub use shrink::shrink;

pub use crate::case::Case;
use crate::model::{self, History, Options};
use crate::scenario::{Scenario, ScenarioError};
use crate::setup::Setup;
use crate::{Policy, Simulation, staging};

/// Two kinds of random scenarios, with seeds of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Everything that goes wrong is over at some time.
    Healing,
    /// Something is gone for good: a peer, some of its rails, its control plane.
    Endings,
}

/// No scenario of this size has so many events.
const EVENTS_MAX: u64 = 3_000_000;

/// What a seed came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests reported.
    pub requests: u64,
    /// Those of them that did not complete.
    pub failed_requests: u64,
    /// Slices that carried user bytes.
    pub slices: u64,
    /// Times that a rail changed its state.
    pub rail_changes: u64,
}

impl Tally {
    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.failed_requests += other.failed_requests;
        self.slices += other.slices;
        self.rail_changes += other.rail_changes;
    }
}

/// The file of a seed's scenario.
type Draw = fn(u64) -> String;

/// What the violations of scenarios of their own begin with: those of staging.
const ROOMS: [(&str, Draw); 1] = [("staging: ", staging::draw)];

/// Runs the scenario of a seed: what it came to, or the first violation in words.
pub fn run(case: &Case) -> Result<Tally, String> {
    let history = match caught(|| history(case)) {
        Ok(Ok(history)) => history,
        Ok(Err(error)) => return Err(format!("not a scenario: {error}")),
        Err(panic) => return Err(panic),
    };
    match history.first_violation {
        Some(violation) => Err(violation),
        None => Ok(Tally {
            requests: history.requests,
            failed_requests: history.failed_requests,
            slices: history.slices,
            rail_changes: history.rail_states.len() as u64,
        }),
    }
}

/// Runs a seed's scenario of staging: the first violation in words, or none.
fn run_rooms(seed: u64) -> Result<(), String> {
    for (room, draw) in ROOMS {
        let ran = caught(|| {
            let simulation = Simulation::new(&draw(seed), None)?;
            Ok(simulation.run("", Options::new(Policy::Spray)).violation)
        });
        let violation = match ran {
            Ok(Ok(violation)) => violation,
            Ok::<_, String>(Err::<_, ScenarioError>(error)) => {
                Some(format!("not a scenario: {error}"))
            }
            Err(panic) => Some(panic),
        };
        if let Some(violation) = violation {
            return Err(format!("{room}{violation}"));
        }
    }
    Ok(())
}

/// The file of the scenario that a violation is of, if it is one of staging. Such are not made smaller.
pub fn room_file(seed: u64, violation: &str) -> Option<String> {
    let room = ROOMS.iter().find(|(room, _)| violation.starts_with(room));
    room.map(|(_, draw)| draw(seed))
}

/// A panic is a finding, and gives its text.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("panic: {}", text.unwrap_or("without a text"))
    })
}

fn history(case: &Case) -> Result<History, ScenarioError> {
    let setup = |text: &str| Setup::new(text, &Scenario::parse(text)?, None);
    let setup = setup(&file(case)?)?;
    let options = Options {
        audit: true,
        strict: true,
        events_max: EVENTS_MAX,
        ..Options::new(case.policy)
    };
    Ok(model::run(&setup, options, None, &mut |_, _| {}))
}

/// The scenario's file: `polyrail sim run FILE --audit` runs it as the swarm does.
pub fn file(case: &Case) -> Result<String, ScenarioError> {
    let text = case.text(None);
    let setup = Setup::new(&text, &Scenario::parse(&text)?, None)?;
    let calm_ms = (setup.calm_at() + setup.rest_ns()).div_ceil(1_000_000) + 1;
    Ok(case.text(Some(calm_ms)))
}

/// The violation of a scenario, if it has one, and is a scenario.
fn violation_of(case: &Case) -> Option<String> {
    run(case)
        .err()
        .filter(|text| !text.starts_with("not a scenario"))
}

/// What a violation is about: its words, without times and numbers.
fn kind_of(violation: &str) -> String {
    let text = violation
        .split_once(" ns: ")
        .map_or(violation, |(_, text)| text);
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_a_scenario_and_gives_the_same_run_twice() {
        for seed in 0..20 {
            for kind in [Kind::Healing, Kind::Endings] {
                let case = Case::draw(kind, seed);
                assert_eq!(file(&case), file(&Case::draw(kind, seed)));
                let first = run(&case);
                assert_eq!(first, run(&case), "{kind:?}, seed {seed}");
                assert!(first.is_ok(), "{kind:?}, seed {seed}: {first:?}");
            }
        }
    }

    /// A peer got a slice to be sent again in its own turn, and was taken for one that waits while it stood among the others:
    /// the two lines of peers lost count.
    #[test]
    fn a_peer_that_gets_something_to_bind_in_its_turn_is_in_one_line() {
        let first = run(&Case::draw(Kind::Endings, 1267));
        assert!(first.is_ok(), "{first:?}");
    }

    /// A batch that nothing could come of had ended before the step was over in which it was given its room: the simulator
    /// took it for one that had lasted for ever, or panicked in debug builds.
    #[test]
    fn a_batch_that_ends_at_once_has_not_waited() {
        let first = run(&Case::draw(Kind::Endings, 259));
        assert!(first.is_ok(), "{first:?}");
    }

    /// Two fences were answered in one step: by the first, a request had ended with the other one's side open, and the second
    /// was told behind its report. The simulator minded the report.
    #[test]
    fn a_report_may_be_behind_by_what_is_told_right_after() {
        let first = run(&Case::draw(Kind::Healing, 934722));
        assert!(first.is_ok(), "{first:?}");
    }

    #[test]
    fn some_wait_for_room_and_some_in_vain() {
        let (mut waits, mut refused) = (0, 0);
        for seed in 0..100 {
            let case = Case::draw(Kind::Healing, seed);
            let history = history(&case).expect("it is a scenario");
            assert_eq!(history.first_violation, None, "seed {seed}");
            waits += history.queues.waits;
            refused += history.queues.refused;
        }
        assert!(waits > 100 && refused > 10, "{waits} {refused}");
    }
}
