//! No panic: how a request is cut.
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::hint::black_box;

use polyrail_core::slice;

#[inline(never)]
fn next_length(rest: u64, slice_bytes: u32) -> u32 {
    slice::next_length(rest, slice_bytes)
}

fn cut() {
    black_box(next_length(black_box(1), black_box(1)));
}

polyrail_tests_bare::no_panic!(cut);
