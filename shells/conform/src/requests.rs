//! Promises about lanes and what goes over them.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use polyrail_core::transport::MemoryKind;
use polyrail_core::units::Epoch;
use polyrail_core::work::{LaneFact, Op, Outcome, POST_MAX, Stop, Work};
use polyrail_transport::SessionId;

use crate::Subject;
use crate::world::*;

/// How long who sleeps on the descriptor may have to wait for one thing.
const ASLEEP: Duration = Duration::from_secs(2);
/// Bytes of a work where it does not matter.
const SHORT: u32 = 4096;

pub(crate) fn words(subject: &Subject) -> Said<()> {
    let world = World::new(subject)?;
    let name = world.target.name();
    let good = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    if name.is_empty() || name.len() > 32 || !name.bytes().all(good) {
        return Err(format!("the name \"{name}\""));
    }
    let address = world.target.address();
    if address.len() > 255 {
        return Err(format!(
            "an address of {} bytes: 255 are possible",
            address.len()
        ));
    }
    if address != world.target.address() {
        return Err("its address changes".to_owned());
    }
    let can = world.target.capabilities();
    let there = match world.there.device() {
        None => MemoryKind::Host,
        Some(_) => world.there.memory(),
    };
    match can.allows_local(MemoryKind::Host) && can.allows_remote(there) {
        true => Ok(()),
        false => Err(
            "it does not move bytes between such memories: nothing else can be tried here"
                .to_owned(),
        ),
    }
}

pub(crate) fn opens(subject: &Subject) -> Said<()> {
    let (_, limits) = World::open(subject)?;
    match limits.works_max > 0 && limits.work_bytes_max > 0 && limits.reads_max > 0 {
        true => Ok(()),
        false => Err(format!("the limits {limits:?}")),
    }
}

pub(crate) fn strangers(subject: &Subject) -> Said<()> {
    let mut world = World::new(subject)?;
    world.use_session(SessionId([8; 16]));
    match world.try_open(lane(0), ONE)? {
        LaneFact::OpenFailed(_) => Ok(()),
        other => Err(format!("it answered {other:?}")),
    }
}

pub(crate) fn tickets(subject: &Subject) -> Said<()> {
    let mut world = World::new(subject)?;
    let (ours, other) = (world.keyed.secret.clone(), secret(9)?);
    world.use_secret(lane(0), KEYED, Some(&ours))?;
    world.open_lane(lane(0), ONE)?;
    let moves = |world: &mut World, cookie| {
        world.carry_out(lane(0), ONE, &[work(cookie, Op::Write, 0, SHORT)])
    };
    moves(&mut world, 1)?;
    // (who, the session, what it has)
    let cases = [
        ("a lane without a ticket", KEYED, None),
        ("a lane with another secret", KEYED, Some(&other.secret)),
        (
            "a lane with a secret of another session",
            OTHER,
            Some(&ours),
        ),
        ("a target that has no secret", SESSION, Some(&ours)),
    ];
    for (number, (who, session, secret)) in cases.into_iter().enumerate() {
        world.use_secret(lane(1), session, secret)?;
        let epoch = Epoch(1 + number as u32);
        match world.try_open(lane(1), epoch)? {
            LaneFact::OpenFailed(_) => {}
            fact => return Err(format!("{who} was answered with {fact:?}")),
        }
        if world.reaches(session, secret) {
            return Err(format!("{who} would be let in, says the target"));
        }
    }
    // Who is not let in is counted, at the end that does not believe him: the first three at the target.
    let denied = world.keyed.denied.load(Relaxed);
    if denied < 2 {
        return Err(format!(
            "{denied} lanes that proved nothing were counted, and there were 2"
        ));
    }
    // And the fair lane goes on.
    moves(&mut world, 2)
}

/// Moves some bytes that begin and end anywhere.
fn moves(subject: &Subject, op: Op) -> Said<()> {
    let (mut world, _) = World::open(subject)?;
    for (cookie, offset, length) in [(5, 0, 1), (u64::MAX - 1, 4095, 4098), (0, BYTES - 7, 7)] {
        let (from, to) = match op {
            Op::Write => (world.here.clone(), world.there.clone()),
            Op::Read => (world.there.clone(), world.here.clone()),
        };
        fill(&from, 0x33);
        poison(&to, 0xee);
        world.carry_out(lane(0), ONE, &[work(cookie, op, offset, length)])?;
        let moved = offset..offset + u64::from(length);
        let should = |place| match moved.contains(&place) {
            true => (place % 251) as u8 ^ 0x33,
            false => 0xee,
        };
        if let Some(place) = wrong(&to, should) {
            return Err(format!(
                "byte {place} is wrong after {length} bytes from {offset} on were moved"
            ));
        }
        if let Some(place) = wrong(&from, |place| (place % 251) as u8 ^ 0x33) {
            return Err(format!("byte {place} of the source has changed"));
        }
    }
    Ok(())
}

pub(crate) fn writes(subject: &Subject) -> Said<()> {
    moves(subject, Op::Write)
}

pub(crate) fn reads(subject: &Subject) -> Said<()> {
    moves(subject, Op::Read)
}

