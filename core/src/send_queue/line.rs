//! Who waits for something, in the order of arrival: one packed word, changed by compare-and-swap.
//!
//! The flow-control rework wakes everybody and lets newcomers overtake. A line serves in turn, and who gives
//! up in the middle holds up nobody behind.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Places in a line. Who finds it full is refused like anybody else and may try for a place again.
pub const LINE_PLACES: usize = 48;

/// A line of at most [`LINE_PLACES`].
#[derive(Debug)]
pub(super) struct Line(AtomicU64);

/// The word's content. The first of a line that is not empty is always somebody who still waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Queue {
    /// Ticket of the first, modulo 256.
    first: u8,
    /// Tickets from the first on, those who have left among them.
    length: u8,
    /// Who has left without being served: bit 0 is the first, which never has.
    left: u64,
}

impl Queue {
    const fn pack(self) -> u64 {
        debug_assert!(
            self.length as usize <= LINE_PLACES && self.left >> self.length == 0,
            "somebody has left who was not in line"
        );
        debug_assert!(
            self.length == 0 || self.left & 1 == 0,
            "the first in line has left"
        );
        (self.first as u64) << 56 | (self.length as u64) << 48 | self.left
    }

    const fn unpack(word: u64) -> Self {
        Self {
            first: (word >> 56) as u8,
            length: (word >> 48) as u8,
            left: word & ((1 << LINE_PLACES) - 1),
        }
    }

    fn joined(self) -> Option<Self> {
        let length = self.length + 1;
        (usize::from(length) <= LINE_PLACES).then_some(Self { length, ..self })
    }

    fn left_by(self, ticket: u8) -> Option<Self> {
        let behind = ticket.wrapping_sub(self.first);
        if behind >= self.length {
            return None;
        }
        debug_assert!(
            self.left >> behind & 1 == 0,
            "ticket {ticket} has left before"
        );
        let mut queue = Self {
            left: self.left | 1 << behind,
            ..self
        };
        while queue.length > 0 && queue.left & 1 == 1 {
            queue = Self {
                first: queue.first.wrapping_add(1),
                length: queue.length - 1,
                left: queue.left >> 1,
            };
        }
        Some(queue)
    }
}

impl Line {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Those who wait.
    pub(super) fn waiting(&self) -> usize {
        let queue = Queue::unpack(self.0.load(SeqCst));
        usize::from(queue.length).saturating_sub(queue.left.count_ones() as usize)
    }

    /// The last place. `revision` changes when it is given up. `None`: the line is full.
    pub(super) fn join<'a>(&'a self, revision: &'a AtomicU32) -> Option<Place<'a>> {
        let before = self.change(Queue::joined)?;
        Some(Place {
            line: self,
            revision,
            ticket: before.first.wrapping_add(before.length),
        })
    }

    /// Whether the holder of `place` may be served now, or a newcomer who has none.
    pub(super) fn admits(&self, place: Option<&Place<'_>>) -> bool {
        let queue = Queue::unpack(self.0.load(SeqCst));
        match place {
            Some(place) => core::ptr::eq(place.line, self) && place.ticket == queue.first,
            None => queue.length == 0,
        }
    }

    fn change(&self, next: impl Fn(Queue) -> Option<Queue>) -> Option<Queue> {
        self.0
            .fetch_update(SeqCst, SeqCst, |word| {
                next(Queue::unpack(word)).map(Queue::pack)
            })
            .ok()
            .map(Queue::unpack)
    }
}

/// A place in a line, given up when it is dropped.
#[derive(Debug)]
#[must_use = "who drops its place goes to the end"]
pub(super) struct Place<'a> {
    line: &'a Line,
    revision: &'a AtomicU32,
    ticket: u8,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let left = self.line.change(|queue| queue.left_by(self.ticket));
        debug_assert!(left.is_some(), "ticket {} is not in line", self.ticket);
        self.revision.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    #[test]
    fn a_full_line_has_no_place_until_one_is_given_up() {
        let (line, revision) = (Line::new(), AtomicU32::new(0));
        let mut places: Vec<_> = (0..LINE_PLACES)
            .map(|_| line.join(&revision).unwrap())
            .collect();
        assert!(line.join(&revision).is_none());
        drop(places.remove(0));
        assert_eq!(revision.load(SeqCst), 1, "who waits must hear of it");
        assert!(line.admits(places.first()));
        assert!(line.join(&revision).is_some());
    }

    #[test]
    fn a_place_in_another_line_is_worth_nothing() {
        let (one, other, revision) = (Line::new(), Line::new(), AtomicU32::new(0));
        let place = one.join(&revision).unwrap();
        assert!(one.admits(Some(&place)));
        assert!(!other.admits(Some(&place)));
        assert!(other.admits(None) && !one.admits(None));
    }

    quickcheck! {
        fn behaves_like_a_list(ops: Vec<(bool, u8)>) -> bool {
            let (line, revision) = (Line::new(), AtomicU32::new(0));
            let mut model: Vec<Place<'_>> = Vec::new();
            for (joins, which) in ops {
                if joins {
                    match line.join(&revision) {
                        Some(place) => model.push(place),
                        // Those who left from the middle keep their places until the first goes.
                        None => model.clear(),
                    }
                } else if !model.is_empty() {
                    drop(model.remove(usize::from(which) % model.len()));
                }
                let served = model.iter().position(|place| line.admits(Some(place)));
                let expected = (!model.is_empty()).then_some(0);
                if served != expected
                    || line.waiting() != model.len()
                    || line.admits(None) != model.is_empty()
                {
                    return false;
                }
            }
            true
        }
    }
}
