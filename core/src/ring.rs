//! The submission ring: many producers hand fixed-size entries to one worker, without locks, without
//! allocation and without `unsafe`.
//!
//! An entry is written into a slot that its producer has taken from a free list, and then published by one
//! compare-and-swap on a cell of the ring. A producer that is preempted between the two delays nobody: its
//! slot is not in the ring yet. (`heapless::mpmc` is deprecated for exactly that stall.)
//!
//! Source: Treiber (IBM RJ 5118) for the free list, whose head carries a use count.

use core::ops::Deref;
use core::sync::atomic::Ordering::*;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU32, AtomicU64};

/// Words of an entry: enough to name what it is about. A ring has room for all that one worker may be told at a time, so each
/// word counts.
pub const ENTRY_WORDS: usize = 2;

/// What the ring carries.
pub type Entry = [u64; ENTRY_WORDS];

const NIL: u32 = u32::MAX;

/// Memory of one entry.
#[derive(Debug)]
pub struct Slot {
    words: [AtomicU64; ENTRY_WORDS],
    next_free: AtomicU32,
}

impl Slot {
    /// For the arrays that a caller hands in.
    #[allow(clippy::declare_interior_mutable_const)] // a pattern to repeat, not a shared value
    pub const EMPTY: Self = Self {
        words: [const { AtomicU64::new(0) }; ENTRY_WORDS],
        next_free: AtomicU32::new(NIL),
    };
}

/// A ring over memory that the caller owns. The capacity is the shorter of the two arrays.
///
/// [`Self::push`] may be called from any thread, [`Self::pop`] from one at a time.
///
/// `S` and `C` are whatever holds the memory: slices, or boxes where there is an allocator.
#[derive(Debug)]
pub struct Ring<S, C> {
    slots: S,
    /// `lap << 32 | slot + 1`; slot 0 means empty. A cell serves lap after lap.
    cells: C,
    count: usize,
    /// Head of the free list: `use count << 32 | slot`.
    free: CachePadded<AtomicU64>,
    tail: CachePadded<AtomicU64>,
    head: CachePadded<AtomicU64>,
}

/// The ring has no room; the entry comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full(pub Entry);

