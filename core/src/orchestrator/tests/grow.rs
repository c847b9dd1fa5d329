//! A plan that is installed again with more rails, while requests have it.

use super::*;

#[test]
fn a_request_that_is_under_way_uses_the_rails_that_its_plan_gets() {
    // `Documented` has given each rail its part when a request is submitted.
    for policy in [Policy::Spray, Policy::RoundRobin] {
        let mut world = World::with(Config::new(0, policy), &[0, 0]);
        let whole = world.core.plan(PLAN).expect("the plan").clone();
        let mut part = whole.clone();
        part.transports[0].rails.truncate(1);
        assert!(world.core.install_plan(world.now, PLAN, &part));
        world.submit(0, Op::Write, 8 << 20);
        world.run(ms(2));
        assert!(world.reports.is_empty(), "{policy:?}: it is on its way");
        assert_eq!(world.done_bytes(1), 0, "{policy:?}");
        let before = world.done_bytes(0);
        assert!(world.core.install_plan(world.now, PLAN, &whole));
        world.run_until_reported(1, Duration::from_millis(50));
        assert_eq!(world.reports[&0].status, Status::Completed, "{policy:?}");
        // Of two equal rails the new one carries a third of what is left at least.
        let [old, new] = [world.done_bytes(0) - before, world.done_bytes(1)];
        assert!(new * 2 >= old, "{policy:?}: {old} and {new} bytes");
    }
}
