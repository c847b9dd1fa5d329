//! What errors, and outages that are over soon, cost.

use super::*;

/// Bytes that pass in `span` while rails fail as `happens` says every so often.
fn carried(rails: u16, every: Duration, span: Duration, happens: fn(&mut World<'_>, u64)) -> u64 {
    let mut world = World::new(Policy::Spray, rails);
    for tag in 0..4 {
        world.submit(tag, Op::Write, 1 << 40);
    }
    world.run(ms(10));
    let bytes = |world: &World<'_>| (0..rails).map(|rail| world.done_bytes(rail)).sum::<u64>();
    let before = bytes(&world);
    let until = world.now + span;
    let mut number = 0;
    while world.now < until {
        happens(&mut world, number);
        number += 1;
        world.run(world.now + every);
    }
    assert!(world.reports.is_empty());
    bytes(&world) - before
}

#[test]
fn an_error_now_and_then_costs_a_fence_and_a_look_each_time() {
    // It cost a pause that doubled with each: four rails that failed each 20 ms carried a tenth.
    let span = Duration::from_millis(1_000);
    let all = |world: &mut World<'_>, number| world.reset_rail((number % 4) as u16);
    let bytes = carried(4, Duration::from_millis(5), span, all);
    assert!(bytes > 4_000_000_000 / 100 * 95, "{bytes}");
}

#[test]
fn all_rails_dark_for_a_moment_are_back_in_a_moment() {
    // They were looked at after pauses of 10, 20, 40, … ms.
    let span = Duration::from_millis(1_000);
    let bytes = carried(2, Duration::from_millis(100), span, |world, _| {
        for rail in 0..2 {
            world.links[usize::from(rail)].cut = true;
            world.reset_rail(rail);
        }
        world.run(world.now + Duration::from_millis(2));
        for rail in 0..2 {
            world.links[rail].cut = false;
        }
    });
    assert!(bytes > 2_000_000_000 / 100 * 93, "{bytes}");
}

#[test]
fn a_rail_whose_lanes_take_long_to_open_is_back_after_an_outage() {
    // Each look was over before a lane had opened, for ever.
    for (opens_after, back_in) in [(40, 200), (150, 2_000), (300, 5_000), (900, 15_000)] {
        let mut world = World::new(Policy::Spray, 2);
        for link in &mut world.links[..2] {
            link.rate = Rate::from_bytes_per_sec(50_000_000);
        }
        world.submit(0, Op::Write, 1 << 40);
        world.run(ms(10));
        world.links[1].opens_after = Duration::from_millis(opens_after);
        world.links[1].cut = true;
        world.reset_rail(1);
        world.run(world.now + Duration::from_millis(100));
        world.links[1].cut = false;
        world.run(world.now + Duration::from_millis(back_in));
        let state = world.core.shared.view(RailId(1)).unwrap().state;
        assert_eq!(state, RailState::Healthy, "{opens_after} ms to open");
    }
}

#[test]
fn a_rail_that_only_fails_is_given_up_for_a_while() {
    // A look is good each time, and the first slice after it is not.
    let mut world = World::new(Policy::Spray, 2);
    world.corrupts = |rail, work| {
        (rail == RailId(1) && work.remote.segment == SegmentRef(2)).then_some(Cause::Reset)
    };
    world.submit(0, Op::Write, 1 << 40);
    world.run(ms(1_000));
    let opened = (world.log.iter())
        .filter(|line| line.contains("Open"))
        .count();
    assert!(opened <= 20, "{opened} in a second");
    assert!(world.done_bytes(0) > 900_000_000);
}

/// Until a rail of two that falls silent is paused, in microseconds, after `before` has happened to it so many times.
fn noticed_after(times: u64, before: fn(&mut World<'_>)) -> u64 {
    let mut world = World::new(Policy::Spray, 2);
    world.submit(0, Op::Write, 1 << 40);
    world.run(ms(20));
    let is_healthy =
        |world: &World<'_>| world.core.shared.view(RailId(1)).unwrap().state == RailState::Healthy;
    for _ in 0..times {
        before(&mut world);
        while !is_healthy(&world) {
            world.run(world.now + Duration::from_millis(1));
        }
        world.run(world.now + Duration::from_millis(200));
    }
    let cut_at = world.now;
    world.links[1].cut = true;
    while is_healthy(&world) && world.now < cut_at + Duration::from_secs(1) {
        world.run(world.now + Duration::from_micros(100));
    }
    world.now.since(cut_at).as_nanos() / 1_000
}

#[test]
fn who_was_suspected_rightly_is_suspected_as_soon_the_next_time() {
    let silence = |world: &mut World<'_>| {
        world.links[1].cut = true;
        world.run(world.now + Duration::from_millis(30));
        world.links[1].cut = false;
    };
    let fresh = noticed_after(0, silence);
    assert!((5_000..12_000).contains(&fresh), "{fresh}");
    // Each doubled what the next one took.
    let after = noticed_after(4, silence);
    assert!(after < fresh + 1_000, "{fresh}, then {after}");
}

#[test]
fn who_was_suspected_wrongly_is_given_more_time() {
    let late = |world: &mut World<'_>| {
        world.loses = |rail, work| rail == RailId(1) && work.remote.segment == SegmentRef(2);
        world.run(world.now + Duration::from_millis(30));
        world.loses = |_, _| false;
        world.run(world.now + Duration::from_millis(200));
    };
    let fresh = noticed_after(0, late);
    let after = noticed_after(2, late);
    assert!(
        (fresh * 3..=fresh * 16).contains(&after),
        "{fresh}, then {after}"
    );
}

