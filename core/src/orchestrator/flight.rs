//! What is on a lane: attempts that were handed out, in that order, and behind them those that were not.

use super::attempt::Attempt;
use crate::queue::Queue;
use crate::table::{NIL, Table};
use crate::units::AttemptId;

type Attempts<'a> = Table<'a, Attempt, AttemptId>;

/// One queue with a mark in it, so that handing out moves the mark and nothing else.
#[derive(Debug)]
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
        let next = self.queue.after(attempts, index);
        next.filter(|next| *next != self.mark)
    }

    /// The one behind `index`, which was not handed out.
    pub(super) fn bound_after(&self, attempts: &mut Attempts<'_>, index: u32) -> Option<u32> {
        self.queue.after(attempts, index)
    }

    /// Appends one.
    pub(super) fn bind(&mut self, attempts: &mut Attempts<'_>, index: u32) {
        self.queue.push_back(attempts, index);
        if self.mark == NIL {
            self.mark = index;
        }
    }

    /// Hands out the first that was not.
    pub(super) fn hand_out(&mut self, attempts: &mut Attempts<'_>) {
        if self.mark != NIL {
            self.mark = self.queue.after(attempts, self.mark).unwrap_or(NIL);
            self.posted += 1;
        }
    }

    /// The one handed out last is not any more.
    pub(super) fn take_back(&mut self, attempts: &mut Attempts<'_>) -> Option<u32> {
        if self.posted == 0 {
            return None;
        }
        let last = match self.first_bound() {
            Some(mark) => self.queue.before(attempts, mark),
            None => self.queue.back(),
        };
        self.mark = last?;
        self.posted -= 1;
        last
    }

    /// Takes one out that was handed out.
    pub(super) fn remove_posted(&mut self, attempts: &mut Attempts<'_>, index: u32) {
        self.queue.remove(attempts, index);
        self.posted -= 1;
    }

    /// Takes one out that was not handed out.
    pub(super) fn remove_bound(&mut self, attempts: &mut Attempts<'_>, index: u32) {
        if self.mark == index {
            self.mark = self.queue.after(attempts, index).unwrap_or(NIL);
        }
        self.queue.remove(attempts, index);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::attempt::Load;
    use super::*;
    use crate::table::Row;
    use crate::work::Op;
    use quickcheck::quickcheck;
    use std::collections::VecDeque;
    use std::vec::Vec;

    quickcheck! {
        fn behaves_like_two_deques(ops: Vec<(u8, u8)>) -> bool {
            let mut rows: Vec<Row<Attempt>> = (0..64).map(|_| Row::EMPTY).collect();
            let mut attempts = Attempts::new(&mut rows);
            let mut flight = Flight::EMPTY;
            let (mut posted, mut bound) = (VecDeque::new(), VecDeque::new());
            for (op, which) in ops {
                let pick = |queue: &VecDeque<u32>| queue.get(usize::from(which) % queue.len().max(1)).copied();
                match op % 5 {
                    0 => if let Ok(id) = attempts.insert(Attempt::new(Load::RateProbe, Op::Write, 0, 1)) {
                        flight.bind(&mut attempts, id.index);
                        bound.push_back(id.index);
                    },
                    1 => {
                        flight.hand_out(&mut attempts);
                        posted.extend(bound.pop_front());
                    }
                    2 => {
                        let last = posted.pop_back();
                        if flight.take_back(&mut attempts) != last { return false }
                        last.into_iter().for_each(|last| bound.push_front(last));
                    }
                    3 => if let Some(index) = pick(&posted) {
                        flight.remove_posted(&mut attempts, index);
                        posted.retain(|other| *other != index);
                    },
                    _ => if let Some(index) = pick(&bound) {
                        flight.remove_bound(&mut attempts, index);
                        bound.retain(|other| *other != index);
                    },
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
