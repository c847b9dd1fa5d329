//! No panic: choosing rails for slices in a row, whatever is said of them.
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::hint::black_box;

use polyrail_core::rail::spray::{Line, Load, Look, Slices, Spot, Spots};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{DeviceId, RailId, Rate};

#[inline(never)]
fn push(spots: &mut Spots, spot: Spot) {
    spots.push(spot);
}

#[inline(never)]
fn choose(
    spots: &mut Spots,
    unbound_bytes: u64,
    rate: Option<Rate>,
    rails: usize,
    look: Look,
) -> Option<usize> {
    spots.choose(unbound_bytes, rate, rails, |_| look)
}

#[inline(never)]
fn run(
    spots: &Spots,
    unbound_bytes: u64,
    rate: Option<Rate>,
    most: u32,
) -> Option<(usize, Slices)> {
    spots.run(unbound_bytes, rate, most)
}

#[inline(never)]
fn take(spots: &mut Spots, now: Instant, index: usize, slices: Slices, ahead_bytes: u64) {
    spots.take(now, index, slices, ahead_bytes);
}

#[inline(never)]
fn clear(spots: &mut Spots, length: u32, line: Line) {
    spots.clear(length, line);
}

fn spray() {
    let line = Line {
        waiting: 2,
        is_first: false,
        is_urgent: false,
    };
    let rate = Rate::from_bytes_per_sec(1_000_000_000);
    let spot = Spot {
        rail: RailId(0),
        position: 0,
        tier: 0,
        device: DeviceId(0),
        works: 1,
        work_bytes_max: 1,
        slice_bytes: 1,
        used_at: Instant::ZERO,
        own_bytes: 0,
        window_bytes: 1,
        load: Load {
            rate,
            delay_base: Duration::ZERO,
            inflight_bytes: 0,
            device_bytes: 0,
            device_rate: rate,
        },
    };
    let look = Look {
        least: Duration::ZERO,
        inflight_bytes: 0,
        rate,
    };
    let mut spots = black_box(Spots::new(black_box(line)));
    clear(&mut spots, black_box(1), black_box(line));
    for _ in 0..3 {
        push(&mut spots, black_box(spot));
        spots = black_box(spots);
    }
    black_box(choose(
        &mut spots,
        black_box(1),
        black_box(Some(rate)),
        black_box(4),
        black_box(look),
    ));
    let mut spots = black_box(spots);
    black_box(run(
        &spots,
        black_box(1),
        black_box(Some(rate)),
        black_box(2),
    ));
    take(
        &mut spots,
        black_box(Instant::ZERO),
        black_box(1),
        black_box(Slices {
            length: 1,
            count: 2,
        }),
        black_box(1),
    );
    black_box(spots);
}

polyrail_tests_bare::no_panic!(spray);
