//! Queues threaded through table rows: no memory of their own, O(1) at both ends and in the middle.

use crate::table::{Id, NIL, Table};

/// In place of the row before: in no queue. Tables have no such row.
const UNQUEUED: u32 = NIL - 1;

/// A row's place in the one queue that it is in, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Link {
    previous: u32,
    next: u32,
}

impl Link {
    /// In no queue.
    pub(crate) const NONE: Self = Self {
        previous: UNQUEUED,
        next: NIL,
    };

    /// Between two rows.
    pub(crate) const fn between(previous: u32, next: u32) -> Self {
        Self { previous, next }
    }

    /// The row behind; [`NIL`]: none.
    pub(crate) const fn next(self) -> u32 {
        self.next
    }

    /// The row before; [`NIL`]: none.
    pub(crate) const fn previous(self) -> u32 {
        self.previous
    }

    /// Puts another row behind.
    pub(crate) fn set_next(&mut self, next: u32) {
        self.next = next;
    }

    /// Puts another row before.
    pub(crate) fn set_previous(&mut self, previous: u32) {
        self.previous = previous;
    }

    /// Whether it is in a queue.
    pub(crate) const fn is_queued(self) -> bool {
        self.previous != UNQUEUED
    }
}

/// Something whose rows have links that belong together. `KIND` tells apart the links of one row.
pub(crate) trait Links<const KIND: usize> {
    /// The link of a row; `None` if there is no such row.
    fn link(&mut self, index: u32) -> Option<&mut Link>;
}

/// A value with one link of this kind.
pub(crate) trait Linked<const KIND: usize> {
    /// Its link.
    fn link(&mut self) -> &mut Link;
}

impl<T: Linked<KIND>, I: Id, const KIND: usize> Links<KIND> for Table<'_, T, I> {
    fn link(&mut self, index: u32) -> Option<&mut Link> {
        self.at_mut(index).map(Linked::link)
    }
}

impl<T: Linked<KIND>, const KIND: usize> Links<KIND> for [T] {
    fn link(&mut self, index: u32) -> Option<&mut Link> {
        self.get_mut(index as usize).map(Linked::link)
    }
}

/// A first-in first-out queue of rows. `KIND` says which link of the rows it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Queue<const KIND: usize> {
    head: u32,
    tail: u32,
    length: u32,
}

