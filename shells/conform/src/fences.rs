//! Promises about the end of lanes: after it, nothing moves.

use polyrail_core::work::{LaneFact, Op, Outcome, POST_MAX, Work};

use crate::Subject;
use crate::world::*;

/// Works that are on their way when a lane ends.
fn many(op: Op, works_max: u16, work_bytes_max: u32) -> Vec<Work> {
    let count = u64::from(works_max).min(POST_MAX as u64);
    let length = (BYTES / count).min(u64::from(work_bytes_max));
    (0..count)
        .map(|index| work(index + 1, op, index * length, length as u32))
        .collect()
}

/// A world in which many works have been posted, and some may have ended. How many, with one that has.
fn under_way(subject: &Subject, op: Op) -> Said<(World, usize)> {
    let (mut world, limits) = World::open(subject)?;
    // It may have to be told first what is behind a key, and takes no work before.
    world.carry_out(lane(0), ONE, &[work(u64::MAX - 1, op, 0, 1)])?;
    fill(&world.here, 1);
    fill(&world.there, 2);
    let works = many(op, limits.works_max, limits.work_bytes_max);
    let posted = world.endpoint.post(&batch(lane(0), ONE, &works));
    check_posted(posted, works.len())?;
    world.look()?;
    match posted.accepted {
        0 => Err(format!(
            "a lane with nothing on it takes no work: {posted:?}"
        )),
        accepted => Ok((world, 1 + accepted)),
    }
}

fn succeeded(world: &World) -> usize {
    let good = |done: &&polyrail_core::work::Completion| done.outcome == Outcome::Success;
    world.completions.iter().filter(good).count()
}

pub(crate) fn local(subject: &Subject) -> Said<()> {
    for op in [Op::Read, Op::Write] {
        let (mut world, _) = under_way(subject, op)?;
        world.fence_local(lane(0), ONE)?;
        // What it would still read, or write, is the program's again.
        poison(&world.here, 0xaa);
        world.idle()?;
        untouched(&world.here, 0xaa, "here after a local fence")?;
        world.fence_local(lane(0), ONE)?;
        // As it was, or as the source was.
        let good = |(place, is): (u64, u8)| [1, 2].contains(&((place % 251) as u8 ^ is));
        let there = content(&world.there);
        if op == Op::Write && !(0..).zip(there).all(good) {
            return Err(
                "after a local fence, what the program wrote then arrived at the peer".to_owned(),
            );
        }
    }
    Ok(())
}

pub(crate) fn remote(subject: &Subject) -> Said<()> {
    for looks in [0, 1, 3] {
        let (mut world, posted) = under_way(subject, Op::Write)?;
        for _ in 0..looks {
            world.look()?;
        }
        let delivered = world.fence_remote(lane(0), ONE)? as usize;
        poison(&world.there, 0xee);
        // The initiator may not have heard of it, and go on.
        let later = work(u64::MAX - 2, Op::Write, 0, 4096);
        world.endpoint.post(&batch(lane(0), ONE, &[later]));
        world.idle()?;
        untouched(
            &world.there,
            0xee,
            "at the peer after the target had answered the fence",
        )?;
        if delivered > posted {
            return Err(format!(
                "{delivered} works delivered of {posted} that were posted"
            ));
        }
        // Twice is as good as once.
        world.fence_remote(lane(0), ONE)?;
        let (mut world, posted) = under_way(subject, Op::Write)?;
        world.until("completions of all works", |world| {
            (succeeded(world) == posted).then_some(())
        })?;
        let delivered = world.fence_remote(lane(0), ONE)? as usize;
        if delivered > posted {
            return Err(format!(
                "{delivered} works delivered of {posted} that were posted"
            ));
        }
    }
    // A lane that never was.
    let mut world = World::new(subject)?;
    match world.fence_remote(lane(1), TWO)? {
        0 => Ok(()),
        count => Err(format!("{count} works delivered on a lane that never was")),
    }
}

pub(crate) fn reopening(subject: &Subject) -> Said<()> {
    let (mut world, _) = World::open(subject)?;
    world.carry_out(lane(0), ONE, &[work(1, Op::Write, 0, 4096)])?;
    world.fence_local(lane(0), ONE)?;
    world.fence_remote(lane(0), TWO)?;
    match world.try_open(lane(0), TWO)? {
        LaneFact::OpenFailed(_) => {}
        other => return Err(format!("an epoch that had been fenced answered {other:?}")),
    }
    let three = polyrail_core::units::Epoch(3);
    world.open_lane(lane(0), three)?;
    world.carry_out(lane(0), three, &[work(2, Op::Write, 0, 4096)])
}

pub(crate) fn neighbours(subject: &Subject) -> Said<()> {
    let (mut world, limits) = World::open(subject)?;
    world.open_lane(lane(1), ONE)?;
    let works = many(Op::Write, limits.works_max, limits.work_bytes_max);
    world.post_all(lane(0), ONE, &works)?;
    world.fence_local(lane(0), ONE)?;
    world.fence_remote(lane(0), ONE)?;
    world.completions.clear();
    fill(&world.here, 5);
    world.carry_out(lane(1), ONE, &[work(99, Op::Write, 0, 4096)])?;
    let moved = |place: u64| (place % 251) as u8 ^ 5;
    let there = content(&world.there);
    match (0..4096).find(|place| there[*place as usize] != moved(*place)) {
        None => Ok(()),
        Some(place) => Err(format!("byte {place} of the other lane's write is wrong")),
    }
}

pub(crate) fn closing(subject: &Subject) -> Said<()> {
    let (mut world, _) = World::open(subject)?;
    world.carry_out(lane(0), ONE, &[work(1, Op::Write, 0, 4096)])?;
    world.endpoint.close(lane(0), ONE);
    world.idle()?;
    let about = world
        .facts()
        .iter()
        .find(|(_, _, fact)| *fact != LaneFact::Writable);
    if let Some((lane, _, fact)) = about {
        return Err(format!("{lane:?} was closed and said {fact:?}"));
    }
    world.open_lane(lane(0), TWO)?;
    world.carry_out(lane(0), TWO, &[work(2, Op::Read, 0, 4096)])
}

pub(crate) fn retiring(subject: &Subject) -> Said<()> {
    let (mut world, _) = under_way(subject, Op::Write)?;
    world.retire()?;
    poison(&world.there, 0xee);
    let later = work(u64::MAX - 2, Op::Write, 0, 4096);
    world.endpoint.post(&batch(lane(0), ONE, &[later]));
    world.idle()?;
    untouched(
        &world.there,
        0xee,
        "at the peer after the session had been retired",
    )?;
    match world.try_open(lane(1), ONE)? {
        LaneFact::OpenFailed(_) => Ok(()),
        other => Err(format!(
            "a lane of a session that had been retired answered {other:?}"
        )),
    }
}
