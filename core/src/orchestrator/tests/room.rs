//! Lanes that make room for others on their device.

use super::*;

/// The last thing that was asked for with a lane on a rail, in words.
fn last(world: &World<'_>, rail: u16) -> std::string::String {
    let of_rail = format!("{:?}", LaneId::new(0, RailId(rail)));
    let actions = ["Open {", "Fence {", "Close {"];
    let is_its = |line: &&std::string::String| {
        line.contains(&of_rail) && actions.iter().any(|action| line.contains(action))
    };
    world.log.iter().rfind(is_its).cloned().unwrap_or_default()
}

/// Peers over a rail each, all but the last one on one device, and a plan for each.
fn world(shares_device: bool) -> World<'static> {
    let mut world = World::new(Policy::Spray, RAILS as u16);
    for rail in 0..RAILS as u16 {
        let estimate = of_tier(0);
        let device = match shares_device {
            true => DeviceId(0),
            false => DeviceId(rail),
        };
        let config = RailConfig {
            peer: PEER,
            device,
            far: None,
            estimate,
        };
        assert!(world.core.shared.install_rail(RailId(rail), config));
        let mut plan = plan_of(PEER);
        plan.transports = [transport(0, rail, &[0])].into_iter().collect();
        assert!(world.core.install_plan(world.now, plan_id(rail), &plan));
    }
    world
}

fn plan_id(rail: u16) -> PlanId {
    PlanId {
        index: 1 + u32::from(rail),
        generation: 1,
    }
}

/// Moves something over a rail, which opens its lane.
fn use_rail(world: &mut World<'_>, rail: u16, tag: u64) {
    let before = world.reports.len();
    world.submit_with(plan_id(rail), tag, Op::Write, 1000);
    world.run_until_reported(before + 1, Duration::from_millis(500));
    assert_eq!(world.reports[&tag].status, Status::Completed);
}

/// A lane on a rail begins to open, and is said to be one too many.
fn crowd(world: &mut World<'_>, rail: u16, tag: u64) {
    world.submit_with(plan_id(rail), tag, Op::Write, 1000);
    world.drain();
    assert!(
        last(world, rail).contains("Open {"),
        "{}",
        last(world, rail)
    );
    let epoch = world.core.lanes[usize::from(rail)].epoch();
    let lane = LaneId::new(0, RailId(rail));
    world
        .core
        .handle_lane(world.now, lane, epoch, LaneFact::Crowded);
    world.drain();
    world.core.audit().unwrap();
}

#[test]
fn the_lane_that_has_stood_idle_for_longest_makes_room_and_nobody_is_blamed() {
    let mut world = world(true);
    for (tag, rail) in [0, 1, 2, 0].into_iter().enumerate() {
        use_rail(&mut world, rail, tag as u64);
    }
    crowd(&mut world, 3, 10);
    assert!(last(&world, 1).contains("Close {"), "{}", last(&world, 1));
    for rail in [0, 2] {
        assert!(last(&world, rail).contains("Open {"), "{rail}");
    }
    assert!(!world.log.iter().any(|line| line.contains("RailChanged")));
    world.run_until_reported(5, Duration::from_millis(500));
    // It is opened anew when there is something for it, at once.
    let before = world.now;
    use_rail(&mut world, 1, 11);
    assert!(world.now.since(before) < Duration::from_millis(2));
    assert_eq!(world.reports[&11].status, Status::Completed);
}

#[test]
fn lanes_at_work_and_those_of_other_devices_stay() {
    // On devices of their own.
    let mut apart = world(false);
    for rail in 0..3 {
        use_rail(&mut apart, rail, u64::from(rail));
    }
    crowd(&mut apart, 3, 10);
    // All at work.
    let mut busy = world(true);
    for rail in 0..3 {
        use_rail(&mut busy, rail, u64::from(rail));
    }
    for rail in 0..3 {
        busy.submit_with(plan_id(rail), 20 + u64::from(rail), Op::Write, 1 << 20);
    }
    busy.drain();
    crowd(&mut busy, 3, 10);
    for world in [&apart, &busy] {
        for rail in 0..3 {
            assert!(last(world, rail).contains("Open {"), "{rail}");
        }
    }
    // It is late: the lane is open.
    let facts = apart.core.ignored().facts;
    apart.run_until_reported(4, Duration::from_millis(500));
    let epoch = apart.core.lanes[3].epoch();
    let lane = LaneId::new(0, RailId(3));
    apart
        .core
        .handle_lane(apart.now, lane, epoch, LaneFact::Crowded);
    assert_eq!(apart.core.ignored().facts, facts + 1);
}
