//! What is begun of requests that have a deadline.

use super::*;

#[test]
fn what_cannot_end_in_time_behind_others_is_not_begun() {
    // The third one was begun, and moved 2 MiB for nothing.
    let mut world = World::new(Policy::Spray, 1);
    world.deadline = ms(11);
    for tag in 0..8 {
        world.submit(tag, Op::Write, 4 << 20);
    }
    world.run(ms(10));
    let ended = |world: &World<'_>, status| {
        let reports = world.reports.values();
        reports.filter(|report| report.status == status).count()
    };
    assert_eq!(ended(&world, Status::Completed), 2);
    let failed = ended(&world, Status::DeadlineExceeded);
    assert_eq!(failed, 6, "before the deadline");
    assert_eq!(world.sent_bytes, 8 << 20);
}

#[test]
fn what_nothing_is_before_is_tried_whatever_rails_are_believed_to_carry() {
    // Who believed that nothing can be in time would never learn better.
    let mut world = World::new(Policy::Spray, 1);
    world.deadline = ms(2);
    world.submit(0, Op::Write, 4 << 20);
    world.run(ms(4));
    let report = world.reports[&0];
    assert_eq!(report.status, Status::DeadlineExceeded);
    assert!(report.delivered_bytes > 1 << 20, "{report:?}");
}
