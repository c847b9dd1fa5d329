//! A deterministic simulator of fabrics that drives the shipped core.
//!
//! It is one more shell: [`model`] follows the contract of [`polyrail_core::orchestrator::Orchestrator`] as the
//! engine's worker does, and its control messages pass the shipped codec, so what it proves is proved of what
//! is shipped. One seed gives one history, to the byte, on every machine, in debug and release.
//!
//! [`replay`] makes the calls of a flight recording once more. [`scenario`] reads files and holds the library,
//! [`setup`] turns names into numbers, `fluid` says what could have been reached, [`report`] how it went,
//! [`picture`] shows it, [`expect`] says whether that is as it should be. [`swarm`] draws scenarios and looks for one
//! that goes wrong, [`arena`] draws them and compares policies. [`posting`] compares settings instead, and looks at queues;
//! [`staging`] has a world and scenarios of its own, for staged routes; [`Simulation`] is a scenario of whichever kind.
//!
//! ```
//! use polyrail_sim::{Options, Setup, scenario::{Scenario, text}, simulate};
//!
//! let file = text("steady-uniform").unwrap();
//! let setup = Setup::new(file, &Scenario::parse(file)?, None)?;
//! let mut short = setup.clone();
//! short.shorten(2);
//! let outcome = simulate(&short, Options::new(Default::default()), &mut |_, _| {});
//! assert_eq!(outcome.report.violations, 0);
//! # Ok::<(), polyrail_sim::scenario::ScenarioError>(())
//! ```
#![forbid(unsafe_code)]

pub mod arena;
mod case;
mod columns;
mod cores;
pub mod exhaustive;
pub mod expect;
pub mod figures;
mod fluid;
pub mod model;
mod own;
pub mod picture;
pub mod posting;
pub mod replay;
pub mod report;
pub mod scenario;
mod settings;
pub mod setup;
mod simulation;
mod spans;
mod split;
mod spread;
pub mod staging;
pub mod swarm;
mod trace;

pub use cores::on_all_cores;
pub use model::Options;
pub use own::{Make, OwnPolicy, run_own};
pub use picture::Run;
pub use polyrail_core::rail::select::Policy;
pub use report::{Outcome, Report};
pub use setup::Setup;
pub use simulation::Simulation;
pub use split::SplitPolicy;
pub use spread::Spread;

/// Every policy that can be simulated.
pub const POLICIES: &[Policy] = &Policy::ALL;

/// The policy of this name.
pub fn policy(name: &str) -> Option<Policy> {
    POLICIES
        .iter()
        .copied()
        .find(|policy| policy.name() == name)
}

/// Runs one history. `progress` is told now and then how many nanoseconds of how many have passed.
pub fn simulate(setup: &Setup, options: Options, progress: &mut dyn FnMut(u64, u64)) -> Outcome {
    run(setup, options, progress).outcome
}

/// Runs one history as [`simulate`] does, and keeps it for [`picture`].
pub fn run(setup: &Setup, options: Options, progress: &mut dyn FnMut(u64, u64)) -> Run {
    let history = model::run(setup, options, None, progress);
    Run {
        outcome: Outcome::new(setup, options.name(), &history),
        history,
    }
}
