//! No panic: choosing rails for slices in a row, whatever is said of them.
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::hint::black_box;

use polyrail_core::rail::spray::{self, Line, Load, Look, Need, Room, Slices, Sooner, Spot};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{DeviceId, RailId, Rate};

/// What is said of all rails.
#[derive(Clone, Copy)]
struct All {
    inflight_bytes: u64,
    sooner: Sooner,
}

impl Look for All {
    fn inflight_bytes(&self) -> u64 {
        self.inflight_bytes
    }

    fn sooner(&self, _length: u32, _than: Duration) -> Sooner {
        self.sooner
    }
}

#[inline(never)]
fn end_of_few(spots: &[Spot], need: &Need) -> Option<Duration> {
    spray::end_of_few(spots, need)
}

#[inline(never)]
fn choose(spots: &[Spot], times: &[Duration]) -> Option<(usize, Duration)> {
    spray::choose(spots, times)
}

#[inline(never)]
fn time(spot: &Spot, need: &Need) -> Duration {
    spot.time(need)
}

#[inline(never)]
fn run(spot: &Spot, need: &Need, until: Duration, rate: Rate, all: All) -> Option<Slices> {
    spot.run(need, until, rate, all)
}

#[inline(never)]
fn take(spot: &mut Spot, now: Instant, slices: Slices, ahead_bytes: u64) {
    spot.take(now, slices, ahead_bytes);
}

fn spray() {
    let rate = Rate::from_bytes_per_sec(1_000_000_000);
    let spot = Spot {
        rail: RailId(0),
        tier: 0,
        device: DeviceId(0),
        far: u32::MAX,
        works: 1,
        work_bytes_max: 1,
        slice_bytes: 1,
        part_bytes: 1,
        used_at: Instant::ZERO,
        room: Room {
            inflight_bytes: 0,
            own_bytes: 0,
            window_bytes: 1,
            device_bytes: 0,
            device_limit: 1,
            is_kept: true,
        },
        load: Load {
            rate,
            delay_base: Duration::ZERO,
            sent: Duration::ZERO,
            inflight_bytes: 0,
            device_bytes: 0,
            device_rate: rate,
            far_wait: Duration::ZERO,
        },
    };
    let need = Need {
        rest_bytes: 1,
        unbound_bytes: 1,
        slices_max: 1,
        slice_bytes: 1,
        end: None,
        share_bytes: black_box(spray::share(1 << 20, 65_536, 3)),
        line: Line {
            waiting: 2,
            is_first: false,
            is_urgent: false,
        },
    };
    let all = All {
        sooner: Sooner {
            least: Duration::ZERO,
            bytes_per_sec: 0,
        },
        inflight_bytes: 0,
    };
    let mut spots = black_box([spot; 3]);
    let need = black_box(need);
    black_box(end_of_few(&spots, &need));
    let [first, ..] = &spots;
    let times = black_box([time(first, &need); 3]);
    black_box(choose(&spots, &times));
    let [first, ..] = &mut spots;
    let until = black_box(Duration::MAX);
    black_box(run(first, &need, until, black_box(rate), black_box(all)));
    let slices = Slices {
        length: 1,
        count: 2,
    };
    take(
        first,
        black_box(Instant::ZERO),
        black_box(slices),
        black_box(1),
    );
    black_box(spots);
}

polyrail_tests_bare::no_panic!(spray);
