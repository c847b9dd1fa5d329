//! The table of attempts.
//!
//! Free rows are linked in both directions, as those on a lane are. So slices that get a lane in a row, and those that end
//! in a row, change their table's list as they are linked, and only both ends of it are written.

use super::attempt::{Attempt, Marks, Stage, Timing};
use crate::queue::{Link, Links};
use crate::table::{Id, NIL};
use crate::units::AttemptId;
use crate::work::{Completion, Outcome};

/// Rows for attempts, over memory that the caller owns, with a list of those that are free. What is free is alone of its
/// slice, as most attempts are all their lives.
#[derive(Debug)]
pub(super) struct Attempts<'a> {
    rows: &'a mut [Attempt],
    /// The first free row. What its link says of the row before it means nothing.
    free: u32,
    used: usize,
}

/// Slices of one request that ended one after the other.
pub(super) struct Ended {
    /// Its row.
    pub(super) request: u32,
    pub(super) freed: Freed,
    /// Of the first and of the last of them.
    pub(super) first: Timing,
    pub(super) last: Timing,
}

/// Rows of slices in a row that are not in use any more.
#[derive(Clone, Copy)]
pub(super) struct Freed {
    pub(super) count: u32,
    /// The row behind them; [`NIL`]: none.
    pub(super) behind: u32,
    pub(super) bytes: u64,
}

impl Freed {
    /// Frees the rows of usual slices of one request, from the one in `first` on, as long as they are linked to each other
    /// and `ends` agrees.
    #[inline(always)] // its loop is that of who calls it
    pub(super) fn in_order(
        rows: &mut [Attempt],
        first: u32,
        mut ends: impl FnMut(AttemptId, &Attempt) -> bool,
    ) -> Self {
        let mut freed = Self {
            count: 0,
            behind: first,
            bytes: 0,
        };
        let Some(request) = rows.get(first as usize).and_then(Attempt::request) else {
            return freed;
        };
        while let Some(row) = rows.get_mut(freed.behind as usize)
            && ends(AttemptId::new(freed.behind, row.generation), row)
            && row.is_of(request)
            && row.is_usual()
        {
            debug_assert!(
                row.sibling == freed.behind,
                "row {} has copies, and no mark of them",
                freed.behind
            );
            row.marks = Marks::FREE;
            freed.behind = row.next();
            freed.bytes += u64::from(row.length);
            freed.count += 1;
        }
        freed
    }

    /// The same for those that these answers are of, in that order, as long as the answers are like the first one.
    #[inline(never)] // so that its loop has the registers for itself
    pub(super) fn answered(rows: &mut [Attempt], first: u32, answers: &[Completion]) -> Self {
        let like = answers.first();
        let (at, lane) = like.map_or(Default::default(), |like| {
            (like.at, (like.lane, like.epoch))
        });
        let mut rest = answers.iter();
        Self::in_order(rows, first, |id, _| {
            rest.next().is_some_and(|next| {
                next.cookie == id.to_bits()
                    && next.at == at
                    && (next.lane, next.epoch) == lane
                    && next.outcome == Outcome::Success
            })
        })
    }
}

impl<'a> Attempts<'a> {
    /// Takes over `rows`, whatever was in them.
    pub(super) fn new(rows: &'a mut [Attempt]) -> Self {
        let count = rows.len().min(NIL as usize - 1);
        let rows = rows.get_mut(..count).unwrap_or_default();
        let mut previous = NIL;
        for (index, row) in (0..).zip(rows.iter_mut()) {
            let link = Link::between(previous, index + 1);
            *row = Attempt::EMPTY.in_row(index, row.generation, link);
            previous = index;
        }
        if let Some(last) = rows.last_mut() {
            last.link.set_next(NIL);
        }
        Self {
            free: if rows.is_empty() { NIL } else { 0 },
            rows,
            used: 0,
        }
    }

