//! Rails that stand in for others.

use super::*;

/// Two devices here and two there. Rails 0 and 1 join those that face each other; 2 stands in for 0 and 3 for 1, each with the
/// other device there.
fn crossed(config: Config) -> World<'static> {
    let world = World::with(config, &[0; RAILS]);
    for (spare, of) in [(2, 0), (3, 1)] {
        make_spare(&world, spare, of);
    }
    world
}

fn make_spare(world: &World<'_>, spare: u16, of: u16) {
    let config = RailConfig {
        peer: PEER,
        device: DeviceId(of),
        far: None,
        estimate: of_tier(0),
    };
    let shared = world.core.shared;
    assert!(shared.install_spare(RailId(spare), RailId(of), config));
}

fn spray() -> Config {
    Config::new(0, Policy::Spray)
}

impl World<'_> {
    fn cut(&mut self, rails: &[u16], cut: bool) {
        for rail in rails {
            self.links[usize::from(*rail)].cut = cut;
        }
    }

    fn carried(&self, rails: [u16; 2]) -> u64 {
        rails.iter().map(|rail| self.done_bytes(*rail)).sum()
    }
}

#[test]
fn a_spare_is_not_even_opened_while_nothing_is_out() {
    for policy in Policy::ALL {
        let mut world = crossed(Config::new(0, policy));
        for tag in 0..4 {
            world.submit(tag, Op::Write, 32 << 20);
        }
        world.run_until_reported(4, Duration::from_secs(2));
        assert_eq!(world.reports.len(), 4, "{policy:?}");
        assert!(world.opened(0) + world.opened(1) > 0, "{policy:?}");
        let spares = (world.opened(2), world.opened(3), world.carried([2, 3]));
        assert_eq!(spares, (0, 0, 0), "{policy:?}");
    }
}

#[test]
fn a_spare_carries_as_long_as_the_rail_that_it_stands_in_for_is_out() {
    for policy in Policy::ALL {
        let mut world = crossed(Config::new(0, policy));
        for tag in 0..8 {
            world.submit(tag, Op::Write, 256 << 20);
        }
        world.run(ms(50));
        assert_eq!(world.carried([2, 3]), 0, "{policy:?}");
        world.cut(&[0], true);
        world.reset_rail(0);
        world.run(ms(250));
        let during = world.done_bytes(2);
        assert!(during > 100_000_000, "{policy:?}: {during}");
        assert_eq!(world.done_bytes(3), 0, "{policy:?}");
        world.cut(&[0], false);
        // It is looked at each 10 ms, and what is on its way over the spare ends there: up to 64 MiB.
        world.run(ms(400));
        let after = world.done_bytes(2);
        world.run(ms(500));
        assert_eq!(world.done_bytes(2), after, "{policy:?}");
        assert!(world.reports.len() < 8, "nothing left to do");
    }
}

#[test]
fn a_spare_is_there_within_milliseconds() {
    let mut world = crossed(spray());
    world.submit(0, Op::Write, 1 << 40);
    world.run(ms(50));
    world.reset_rail(0);
    world.cut(&[0], true);
    world.run(ms(55));
    assert!(world.done_bytes(2) > 1_000_000, "{}", world.done_bytes(2));
}

#[test]
fn with_a_device_out_on_either_side_the_other_two_still_meet() {
    // The second device here, and the first one there.
    let dead = [0, 1, 3];
    for (name, cut_at) in [("under way", 20), ("before the first byte", 0)] {
        for op in [Op::Write, Op::Read] {
            for policy in Policy::ALL {
                let mut world = crossed(Config::new(0, policy));
                world.run(ms(cut_at / 2));
                world.submit(0, op, 256 << 20);
                world.run(ms(cut_at));
                world.cut(&dead, true);
                world.run_until_reported(1, Duration::from_secs(10));
                let status = world.reports.get(&0).map(|report| report.status);
                assert_eq!(
                    status,
                    Some(Status::Completed),
                    "{name}, {op:?}, {policy:?}"
                );
                assert!(world.done_bytes(2) > 200 << 20, "{name}, {op:?}");
                // Nothing moved anywhere, which might have been the peer: it took two seconds until a rail was found out.
                // (Two of the others use no third rail before one of theirs is out.)
                let soon = cut_at == 0 || world.now < ms(600);
                let may_wait = [Policy::Documented, Policy::BestTwo].contains(&policy);
                assert!(soon || may_wait, "{policy:?}: {:?}", world.now);
            }
        }
    }
}

#[test]
fn all_dark_for_a_moment_is_as_short_as_without_spares() {
    // Rails that no lane has ever been opened on were taken for healthy ones, so the others were looked at less often.
    let mut world = crossed(spray());
    world.submit(0, Op::Write, 1 << 40);
    world.run(ms(50));
    world.cut(&[0, 1, 2, 3], true);
    world.reset_rail(0);
    world.reset_rail(1);
    world.run(ms(52));
    world.cut(&[0, 1, 2, 3], false);
    let before = world.carried([0, 1]);
    world.run(ms(62));
    let carried = world.carried([0, 1]) - before;
    assert!(carried > 8_000_000, "{carried}");
}

#[test]
fn a_spare_that_does_not_open_keeps_nobody_from_another_transport_for_long() {
    // Ranked: rail 0 with its spare, 1; then rail 2.
    let mut world = World::ranked(spray(), &[2, 1]);
    make_spare(&world, 1, 0);
    world.submit(0, Op::Write, 1 << 40);
    world.run(ms(50));
    assert_eq!(world.carried([1, 2]), 0);
    world.cut(&[0, 1], true);
    world.reset_rail(0);
    world.run(ms(50 + 100));
    assert!(world.done_bytes(2) > 10_000_000, "{:?}", world.failovers);
    // And where it does, there is no need for the other one.
    let mut world = World::ranked(spray(), &[2, 1]);
    make_spare(&world, 1, 0);
    world.submit(0, Op::Write, 1 << 40);
    world.run(ms(50));
    world.cut(&[0], true);
    world.reset_rail(0);
    world.run(ms(150));
    assert_eq!((world.done_bytes(2), world.failovers.len()), (0, 0));
    assert!(world.done_bytes(1) > 80_000_000);
}

#[test]
fn a_spare_that_is_not_used_makes_no_deadline_look_near() {
    // Its rate was added to that of the rails in use: what cannot end in time any more is told too late.
    let mut world = crossed(spray());
    world.submit(0, Op::Write, 64 << 20);
    world.run(ms(5));
    let by = world.now + Duration::from_millis(200);
    world.deadline = by;
    // It would take a quarter of a second over both.
    world.submit(1, Op::Write, 500_000_000);
    let due = |world: &World<'_>| world.core.poll_timeout().map(|(at, _)| at);
    assert!(due(&world).is_some());
    world.run_until_reported(1, Duration::from_secs(1));
    let report = world.reports.get(&1).map(|report| report.status);
    assert_eq!(report, Some(Status::DeadlineExceeded));
    assert!(world.now < by);
}