impl<const KIND: usize> Queue<KIND> {
    /// An empty queue.
    pub(crate) const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
        length: 0,
    };

    /// Rows in it.
    pub(crate) const fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether there is none.
    pub(crate) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The first row.
    pub(crate) const fn front(&self) -> Option<u32> {
        if self.head == NIL {
            None
        } else {
            Some(self.head)
        }
    }

    /// The last row.
    pub(crate) const fn back(&self) -> Option<u32> {
        if self.tail == NIL {
            None
        } else {
            Some(self.tail)
        }
    }

    /// The row behind `index`, which must be in this queue.
    pub(crate) fn after<L: Links<KIND> + ?Sized>(&self, rows: &mut L, index: u32) -> Option<u32> {
        let link = rows.link(index)?;
        debug_assert!(link.is_queued(), "row {index} is in no queue");
        let next = link.next;
        if next == NIL { None } else { Some(next) }
    }

    /// The row before `index`, which must be in this queue.
    pub(crate) fn before<L: Links<KIND> + ?Sized>(&self, rows: &mut L, index: u32) -> Option<u32> {
        let link = rows.link(index)?;
        debug_assert!(link.is_queued(), "row {index} is in no queue");
        let previous = link.previous;
        if previous == NIL {
            None
        } else {
            Some(previous)
        }
    }

    /// Appends a row; a row that is in a queue already stays where it is.
    pub(crate) fn push_back<L: Links<KIND> + ?Sized>(&mut self, rows: &mut L, index: u32) {
        let tail = self.tail;
        let Some(link) = rows.link(index).filter(|link| !link.is_queued()) else {
            return;
        };
        *link = Link {
            previous: tail,
            next: NIL,
        };
        match rows.link(tail) {
            Some(last) => {
                debug_assert!(last.next == NIL, "row {} is behind the last one", last.next);
                last.next = index;
            }
            None => self.head = index,
        }
        self.tail = index;
        self.length += 1;
        self.check();
    }

    /// Appends rows that are linked to each other already, from `first` to `last`.
    pub(crate) fn push_run<L: Links<KIND> + ?Sized>(
        &mut self,
        rows: &mut L,
        (first, last, count): (u32, u32, u32),
    ) {
        debug_assert!(count > 0, "a run of no rows");
        debug_assert!(
            (first == last) == (count == 1),
            "a run of {count} rows from {first} to {last}"
        );
        match rows.link(self.tail) {
            Some(before) => {
                debug_assert!(
                    before.next == NIL,
                    "row {} is behind the last one",
                    before.next
                );
                before.next = first;
            }
            None => self.head = first,
        }
        let tail = self.tail;
        if let Some(link) = rows.link(first) {
            link.previous = tail;
        }
        if let Some(link) = rows.link(last) {
            link.next = NIL;
        }
        self.tail = last;
        self.length += count;
        self.check();
    }

    /// Puts a row in front; a row that is in a queue already stays where it is.
    pub(crate) fn push_front<L: Links<KIND> + ?Sized>(&mut self, rows: &mut L, index: u32) {
        let head = self.head;
        let Some(link) = rows.link(index).filter(|link| !link.is_queued()) else {
            return;
        };
        *link = Link {
            previous: NIL,
            next: head,
        };
        match rows.link(head) {
            Some(first) => {
                debug_assert!(
                    first.previous == NIL,
                    "row {} is before the first one",
                    first.previous
                );
                first.previous = index;
            }
            None => self.tail = index,
        }
        self.head = index;
        self.length += 1;
        self.check();
    }

    /// Takes a row out, wherever it is. The row must be in this queue or in none.
    pub(crate) fn remove<L: Links<KIND> + ?Sized>(&mut self, rows: &mut L, index: u32) {
        let Some(link) = rows.link(index).filter(|link| link.is_queued()) else {
            return;
        };
        let Link { previous, next } = core::mem::replace(link, Link::NONE);
        match rows.link(previous) {
            Some(before) => {
                debug_assert!(
                    before.next == index,
                    "behind row {previous} is row {}, and not row {index}",
                    before.next
                );
                before.next = next;
            }
            None => {
                debug_assert!(
                    self.head == index,
                    "row {index} is the first of another queue"
                );
                self.head = next;
            }
        }
        match rows.link(next) {
            Some(behind) => {
                debug_assert!(
                    behind.previous == index,
                    "before row {next} is row {}, and not row {index}",
                    behind.previous
                );
                behind.previous = previous;
            }
            None => {
                debug_assert!(
                    self.tail == index,
                    "row {index} is the last of another queue"
                );
                self.tail = previous;
            }
        }
        debug_assert!(self.length > 0, "row {index} was in another queue");
        self.length -= 1;
        self.check();
    }

    /// It has a first row, and a last one, while there are any.
    fn check(&self) {
        let has_rows = self.length > 0;
        let (has_head, has_tail) = (self.head != NIL, self.tail != NIL);
        debug_assert!(
            has_head == has_rows && has_tail == has_rows,
            "{} rows, from {} to {}",
            self.length,
            self.head,
            self.tail
        );
    }

    /// Puts `other`, which is in no queue, where `index` is, which leaves.
    pub(crate) fn replace<L: Links<KIND> + ?Sized>(
        &mut self,
        rows: &mut L,
        index: u32,
        other: u32,
    ) {
        if rows.link(other).is_none_or(|link| link.is_queued()) {
            return;
        }
        let Some(link) = rows.link(index).filter(|link| link.is_queued()) else {
            return;
        };
        let place = core::mem::replace(link, Link::NONE);
        if let Some(link) = rows.link(other) {
            *link = place;
        }
        match rows.link(place.previous) {
            Some(before) => before.next = other,
            None => {
                debug_assert!(
                    self.head == index,
                    "row {index} is the first of another queue"
                );
                self.head = other;
            }
        }
        match rows.link(place.next) {
            Some(behind) => behind.previous = other,
            None => {
                debug_assert!(
                    self.tail == index,
                    "row {index} is the last of another queue"
                );
                self.tail = other;
            }
        }
    }

    /// Leaves out the first `count` rows, which are gone; `next` was behind them, [`NIL`]: nothing.
    pub(crate) fn cut_front<L: Links<KIND> + ?Sized>(
        &mut self,
        rows: &mut L,
        next: u32,
        count: u32,
    ) {
        debug_assert!(count <= self.length, "{count} of {}", self.length);
        self.head = next;
        self.length -= count;
        match rows.link(self.head) {
            Some(first) => first.previous = NIL,
            None => self.tail = NIL,
        }
        self.check();
    }

    /// Takes the first row out.
    pub(crate) fn pop_front<L: Links<KIND> + ?Sized>(&mut self, rows: &mut L) -> Option<u32> {
        let index = self.front()?;
        self.remove(rows, index);
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::collections::VecDeque;
    use std::vec::Vec;

    struct Item(Link);
    impl Linked<0> for Item {
        fn link(&mut self) -> &mut Link {
            &mut self.0
        }
    }

    quickcheck! {
        fn behaves_like_a_deque(ops: Vec<(u8, u8)>) -> bool {
            let mut items: Vec<Item> = (0..8).map(|_| Item(Link::NONE)).collect();
            let mut queue = Queue::<0>::EMPTY;
            let mut model = VecDeque::new();
            for (op, index) in ops {
                let other = u32::from(index / 8 % 8);
                let index = u32::from(index % 8);
                match op % 5 {
                    0 if !model.contains(&index) => model.push_back(index),
                    1 if !model.contains(&index) => model.push_front(index),
                    2 => model.retain(|i| *i != index),
                    3 if !model.contains(&other) => model.iter_mut().filter(|i| **i == index).for_each(|i| *i = other),
                    _ => {}
                }
                match op % 5 {
                    0 => queue.push_back(&mut items[..], index),
                    1 => queue.push_front(&mut items[..], index),
                    2 => queue.remove(&mut items[..], index),
                    3 => queue.replace(&mut items[..], index, other),
                    _ => if queue.pop_front(&mut items[..]) != model.pop_front() { return false },
                }
                if queue.len() != model.len() || queue.back() != model.back().copied() { return false }
            }
            let mut walked = Vec::new();
            let mut next = queue.front();
            while let Some(index) = next {
                walked.push(index);
                next = queue.after(&mut items[..], index);
            }
            model == walked
        }
    }
}
