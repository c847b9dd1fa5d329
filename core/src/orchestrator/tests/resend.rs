//! Writes of a lane that has failed: only what the peer does not have is sent again.

use super::ending::warmed;
use super::*;

/// Bytes of users' memory that are on their way over a rail.
fn under_way(world: &World<'_>, rail: u16) -> u64 {
    let of_rail = world
        .lanes
        .iter()
        .filter(|((lane, _), far)| lane.rail() == RailId(rail) && !far.fenced);
    let works = of_rail.flat_map(|(_, far)| &far.on_its_way);
    let users = works.filter(|(_, work)| work.remote.segment == SegmentRef(2));
    users.map(|(_, work)| u64::from(work.length)).sum()
}

#[test]
fn what_the_peer_has_is_not_sent_again_however_many_lanes_fail() {
    const LENGTH: u64 = 16 << 20;
    for failures in 1..=3 {
        let mut world = warmed(World::new(Policy::Spray, 4));
        world.sent_bytes = 0;
        world.submit(1, Op::Write, LENGTH);
        let mut lost = 0;
        for rail in 0..failures {
            world.run(world.now + Duration::from_micros(700));
            lost += under_way(&world, rail);
            world.reset_rail(rail);
            // It does not come back.
            world.links[usize::from(rail)].cut = true;
        }
        world.run_until_reported(1, Duration::from_secs(1));
        assert_eq!(world.reports[&1].status, Status::Completed);
        assert!(lost > 0, "something was under way each time");
        assert_eq!(world.sent_bytes, LENGTH + lost, "{failures} failures");
    }
}

#[test]
fn a_peer_that_does_not_say_what_it_has_holds_up_nothing_for_long() {
    let mut world = warmed(World::new(Policy::Spray, 2));
    world.submit(1, Op::Write, 1 << 20);
    world.run(world.now + Duration::from_micros(100));
    // The peer is not heard any more; the second rail carries what it is given.
    world.answers_fences = false;
    world.reset_rail(0);
    world.links[0].cut = true;
    let from = world.now;
    while world.arrived.range(1 << 30..).count() < 16 {
        world.run(world.now + Duration::from_micros(100));
        assert!(
            world.now < from + Duration::from_millis(20),
            "nothing is sent elsewhere"
        );
    }
}
