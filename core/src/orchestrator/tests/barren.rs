//! Lanes that end again and again without having carried anything.

use super::*;

/// How often lanes were opened until now.
fn openings(world: &World<'_>) -> usize {
    world
        .log
        .iter()
        .filter(|line| line.contains("Open"))
        .count()
}

/// At most this many openings in ten seconds carry nothing.
const OPENINGS_MAX: usize = 20;

#[test]
fn a_lane_whose_works_only_ever_flush_is_not_rebuilt_without_end() {
    for cause in [Cause::Flushed, Cause::PeerGone, Cause::Reset, Cause::NoRail] {
        let mut world = World::new(Policy::Spray, 1);
        world.corrupts = match cause {
            Cause::Flushed => {
                |_, work| (work.remote.segment == SegmentRef(2)).then_some(Cause::Flushed)
            }
            Cause::PeerGone => {
                |_, work| (work.remote.segment == SegmentRef(2)).then_some(Cause::PeerGone)
            }
            Cause::Reset => {
                |_, work| (work.remote.segment == SegmentRef(2)).then_some(Cause::Reset)
            }
            _ => |_, work| (work.remote.segment == SegmentRef(2)).then_some(Cause::NoRail),
        };
        while world.now < ms(10_000) {
            // Programs go on, as they do.
            let tag = world.reports.len() as u64 + 1;
            if world.core.requests() == 0 {
                world.submit(tag, Op::Read, 1000);
            }
            world.run(world.now + Duration::from_millis(10));
        }
        let opened = openings(&world);
        assert!(opened <= OPENINGS_MAX, "{cause:?}: {opened} in 10 s");
        let report = world.reports[&1];
        assert_eq!((report.status, report.cause), (Status::Failed, Some(cause)));
    }
}

#[test]
fn probes_that_only_ever_flush_come_more_and_more_rarely() {
    let mut world = World::new(Policy::Spray, 1);
    world.corrupts = |_, _| Some(Cause::Flushed);
    for tag in 1..=20 {
        world.submit(tag, Op::Write, 1000);
        world.run(world.now + Duration::from_millis(500));
    }
    let opened = openings(&world);
    assert!(opened <= OPENINGS_MAX, "{opened} in 10 s");
    assert!(world.reports.len() >= 15, "{:?}", world.reports);
}

#[test]
fn a_post_that_is_refused_for_no_rails_cause_is_not_repeated_without_end() {
    let mut world = World::new(Policy::Spray, 1);
    world.refuses = |_| Some(Cause::Flushed);
    world.submit(1, Op::Write, 1000);
    world.run(world.now + Duration::from_secs(10));
    let opened = openings(&world);
    assert!(opened <= OPENINGS_MAX, "{opened} in 10 s");
    assert_eq!(world.reports[&1].status, Status::Failed);
}

#[test]
fn a_lane_that_breaks_before_anything_is_posted_is_not_rebuilt_without_end() {
    let mut world = World::new(Policy::Spray, 1);
    world.submit(1, Op::Write, 1000);
    let mut opened = 0;
    while world.now < Instant::ZERO + Duration::from_secs(10) {
        let mut batch = PostBatch::default();
        assert!(world.core.poll_post(world.now, &mut batch).is_none());
        while let Some(action) = world.core.poll_lane() {
            if let LaneAction::Open { lane, epoch, .. } = action {
                opened += 1;
                for fact in [
                    LaneFact::Opened { limits: LIMITS },
                    LaneFact::Broken(Cause::Flushed),
                ] {
                    world.core.handle_lane(world.now, lane, epoch, fact);
                }
            }
        }
        while let Some(event) = world.core.poll_event() {
            world.event(event);
        }
        world.core.audit().unwrap();
        world.core.handle_frame(world.now, PEER, &Frame::Alive);
        world.now = world.now + Duration::from_millis(1);
        world.core.handle_timeout(world.now);
    }
    assert!(opened <= OPENINGS_MAX, "{opened} in 10 s");
    assert_eq!(world.reports[&1].status, Status::Failed);
}

#[test]
fn the_next_transport_takes_what_a_lane_that_carries_nothing_had() {
    let mut world = World::ranked(Config::new(0, Policy::Spray), &[1, 1]);
    world.corrupts = |rail, work| {
        let is_users = work.remote.segment == SegmentRef(2);
        (is_users && rail == RailId(0)).then_some(Cause::Flushed)
    };
    world.submit(1, Op::Write, 4 << 20);
    world.run_until_reported(1, Duration::from_secs(1));
    assert_eq!(world.reports[&1].status, Status::Completed);
    assert!(!world.failovers.is_empty());
    assert!(world.now < ms(100), "{:?}", world.now);
}

#[test]
fn one_end_that_is_nobodys_pauses_no_rail() {
    let mut world = World::new(Policy::Spray, 1);
    world.submit(1, Op::Write, 1000);
    world.run(ms(0) + Duration::from_micros(120));
    let (lane, epoch) = *world.lanes.keys().next().expect("a lane");
    let fact = LaneFact::Broken(Cause::Flushed);
    world.core.handle_lane(world.now, lane, epoch, fact);
    assert_eq!(
        world.core.shared.view(RailId(0)).unwrap().state,
        RailState::Healthy
    );
    world.run_until_reported(1, Duration::from_secs(1));
    assert_eq!(world.reports[&1].status, Status::Completed);
}
