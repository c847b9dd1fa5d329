//! Health mode `reset`: errors counted, cooldowns, and two ways back.

use super::*;
use crate::rail::health::ResetConfig;

fn world() -> World<'static> {
    let health = HealthMode::Reset(ResetConfig {
        rail_error_threshold: 2,
        rail_error_window: Duration::from_secs(1),
        rail_cooldown: Duration::from_millis(100),
    });
    let policy = TransportConfig {
        health,
        ..TransportConfig::new(Policy::Spray)
    };
    let config = Config::new(0, policy);
    let mut world = World::with(config, &[0, 0]);
    world.submit(0, Op::Write, 64 << 20);
    world.run(ms(3));
    world
}

fn state(world: &World<'_>) -> RailState {
    world.core.shared.view(RailId(0)).unwrap().state
}

#[test]
fn a_rail_pauses_at_its_threshold_and_comes_back_when_its_cooldown_is_over() {
    let mut world = world();
    world.reset_rail(0);
    world.run(ms(4));
    assert_eq!(state(&world), RailState::Healthy, "one error is not enough");
    world.run_until_reported(1, Duration::from_secs(1));
    // No success in between, which would forget the first.
    world.submit(1, Op::Write, 64 << 20);
    let at = world.now;
    world.run(at + Duration::from_millis(1));
    world.corrupts = |rail, _| (rail == RailId(0)).then_some(Cause::RetryExceeded);
    world.run(at + Duration::from_millis(20));
    assert_eq!(state(&world), RailState::Paused);
    world.corrupts = |_, _| None;
    world.run_until_reported(2, Duration::from_secs(1));
    world.run(at + Duration::from_millis(300));
    assert_eq!(state(&world), RailState::Healthy);
    let back: Vec<_> = world
        .log
        .iter()
        .filter(|line| line.contains("expired: true"))
        .collect();
    assert_eq!(back.len(), 1, "{back:?}");
    let before = world.done_bytes(0);
    world.submit(2, Op::Write, 8 << 20);
    world.run_until_reported(3, Duration::from_secs(1));
    assert!(world.done_bytes(0) > before);
    for tag in 0..3 {
        assert_eq!(world.reports[&tag].status, Status::Completed, "{tag}");
    }
}

#[test]
fn a_success_brings_a_paused_rail_back() {
    let mut world = world();
    // Another worker's errors pause the rail while this one's slices are on their way.
    let HealthMode::Reset(config) = world.core.health_mode_of(RailId(0)) else {
        unreachable!("set above")
    };
    let health = world.core.shared.health(RailId(0)).unwrap();
    health.handle_error(world.now, &config);
    assert!(health.handle_error(world.now, &config));
    assert_eq!(state(&world), RailState::Paused);
    let at = world.now;
    world.run(at + Duration::from_millis(2));
    assert_eq!(state(&world), RailState::Healthy);
    world.run_until_reported(1, Duration::from_secs(1));
    assert_eq!(world.reports[&0].status, Status::Completed);
}
