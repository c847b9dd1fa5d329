//! A queue pair: what core keeps of it, and the device that works off what is posted.

use std::collections::VecDeque;

use polyrail_core::send_queue::credit::Amount;
use polyrail_core::send_queue::ledger::{Ledger, Slot};
use polyrail_core::send_queue::signal::Cadence;
use polyrail_core::table::Row;
use polyrail_core::units::Epoch;
use polyrail_core::work::{Cause, Outcome};

use super::ending::{Ending, Pending};
use super::poller::Completion;
use super::setup::Setup;
use super::task::TaskId;
use super::{PAIR_STREAM, What, World};
use crate::model::chance::{Chance, ONE};
use crate::setup::PPM;

/// Causes that a device gives for a work that fails.
const CAUSES: [Cause; 6] = [
    Cause::RetryExceeded,
    Cause::RnrRetryExceeded,
    Cause::RemoteAccess,
    Cause::LocalProtection,
    Cause::RemoteOperation,
    Cause::Fatal,
];

/// Records of a queue pair of this depth: one for each work at most, and those that a cut leaves.
pub(super) const fn records(depth: u16) -> usize {
    2 * depth as usize + 8
}

/// A posted work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) task: TaskId,
    pub(super) cookie: u64,
    pub(super) bytes: u64,
    pub(super) signalled: bool,
}

/// How a device does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Health {
    Works,
    /// It does nothing, and says nothing.
    Silent,
    /// In error: what is posted is flushed.
    Failed,
}

/// A queue pair.
pub(super) struct Pair<'a> {
    pub(super) ledger: Ledger<'a, TaskId>,
    pub(super) cadence: Cadence,
    pub(super) epoch: Epoch,
    /// What core should say is held, and admitted.
    pub(super) held: Amount,
    pub(super) admitted_works: u32,
    /// Somebody has asked for credits who was not admitted.
    pub(super) has_walk_ins: bool,
    /// The worker that has the lock of posting, and those that wait for it.
    pub(super) poster: Option<usize>,
    pub(super) posters: VecDeque<usize>,
    pub(super) recoveries: Vec<Pending>,
    pub(super) ending: Ending,
    pub(super) health: Health,
    pub(super) rate_ppm: u64,
    queue: VecDeque<Item>,
    serving: bool,
    turn: u64,
    /// Works that the device has taken, and those of them whose place is free again.
    taken: u64,
    pub(super) reclaimed: u64,
    served: u64,
    /// Completions on their way to the poller.
    pub(super) completions_out: u32,
    chance: Chance,
}

impl<'a> Pair<'a> {
    pub(super) fn new(
        setup: &Setup,
        index: usize,
        rows: &'a mut [Row<Slot<TaskId>>],
        interval: u16,
    ) -> Self {
        Self {
            ledger: Ledger::new(rows),
            cadence: Cadence::new(interval),
            epoch: Epoch(1),
            held: Amount::default(),
            admitted_works: 0,
            has_walk_ins: false,
            poster: None,
            posters: VecDeque::new(),
            recoveries: Vec::new(),
            ending: Ending::default(),
            health: Health::Works,
            rate_ppm: PPM,
            queue: VecDeque::new(),
            serving: false,
            turn: 0,
            taken: 0,
            reclaimed: 0,
            served: 0,
            completions_out: 0,
            chance: Chance::new(setup.seed, PAIR_STREAM + index as u64),
        }
    }

    /// Works that the device has, with those that no completion has been polled for.
    pub(super) fn depth(&self) -> u64 {
        self.taken - self.reclaimed
    }

    /// The device as it is after it has been built anew.
    pub(super) fn renew(&mut self, epoch: Epoch, interval: u16) {
        self.epoch = epoch;
        self.cadence = Cadence::new(interval);
        self.held = Amount::default();
        self.admitted_works = 0;
        self.has_walk_ins = false;
        self.ending = Ending::default();
        self.health = Health::Works;
        self.turn += 1;
        self.serving = false;
        (self.taken, self.reclaimed, self.served) = (0, 0, 0);
    }
}

