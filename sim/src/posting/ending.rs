//! How a queue pair ends: recovery, the fence, and only then what owners are told.

use std::cell::Cell;

use polyrail_core::send_queue::credit::{Grant, Revision};
use polyrail_core::send_queue::failure::{Entry, Recovery};
use polyrail_core::units::Epoch;
use polyrail_core::work::Cause;

use super::pair::Health;
use super::task::TaskId;
use super::{Broken, What, World};

/// A fence that cannot be given yet is asked for again after this.
const FENCE_AGAIN_NS: u64 = 10_000;

/// A queue pair that is over, or about to be.
#[derive(Default)]
pub(super) struct Ending {
    begun: bool,
    destroyed: bool,
    /// Nothing of it can move any more, and everybody has been told.
    pub(super) over: bool,
    /// It is to be built anew when it is over.
    pub(super) wanted: bool,
    /// What is told when nothing can move any more.
    pub(super) failed: Vec<Failure>,
    /// And given back.
    pub(super) grants: Vec<Grant>,
}

/// Requests of a chunk that have failed, and the works of the records that they were in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) task: TaskId,
    pub(super) works: u32,
    pub(super) requests: u32,
    pub(super) cause: Cause,
}

/// A recovery that waits for posters to finish.
pub(super) struct Pending {
    recovery: Recovery<TaskId>,
    culprit: Option<TaskId>,
    /// The revision at which it last could not go on.
    seen: Option<Revision>,
}

impl World<'_> {
    /// Something has gone wrong with a queue pair: it ends, if it has to.
    pub(super) fn begin_recovery(&mut self, pair: usize, entry: Entry<TaskId>) {
        let row = &mut self.pairs[pair];
        let Some(recovery) = Recovery::begin(&self.credits[pair], &mut row.ledger, entry) else {
            return;
        };
        let culprit = match entry {
            Entry::PostFailed { owner, .. } | Entry::CompletionFailed { owner, .. } => Some(owner),
            _ => None,
        };
        row.recoveries.push(Pending {
            recovery,
            culprit,
            seen: None,
        });
        if std::mem::replace(&mut row.ending.begun, true) {
            return;
        }
        let epoch = row.epoch;
        self.history.ended_queue_pairs += 1;
        self.break_down(pair, None);
        let at = self.now + self.setup.engine.fence_us * 1_000;
        self.agenda.enter(at, What::Fenced { pair, epoch });
    }

    /// Recoveries go on whose queue pair has changed.
    pub(super) fn recover(&mut self) {
        for pair in 0..self.pairs.len() {
            let mut pending = std::mem::take(&mut self.pairs[pair].recoveries);
            pending.retain_mut(|row| !self.recovered(pair, row));
            self.pairs[pair].recoveries.append(&mut pending);
        }
    }

    fn recovered(&mut self, pair: usize, pending: &mut Pending) -> bool {
        let credits = &self.credits[pair];
        if pending.seen == Some(credits.revision()) {
            return false;
        }
        let row = &mut self.pairs[pair];
        let mut failed: Vec<Failure> = Vec::new();
        let grants = &mut row.ending.grants;
        let works = Cell::new(0);
        let answer = pending.recovery.poll(
            credits,
            &mut row.ledger,
            |grant| {
                works.set(works.get() + u32::from(grant.amount().works));
                grants.push(grant);
            },
            |owner| {
                failed.push(Failure {
                    task: owner.orphans.owner,
                    works: works.take(),
                    requests: owner.orphans.requests,
                    cause: owner.cause,
                });
            },
        );
        if let Err(revision) = answer {
            pending.seen = Some(revision);
            return false;
        }
        let later = failed.iter().skip(1);
        if later
            .into_iter()
            .any(|row| Some(row.task) == pending.culprit)
        {
            self.violate(format!(
                "queue pair {pair}: others are told before the culprit"
            ));
        }
        for failure in failed {
            self.fail_later(pair, failure);
        }
        true
    }

    /// Requests have failed on this queue pair. Their callers know that something has; that they have ended is told
    /// when nothing can move any more.
    pub(super) fn fail_later(&mut self, pair: usize, failure: Failure) {
        self.hint_failure(failure.task, failure.requests, failure.cause);
        match self.broken {
            Broken::TellsEarly => self.tell_failure(failure),
            _ => self.pairs[pair].ending.failed.push(failure),
        }
    }

    fn tell_failure(&mut self, failure: Failure) {
        let Failure {
            task,
            works,
            requests,
            cause,
        } = failure;
        self.tell_record(task, works, requests, Err(cause));
    }

    /// A device has told that a queue pair is gone.
    pub(super) fn noticed(&mut self, pair: usize, epoch: Epoch) {
        if self.pairs[pair].epoch == epoch && !self.pairs[pair].ending.over {
            let cause = Cause::DeviceDown;
            self.begin_recovery(pair, Entry::DeviceGone { cause });
        }
    }

    /// The queue pair can move nothing any more, once it has been destroyed and its completions polled.
    pub(super) fn fenced(&mut self, pair: usize, epoch: Epoch) {
        let row = &self.pairs[pair];
        if row.epoch != epoch || row.ending.over {
            return;
        }
        let quiet = self.credits[pair].is_drained() && row.completions_out == 0;
        if !quiet || !row.recoveries.is_empty() {
            let at = self.now + FENCE_AGAIN_NS;
            return self.agenda.enter(at, What::Fenced { pair, epoch });
        }
        let silent = row.health == Health::Silent;
        self.destroy(pair);
        let row = &mut self.pairs[pair];
        if !row.ledger.is_empty() {
            if std::mem::replace(&mut row.ending.destroyed, true) {
                let left = row.ledger.len();
                return self.violate(format!("queue pair {pair} is over with {left} records"));
            }
            let cause = if silent {
                Cause::DeviceDown
            } else {
                Cause::Flushed
            };
            self.begin_recovery(pair, Entry::DeviceGone { cause });
            let at = self.now + FENCE_AGAIN_NS;
            return self.agenda.enter(at, What::Fenced { pair, epoch });
        }
        row.ending.over = true;
        let (grants, failed) = (
            std::mem::take(&mut row.ending.grants),
            std::mem::take(&mut row.ending.failed),
        );
        let wanted = row.ending.wanted;
        for grant in grants {
            self.release(pair, grant);
        }
        for failure in failed {
            self.tell_failure(failure);
        }
        if wanted {
            self.build(pair);
        }
    }
}