impl<S: Deref<Target = [Slot]>, C: Deref<Target = [AtomicU64]>> Ring<S, C> {
    /// An empty ring.
    pub fn new(slots: S, cells: C) -> Self {
        let count = slots.len().min(cells.len()).min(NIL as usize - 1);
        for (index, slot) in slots.iter().take(count).enumerate() {
            let next = if index + 1 < count {
                index as u32 + 1
            } else {
                NIL
            };
            slot.next_free.store(next, Relaxed);
        }
        for cell in cells.iter() {
            cell.store(0, Relaxed);
        }
        let first = if count == 0 { NIL } else { 0 };
        Self {
            slots,
            cells,
            count,
            free: CachePadded::new(AtomicU64::new(u64::from(first))),
            tail: CachePadded::new(AtomicU64::new(0)),
            head: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Appends an entry. Entries of one thread come out in the order in which it pushed them.
    pub fn push(&self, entry: Entry) -> Result<(), Full> {
        let Some((index, slot)) = self.take_slot() else {
            return Err(Full(entry));
        };
        for (word, value) in slot.words.iter().zip(entry) {
            word.store(value, Relaxed);
        }
        // There are as many cells as slots, so with a slot in hand a cell is free or becomes so as soon as
        // the consumer's release of that slot's cell, which came first, is seen.
        loop {
            let position = self.tail.load(Acquire);
            let Some((cell, lap)) = self.cell(position) else {
                debug_assert!(false, "slot {index} of a ring without cells");
                return Err(Full(entry));
            };
            debug_assert!(
                (index as usize) < self.count,
                "slot {index} of {}",
                self.count
            );
            let empty = lap << 32;
            let full = empty | u64::from(index + 1);
            if cell.compare_exchange(empty, full, AcqRel, Acquire).is_ok() {
                // Help or be helped: whoever comes first moves the tail on.
                let _ = self
                    .tail
                    .compare_exchange(position, position + 1, AcqRel, Relaxed);
                return Ok(());
            }
            let _ = self
                .tail
                .compare_exchange(position, position + 1, AcqRel, Relaxed);
        }
    }

    /// Takes the oldest entry.
    pub fn pop(&self) -> Option<Entry> {
        let position = self.head.load(Relaxed);
        let (cell, lap) = self.cell(position)?;
        let value = cell.load(Acquire);
        let handle = value as u32;
        if value >> 32 != lap || handle == 0 {
            return None;
        }
        debug_assert!(
            handle as usize <= self.count,
            "slot {handle} of {}, counted from 1",
            self.count
        );
        let slot = self.slots.get(handle as usize - 1)?;
        let mut entry = [0; ENTRY_WORDS];
        for (value, word) in entry.iter_mut().zip(&slot.words) {
            *value = word.load(Relaxed);
        }
        // A producer that filled the cell and was preempted may not have moved the tail yet; it must not
        // find the next lap's empty cell at the old position.
        let _ = self
            .tail
            .compare_exchange(position, position + 1, AcqRel, Relaxed);
        debug_assert_eq!(
            self.head.load(Relaxed),
            position,
            "two take entries at once"
        );
        cell.store((lap + 1) << 32, Release);
        self.head.store(position + 1, Release);
        self.give_slot(handle - 1, slot);
        Some(entry)
    }

    /// Whether [`Self::pop`] would find nothing now.
    pub fn is_empty(&self) -> bool {
        let position = self.head.load(Acquire);
        self.cell(position).is_none_or(|(cell, lap)| {
            let value = cell.load(Acquire);
            value >> 32 != lap || value as u32 == 0
        })
    }

    fn cell(&self, position: u64) -> Option<(&AtomicU64, u64)> {
        let count = self.count as u64;
        let lap = position.checked_div(count)? & u64::from(u32::MAX);
        self.cells
            .get((position % count) as usize)
            .map(|cell| (cell, lap))
    }

    fn take_slot(&self) -> Option<(u32, &Slot)> {
        let mut free = self.free.load(Acquire);
        loop {
            let slot = self.slots.get(free as u32 as usize)?;
            let next = slot.next_free.load(Relaxed);
            // The use count makes a slot that went and came back meanwhile a different one.
            let taken = ((free >> 32).wrapping_add(1) << 32) | u64::from(next);
            match self
                .free
                .compare_exchange_weak(free, taken, AcqRel, Acquire)
            {
                Ok(_) => {
                    debug_assert!(next != free as u32, "slot {next} is free twice");
                    return Some((free as u32, slot));
                }
                Err(now) => free = now,
            }
        }
    }

    fn give_slot(&self, index: u32, slot: &Slot) {
        let mut free = self.free.load(Acquire);
        loop {
            slot.next_free.store(free as u32, Relaxed);
            let given = ((free >> 32).wrapping_add(1) << 32) | u64::from(index);
            match self
                .free
                .compare_exchange_weak(free, given, AcqRel, Acquire)
            {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicBool;
    use std::vec::Vec;
    use std::{thread, vec};

    fn memory(count: usize) -> (Vec<Slot>, Vec<AtomicU64>) {
        (
            (0..count).map(|_| Slot::EMPTY).collect(),
            (0..count).map(|_| AtomicU64::new(0)).collect(),
        )
    }

    #[test]
    fn full_gives_the_entry_back_and_order_is_kept() {
        let (slots, cells) = memory(3);
        let ring = Ring::new(&slots[..], &cells[..]);
        for lap in 0..10 {
            for i in 0..3 {
                ring.push([lap * 3 + i; ENTRY_WORDS]).unwrap();
            }
            assert_eq!(ring.push([99; ENTRY_WORDS]), Err(Full([99; ENTRY_WORDS])));
            for i in 0..3 {
                assert_eq!(ring.pop(), Some([lap * 3 + i; ENTRY_WORDS]));
            }
            assert!(ring.is_empty());
            assert_eq!(ring.pop(), None);
        }
    }

    #[test]
    fn a_ring_without_memory_is_full_and_empty() {
        let ring = Ring::new(&[][..], &[][..]);
        assert_eq!(ring.push([1; ENTRY_WORDS]), Err(Full([1; ENTRY_WORDS])));
        assert_eq!(ring.pop(), None);
        assert!(ring.is_empty());
    }

    #[test]
    fn nothing_is_lost_doubled_or_torn_between_threads() {
        const PRODUCERS: u64 = 3;
        const EACH: u64 = if cfg!(miri) { 50 } else { 20_000 };
        let (slots, cells) = memory(7);
        let ring = Ring::new(&slots[..], &cells[..]);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let ring = &ring;
                let stop = &stop;
                scope.spawn(move || {
                    for i in 0..EACH {
                        let mut entry = [producer << 32 | i; ENTRY_WORDS];
                        while let Err(Full(back)) = ring.push(entry) {
                            if stop.load(Relaxed) {
                                return;
                            }
                            entry = back;
                            thread::yield_now();
                        }
                    }
                });
            }
            let mut next = vec![0; PRODUCERS as usize];
            let mut seen = 0;
            while seen < PRODUCERS * EACH {
                let Some(entry) = ring.pop() else {
                    thread::yield_now();
                    continue;
                };
                let (producer, i) = ((entry[0] >> 32) as usize, entry[0] & 0xffff_ffff);
                if entry.iter().any(|word| *word != entry[0]) || next[producer] != i {
                    stop.store(true, Relaxed);
                    panic!(
                        "producer {producer}: expected {}, got {entry:?}",
                        next[producer]
                    );
                }
                next[producer] += 1;
                seen += 1;
            }
        });
    }

    quickcheck! {
        fn one_thread_sees_a_bounded_queue(count: u8, ops: Vec<Option<u64>>) -> bool {
            let (slots, cells) = memory(usize::from(count % 6));
            let ring = Ring::new(&slots[..], &cells[..]);
            let mut model = VecDeque::new();
            ops.into_iter().all(|op| {
                let same = match op {
                    Some(word) if model.len() < slots.len() => {
                        model.push_back([word; ENTRY_WORDS]);
                        ring.push([word; ENTRY_WORDS]) == Ok(())
                    }
                    Some(word) => ring.push([word; ENTRY_WORDS]) == Err(Full([word; ENTRY_WORDS])),
                    None => ring.pop() == model.pop_front(),
                };
                same && ring.is_empty() == model.is_empty()
            })
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;
    use std::boxed::Box;
    use std::sync::Arc;
    use std::vec::Vec;

    type Owned = Ring<Box<[Slot]>, Box<[AtomicU64]>>;

    fn ring(count: usize) -> Arc<Owned> {
        let slots: Box<[Slot]> = (0..count).map(|_| Slot::EMPTY).collect();
        for word in slots.iter().flat_map(|slot| &slot.words) {
            word.store(0, Relaxed);
        }
        let cells = (0..count).map(|_| AtomicU64::new(0)).collect();
        let ring = Ring::new(slots, cells);
        for word in [&ring.free, &ring.tail, &ring.head] {
            word.load(Relaxed);
        }
        Arc::new(ring)
    }

    /// Starts a thread that pushes `first`, `first + 1`, …, waiting for room where there is none.
    fn produce(ring: &Arc<Owned>, first: u64, count: u64) -> thread::JoinHandle<()> {
        let ring = Arc::clone(ring);
        thread::spawn(move || {
            for value in first..first + count {
                while ring.push([value; ENTRY_WORDS]).is_err() {
                    thread::yield_now();
                }
            }
        })
    }

    /// Takes `count` entries, none of which may be torn.
    fn consume(ring: &Owned, count: usize) -> Vec<u64> {
        let mut values = Vec::new();
        while values.len() < count {
            match ring.pop() {
                Some(entry) => {
                    assert!(entry.iter().all(|word| *word == entry[0]), "torn {entry:?}");
                    values.push(entry[0]);
                }
                None => thread::yield_now(),
            }
        }
        assert_eq!(ring.pop(), None, "doubled");
        values
    }

    fn join(threads: [thread::JoinHandle<()>; 2]) {
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn two_producers_lose_double_and_tear_nothing() {
        loom::model(|| {
            let ring = ring(2);
            let threads = [produce(&ring, 10, 1), produce(&ring, 20, 1)];
            let mut values = consume(&ring, 2);
            values.sort_unstable();
            assert_eq!(values, [10, 20]);
            join(threads);
            assert!(ring.is_empty());
        });
    }

    #[test]
    fn entries_of_one_thread_keep_their_order_over_laps() {
        loom::model(|| {
            let ring = ring(2);
            let thread = produce(&ring, 0, 3);
            assert_eq!(consume(&ring, 3), [0, 1, 2]);
            thread.join().unwrap();
        });
    }

    #[test]
    fn producers_that_share_one_slot_take_turns() {
        loom::model(|| {
            let ring = ring(1);
            let threads = [produce(&ring, 10, 1), produce(&ring, 20, 1)];
            let mut values = consume(&ring, 2);
            values.sort_unstable();
            assert_eq!(values, [10, 20]);
            join(threads);
        });
    }

    #[test]
    fn a_slot_that_went_and_came_back_is_not_the_one_that_was_seen() {
        // A producer that has seen slot 0 free, with slot 1 behind it, sleeps while both go and slot 0 comes back.
        loom::model(|| {
            let ring = ring(2);
            let other = Arc::clone(&ring);
            let thread = thread::spawn(move || other.push([10; ENTRY_WORDS]).is_ok());
            let push = |value| ring.push([value; ENTRY_WORDS]).is_ok().then_some(value);
            let mut pushed: Vec<u64> = [20, 21].into_iter().filter_map(push).collect();
            let mut popped = Vec::from_iter(ring.pop());
            pushed.extend(push(30));
            pushed.extend(thread.join().unwrap().then_some(10));
            popped.extend(core::iter::from_fn(|| ring.pop()));
            let mut values: Vec<u64> = popped.iter().map(|entry| entry[0]).collect();
            pushed.sort_unstable();
            values.sort_unstable();
            assert_eq!(values, pushed);
        });
    }

    #[test]
    fn a_push_finds_the_room_that_it_was_told_of() {
        // The consumer gives the slot back after the cell, so who has a slot finds a cell.
        loom::model(|| {
            let ring = ring(1);
            ring.push([1; ENTRY_WORDS]).unwrap();
            let other = Arc::clone(&ring);
            let thread = thread::spawn(move || other.push([2; ENTRY_WORDS]).is_ok());
            assert_eq!(ring.pop(), Some([1; ENTRY_WORDS]));
            let pushed = thread.join().unwrap();
            let expected = pushed.then_some([2; ENTRY_WORDS]);
            assert_eq!(ring.pop(), expected);
            assert_eq!(ring.push([3; ENTRY_WORDS]), Ok(()));
        });
    }
}
