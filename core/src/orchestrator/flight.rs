//! What is on a lane: attempts that were handed out, in that order, and behind them those that were not.

use super::attempt::{Attempt, Stage};
use super::attempts::{Attempts, Ended, Freed};
use super::post::{Run, Works};
use super::sequence::Sequence;
use crate::queue::Queue;
use crate::table::NIL;
use crate::units::AttemptId;
use crate::work::Completion;

/// One queue with a mark in it, so that handing out moves the mark and nothing else.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Flight {
    queue: Queue<0>,
    /// The first one that was not handed out.
    mark: u32,
    posted: u32,
}

impl Flight {
    pub(super) const EMPTY: Self = Self {
        queue: Queue::EMPTY,
        mark: NIL,
        posted: 0,
    };

    /// Attempts in all.
    pub(super) const fn len(&self) -> usize {
        self.queue.len()
    }

    /// Attempts handed out.
    pub(super) const fn posted(&self) -> usize {
        self.posted as usize
    }

    /// Attempts that were not.
    pub(super) const fn bound(&self) -> usize {
        self.len() - self.posted()
    }

    /// The one handed out first.
    pub(super) const fn first_posted(&self) -> Option<u32> {
        if self.posted == 0 {
            None
        } else {
            self.queue.front()
        }
    }

    /// The one to be handed out next.
    pub(super) const fn first_bound(&self) -> Option<u32> {
        if self.mark == NIL {
            None
        } else {
            Some(self.mark)
        }
    }

    /// The one handed out after `index`, which was handed out.
    pub(super) fn posted_after(&self, attempts: &mut Attempts<'_>, index: u32) -> Option<u32> {
        debug_assert!(
            self.posted > 0 && self.mark != index,
            "{index} was not handed out"
        );
        let next = self.queue.after(attempts, index);
        next.filter(|next| *next != self.mark)
    }

    /// The one handed out last.
    pub(super) fn last_posted(&self, attempts: &mut Attempts<'_>) -> Option<u32> {
        if self.posted == 0 {
            return None;
        }
        match self.first_bound() {
            Some(mark) => self.queue.before(attempts, mark),
            None => self.queue.back(),
        }
    }

    /// The one handed out before `index`, which was handed out.
    pub(super) fn posted_before(&self, attempts: &mut Attempts<'_>, index: u32) -> Option<u32> {
        self.queue.before(attempts, index)
    }

    /// The one behind `index`, which was not handed out.
    pub(super) fn bound_after(&self, attempts: &mut Attempts<'_>, index: u32) -> Option<u32> {
        self.queue.after(attempts, index)
    }

    /// Appends one.
    pub(super) fn bind(&mut self, attempts: &mut Attempts<'_>, index: u32) {
        let before = self.len();
        self.queue.push_back(attempts, index);
        debug_assert!(self.len() == before + 1, "{index} is in a queue already");
        if self.mark == NIL {
            self.mark = index;
        }
        self.check();
    }

    /// Appends up to `count` slices of one length in a row, the first of which is given, as far as there are rows. Tells
    /// how many.
    #[inline]
    pub(super) fn bind_run(
        &mut self,
        attempts: &mut Attempts<'_>,
        mut slice: Attempt,
        count: u32,
    ) -> u32 {
        let run = attempts.insert_run(count, |_, row| {
            row.put(&slice);
            slice.advance();
        });
        let Some(run) = run else {
            return 0;
        };
        self.queue.push_run(attempts, run);
        let (first, _, count) = run;
        if self.mark == NIL {
            self.mark = first;
        }
        self.check();
        count
    }

