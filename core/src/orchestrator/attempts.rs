//! The table of attempts.
//!
//! Free rows are linked in both directions, as those on a lane are. So slices that get a lane in a row, and those that end
//! in a row, change their table's list as they are linked, and only both ends of it are written.

use super::attempt::{Attempt, Marks, Stage, Timing};
use crate::queue::{Link, Links};
use crate::table::{Id, NIL};
use crate::units::AttemptId;

/// Rows for attempts, over memory that the caller owns, with a list of those that are free. What is free is alone of its
/// slice, as most attempts are all their lives.
#[derive(Debug)]
pub(super) struct Attempts<'a> {
    rows: &'a mut [Attempt],
    /// The first free row. What its link says of the row before it means nothing.
    free: u32,
    used: usize,
}

/// Attempts that ended one after the other.
pub(super) struct Ended {
    pub(super) count: u32,
    /// The row behind them.
    pub(super) behind: u32,
    /// Of the last of them.
    pub(super) last: Timing,
}

impl<'a> Attempts<'a> {
    /// Takes over `rows`, whatever was in them.
    pub(super) fn new(rows: &'a mut [Attempt]) -> Self {
        let count = u32::try_from(rows.len()).unwrap_or(NIL - 1).min(NIL - 1);
        for (row, index) in rows.iter_mut().zip(0..count) {
            let next = index + 1;
            let link = Link::between(
                index.checked_sub(1).unwrap_or(NIL),
                if next < count { next } else { NIL },
            );
            *row = Attempt::EMPTY.in_row(index, row.generation, link);
        }
        Self {
            rows,
            free: if count == 0 { NIL } else { 0 },
            used: 0,
        }
    }

    /// Rows in use.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Rows in all.
    pub(super) fn capacity(&self) -> usize {
        self.rows.len()
    }

    /// Whether no row is free.
    pub(super) fn is_full(&self) -> bool {
        self.free == NIL
    }

    /// Whether there is more than one free row.
    pub(super) fn has_two(&self) -> bool {
        let first = self.rows.get(self.free as usize);
        first.is_some_and(|row| row.next() != NIL)
    }

    /// Puts an attempt into a free row, alone of its slice and in no queue. `None`: there is none.
    pub(super) fn insert(&mut self, attempt: Attempt) -> Option<AttemptId> {
        self.insert_if(attempt, |_| true)
    }

    /// The same, but leaves the last free row free.
    pub(super) fn insert_but_last(&mut self, attempt: Attempt) -> Option<AttemptId> {
        self.insert_if(attempt, |next| next != NIL)
    }

    /// Puts an attempt into a free row, if the one that is free next may be so.
    fn insert_if(
        &mut self,
        attempt: Attempt,
        may_leave: impl FnOnce(u32) -> bool,
    ) -> Option<AttemptId> {
        let index = self.free;
        let row = self.rows.get_mut(index as usize)?;
        let next = row.next();
        if !may_leave(next) {
            return None;
        }
        *row = attempt.in_row(index, row.generation.wrapping_add(1), Link::NONE);
        self.free = next;
        self.used += 1;
        Some(AttemptId::new(index, row.generation))
    }

    /// Has attempts put into up to `count` free rows, each by `put`, which leaves alone whose row it is. Gives the first and
    /// the last row, linked to each other, and how many there were. Leaves the last free row free.
    #[inline(always)] // its loop is that of who calls it
    pub(super) fn insert_run(
        &mut self,
        count: u32,
        mut put: impl FnMut(AttemptId, &mut Attempt),
    ) -> Option<(u32, u32, u32)> {
        let first = self.free;
        let count = (self.rows.len() - self.used)
            .saturating_sub(1)
            .min(count as usize);
        let mut free = first;
        for _ in 0..count {
            let Some(row) = self.rows.get_mut(free as usize) else {
                break;
            };
            row.generation = row.generation.wrapping_add(1);
            put(AttemptId::new(free, row.generation), row);
            free = row.next();
        }
        self.free = free;
        self.used += count;
        // The first of those that stay free knows who was before it.
        let last = self.rows.get(free as usize).map_or(NIL, Attempt::previous);
        (count > 0).then_some((first, last, count as u32))
    }