/// What is carried out at once, if the endpoint does that at all, is there when it says so; what must not be is not.
pub(crate) fn at_once(subject: &Subject) -> Said<()> {
    let (mut world, _) = World::open(subject)?;
    for op in [Op::Write, Op::Read] {
        // It may have to be told first what is behind a key.
        world.carry_out(lane(0), ONE, &[work(1, op, 0, 1)])?;
        let (from, to) = match op {
            Op::Write => (world.here.clone(), world.there.clone()),
            Op::Read => (world.there.clone(), world.here.clone()),
        };
        fill(&from, 0x55);
        poison(&to, 0xee);
        let now = world.now();
        let good = work(2, op, 4095, 4098);
        let beyond = work(3, op, BYTES - 7, 8);
        let mut carries = |epoch, work: &Work| {
            let works = std::slice::from_ref(work);
            world.endpoint.carry_at_once(now, lane(0), epoch, works)
        };
        if carries(ONE, &beyond) {
            return Err("a work that leaves both segments was carried out".to_owned());
        }
        if carries(TWO, &good) {
            return Err("a work of another epoch than the lane has was carried out".to_owned());
        }
        if !carries(ONE, &good) {
            continue;
        }
        let moved = 4095..4095 + 4098;
        let should = |place| match moved.contains(&place) {
            true => (place % 251) as u8 ^ 0x55,
            false => 0xee,
        };
        if let Some(place) = wrong(&to, should) {
            return Err(format!(
                "byte {place} is wrong after {good:?} was carried out"
            ));
        }
        world.idle()?;
        if world
            .completions
            .iter()
            .any(|done| done.cookie == good.cookie)
        {
            return Err("what was carried out at once has a completion too".to_owned());
        }
    }
    Ok(())
}

pub(crate) fn largest(subject: &Subject) -> Said<()> {
    let (mut world, limits) = World::open(subject)?;
    let length = u64::from(limits.work_bytes_max).min(BYTES) as u32;
    fill(&world.here, 1);
    poison(&world.there, 0);
    world.carry_out(lane(0), ONE, &[work(1, Op::Write, 0, length)])?;
    let should = |place| match place < u64::from(length) {
        true => (place % 251) as u8 ^ 1,
        false => 0,
    };
    match wrong(&world.there, should) {
        None => Ok(()),
        Some(place) => Err(format!("byte {place} of {length} is wrong")),
    }
}

/// Short works one behind the other, as many as there is memory for.
fn row(op: Op, count: u64) -> Vec<Work> {
    (0..count.min(BYTES / u64::from(SHORT)))
        .map(|index| work(index + 1, op, index * u64::from(SHORT), SHORT))
        .collect()
}

pub(crate) fn once(subject: &Subject) -> Said<()> {
    let (mut world, limits) = World::open(subject)?;
    for op in [Op::Write, Op::Read] {
        let works = row(op, u64::from(limits.works_max) * 2 + POST_MAX as u64);
        world.completions.clear();
        world.carry_out(lane(0), ONE, &works)?;
        world.idle()?;
        let count = world.completions.len();
        if count != works.len() {
            return Err(format!("{count} completions of {} works", works.len()));
        }
    }
    match world.facts() {
        [] => Ok(()),
        [(_, _, LaneFact::Writable), ..] => Ok(()),
        [(lane, _, fact), ..] => Err(format!("{lane:?} said {fact:?} though nothing was wrong")),
    }
}

pub(crate) fn order(subject: &Subject) -> Said<()> {
    let (mut world, limits) = World::open(subject)?;
    fill(&world.here, 9);
    // All to the same place: the last one stays.
    let works: Vec<_> = (0..u64::from(limits.works_max.min(POST_MAX as u16)))
        .map(|index| {
            let mut work = work(index + 1, Op::Write, index * 100, 100);
            work.remote.offset = 0;
            work
        })
        .collect();
    world.carry_out(lane(0), ONE, &works)?;
    let last = (works.len() as u64 - 1) * 100;
    let there = world.there.clone();
    let should = |place| ((last + place) % 251) as u8 ^ 9;
    match wrong(&there, |place| if place < 100 { should(place) } else { 0 }) {
        None => Ok(()),
        Some(_) => Err("of works to the same place, the last one did not stay".to_owned()),
    }
}

pub(crate) fn descriptor(subject: &Subject) -> Said<()> {
    let (mut world, _) = World::open(subject)?;
    // What was opened may have left something to do.
    world.idle()?;
    for (cookie, op) in [(1, Op::Write), (2, Op::Read), (3, Op::Write)] {
        let mut is_taken = false;
        loop {
            if !is_taken {
                let posted =
                    world
                        .endpoint
                        .post(&batch(lane(0), ONE, &[work(cookie, op, 0, SHORT)]));
                is_taken = match (posted.accepted, posted.stop) {
                    (1, Stop::All) => true,
                    // It says when there is room.
                    (0, Stop::Full) => false,
                    _ => return Err(format!("a work was not taken: {posted:?}")),
                };
            }
            let due = world
                .endpoint
                .poll_timeout()
                .map(|at| at.since(world.now()));
            let longest = due.map_or(ASLEEP, Duration::from).min(ASLEEP);
            if !world.wait(longest)? && longest == ASLEEP {
                return Err(format!(
                    "a work was posted, and for {ASLEEP:?} nothing called whoever slept on the descriptor"
                ));
            }
            world.look()?;
            let done = world.completions.iter().find(|done| done.cookie == cookie);
            match done.map(|done| done.outcome) {
                Some(Outcome::Success) => break,
                Some(Outcome::Error(cause)) => return Err(format!("a good work failed: {cause}")),
                None => {}
            }
        }
    }
    Ok(())
}

pub(crate) fn epochs(subject: &Subject) -> Said<()> {
    let (mut world, _) = World::open(subject)?;
    poison(&world.there, 0xee);
    fill(&world.here, 0);
    let posted = world
        .endpoint
        .post(&batch(lane(0), TWO, &[work(1, Op::Write, 0, SHORT)]));
    if !matches!((posted.accepted, posted.stop), (0, Stop::Rejected(_))) {
        return Err(format!(
            "works of an epoch that never began were answered with {posted:?}"
        ));
    }
    world.idle()?;
    untouched(&world.there, 0xee, "by a work of an epoch that never began")
}
