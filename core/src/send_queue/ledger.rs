//! What was posted on one lane and whose it is, from before the post to its completion.
//!
//! A record is put in *before* its works are posted, so that no completion can come before it. It is then
//!
//! - `Tentative` until the post returns: only now can it be cancelled;
//! - `Posted` until a completion: a signalled one covers the unsignalled before it;
//! - `Orphaned` when no completion will cover it: collected once, with its owner.
//!
//! The ledger never moves credits. Every record that leaves it carries its [`Grant`] out, for the caller to
//! release when nothing of it can move any more.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phase 2. We differ: unsignalled works have records
//! of their own, in the order of posting, so that a signal may cover several owners.

use super::grant::{Amount, Grant};
pub use super::record::{Entered, Orphans, PostOutcome, Record, RecordState, Slot};
use crate::queue::{Link, Queue};
use crate::table::{Row, Table};
use crate::units::RecordId;
use crate::work::{Posted, Stop};

/// The records of one lane, in the order of posting. Owned by whoever posts and polls there; a shell that
/// does so from several threads puts it behind its own lock.
#[derive(Debug)]
pub struct Ledger<'a, O> {
    records: Table<'a, Slot<O>, RecordId>,
    order: Queue<0>,
    orphaned: usize,
}

impl<'a, O: Copy + Eq> Ledger<'a, O> {
    /// An empty one over the caller's rows: one for each record at a time.
    pub fn new(rows: &'a mut [Row<Slot<O>>]) -> Self {
        Self {
            records: Table::new(rows),
            order: Queue::EMPTY,
            orphaned: 0,
        }
    }

