//! A policy of another crate's, run beside those of core.

use polyrail_core::rail::Shared;
use polyrail_core::rail::chooser::Chooser;

use crate::model;
use crate::{Options, Outcome, Run, Setup};

/// Makes the policy of one worker: it is given what the workers of its engine know of rails, and its number among them.
pub type Make<'m> = dyn for<'a> Fn(&'a Shared<'a>, u16) -> Box<dyn Chooser + 'a> + Sync + 'm;

/// A policy of another crate's: `docs/own-policy.md` tells how to write one.
#[derive(Clone, Copy)]
pub struct OwnPolicy<'m> {
    /// Its name, in output.
    pub name: &'m str,
    /// Makes it: each worker has one of its own.
    pub make: &'m Make<'m>,
}

/// Runs one history as [`crate::run`] does, under a policy of the caller's own: that of `options` chooses nothing.
pub fn run_own(
    setup: &Setup,
    own: OwnPolicy<'_>,
    options: Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Run {
    // Whoever names rails itself leaves a policy nothing to choose.
    let options = Options {
        split: None,
        ..options
    };
    let history = model::run(setup, options, Some(own), progress);
    Run {
        outcome: Outcome::new(setup, own.name, &history),
        history,
    }
}
