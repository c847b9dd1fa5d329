//! No panic: learning how fast a rail is, whatever its completions say.
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::hint::black_box;

use polyrail_core::rail::estimate::{Estimate, EstimateConfig, Observation, Sample};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::Rate;

#[inline(never)]
fn new(config: EstimateConfig) -> Estimate {
    Estimate::new(config)
}

#[inline(never)]
fn observe(first: Sample, second: Sample) -> Observation {
    let mut seen = Observation::new(first);
    seen.add(second);
    seen
}

#[inline(never)]
fn completions(estimate: &mut Estimate, seen: &Observation) {
    estimate.handle_observation(seen);
}

#[inline(never)]
fn probe(estimate: &mut Estimate, bytes: u64, took: Duration) {
    estimate.handle_probe(bytes, took);
}

#[inline(never)]
fn reset(estimate: &mut Estimate) {
    estimate.reset();
}

#[inline(never)]
fn look(estimate: &Estimate, slice_bytes: u32) -> (Rate, Duration, u32, u64) {
    (
        estimate.rate(),
        estimate.delay_base(),
        estimate.slice_bytes(slice_bytes),
        estimate.window_bytes(slice_bytes),
    )
}

fn estimate() {
    let config = EstimateConfig {
        rate_nominal: Rate::from_bytes_per_sec(1_000_000_000),
        delay_base: Duration::from_micros(3),
        tier: 0,
        slice_span: Duration::ZERO,
        batch_span: Duration::ZERO,
    };
    let sample = Sample {
        posted_at: Instant::ZERO,
        seen_at: Instant::ZERO,
        ahead_bytes: 0,
        bytes: 1,
    };
    let mut estimate = black_box(new(black_box(config)));
    let seen = observe(black_box(sample), black_box(sample));
    completions(&mut estimate, &black_box(seen));
    let mut estimate = black_box(estimate);
    probe(&mut estimate, black_box(1), black_box(Duration::ZERO));
    let mut estimate = black_box(estimate);
    reset(&mut estimate);
    black_box(look(&black_box(estimate), black_box(1)));
}

polyrail_tests_bare::no_panic!(estimate);
