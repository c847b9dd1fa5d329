//! Who waits for whom: a request for no rails but its own, a long one for short ones within bounds.

use super::*;

/// A plan over so many rails from `first` on, under a number of its own.
fn plan_over(world: &mut World<'_>, number: u32, first: u16, rails: usize) -> PlanId {
    let mut plan = world.core.plan(PLAN).expect("the plan").clone();
    plan.transports = [transport(1, first, &[0; RAILS][..rails])]
        .into_iter()
        .collect();
    let id = PlanId {
        index: number,
        generation: 1,
    };
    assert!(world.core.install_plan(world.now, id, &plan));
    id
}

/// Opens the lanes of a plan.
fn warm(world: &mut World<'_>, plan: PlanId, tag: u64) {
    world.submit_with(plan, tag, Op::Write, 1 << 20);
    while !world.reports.contains_key(&tag) {
        world.run(world.now + Duration::from_micros(100));
        assert!(world.now < ms(1_000));
    }
}

/// How long a request takes from now on.
fn took(world: &mut World<'_>, (plan, op): (PlanId, Op), tag: u64, length: u64) -> Duration {
    let since = world.now;
    world.submit_with(plan, tag, op, length);
    while !world.reports.contains_key(&tag) {
        world.run(world.now + Duration::from_micros(50));
        assert!(world.now < since + Duration::from_secs(5), "{tag}");
    }
    world.now.since(since)
}

#[test]
fn no_request_waits_for_the_rails_of_another() {
    const LENGTH: u64 = 4 << 20;
    for (busy, other) in [
        (Op::Write, Op::Write),
        (Op::Read, Op::Write),
        (Op::Write, Op::Read),
    ] {
        // 4 ms at the rate of one rail.
        let mut world = World::new(Policy::Spray, 3);
        let [first, second] =
            [0, 1].map(|rail| plan_over(&mut world, 1 + u32::from(rail), rail, 1));
        warm(&mut world, first, 90);
        warm(&mut world, second, 91);
        let alone = took(&mut world, (second, other), 92, LENGTH);
        world.submit_with(first, 0, busy, 256 << 20);
        world.run(world.now + Duration::from_millis(5));
        let beside = took(&mut world, (second, other), 1, LENGTH);
        assert!(
            beside <= alone + alone.divided_by(20),
            "{busy:?}, {other:?}: {alone:?} alone, {beside:?} beside"
        );
        assert!(!world.reports.contains_key(&0));
    }
}

#[test]
fn nor_after_one_of_them_has_failed_over() {
    let mut world = World::ranked(Config::new(0, Policy::Spray), &[1, 1]);
    let own = plan_over(&mut world, 1, 0, 1);
    warm(&mut world, PLAN, 90);
    world.links[0].cut = true;
    world.reset_rail(0);
    // It goes on with the next transport, and fills that.
    world.submit(0, Op::Write, 512 << 20);
    world.run(world.now + Duration::from_millis(60));
    assert!(world.done_bytes(1) > 0, "the scenario");
    world.links[0].cut = false;
    world.run(world.now + Duration::from_millis(200));
    let before = world.done_bytes(0);
    let beside = took(&mut world, (own, Op::Write), 1, 4 << 20);
    assert!(beside <= Duration::from_millis(8), "{beside:?}");
    assert!(world.done_bytes(0) > before && !world.reports.contains_key(&0));
}

#[test]
fn more_sets_of_rails_than_lines_all_go_on() {
    // Each of them over one rail or two, all at once, in both directions.
    let mut world = World::new(Policy::Spray, RAILS as u16);
    let sets = (0..RAILS as u16).flat_map(|first| [(first, 1), (first, 2)]);
    let sets = sets.filter(|(first, rails)| usize::from(*first) + rails <= RAILS);
    let mut tag = 0;
    for (number, (first, rails)) in (1..).zip(sets) {
        let plan = plan_over(&mut world, number, first, rails);
        for op in [Op::Write, Op::Read] {
            world.submit_with(plan, tag, op, 3 << 20);
            tag += 1;
        }
    }
    world.run_until_reported(tag as usize, Duration::from_secs(2));
    let done = world.reports.values();
    let done = done.filter(|report| report.status == Status::Completed);
    assert_eq!(done.count() as u64, tag);
}

/// Keeps `count` requests of one slice under way for 100 ms, by when windows have been found, and then for 30 ms more, or until one
/// of 16 MiB has ended that joins them then. The 99th percentile of how long a short one took that began since then, and how long
/// the long one did.
fn short_beside(long: bool, count: usize) -> (Duration, Duration) {
    let mut world = World::new(Policy::Spray, 2);
    warm(&mut world, PLAN, 1_000);
    let (mut tag, mut since_of) = (10_000, BTreeMap::new());
    let (mut spans, joins) = (Vec::new(), world.now + Duration::from_millis(100));
    let until = joins + Duration::from_millis(30);
    let (mut joined, mut ended) = (false, !long);
    while !ended || world.now < until {
        for report in core::mem::take(&mut world.reports).into_keys() {
            match since_of.remove(&report) {
                Some(since) if since >= joins => spans.push(world.now.since(since)),
                Some(_) => {}
                None => ended |= report == 0,
            }
        }
        if long && !joined && world.now >= joins {
            world.submit(0, Op::Write, 16 << 20);
            joined = true;
        }
        if ended && long {
            break;
        }
        while since_of.len() < count {
            world.submit(tag, Op::Write, u64::from(SLICE));
            since_of.insert(tag, world.now);
            tag += 1;
        }
        world.run(world.now + Duration::from_micros(10));
        assert!(world.now < joins + Duration::from_secs(1));
    }
    spans.sort_unstable();
    (spans[spans.len() * 99 / 100], world.now.since(joins))
}

#[test]
fn a_long_request_has_its_share_beside_short_ones_without_end() {
    let mut world = World::new(Policy::Spray, 2);
    warm(&mut world, PLAN, 90);
    let alone = took(&mut world, (PLAN, Op::Write), 0, 16 << 20);
    let (without, _) = short_beside(false, 12);
    let (with, beside) = short_beside(true, 12);
    assert!(
        beside <= alone.times(4),
        "{alone:?} alone, {beside:?} beside short ones"
    );
    assert!(
        with <= without.times(3).divided_by(2),
        "short ones took up to {without:?}, and {with:?} beside the long one"
    );
}

#[test]
fn short_requests_of_several_at_a_time_go_over_all_rails() {
    // Together they were never more than one slice: only the first lane was ever opened.
    let mut world = World::new(Policy::Spray, RAILS as u16);
    let until = world.now + Duration::from_millis(20);
    let mut tag = 0;
    while world.now < until {
        while tag - (world.reports.len() as u64) < 8 {
            world.submit(tag, Op::Write, 8 * 1024);
            tag += 1;
        }
        world.run(world.now + Duration::from_micros(10));
    }
    for rail in 0..RAILS as u16 {
        assert!(world.done_bytes(rail) > 100 * 1024, "{rail}");
    }
}
