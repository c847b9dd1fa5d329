//! What single transports have of their own: how their rails are chosen, paused and learned of.

use super::*;
use crate::rail::documented::DocumentedConfig;
use crate::rail::health::{Incident, ResetConfig};

const fn reset(rail_error_threshold: u16, cooldown_ms: u64) -> HealthMode {
    HealthMode::Reset(ResetConfig {
        rail_error_threshold,
        rail_error_window: Duration::from_secs(1),
        rail_cooldown: Duration::from_millis(cooldown_ms),
    })
}

const fn transport_of(policy: Policy, health: HealthMode) -> TransportConfig {
    TransportConfig {
        health,
        ..TransportConfig::new(policy)
    }
}

/// A world whose plan ranks transports with so many rails each, and these settings.
fn world(rails: &[usize], own: &[TransportConfig]) -> World<'static> {
    let own: &'static [TransportConfig] = Vec::leak(own.to_vec());
    World::ranked_with(Config::new(0, Policy::Spray), own, rails)
}

fn states(world: &World<'_>) -> [RailState; 2] {
    [0, 1].map(|rail| world.core.shared.view(RailId(rail)).unwrap().state)
}

#[test]
fn each_transports_rails_pause_by_their_own_threshold_and_return_by_their_own_cooldown() {
    use RailState::{Healthy, Paused};
    let own = [
        transport_of(Policy::Spray, reset(1, 100)),
        transport_of(Policy::Spray, reset(3, 400)),
    ];
    let mut world = world(&[1, 1], &own);
    world.run(ms(1));
    let err = |world: &mut World<'_>, rail: u16| {
        let mode = world.core.health_mode_of(RailId(rail));
        let shared = world.core.shared;
        shared.handle_incident(world.now, RailId(rail), mode, Incident::Error);
    };
    for rail in [0, 1] {
        err(&mut world, rail);
    }
    assert_eq!(states(&world), [Paused, Healthy]);
    for _ in 0..2 {
        err(&mut world, 1);
    }
    assert_eq!(states(&world), [Paused, Paused]);
    world.submit(0, Op::Write, 1 << 20);
    world.run(ms(200));
    assert_eq!(
        states(&world),
        [Healthy, Paused],
        "the first cooldown is over"
    );
    world.run(ms(500));
    assert_eq!(states(&world), [Healthy, Healthy]);
}

#[test]
fn one_transport_may_decay_while_the_other_resets() {
    let own = [
        transport_of(Policy::Spray, HealthMode::Decay),
        // Nobody looks whether it is faster, or that would bring it back.
        transport_of(Policy::RoundRobin, reset(1, 60_000)),
    ];
    let mut world = world(&[1, 1], &own);
    world.submit(0, Op::Write, 4 << 20);
    world.run_until_reported(1, Duration::from_secs(1));
    world.reset_rail(0);
    let mode = world.core.health_mode_of(RailId(1));
    let shared = world.core.shared;
    shared.handle_incident(world.now, RailId(1), mode, Incident::Error);
    world.submit(1, Op::Write, 4 << 20);
    let at = world.now;
    world.run(at + Duration::from_millis(100));
    // The first one was probed, the second one waits for a minute.
    assert_eq!(states(&world), [RailState::Healthy, RailState::Paused]);
    assert_eq!(world.reports[&1].status, Status::Completed);
}

/// Bytes that each rail carried of two requests, of which the second one goes over the second transport.
fn carried(own: &[TransportConfig]) -> Vec<u64> {
    let mut world = world(&[2, 2], own);
    // The second rail of each transport is four times slower.
    for slow in [1, 3] {
        world.links[slow].rate = Rate::from_bytes_per_sec(250_000_000);
    }
    world.submit(0, Op::Write, 8 << 20);
    world.run_until_reported(1, Duration::from_secs(2));
    for rail in [0, 1] {
        // For good, as far as this test goes.
        world.links[rail].cut = true;
    }
    world.submit(1, Op::Write, 8 << 20);
    world.run_until_reported(2, Duration::from_secs(5));
    for tag in [0, 1] {
        assert_eq!(world.reports[&tag].status, Status::Completed, "{tag}");
    }
    (0..4).map(|rail| world.done_bytes(rail)).collect()
}

#[test]
fn each_transports_rails_are_chosen_by_its_own_policy() {
    use Policy::{RoundRobin, Spray};
    let own = |first, second| [first, second].map(|policy| transport_of(policy, HealthMode::Decay));
    // In turn both rails carry the same, whatever they are; sprayed, the slow one carries less.
    let even = |rails: &[u64]| rails[0].abs_diff(rails[1]) <= 2 * u64::from(SLICE);
    let in_turn = carried(&own(RoundRobin, Spray));
    assert!(even(&in_turn[..2]) && !even(&in_turn[2..]), "{in_turn:?}");
    let sprayed = carried(&own(Spray, RoundRobin));
    assert!(!even(&sprayed[..2]) && even(&sprayed[2..]), "{sprayed:?}");
}

#[test]
fn shares_are_fixed_by_the_parameters_of_their_transport() {
    // A far rail that one transport does not mind, and the other one does not touch.
    let penal = |penalty| TransportConfig {
        documented: DocumentedConfig {
            numa_penalties: [1.0, penalty, penalty],
            ..DocumentedConfig::DEFAULT
        },
        ..transport_of(Policy::Documented, HealthMode::Decay)
    };
    let far_bytes = |own: &[TransportConfig]| {
        let own: &'static [TransportConfig] = Vec::leak(own.to_vec());
        let mut world = World::among_with(1, Config::new(0, Policy::Spray), own, &[0, 1]);
        world.submit(0, Op::Write, 8 << 20);
        world.run_until_reported(1, Duration::from_secs(2));
        world.done_bytes(1)
    };
    assert!(far_bytes(&[penal(1.0)]) >= 3 << 20);
    assert!(far_bytes(&[penal(1e6)]) < 1 << 20);
}
