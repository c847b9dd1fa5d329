//! No panic: everything that happens to a rail's health, in both modes.
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::hint::black_box;

use polyrail_core::rail::health::{Incident, RailHealth, RailState, ResetConfig};
use polyrail_core::time::{Duration, Instant};

#[inline(never)]
fn incident(health: &RailHealth, now: Instant, incident: Incident) -> bool {
    health.handle_incident(now, incident)
}

#[inline(never)]
fn claim(health: &RailHealth, now: Instant, worker: u16) -> bool {
    health.claim_probe(now, worker)
}

#[inline(never)]
fn good(health: &RailHealth, now: Instant, worker: u16) -> bool {
    health.handle_probe_good(now, worker)
}

#[inline(never)]
fn bad(health: &RailHealth, now: Instant, worker: u16) -> bool {
    health.handle_probe_bad(now, worker)
}

#[inline(never)]
fn error(health: &RailHealth, now: Instant, config: &ResetConfig) -> bool {
    health.handle_error(now, config)
}

#[inline(never)]
fn success(health: &RailHealth) -> bool {
    health.handle_success()
}

#[inline(never)]
fn expiry(health: &RailHealth, now: Instant) -> bool {
    health.handle_expiry(now)
}

#[inline(never)]
fn look(health: &RailHealth, now: Instant) -> (RailState, Option<Instant>, Duration, u8) {
    (
        health.state(),
        health.probe_at(),
        health.probe_interval(now),
        health.flaps(now),
    )
}

fn decay() {
    let health = black_box(RailHealth::new());
    let now = || black_box(Instant::from_nanos(1));
    black_box(incident(&health, now(), black_box(Incident::Error)));
    black_box(incident(&health, now(), black_box(Incident::Silence)));
    black_box(claim(&health, now(), black_box(1)));
    black_box(good(&health, now(), black_box(1)));
    black_box(bad(&health, now(), black_box(1)));
    black_box(look(&health, now()));
}

fn reset() {
    let health = black_box(RailHealth::new());
    let now = || black_box(Instant::from_nanos(1));
    black_box(error(&health, now(), black_box(&ResetConfig::DEFAULT)));
    black_box(success(&health));
    black_box(expiry(&health, now()));
}

polyrail_tests_bare::no_panic!(decay, reset);
