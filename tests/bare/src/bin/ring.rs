//! No panic: the submission ring, from both ends.
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::hint::black_box;
use core::sync::atomic::AtomicU64;

use polyrail_core::ring::{Entry, Full, Ring, Slot};

type Borrowed<'a> = Ring<&'a [Slot], &'a [AtomicU64]>;

#[inline(never)]
fn new<'a>(slots: &'a [Slot], cells: &'a [AtomicU64]) -> Borrowed<'a> {
    Ring::new(slots, cells)
}

#[inline(never)]
fn push(ring: &Borrowed<'_>, entry: Entry) -> Result<(), Full> {
    ring.push(entry)
}

#[inline(never)]
fn pop(ring: &Borrowed<'_>) -> Option<Entry> {
    ring.pop()
}

#[inline(never)]
fn is_empty(ring: &Borrowed<'_>) -> bool {
    ring.is_empty()
}

fn ring() {
    let slots = [const { Slot::EMPTY }; 4];
    let cells = [const { AtomicU64::new(0) }; 4];
    let ring = black_box(new(black_box(&slots), black_box(&cells)));
    let _ = black_box(push(&ring, black_box([7; 2])));
    black_box(is_empty(&ring));
    black_box(pop(&ring));
}

polyrail_tests_bare::no_panic!(ring);
