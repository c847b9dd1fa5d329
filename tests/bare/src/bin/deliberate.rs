//! A panic that no optimiser can rule out, so this does not link.
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::hint::black_box;

#[inline(never)]
fn index(values: &[u64], index: usize) -> u64 {
    values[index]
}

fn deliberate() {
    black_box(index(black_box(&[1, 2, 3]), black_box(2)));
}

polyrail_tests_bare::no_panic!(deliberate);