    /// Records in it.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.records.len() == 0
    }

    /// Whether orphans wait to be collected.
    pub const fn has_orphans(&self) -> bool {
        self.orphaned > 0
    }

    /// The state of a record that is still here.
    pub fn state(&self, id: RecordId) -> Option<RecordState> {
        self.records.get(id).map(|slot| slot.state)
    }

    /// Puts in what is about to be posted, `Tentative`. Gives it back if there is no row.
    pub fn insert(&mut self, record: Record<O>) -> Result<Entered, Record<O>> {
        let (works, requests) = (record.grant.amount().works, record.requests);
        let signalled = record.signalled;
        let slot = Slot {
            record,
            state: RecordState::Tentative,
            link: Link::NONE,
        };
        let id = self.records.insert(slot).map_err(|slot| slot.record)?;
        self.order.push_back(&mut self.records, id.index);
        Ok(Entered {
            id,
            works,
            requests,
            signalled,
        })
    }

    /// The transport has taken it. `false` if it is not tentative: its completion may have been faster.
    pub fn mark_posted(&mut self, id: RecordId) -> bool {
        self.move_on(id, RecordState::Tentative, RecordState::Posted)
    }

    /// Takes out what was not posted. Only while tentative: what has been posted ends by a completion.
    pub fn cancel_tentative(&mut self, id: RecordId) -> Option<Record<O>> {
        match self.state(id)? {
            RecordState::Tentative => self.remove(id),
            RecordState::Posted | RecordState::Orphaned => None,
        }
    }

    /// No completion will cover it. `false` if it is gone, or an orphan already.
    pub fn orphan(&mut self, id: RecordId) -> bool {
        let orphaned = self.move_on(id, RecordState::Tentative, RecordState::Orphaned)
            || self.move_on(id, RecordState::Posted, RecordState::Orphaned);
        self.orphaned += usize::from(orphaned);
        orphaned
    }

    /// A completion of `id` has come: takes it out, whatever its state, after the unsignalled ones posted
    /// before it, which it covers. Orphans are not covered. `false` if it is gone: the completion is late.
    ///
    /// The record of `id` comes last. An error is its alone: those it covers have arrived, for a lane works in order.
    pub fn complete(&mut self, id: RecordId, mut released: impl FnMut(Record<O>)) -> bool {
        let Some(state) = self.state(id) else {
            return false;
        };
        let mut next = match state {
            RecordState::Orphaned => None,
            RecordState::Tentative | RecordState::Posted => self.order.front(),
        };
        while let Some(index) = next.filter(|index| *index != id.index) {
            next = self.order.after(&mut self.records, index);
            let covered = self
                .records
                .at(index)
                .is_some_and(|slot| !slot.record.signalled && slot.state != RecordState::Orphaned);
            if covered && let Some(record) = self.remove_at(index) {
                released(record);
            }
        }
        if let Some(record) = self.remove(id) {
            released(record);
        }
        true
    }

    /// The transport has answered the post of these records, in the order of posting. `requests` are the
    /// owners' requests in the works it took. What it did not take comes back, with its credits.
    ///
    /// What comes back says what may be posted again, not `posted`: a record whose completion was faster, an error,
    /// is gone with all its works, those that were not taken among them.
    pub fn settle_post(
        &mut self,
        entered: &[Entered],
        posted: Posted,
        requests: u32,
        mut returned: impl FnMut(Record<O>),
    ) -> PostOutcome {
        let (mut accepted, mut requests) = (posted.accepted, requests);
        let mut outcome = PostOutcome::Nothing;
        let mut whole = true;
        for entry in entered {
            if accepted >= usize::from(entry.works) {
                accepted -= usize::from(entry.works);
                requests = requests.saturating_sub(entry.requests);
                // A completion that was faster than the answer has taken it out already.
                self.mark_posted(entry.id);
                outcome = match entry.signalled {
                    true => PostOutcome::Covered,
                    false => PostOutcome::Uncovered,
                };
                continue;
            }
            whole = false;
            let taken = core::mem::take(&mut accepted) as u16;
            let untaken = if posted.stop == Stop::Unknown {
                self.orphan(entry.id);
                None
            } else if taken > 0 {
                outcome = PostOutcome::Uncovered;
                self.cut(entry.id, taken, core::mem::take(&mut requests))
            } else {
                self.cancel_tentative(entry.id)
            };
            if let Some(record) = untaken {
                returned(record);
            }
        }
        match posted.stop {
            _ if whole => PostOutcome::Whole,
            Stop::Unknown => PostOutcome::Unknown,
            _ => outcome,
        }
    }

    /// What was posted and has no signal behind it.
    pub fn uncovered(&mut self) -> Amount {
        let mut amount = Amount::default();
        self.each_posted(|_, record| match record.signalled {
            true => amount = Amount::default(),
            false => amount = amount.plus(record.grant.amount()),
        });
        amount
    }

    /// Orphans what was posted and has no signal behind it.
    pub fn orphan_uncovered(&mut self) {
        let mut last_signal = None;
        self.each_posted(|index, record| {
            if record.signalled {
                last_signal = Some(index);
            }
        });
        let mut next = match last_signal {
            Some(index) => self.order.after(&mut self.records, index),
            None => self.order.front(),
        };
        while let Some(index) = next {
            next = self.order.after(&mut self.records, index);
            self.orphan_posted(index);
        }
    }

    /// Orphans all that was posted: no completion will come any more.
    pub fn orphan_all(&mut self) {
        let mut next = self.order.front();
        while let Some(index) = next {
            next = self.order.after(&mut self.records, index);
            self.orphan_posted(index);
        }
    }

    /// Takes out all orphans of one owner: of `first` if it has any, else of whoever has the oldest. Their
    /// credits go to `grants`.
    pub fn take_orphans(
        &mut self,
        first: Option<O>,
        mut grants: impl FnMut(Grant),
    ) -> Option<Orphans<O>> {
        let oldest = match first.and_then(|owner| self.next_orphan(|other| other == owner)) {
            Some(index) => index,
            None => self.next_orphan(|_| true)?,
        };
        let owner = self.records.at(oldest)?.record.owner;
        let mut requests: u32 = 0;
        while let Some(index) = self.next_orphan(|other| other == owner)
            && let Some(record) = self.remove_at(index)
        {
            requests = requests.saturating_add(record.requests);
            grants(record.grant);
        }
        Some(Orphans { owner, requests })
    }

    fn each_posted(&mut self, mut each: impl FnMut(u32, &Record<O>)) {
        let mut next = self.order.front();
        while let Some(index) = next {
            if let Some(slot) = self.records.at(index)
                && slot.state == RecordState::Posted
            {
                each(index, &slot.record);
            }
            next = self.order.after(&mut self.records, index);
        }
    }

    fn next_orphan(&mut self, is_meant: impl Fn(O) -> bool) -> Option<u32> {
        let mut next = self.order.front().filter(|_| self.orphaned > 0);
        while let Some(index) = next {
            let slot = self.records.at(index)?;
            if slot.state == RecordState::Orphaned && is_meant(slot.record.owner) {
                return Some(index);
            }
            next = self.order.after(&mut self.records, index);
        }
        None
    }

    fn orphan_posted(&mut self, index: u32) {
        if let Some(slot) = self.records.at_mut(index)
            && slot.state == RecordState::Posted
        {
            slot.state = RecordState::Orphaned;
            self.orphaned += 1;
        }
    }

    /// Keeps the first `works` of a tentative record, `requests` of its owner, as posted and unsignalled; gives
    /// the rest.
    fn cut(&mut self, id: RecordId, works: u16, requests: u32) -> Option<Record<O>> {
        let slot = self.records.get_mut(id)?;
        let record = &mut slot.record;
        let kept = requests.min(record.requests);
        let rest = Record {
            owner: record.owner,
            grant: record.grant.split_off(works),
            requests: record.requests - kept,
            signalled: record.signalled,
        };
        record.requests = kept;
        record.signalled = false;
        slot.state = RecordState::Posted;
        Some(rest)
    }

    fn move_on(&mut self, id: RecordId, from: RecordState, to: RecordState) -> bool {
        match self.records.get_mut(id) {
            Some(slot) if slot.state == from => {
                slot.state = to;
                true
            }
            _ => false,
        }
    }

    fn remove_at(&mut self, index: u32) -> Option<Record<O>> {
        self.records.id_at(index).and_then(|id| self.remove(id))
    }

    fn remove(&mut self, id: RecordId) -> Option<Record<O>> {
        self.records.get(id)?;
        self.order.remove(&mut self.records, id.index);
        let slot = self.records.remove(id)?;
        self.orphaned -= usize::from(slot.state == RecordState::Orphaned);
        Some(slot.record)
    }
}
