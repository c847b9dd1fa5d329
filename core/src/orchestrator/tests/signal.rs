//! Lanes whose completions cover others, and that limit reads.

use super::merge::{KIB, NEXT, Next};
use super::*;

/// What passes sooner than a completion is taken.
pub(super) const SHORT: u64 = 1024;

/// As queue pairs are.
pub(super) const SELECTIVE: LaneLimits = LaneLimits {
    reads_max: 4,
    covers: true,
    counts: false,
    ..LIMITS
};

pub(super) fn world(rails: u16) -> World<'static> {
    let mut world = World::new(Policy::Spray, rails);
    world.limits = [SELECTIVE; RAILS];
    world
}

/// A world whose only lane is open and idle.
pub(super) fn idle() -> World<'static> {
    let mut world = world(1);
    world.submit(99, Op::Write, 1);
    world.run_until_reported(1, Duration::from_millis(100));
    world.reports.clear();
    world
}

/// The works of the next post, and where it goes.
pub(super) fn next_post(world: &mut World<'_>) -> (Post, PostBatch) {
    let mut batch = PostBatch::default();
    let post = world.core.poll_post(world.now, &mut batch);
    (post.expect("works to post"), batch)
}

#[test]
fn fewer_works_ask_for_a_completion_and_none_is_missed() {
    let mut each = World::new(Policy::Spray, 2);
    let mut some = world(2);
    for world in [&mut each, &mut some] {
        world.submit(0, Op::Write, 64 << 20);
        world.run_until_reported(1, Duration::from_secs(1));
        assert_eq!(world.reports[&0].status, Status::Completed);
        assert!(
            !world.log.iter().any(|line| line.contains("Fence")),
            "{:?}",
            world.log
        );
    }
    // Pressure brings completions early enough: 3 % more time at most.
    let took = |world: &World<'_>| world.now.as_nanos();
    assert!(
        took(&some) <= took(&each) * 103 / 100,
        "{} and {}",
        took(&some),
        took(&each)
    );
}

#[test]
fn what_is_signalled() {
    // (name, requests (bytes, priority), a signal for each work of the post)
    let (slice, short) = (u64::from(SLICE), SHORT);
    let row = |count: usize, length, priority| vec![(length, priority); count];
    let cases = [
        ("alone", row(1, short, Priority::Normal), vec![true]),
        (
            "the last",
            row(2, short, Priority::Normal),
            vec![false, true],
        ),
        ("urgent ones", row(2, short, Priority::High), vec![true; 2]),
        (
            "one of several slices",
            row(1, 2 * slice, Priority::Normal),
            vec![false, true],
        ),
    ];
    for (name, requests, signals) in cases {
        let mut world = idle();
        for (tag, (length, priority)) in (0..).zip(requests) {
            world.submit_as(PLAN, tag, Op::Write, length, priority);
        }
        let (_post, batch) = next_post(&mut world);
        let seen: Vec<_> = batch.works.iter().map(|work| work.signal).collect();
        assert_eq!(seen, signals, "{name}");
    }
}

#[test]
fn no_batch_waits_for_a_slice_of_another_one() {
    let slice = u64::from(SLICE);
    // (name, bytes of each request, a signal for each work of the post)
    let cases = [
        ("slices", [slice, slice], [true, true]),
        (
            "a short one, and a slice behind it",
            [SHORT, slice],
            [true, true],
        ),
        (
            "a slice, and a short one behind it",
            [slice, SHORT],
            [false, true],
        ),
    ];
    for (name, lengths, signals) in cases {
        let mut world = idle();
        for (tag, length) in (0..).zip(lengths) {
            world.submit(tag, Op::Write, length);
        }
        let (_post, batch) = next_post(&mut world);
        let seen: Vec<_> = batch.works.iter().map(|work| work.signal).collect();
        assert_eq!(seen, signals, "{name}");
    }
}

