//! The thread that polls for completions: what they cover goes back, and owners are told.

use std::collections::VecDeque;

use polyrail_core::send_queue::failure::Entry;
use polyrail_core::units::{Epoch, RecordId};
use polyrail_core::work::Outcome;

use super::ending::Failure;
use super::{Broken, What, World};

/// Completions that one poll takes.
const POLL_MAX: usize = 32;

/// What a device says about a work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) pair: usize,
    pub(super) epoch: Epoch,
    pub(super) cookie: u64,
    pub(super) outcome: Outcome,
    /// Works of the queue pair up to it: their places are free when it has been polled.
    pub(super) reclaims: u64,
    /// The device has said it before.
    pub(super) repeated: bool,
}

/// The poller.
#[derive(Debug, Default)]
pub(super) struct Poller {
    queue: VecDeque<Completion>,
    /// A poll is to come.
    awake: bool,
    free_at: u64,
    pub(super) stalled: bool,
    pub(super) polled_at: u64,
}

impl World<'_> {
    /// A completion has reached the queue.
    pub(super) fn completes(&mut self, completion: Completion) {
        self.poller.queue.push_back(completion);
        self.rouse();
    }

    /// The poller looks as soon as it can, if there is something to see.
    pub(super) fn rouse(&mut self) {
        let poller = &mut self.poller;
        if poller.stalled || poller.awake || poller.queue.is_empty() {
            return;
        }
        poller.awake = true;
        let at = poller.free_at.max(self.now);
        self.agenda.enter(at, What::Polls);
    }

    /// One poll.
    pub(super) fn poll(&mut self) {
        self.poller.awake = false;
        if self.poller.stalled {
            return;
        }
        self.poller.polled_at = self.now;
        let mut seen = vec![(0, 0); self.pairs.len()];
        let count = self.poller.queue.len().min(POLL_MAX);
        for _ in 0..count {
            if let Some(completion) = self.poller.queue.pop_front() {
                let works = self.handle_completion(completion);
                seen[completion.pair].0 += 1;
                seen[completion.pair].1 += works;
            }
        }
        for (credits, (completions, works)) in self.credits.iter().zip(seen) {
            credits
                .counters()
                .handle_poll(self.instant(), completions, works);
        }
        self.history.completions += count as u64;
        self.poller.free_at = self.now + count as u64 * self.setup.engine.completion_ns;
        self.rouse();
    }

    /// Gives the works that it gave back.
    fn handle_completion(&mut self, completion: Completion) -> u32 {
        let Completion { pair, outcome, .. } = completion;
        let row = &mut self.pairs[pair];
        if row.epoch != completion.epoch {
            return 0;
        }
        if !completion.repeated {
            row.completions_out -= 1;
            row.reclaimed = row.reclaimed.max(completion.reclaims);
        }
        let mut records = Vec::new();
        let id = RecordId::from_bits(completion.cookie);
        row.ledger.complete(id, |record| records.push(record));
        let Some(last) = records.pop() else {
            return 0;
        };
        let mut works = 0;
        for record in records {
            let freed = u32::from(record.grant.amount().works);
            works += freed;
            if self.broken != Broken::KeepsCredits {
                self.release(pair, record.grant);
            }
            self.tell_record(record.owner, freed, record.requests, Ok(()));
        }
        let freed = u32::from(last.grant.amount().works);
        match outcome {
            Outcome::Success => {
                works += freed;
                self.release(pair, last.grant);
                self.tell_record(last.owner, freed, last.requests, Ok(()));
            }
            Outcome::Error(cause) => {
                let owner = last.owner;
                self.pairs[pair].ending.grants.push(last.grant);
                let failure = Failure {
                    task: owner,
                    works: freed,
                    requests: last.requests,
                    cause,
                };
                self.fail_later(pair, failure);
                self.begin_recovery(pair, Entry::CompletionFailed { owner, cause });
            }
        }
        works
    }
}
