//! A port that is active again is worth a probe at once.

use super::*;
use crate::rail::health::ResetConfig;

/// A rail whose link was cut for a minute is whole again; the last epoch of its lane.
fn world<C: Into<PoliciesConfig>>(config: Config<C>, after: Duration) -> (World<'static>, Epoch) {
    let mut world = World::with(config, &[0, 0]);
    world.submit(0, Op::Write, 8 << 20);
    world.run(ms(1));
    world.links[0].cut = true;
    world.reset_rail(0);
    world.run(ms(60_000) + after);
    assert_eq!(world.reports[&0].status, Status::Completed);
    assert!(!world.core.is_healthy(RailId(0)));
    world.links[0].cut = false;
    let epoch = world.core.lanes[0].epoch();
    (world, epoch)
}

fn tell(world: &mut World<'_>, epoch: Epoch) {
    let lane = LaneId::new(0, RailId(0));
    world
        .core
        .handle_lane(world.now, lane, epoch, LaneFact::PortActive);
}

#[test]
fn a_paused_rail_whose_port_is_active_again_is_probed_at_once() {
    let mut late = 0;
    // Wherever its last probe stands: they are half a second apart.
    for step in 0..20 {
        let after = Duration::from_millis(29 * step);
        let config = || Config::new(0, Policy::Spray);
        let (mut untold, _) = world(config(), after);
        untold.run(untold.now + Duration::from_millis(1));
        late += usize::from(!untold.core.is_healthy(RailId(0)));
        let (mut told, epoch) = world(config(), after);
        tell(&mut told, epoch);
        told.run(told.now + Duration::from_millis(1));
        assert!(told.core.is_healthy(RailId(0)), "after {after:?}");
    }
    assert!(late > 15, "else nothing was shown: {late}");
}

#[test]
fn what_the_port_of_an_older_epoch_or_of_a_healthy_rail_does_changes_nothing() {
    let (mut told, epoch) = world(Config::new(0, Policy::Spray), Duration::from_millis(100));
    tell(&mut told, Epoch(epoch.0 - 1));
    told.run(told.now + Duration::from_millis(1));
    assert!(!told.core.is_healthy(RailId(0)));
    told.run(told.now + Duration::from_secs(1));
    assert!(told.core.is_healthy(RailId(0)));
    let epoch = told.core.lanes[0].epoch();
    tell(&mut told, epoch);
    told.submit(1, Op::Write, 8 << 20);
    told.run_until_reported(2, Duration::from_secs(1));
    assert_eq!(told.reports[&1].status, Status::Completed);
    assert_eq!(told.core.lanes[0].epoch(), epoch, "its lane stays");
}

#[test]
fn a_cooldown_lasts_as_long_as_it_does() {
    let health = HealthMode::Reset(ResetConfig {
        rail_error_threshold: 1,
        rail_error_window: Duration::from_secs(1),
        rail_cooldown: Duration::from_secs(100),
    });
    let policy = TransportConfig {
        health,
        ..TransportConfig::new(Policy::Spray)
    };
    let config = Config::new(0, policy);
    let (mut told, epoch) = world(config, Duration::ZERO);
    tell(&mut told, epoch);
    told.run(told.now + Duration::from_secs(10));
    assert!(!told.core.is_healthy(RailId(0)));
}