#[test]
fn requests_of_a_batch_share_a_completion() {
    let mut world = idle();
    // Apart, so that they do not go as one.
    let slice = Next {
        gap_kib: 1,
        kib: u64::from(SLICE) / KIB,
        ..NEXT
    };
    world.submit_row(&[slice; 2]);
    let (_post, batch) = next_post(&mut world);
    let seen: Vec<_> = batch.works.iter().map(|work| work.signal).collect();
    assert_eq!(seen, [false, true]);
}

#[test]
fn a_window_full_of_works_completes_in_parts() {
    let mut world = idle();
    world.submit(0, Op::Write, 64 << 20);
    let (_post, batch) = next_post(&mut world);
    let signals = batch.works.iter().filter(|work| work.signal).count();
    // The whole window is posted at once. Were only the last signalled, the lane would run dry before it completes.
    assert!(batch.works.len() > 2 && signals >= 2, "{:?}", batch.works);
    assert!(signals < batch.works.len(), "{:?}", batch.works);
}

/// Two open lanes of rails of this rate, whose works may queue for so long that many share a completion.
fn in_lots(rate: Rate, batch_span: Duration) -> World<'static> {
    let mut world = World::new(Policy::Spray, 2);
    let limits = LaneLimits {
        works_max: 128,
        reads_max: 48,
        ..SELECTIVE
    };
    world.limits = [limits; RAILS];
    for rail in 0..2 {
        let estimate = EstimateConfig {
            rate_nominal: rate,
            delay_base: Duration::from_micros(50),
            tier: 0,
            slice_span: Duration::ZERO,
            batch_span,
        };
        world.tell(rail, estimate);
        world.links[usize::from(rail)].rate = rate;
    }
    // Both lanes open.
    world.submit(99, Op::Write, 16 << 20);
    world.run_until_reported(1, Duration::from_secs(1));
    world
}

#[test]
fn works_in_bulk_go_in_lots_with_one_completion_each() {
    let mut world = in_lots(
        Rate::from_bytes_per_sec(1_000_000_000),
        Duration::from_millis(10),
    );
    for (tag, op) in [(0, Op::Write), (1, Op::Read)] {
        world.submit(tag, op, 64 << 20);
        world.posted = Counts::default();
        world.run_until_reported(2 + tag as usize, Duration::from_secs(1));
        let Counts {
            posts,
            works,
            signals,
        } = world.posted;
        assert!(works >= 1024, "{op:?}: {works}");
        assert!(
            posts * 16 <= works,
            "{op:?}: {works} works in {posts} posts"
        );
        assert!(
            signals * 16 <= works,
            "{op:?}: {signals} signals for {works} works"
        );
    }
}

#[test]
fn a_lot_is_half_of_the_window_however_slow_the_rail_is() {
    for (rate, most) in [(250, 4), (500, 6), (1_000, 9), (2_000, 16), (6_000, 40)] {
        let rate = Rate::from_bytes_per_sec(rate * 1_000_000);
        let mut world = in_lots(rate, Duration::from_micros(500));
        for (tag, op) in [(0, Op::Write), (1, Op::Read)] {
            world.submit(tag, op, 64 << 20);
            world.posted = Counts::default();
            world.run_until_reported(2 + tag as usize, Duration::from_secs(1));
            let window = world.core.shared.window_bytes(RailId(0)) / u64::from(SLICE);
            assert_eq!(window, most, "{rate:?}");
            let Counts {
                posts,
                works,
                signals,
            } = world.posted;
            // Half of the window, but for the ends of the request.
            let lot = window as usize * 45;
            assert!(
                posts * lot <= works * 100,
                "{rate:?} {op:?}: {works}, {posts}"
            );
            assert!(
                signals * lot <= works * 100,
                "{rate:?} {op:?}: {works}, {signals}"
            );
        }
    }
}

