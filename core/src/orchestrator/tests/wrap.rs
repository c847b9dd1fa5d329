//! Lanes that go on behind their four billionth work. Each begins just below the wrap, so that all tests see it; here it is
//! what they are about.

use super::super::sequence::Sequence;
use super::ending::warmed;
use super::signal::SELECTIVE;
use super::*;

/// Brings the lanes of an idle world to their last works before the wrap, as if they had carried all others.
fn to_the_wrap(world: &mut World<'_>, works_left: u32) {
    for lane in world.core.lanes.iter_mut() {
        let works = 0_u32.wrapping_sub(works_left);
        lane.next_sequence = Sequence::FIRST.plus(100).plus(works);
    }
    for far in world.lanes.values_mut() {
        far.landed = 100_u32.wrapping_sub(works_left);
    }
}

#[test]
fn works_before_the_wrap_are_covered_by_those_behind_it() {
    for limits in [SELECTIVE, LIMITS] {
        for works_left in 0..40 {
            let mut world = World::new(Policy::Spray, 2);
            world.limits = [limits; RAILS];
            let mut world = warmed(world);
            to_the_wrap(&mut world, works_left);
            world.log.clear();
            world.submit(1, Op::Write, 16 << 20);
            world.run_until_reported(1, Duration::from_secs(5));
            let fences = world
                .log
                .iter()
                .filter(|line| line.contains("Fence"))
                .count();
            let status = world.reports.get(&1).map(|report| report.status);
            assert_eq!(
                (status, fences),
                (Some(Status::Completed), 0),
                "{works_left}"
            );
        }
    }
}

#[test]
fn a_fence_at_the_wrap_counts_nothing_that_did_not_arrive() {
    for limits in [SELECTIVE, LIMITS] {
        // Those behind 100 are where lanes begin, come to again.
        for works_left in (0..4).chain(99..104) {
            let mut world = World::new(Policy::Spray, 1);
            world.limits = [limits; RAILS];
            let mut world = warmed(world);
            to_the_wrap(&mut world, works_left);
            // None of three slices arrives. The lane breaks; the peer answers the fence over another way.
            world.links[0].cut = true;
            world.submit(1, Op::Write, 3 * u64::from(SLICE));
            world.drain();
            world.reset_rail(0);
            world.links[1].cut = false;
            world.run(world.now + Duration::from_millis(1));
            world.links[0].cut = false;
            // Where a report says `Completed` and bytes lack, the world panics.
            world.run_until_reported(1, Duration::from_secs(5));
            assert_eq!(world.reports[&1].delivered_bytes, 3 * u64::from(SLICE));
        }
    }
}

#[test]
fn a_count_of_more_than_was_posted_is_not_believed() {
    for too_many in [1, 2, 1000, 1 << 30, u32::MAX / 2] {
        let mut world = warmed(World::new(Policy::Spray, 1));
        world.links[0].cut = true;
        world.submit(1, Op::Write, 3 * u64::from(SLICE));
        world.drain();
        let (lane, epoch) = (LaneId::new(0, RailId(0)), world.core.lanes[0].epoch());
        let landed = world.lanes[&(lane, epoch)].landed;
        let facts = [
            LaneFact::Broken(Cause::Reset),
            LaneFact::Fenced {
                scope: Scope::Local,
                delivered: None,
            },
            LaneFact::Fenced {
                scope: Scope::Remote,
                delivered: Some(landed.wrapping_add(3).wrapping_add(too_many)),
            },
        ];
        for fact in facts {
            world.core.handle_lane(world.now, lane, epoch, fact);
        }
        world.core.audit().unwrap();
        let row = world
            .core
            .requests
            .iter()
            .next()
            .map(|(_, row)| row.acked_bytes);
        assert_eq!(
            (row, world.core.ignored().counts),
            (Some(0), 1),
            "{too_many}"
        );
    }
}

/// One history: what is submitted, and what happens to the rails meanwhile.
fn whole_history(works_left: u8, covers: bool, steps: Vec<(u8, u8)>) -> bool {
    let mut world = World::new(Policy::Spray, 2);
    world.limits = [if covers { SELECTIVE } else { LIMITS }; RAILS];
    let mut world = warmed(world);
    to_the_wrap(&mut world, works_left.into());
    let (mut submitted, mut posted) = (0, 0_u64);
    for (what, how) in steps {
        match what % 5 {
            0 | 1 if submitted < 12 => {
                submitted += 1;
                let op = if how % 4 == 0 { Op::Read } else { Op::Write };
                let length = u64::from(how % 9 + 1) * 40_000;
                posted += length;
                world.submit(submitted, op, length);
            }
            2 => world.links[usize::from(how % 2)].cut ^= true,
            3 => world.reset_rail((how % 2).into()),
            _ => world.run(world.now + Duration::from_micros(u64::from(how) * 20)),
        }
        world.core.audit().unwrap();
    }
    for link in &mut world.links {
        link.cut = false;
    }
    // `Completed` is checked by the world against what has arrived, byte by byte.
    world.run_until_reported(submitted as usize, Duration::from_secs(20));
    let told: u64 = world
        .reports
        .values()
        .map(|report| report.delivered_bytes)
        .sum();
    world.reports.len() == submitted as usize && told <= posted
}

#[test]
fn whole_histories_go_across_the_wrap() {
    QuickCheck::new()
        .tests(300)
        .quickcheck(whole_history as fn(u8, bool, Vec<(u8, u8)>) -> bool);
}