    /// The same for a lane on which nothing waits to be handed out: hands them out at once, as `works` that ask for a
    /// completion each.
    #[inline(always)] // where it is used, its loop has the registers for itself
    pub(super) fn post_run(
        &mut self,
        attempts: &mut Attempts<'_>,
        run: &Run<'_>,
        sequence: Sequence,
        works: &mut Works,
    ) -> u32 {
        debug_assert!(self.bound() == 0, "{} wait to be handed out", self.bound());
        let mut slice = run.attempt();
        let (local, remote) = run.request.places();
        slice.set_stage(Stage::Posted);
        slice.posted_at = run.now;
        slice.sequence = sequence;
        let before = works.len();
        let run = attempts.insert_run(run.slices.count, |id, row| {
            row.put(&slice);
            let _ = works.push(slice.work(id, local, remote, true));
            slice.advance();
        });
        let Some(run) = run else {
            return 0;
        };
        self.queue.push_run(attempts, run);
        let (_, _, count) = run;
        self.posted += count;
        debug_assert!(
            works.len() - before == count as usize,
            "{count} are handed out, and {} of them are works",
            works.len() - before
        );
        self.check();
        count
    }

    /// The first `count` that were not handed out are; `next` is behind them, [`NIL`]: none.
    pub(super) fn hand_out(&mut self, next: u32, count: u32) {
        debug_assert!(
            count as usize <= self.bound(),
            "{count} of {}",
            self.bound()
        );
        self.mark = next;
        self.posted += count;
        self.check();
    }

    /// The mark is behind all that were handed out.
    fn check(&self) {
        debug_assert!(
            (self.mark == NIL) == (self.bound() == 0),
            "{} were not handed out, the first is {}",
            self.bound(),
            self.mark
        );
        debug_assert!(
            self.posted > 0 || self.queue.front() == self.first_bound(),
            "none was handed out, the first is {:?}, and the next to be {:?}",
            self.queue.front(),
            self.first_bound()
        );
    }

    /// The one handed out last is not any more.
    pub(super) fn take_back(&mut self, attempts: &mut Attempts<'_>) -> Option<u32> {
        let last = self.last_posted(attempts)?;
        self.mark = last;
        self.posted -= 1;
        self.check();
        Some(last)
    }

    /// Takes one out that was handed out.
    pub(super) fn remove_posted(&mut self, attempts: &mut Attempts<'_>, index: u32) {
        debug_assert!(
            self.posted > 0 && self.mark != index,
            "{index} was not handed out"
        );
        self.queue.remove(attempts, index);
        self.posted -= 1;
        self.check();
    }

    /// Takes out and frees those that were handed out first and that these answers are of, in that order, as long as
    /// they are usual ones of one request, and the answers like the first one. `None`: there is none.
    #[inline(always)] // see `Self::end_in_order`
    pub(super) fn end_answered(
        &mut self,
        attempts: &mut Attempts<'_>,
        answers: &[Completion],
    ) -> Option<Ended> {
        self.end_in_order(attempts, |rows, first| {
            Freed::answered(rows, first, answers)
        })
    }

    /// The same for those before `id` that asked for no answer, up to this place in the order of the lane, and for `id`.
    #[inline(never)]
    pub(super) fn end_covered(
        &mut self,
        attempts: &mut Attempts<'_>,
        id: AttemptId,
        sequence: Sequence,
    ) -> Option<Ended> {
        self.end_in_order(attempts, |rows, first| {
            Freed::in_order(rows, first, |other, row| {
                other == id || !row.signal() && row.sequence.is_before(sequence)
            })
        })
    }

    /// Takes out those that were handed out first and that `free` frees.
    #[inline(always)] // what it gives is taken apart
    fn end_in_order(
        &mut self,
        attempts: &mut Attempts<'_>,
        free: impl FnOnce(&mut [Attempt], u32) -> Freed,
    ) -> Option<Ended> {
        let (front, back) = (self.queue.front()?, self.queue.back()?);
        let ended = attempts.remove_run(front, back, free)?;
        debug_assert!(
            ended.freed.count <= self.posted,
            "{} ended of {} that were handed out",
            ended.freed.count,
            self.posted
        );
        self.posted -= ended.freed.count;
        self.queue
            .cut_front(attempts, ended.freed.behind, ended.freed.count);
        self.check();
        Some(ended)
    }