#[test]
fn a_partial_post_is_covered_by_the_next_work_or_by_a_scratch_word() {
    for cancelled in [false, true] {
        let mut world = idle();
        world.submit(0, Op::Write, SHORT);
        let second = world.submit(1, Op::Write, SHORT);
        let (post, mut batch) = next_post(&mut world);
        let lane = post.lane();
        assert_eq!(batch.works.len(), 2);
        // The first went out, which asked for nothing.
        world.core.handle_posted(world.now, post, 1, Stop::Full);
        batch.works.truncate(1);
        world.post(lane, &batch);
        if cancelled {
            world.core.cancel(world.now, second);
        }
        world
            .core
            .handle_lane(world.now, lane, batch.epoch, LaneFact::Writable);
        let (post, batch) = next_post(&mut world);
        let [work] = &batch.works[..] else {
            panic!("{:?}", batch.works);
        };
        assert!(work.signal, "it covers the first");
        assert_eq!(work.remote.segment == SegmentRef(9), cancelled, "{work:?}");
        world.post(lane, &batch);
        world.core.handle_posted(world.now, post, 1, Stop::All);
        world.run_until_reported(2, Duration::from_millis(2));
        assert_eq!(world.reports[&0].status, Status::Completed);
        assert_eq!(world.reports.len(), 2);
    }
}

#[test]
fn no_more_reads_are_posted_than_a_lane_takes() {
    let mut world = world(1);
    world.submit(0, Op::Read, 16 << 20);
    while world.reports.is_empty() {
        let open = |far: &FarLane| {
            far.on_its_way
                .iter()
                .filter(|(_, work)| work.op == Op::Read)
                .count()
        };
        let reads: usize = world.lanes.values().map(open).sum();
        assert!(reads <= usize::from(SELECTIVE.reads_max), "{reads}");
        world.run(world.now + Duration::from_micros(10));
        assert!(world.now < ms(500));
    }
    assert_eq!(world.reports[&0].status, Status::Completed);
    // A write that goes first needs no credit of theirs.
    world.submit(1, Op::Read, 16 << 20);
    world.run(world.now + Duration::from_millis(1));
    world.submit(2, Op::Write, u64::from(SLICE));
    world.run(world.now + Duration::from_millis(1));
    assert!(world.reports.contains_key(&2) && !world.reports.contains_key(&1));
}

/// Lanes that take four short reads at a time, and more writes.
const FEW_READS: LaneLimits = LaneLimits {
    work_bytes_max: 8 * 1024,
    ..SELECTIVE
};

#[test]
fn a_read_that_waits_for_a_credit_holds_up_no_write() {
    for policy in [Policy::Spray, Policy::FixedTier1, Policy::RoundRobin] {
        let mut world = World::new(policy, 2);
        world.limits = [FEW_READS; RAILS];
        for tag in 0..14 {
            world.submit(tag, Op::Read, 4 * u64::from(SLICE));
        }
        world.run(world.now + Duration::from_millis(2));
        let before = world.reports.len();
        world.submit(14, Op::Write, 4 * u64::from(SLICE));
        world.run(world.now + Duration::from_millis(2));
        assert!(world.reports.contains_key(&14), "{policy:?}");
        assert!(
            world.reports.len() < before + 14,
            "{policy:?}: the reads took longer"
        );
        world.run_until_reported(15, Duration::from_secs(1));
        let done = world.reports.values();
        let done = done.filter(|report| report.status == Status::Completed);
        assert_eq!(done.count(), 15, "{policy:?}");
    }
}

#[test]
fn writes_that_pass_reads_do_not_starve_them() {
    let took = |writes: usize| {
        let mut world = World::new(Policy::Spray, 1);
        world.limits = [FEW_READS; RAILS];
        world.submit(0, Op::Read, 32 * u64::from(SLICE));
        let mut tag = 1;
        while !world.reports.contains_key(&0) {
            while world.core.requests() <= writes {
                world.submit(tag, Op::Write, 4 * u64::from(SLICE));
                tag += 1;
            }
            world.run(world.now + Duration::from_micros(100));
            assert!(world.now < ms(500), "the read starves");
        }
        world.now.as_nanos()
    };
    // Four reads pass with each window of writes.
    let (alone, among) = (took(0), took(8));
    assert!(
        among < 8 * alone,
        "{alone} ns alone, {among} ns among writes"
    );
}