    /// For a snapshot: the rows up to the first one that has never been used, the first free row, and how many are in use. What is
    /// behind them is as [`Self::new`] has left it.
    #[cfg(feature = "serde")]
    pub(super) fn parts(&self) -> (&[Attempt], u32, usize) {
        let used = |row: &Attempt| row.generation != 0 || row.stage() != Stage::Free;
        let count = self.rows.iter().rposition(used).map_or(0, |last| last + 2);
        let rows = self.rows.get(..count).unwrap_or(self.rows);
        (rows, self.free, self.used)
    }

    /// For reading one back: where the rows go.
    #[cfg(feature = "serde")]
    pub(super) fn rows_mut(&mut self) -> &mut [Attempt] {
        self.rows
    }

    /// And the rest of it.
    #[cfg(feature = "serde")]
    pub(super) fn set_parts(&mut self, free: u32, used: usize) {
        (self.free, self.used) = (free, used);
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
        debug_assert!(row.stage() == Stage::Free, "row {index} is in use");
        *row = attempt.in_row(index, row.generation.wrapping_add(1), Link::NONE);
        debug_assert!(next != index, "row {index} is free twice");
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
                debug_assert!(false, "fewer rows are free than were counted");
                break;
            };
            debug_assert!(row.stage() == Stage::Free, "row {free} is in use");
            row.generation = row.generation.wrapping_add(1);
            put(AttemptId::new(free, row.generation), row);
            free = row.next();
        }
        self.free = free;
        self.used += count;
        debug_assert!(
            self.used < self.rows.len() || count == 0,
            "the last free row is kept"
        );
        // The first of those that stay free knows who was before it.
        let last = self.rows.get(free as usize).map_or(NIL, Attempt::previous);
        debug_assert!(
            count == 0 || (self.rows.get(last as usize)).is_some_and(|row| row.next() == free),
            "row {free} does not know what was before it"
        );
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
        debug_assert!(
            !{ attempt.link }.is_queued(),
            "row {} is in a queue",
            id.index
        );
        row.marks = Marks::FREE;
        row.sibling = id.index;
        row.link = Link::between(NIL, free);
        if let Some(next) = self.rows.get_mut(free as usize) {
            next.link.set_previous(id.index);
        }
        self.free = id.index;
        debug_assert!(self.used > 0, "more rows are freed than were in use");
        self.used -= 1;
        Some(attempt)
    }

    /// Frees rows that are linked to each other, from `first` on and to `end` at most, behind which there is none: those that
    /// `free` says.
    #[inline(always)] // it is not much, and what it gives is taken apart
    pub(super) fn remove_run(
        &mut self,
        first: u32,
        end: u32,
        free: impl FnOnce(&mut [Attempt], u32) -> Freed,
    ) -> Option<Ended> {
        let freed = free(self.rows, first);
        if freed.count == 0 {
            return None;
        }
        let free = core::mem::replace(&mut self.free, first);
        debug_assert!(
            freed.count as usize <= self.used,
            "{} are freed of {}",
            freed.count,
            self.used
        );
        self.used -= freed.count as usize;
        let behind = self.rows.get(freed.behind as usize);
        let last = behind.map_or(end, Attempt::previous);
        if let Some(next) = self.rows.get_mut(free as usize) {
            next.link.set_previous(last);
        }
        // What has just been in the rows is there still.
        let first = self.rows.get(first as usize)?;
        let (request, first) = (first.request()?, first.timing());
        let last = self.rows.get_mut(last as usize)?;
        debug_assert!(
            last.next() == freed.behind,
            "row {} is not behind the last one that is freed",
            freed.behind
        );
        last.link.set_next(free);
        Some(Ended {
            request,
            freed,
            first,
            last: last.timing(),
        })
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
        // Not asked is whether it is free: rows that change hands are linked by what they had, or will have.
        self.rows.get_mut(index as usize).map(|row| &mut row.link)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::attempt::Load;
    use super::*;
    use crate::units::RailId;
    use crate::work::Op;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    /// A slice of a request in row `request`, handed out.
    fn slice(request: u32) -> Attempt {
        let mut slice = Attempt::new(Load::Slice(request), Op::Write, 0, 1);
        slice.bind_to(RailId(0), 0, 1);
        slice.set_stage(Stage::Posted);
        slice
    }

    #[test]
    fn the_last_free_row_is_for_some_only() {
        let mut rows = [Attempt::EMPTY; 2];
        let mut attempts = Attempts::new(&mut rows);
        let first = attempts.insert_but_last(slice(0)).unwrap();
        assert!(!attempts.has_two() && !attempts.is_full());
        assert_eq!(attempts.insert_but_last(slice(0)), None);
        assert_eq!(attempts.insert_run(1, |_, _| {}), None);
        let last = attempts.insert(slice(0)).unwrap();
        assert!(attempts.is_full());
        assert_eq!(attempts.insert(slice(0)), None);
        attempts.remove(last);
        attempts.remove(first);
        assert_eq!((attempts.count_free(), attempts.capacity()), (2, 2));
    }

    #[test]
    fn a_table_without_rows_is_full() {
        let mut attempts = Attempts::new(&mut []);
        assert!(attempts.is_full() && !attempts.has_two());
        assert_eq!(attempts.insert(slice(0)), None);
        assert_eq!(attempts.insert_run(1, |_, _| {}), None);
    }

    quickcheck! {
        fn rows_change_hands_in_runs_and_one_by_one(ops: Vec<(u8, u8)>) -> bool {
            let mut rows = [Attempt::EMPTY; 12];
            let mut attempts = Attempts::new(&mut rows);
            // Runs of rows that were given out together, with their ids.
            let mut runs: Vec<Vec<AttemptId>> = Vec::new();
            let mut stale = Vec::new();
            for (number, (op, which)) in ops.into_iter().enumerate() {
                let room = attempts.capacity() - attempts.len();
                match op % 4 {
                    0 => {
                        let id = attempts.insert(slice(number as u32));
                        if id.is_some() != (room > 0) { return false }
                        runs.extend(id.map(|id| std::vec![id]));
                    }
                    1 => {
                        let (mut ids, like) = (Vec::new(), slice(number as u32));
                        let run = attempts.insert_run(which.into(), |id, row| { row.put(&like); ids.push(id) });
                        if ids.len() != usize::from(which).min(room.saturating_sub(1)) { return false }
                        let ends = ids.first().zip(ids.last());
                        if run.map(|(first, last, _)| (first, last)) != ends.map(|(first, last)| (first.index, last.index)) { return false }
                        if let Some((first, last, _)) = run {
                            if let Some(row) = attempts.at_mut(first) { row.link.set_previous(NIL) }
                            if let Some(row) = attempts.at_mut(last) { row.link.set_next(NIL) }
                            runs.push(ids);
                        }
                    }
                    2 if !runs.is_empty() => {
                        let run = usize::from(which) % runs.len();
                        for id in runs.swap_remove(run) {
                            // Whoever removes one has taken it out of its queue.
                            if let Some(row) = attempts.get_mut(id) { row.link = Link::NONE }
                            if attempts.remove(id).is_none() { return false }
                            stale.push(id);
                        }
                    }
                    3 if !runs.is_empty() => {
                        let run = usize::from(which) % runs.len();
                        let ids = runs.swap_remove(run);
                        let ends = (ids[0].index, ids[ids.len() - 1].index);
                        let mut count = 0;
                        let ended = attempts.remove_run(ends.0, ends.1, |rows, first| {
                            Freed::in_order(rows, first, |_, _| { count += 1; count <= 1 + usize::from(which % 4) })
                        });
                        let freed = ended.map_or(0, |ended| ended.freed.count as usize);
                        if freed != ids.len().min(1 + usize::from(which % 4)) { return false }
                        stale.extend(&ids[..freed]);
                        if freed < ids.len() { runs.push(ids[freed..].to_vec()) }
                    }
                    _ => {}
                }
                let mut live: Vec<_> = runs.iter().flatten().copied().collect();
                let mut found: Vec<_> = attempts.iter().map(|(id, _)| id).collect();
                live.sort_unstable();
                found.sort_unstable();
                let free = attempts.capacity() - attempts.len();
                if live != found || attempts.len() != live.len() || attempts.count_free() != free { return false }
                if stale.iter().any(|id| attempts.get(*id).is_some()) { return false }
            }
            true
        }
    }
}