impl World<'_> {
    /// The device takes a work.
    pub(super) fn take(&mut self, pair: usize, item: Item) {
        self.tasks[item.task as usize].live += 1;
        let row = &mut self.pairs[pair];
        row.taken += 1;
        row.queue.push_back(item);
        let depth = self.setup.pairs[pair].depth;
        let (has, health) = (row.depth(), row.health);
        match health {
            Health::Failed => self.flush(pair),
            Health::Works | Health::Silent => {
                if has > u64::from(depth) {
                    self.violate(format!(
                        "queue pair {pair} has {has} works, and holds {depth}"
                    ));
                }
                self.serve(pair);
            }
        }
    }

    fn serve(&mut self, pair: usize) {
        let (setup, row) = (&self.setup, &mut self.pairs[pair]);
        if row.serving || row.health != Health::Works {
            return;
        }
        let Some(item) = row.queue.front() else {
            return;
        };
        let rate = setup.pairs[pair].bytes_per_sec * row.rate_ppm / PPM;
        let nominal = u128::from(item.bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let stretch = u128::from(row.chance.stretch(&setup.jitter));
        let service = (nominal * stretch / u128::from(ONE)) as u64;
        row.serving = true;
        row.turn += 1;
        let turn = row.turn;
        self.agenda
            .enter(self.now + service.max(1), What::Served { pair, turn });
    }

    /// The device has carried out what it was at.
    pub(super) fn served(&mut self, pair: usize, turn: u64) {
        if self.pairs[pair].turn != turn || !self.pairs[pair].serving {
            return;
        }
        if self.happens(self.setup.trouble.error_one_in) {
            let cause = CAUSES[self.chance.below(CAUSES.len() as u64) as usize];
            return self.break_down(pair, Some(cause));
        }
        let row = &mut self.pairs[pair];
        row.serving = false;
        if let Some(item) = row.queue.pop_front() {
            row.served += 1;
            self.history.pair_bytes[pair] += item.bytes;
            self.let_go(item);
            if item.signalled {
                self.complete(pair, item, Outcome::Success);
            }
        }
        self.serve(pair);
    }

    /// The device goes into error: what it was at fails with `cause`, the rest is flushed.
    pub(super) fn break_down(&mut self, pair: usize, cause: Option<Cause>) {
        let row = &mut self.pairs[pair];
        if row.health == Health::Silent {
            return;
        }
        row.health = Health::Failed;
        row.turn += 1;
        row.serving = false;
        if let Some(cause) = cause
            && let Some(item) = row.queue.pop_front()
        {
            row.served += 1;
            self.let_go(item);
            self.complete(pair, item, Outcome::Error(cause));
        }
        self.flush(pair);
    }

    fn flush(&mut self, pair: usize) {
        while let Some(item) = self.pairs[pair].queue.pop_front() {
            self.pairs[pair].served += 1;
            self.let_go(item);
            self.complete(pair, item, Outcome::Error(Cause::Flushed));
        }
    }

    /// The device is destroyed with what it has; of a silent one some may just have arrived.
    pub(super) fn destroy(&mut self, pair: usize) {
        self.pairs[pair].health = Health::Failed;
        self.pairs[pair].turn += 1;
        while let Some(item) = self.pairs[pair].queue.pop_front() {
            self.let_go(item);
        }
    }

    /// A work can move no more.
    fn let_go(&mut self, item: Item) {
        let task = &mut self.tasks[item.task as usize];
        task.live -= 1;
        if task.answer.is_some() {
            self.violate(format!(
                "a work of chunk {} moved after its answer",
                item.task
            ));
        }
    }

    /// A completion is on its way; with bad luck twice.
    fn complete(&mut self, pair: usize, item: Item, outcome: Outcome) {
        let delay = self.setup.pairs[pair].delay_ns;
        let row = &mut self.pairs[pair];
        let completion = Completion {
            pair,
            epoch: row.epoch,
            cookie: item.cookie,
            outcome,
            reclaims: row.served,
            repeated: false,
        };
        row.completions_out += 1;
        self.agenda
            .enter(self.now + delay, What::Completes { completion });
        if self.happens(self.setup.trouble.repeated_one_in) {
            let later = self.now + delay + 1 + self.chance.below(2_000_000);
            let completion = Completion {
                repeated: true,
                ..completion
            };
            self.agenda.enter(later, What::Completes { completion });
        }
    }
}
