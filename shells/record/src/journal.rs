//! Where an engine's calls are written down: all of them in a file, or the last ones in memory.

use std::sync::{Arc, MutexGuard};

use polyrail_core::orchestrator::Orchestrator;
use polyrail_core::rail::Shared;
use polyrail_core::rail::policies::Policies;

use crate::call::{Answer, Install, Step};
use crate::recorder::{Log, Recorder};
use crate::ring::{Calls, Ring};

/// One of the two. Whoever calls core, or changes what workers share, does so through it, one at a time.
#[derive(Clone, Debug)]
pub enum Journal {
    /// All calls, in a file.
    Whole(Arc<Recorder>),
    /// The last ones, in memory.
    Ring(Arc<Ring>),
}

impl Journal {
    /// Puts something into what workers share.
    pub fn install(&self, shared: &Shared<'_>, install: Install<'_>) -> bool {
        match self {
            Self::Whole(recorder) => recorder.install(shared, install),
            Self::Ring(ring) => ring.install(shared, install),
        }
    }

    /// Ends it.
    pub fn close(&self) {
        match self {
            Self::Whole(recorder) => recorder.close(),
            Self::Ring(ring) => ring.close(),
        }
    }

    /// For one call of a worker, whose core stands so; `seen` is its own, 0 at first.
    #[inline]
    pub(crate) fn open(
        &self,
        worker: u16,
        seen: &mut u64,
        core: &Orchestrator<'_, Policies<'_>>,
    ) -> Open<'_> {
        match self {
            Self::Whole(recorder) => Open::Whole(recorder.log()),
            Self::Ring(ring) => {
                let mut calls = ring.calls();
                calls.before(worker, seen, core);
                Open::Ring(calls)
            }
        }
    }
}

/// A journal that nobody else writes to now.
pub(crate) enum Open<'j> {
    Whole(MutexGuard<'j, Log>),
    Ring(MutexGuard<'j, Calls>),
}

impl Open<'_> {
    /// Writes down a call that has just been made.
    #[inline]
    pub(crate) fn note(&mut self, step: &Step<'_>, answer: &Answer<'_>) {
        match self {
            Self::Whole(log) => log.note(step, answer),
            Self::Ring(calls) => calls.note(step, answer),
        }
    }
}
