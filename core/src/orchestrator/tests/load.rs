//! What a lane says of itself.

use super::*;

fn of(world: &World<'_>, rail: u16) -> LaneLoad {
    let mut lanes = world.core.lanes();
    lanes
        .find(|load| load.rail == RailId(rail))
        .expect("a lane")
}

#[test]
fn a_lane_says_what_it_holds_since_when_it_is_full_and_what_has_ended_on_it() {
    let mut world = World::new(Policy::Spray, 1);
    assert_eq!(world.core.lanes().count(), 0, "none was ever open");
    world.limits[0].works_max = 2;
    world.submit(0, Op::Write, 62 * u64::from(SLICE));
    world.run(ms(1));
    let load = of(&world, 0);
    assert_eq!((load.state, load.limit_works), (LaneState::Open, 2));
    assert!(load.released_works > 0 && load.releases <= load.released_works);
    assert_eq!(load.held_works_high, 2);
    assert!(load.completed_at.is_some_and(|at| at <= world.now));
    // Nothing comes back from now on, and it stays full.
    world.links[0].cut = true;
    let at = world.now;
    world.run(at + Duration::from_micros(500));
    let load = of(&world, 0);
    assert_eq!(load.held_works, 2);
    assert!(load.held_bytes >= 2 * u64::from(SLICE));
    let released = load.released_works;
    let since = load.full_since.expect("it is full");
    assert!(since <= at + Duration::from_micros(200), "{since:?}");
    world.run(at + Duration::from_millis(2));
    assert_eq!(of(&world, 0).full_since, Some(since), "and still is");
    world.links[0].cut = false;
    world.run_until_reported(1, Duration::from_secs(2));
    let load = of(&world, 0);
    assert_eq!(
        (load.held_works, load.held_bytes, load.full_since),
        (0, 0, None)
    );
    assert!(load.released_works > released, "{load:?}");
}