    /// Takes one out that was not handed out.
    pub(super) fn remove_bound(&mut self, attempts: &mut Attempts<'_>, index: u32) {
        debug_assert!(self.bound() > 0, "{index} was handed out");
        if self.mark == index {
            self.mark = self.queue.after(attempts, index).unwrap_or(NIL);
        }
        self.queue.remove(attempts, index);
        self.check();
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
    use std::collections::VecDeque;
    use std::vec::Vec;

    quickcheck! {
        fn behaves_like_two_deques(ops: Vec<(u8, u8)>) -> bool {
            let mut rows = [Attempt::EMPTY; 64];
            let mut attempts = Attempts::new(&mut rows);
            let mut flight = Flight::EMPTY;
            let (mut posted, mut bound) = (VecDeque::new(), VecDeque::new());
            for (op, which) in ops {
                let pick = |queue: &VecDeque<u32>| queue.get(usize::from(which) % queue.len().max(1)).copied();
                // Two requests, so that not all in a row are of one.
                let mut slice = Attempt::new(Load::Slice(u32::from(which % 16 == 0)), Op::Write, 0, 1);
                slice.bind_to(RailId(0), 0, 1);
                match op % 7 {
                    0 => if let Some(id) = attempts.insert(slice) {
                        flight.bind(&mut attempts, id.index);
                        bound.push_back(id.index);
                    },
                    1 => {
                        if let Some(index) = flight.first_bound() {
                            let next = flight.bound_after(&mut attempts, index);
                            flight.hand_out(next.unwrap_or(NIL), 1);
                            if let Some(row) = attempts.at_mut(index) { row.set_stage(Stage::Posted) }
                        }
                        posted.extend(bound.pop_front());
                    }
                    2 => {
                        let last = posted.pop_back();
                        if flight.take_back(&mut attempts) != last { return false }
                        if let Some(row) = last.and_then(|last| attempts.at_mut(last)) { row.set_stage(Stage::Bound) }
                        last.into_iter().for_each(|last| bound.push_front(last));
                    }
                    3 => if let Some(index) = pick(&posted) {
                        flight.remove_posted(&mut attempts, index);
                        posted.retain(|other| *other != index);
                    },
                    4 => if let Some(index) = pick(&bound) {
                        flight.remove_bound(&mut attempts, index);
                        bound.retain(|other| *other != index);
                    },
                    5 => {
                        // The last free row is kept.
                        let (count, room) = (u32::from(which % 5), 63_u32.saturating_sub(attempts.len() as u32));
                        let last = bound.back().or(posted.back()).copied();
                        let given = flight.bind_run(&mut attempts, slice, count);
                        let mut next = match last {
                            Some(last) => flight.bound_after(&mut attempts, last),
                            None => flight.first_bound(),
                        };
                        let before = bound.len();
                        while let Some(index) = next {
                            bound.push_back(index);
                            next = flight.bound_after(&mut attempts, index);
                        }
                        if given != count.min(room) || bound.len() - before != given as usize { return false }
                    }
                    _ => {
                        let (mut asked, request) = (0, posted.front().and_then(|index| attempts.at(*index)?.request()));
                        let is_of_first = |index: &&u32| attempts.at(**index).is_some_and(|row| row.request() == request);
                        let count = posted.iter().take_while(is_of_first).take(usize::from(which % 5)).count();
                        let ended = flight.end_in_order(&mut attempts, |rows, first| Freed::in_order(rows, first, |_, _| { asked += 1; asked <= which % 5 }));
                        if ended.map_or(0, |ended| ended.freed.count as usize) != count { return false }
                        if posted.drain(..count).any(|index| attempts.at(index).is_some()) { return false }
                    }
                }
                let (mut walked, mut next) = (Vec::new(), flight.first_posted());
                while let Some(index) = next {
                    walked.push(index);
                    next = flight.posted_after(&mut attempts, index);
                }
                let mut next = flight.first_bound();
                let count = walked.len();
                while let Some(index) = next {
                    walked.push(index);
                    next = flight.bound_after(&mut attempts, index);
                }
                let model = posted.iter().chain(&bound);
                if !walked.iter().eq(model) || count != posted.len() { return false }
                if (flight.posted(), flight.bound()) != (posted.len(), bound.len()) { return false }
            }
            true
        }
    }
}