    /// The attempt of `id`, unless its row has been freed since.
    pub(super) fn get(&self, id: AttemptId) -> Option<&Attempt> {
        let row = self.at(id.index)?;
        (row.generation == id.generation).then_some(row)
    }

    /// The attempt of `id`, unless its row has been freed since.
    pub(super) fn get_mut(&mut self, id: AttemptId) -> Option<&mut Attempt> {
        let row = self.at_mut(id.index)?;
        (row.generation == id.generation).then_some(row)
    }

    /// Frees the row of an attempt that is in no queue, and gives what was in it.
    pub(super) fn remove(&mut self, id: AttemptId) -> Option<Attempt> {
        let free = self.free;
        let row = self.get_mut(id)?;
        let attempt = *row;
        row.marks = Marks::FREE;
        row.sibling = id.index;
        row.link = Link::between(NIL, free);
        if let Some(next) = self.rows.get_mut(free as usize) {
            next.link.set_previous(id.index);
        }
        self.free = id.index;
        self.used -= 1;
        Some(attempt)
    }

    /// Frees rows that are linked to each other, from `first` on and to `end` at most, behind which there is none, as long
    /// as `ends` says that they do, which have no copies.
    #[inline(always)] // its loop is that of who calls it
    pub(super) fn remove_run(
        &mut self,
        first: u32,
        end: u32,
        mut ends: impl FnMut(AttemptId, &Attempt) -> bool,
    ) -> Ended {
        let (mut behind, mut count) = (first, 0);
        while let Some(row) = self.rows.get_mut(behind as usize)
            && ends(AttemptId::new(behind, row.generation), row)
        {
            row.marks = Marks::FREE;
            behind = row.next();
            count += 1;
        }
        let last = self
            .rows
            .get(behind as usize)
            .map_or(end, Attempt::previous);
        let timing = match self.rows.get_mut(last as usize) {
            Some(row) if count > 0 => {
                row.link.set_next(self.free);
                row.timing()
            }
            _ => Timing::NONE,
        };
        if count > 0 {
            if let Some(next) = self.rows.get_mut(self.free as usize) {
                next.link.set_previous(last);
            }
            self.free = first;
            self.used -= count as usize;
        }
        Ended {
            count,
            behind,
            last: timing,
        }
    }

    /// The attempt in a row, whatever its generation.
    pub(super) fn at(&self, index: u32) -> Option<&Attempt> {
        let row = self.rows.get(index as usize)?;
        (row.stage() != Stage::Free).then_some(row)
    }

    /// The attempt in a row, whatever its generation.
    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut Attempt> {
        let row = self.rows.get_mut(index as usize)?;
        (row.stage() != Stage::Free).then_some(row)
    }

    /// The attempt in a row, with the id under which it is in use.
    pub(super) fn entry_mut(&mut self, index: u32) -> Option<(AttemptId, &mut Attempt)> {
        let row = self.at_mut(index)?;
        Some((AttemptId::new(index, row.generation), row))
    }

    /// The id under which a row is in use now.
    pub(super) fn id_at(&self, index: u32) -> Option<AttemptId> {
        let row = self.at(index)?;
        Some(AttemptId::new(index, row.generation))
    }

    /// All attempts with their ids, in the order of rows.
    pub(super) fn iter(&self) -> impl Iterator<Item = (AttemptId, &Attempt)> {
        let rows = (0..).zip(self.rows.iter());
        rows.filter(|(_, row)| row.stage() != Stage::Free)
            .map(|(index, row)| (AttemptId::new(index, row.generation), row))
    }

    /// Free rows, counted along their list as far as it is linked in both directions and each is alone.
    pub(super) fn count_free(&self) -> usize {
        let (mut count, mut before, mut index) = (0, None, self.free);
        while let Some(row) = self.rows.get(index as usize)
            && row.stage() == Stage::Free
            && row.sibling == index
            && before.is_none_or(|before| row.previous() == before)
            && count < self.rows.len()
        {
            (before, index) = (Some(index), row.next());
            count += 1;
        }
        count
    }
}

impl Links<0> for Attempts<'_> {
    fn link(&mut self, index: u32) -> Option<&mut Link> {
        self.at_mut(index).map(|row| &mut row.link)
    }
}