/// How long 16 MiB take over two rails, of which one loses a completion now and then.
fn with_lost_completions(limits: LaneLimits) -> Duration {
    let mut world = World::new(Policy::Spray, 2);
    world.limits = [limits; RAILS];
    world.loses = |rail, work| rail == RailId(1) && work.remote.offset % (1 << 21) < 1 << 17;
    let before = world.now;
    world.submit(0, Op::Write, 16 << 20);
    world.run_until_reported(1, Duration::from_secs(3));
    assert_eq!(world.reports[&0].status, Status::Completed);
    world.now.since(before)
}

#[test]
fn a_later_completion_proves_an_earlier_one_lost() {
    // Each cost 10 ms and more, and stood still for as long as others moved.
    let covers = LaneLimits {
        covers: true,
        counts: false,
        ..LIMITS
    };
    let took = with_lost_completions(covers);
    assert!(took < Duration::from_millis(20), "{took:?}");
}

#[test]
fn a_lost_completion_is_noticed_while_its_lane_goes_on() {
    // Where each work completes by itself a later one proves nothing, and the lane never stood still: for as long as others went
    // over it, the request waited, and two seconds more.
    let mut world = World::new(Policy::Spray, 1);
    world.loses = |_, work| work.remote.offset == 0;
    world.submit(0, Op::Write, 4_096);
    world.run(ms(2));
    world.loses = |_, _| false;
    let mut tag = 1;
    while !world.reports.contains_key(&0) && tag < 1_000 {
        world.submit(tag, Op::Write, 4_096);
        world.run(world.now + Duration::from_millis(1));
        tag += 1;
    }
    assert_eq!(world.reports[&0].status, Status::Completed);
    assert!((20..100).contains(&tag), "after {tag} ms");
}

#[test]
fn a_rail_far_slower_than_believed_carries_something_all_the_same() {
    // A slice takes 26 ms there, and silence is suspected after 10.
    let mut world = World::new(Policy::Spray, 2);
    world.links[1].rate = Rate::from_bytes_per_sec(2_500_000);
    world.submit(0, Op::Write, 1 << 40);
    world.run(ms(3_000));
    assert!(world.done_bytes(1) > 0);
}
