//! Slices that have to go over a lane that takes less at a time than the one that they were cut for.

use super::*;

/// Two rails, of which the second takes short works, and the first falls silent under way.
fn world(policy: Policy, attempts: usize) -> World<'static> {
    let mut world = World::with_attempts(Config::new(0, policy), &[0, 0], attempts);
    world.limits[1].work_bytes_max = 10_000;
    world
}

#[test]
fn a_slice_that_no_other_lane_takes_whole_is_cut_again() {
    // It waited for a lane like its own, for ever.
    for policy in Policy::ALL {
        for op in [Op::Write, Op::Read] {
            let mut world = world(policy, usize::MAX);
            world.submit(0, op, 4 << 20);
            world.run(Instant::ZERO + Duration::from_micros(300));
            assert!(
                world.core.first_posted(RailId(0)).is_some(),
                "{policy:?} {op:?}"
            );
            world.links[0].cut = true;
            world.run_until_reported(1, Duration::from_secs(1));
            let status = world.reports.get(&0).map(|report| report.status);
            assert_eq!(status, Some(Status::Completed), "{policy:?} {op:?}");
        }
    }
}

#[test]
fn it_is_cut_again_in_a_table_that_is_full_of_such() {
    // Two parts take two rows, and there was none for the second.
    for policy in Policy::ALL {
        for attempts in 2..6 {
            let mut world = world(policy, attempts);
            world.submit(0, Op::Write, 1 << 20);
            world.submit(1, Op::Write, 1 << 20);
            world.run(Instant::ZERO + Duration::from_micros(300));
            world.links[0].cut = true;
            world.run_until_reported(2, Duration::from_secs(5));
            let done = world.reports.values();
            let done = done.filter(|report| report.status == Status::Completed);
            assert_eq!(done.count(), 2, "{policy:?}, {attempts} rows");
        }
    }
}

/// Ends what a rail carries; its bytes are not seen to arrive.
fn fail(world: &mut World<'_>, rail: u16) {
    world.links[usize::from(rail)].cut = true;
    world.reset_rail(rail);
}

#[test]
fn its_parts_do_not_keep_the_row_that_others_are_cut_in() {
    // The part had taken the last row, and failed; the next lane took neither it nor the rest whole.
    for policy in Policy::ALL {
        for attempts in 2..6 {
            let mut world = World::with_attempts(Config::new(0, policy), &[0, 0, 0], attempts);
            world.limits[1].work_bytes_max = 40_000;
            world.limits[2].work_bytes_max = 10_000;
            world.submit(0, Op::Write, 16 << 20);
            world.run(ms(2));
            fail(&mut world, 2);
            world.run(ms(3));
            world.links[1].cut = true;
            for rail in [0, 1] {
                fail(&mut world, rail);
                world.run(world.now + Duration::from_millis(1));
            }
            world.links[2].cut = false;
            world.run_until_reported(1, Duration::from_secs(5));
            let status = world.reports.get(&0).map(|report| report.status);
            assert_eq!(
                status,
                Some(Status::Completed),
                "{policy:?}, {attempts} rows"
            );
        }
    }
}

#[test]
fn a_probe_finds_a_row_in_a_table_that_is_full_of_them() {
    for policy in Policy::ALL {
        for attempts in 2..6 {
            let mut world = World::with_attempts(Config::new(0, policy), &[0], attempts);
            world.submit(0, Op::Write, 1 << 20);
            world.run(Instant::ZERO + Duration::from_micros(300));
            fail(&mut world, 0);
            world.run(Instant::ZERO + Duration::from_millis(100));
            world.links[0].cut = false;
            world.run_until_reported(1, Duration::from_secs(1));
            let status = world.reports.get(&0).map(|report| report.status);
            assert_eq!(
                status,
                Some(Status::Completed),
                "{policy:?}, {attempts} rows"
            );
        }
    }
}

#[test]
fn what_its_older_copy_brings_late_counts_no_more() {
    // The rail was only slow: its bytes arrive beside the parts, and are counted once.
    for op in [Op::Write, Op::Read] {
        let mut world = world(Policy::Spray, usize::MAX);
        world.submit(0, op, 64 << 10);
        world.run(ms(1));
        world.submit(1, op, 640 << 10);
        world.run(ms(1) + Duration::from_micros(100));
        world.links[0].cut = true;
        let suspected = ms(1) + world.core.config.progress_floor + Duration::from_millis(2);
        world.run(suspected);
        world.links[0].cut = false;
        world.run_until_reported(2, Duration::from_secs(1));
        let report = world.reports.get(&1).expect("a report");
        let seen = (report.status, report.delivered_bytes);
        assert_eq!(seen, (Status::Completed, 640 << 10), "{op:?}");
    }
}
