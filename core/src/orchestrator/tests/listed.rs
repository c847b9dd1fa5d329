//! Cases that the flow-control rework lists of works on a queue pair, by its names, and the classes of its follow-ups: here of a
//! lane whose completions cover others. Its cases of room for those who submit are in `send_queue::tests`.
//!
//! Where the rework tells an owner that its works have failed, we send them again once nothing of them moves any more; so what is
//! asserted is that each owner is told once, and that what it is told is true: the world looks for its bytes.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), "Test plan" and "Follow-ups".

use super::super::lane::Phase;
use super::signal::{SHORT, idle, next_post, world as covering};
use super::*;

/// An open lane with nothing on it, and so many short writes, whose tags begin at 0; and the post of them.
fn posted(writes: u64) -> (World<'static>, Post, PostBatch) {
    let mut world = idle();
    for tag in 0..writes {
        world.submit(tag, Op::Write, SHORT);
    }
    let (post, batch) = next_post(&mut world);
    assert_eq!(batch.works.len(), writes as usize);
    assert!(!batch.works[0].signal && batch.works[writes as usize - 1].signal);
    (world, post, batch)
}

/// The first `count` of a post go out, and this is answered.
fn answer(world: &mut World<'_>, post: Post, batch: &PostBatch, count: usize, stop: Stop) {
    let mut out = batch.clone();
    out.works.truncate(count);
    world.post(post.lane(), &out);
    assert!(world.core.handle_posted(world.now, post, count, stop));
    world.core.audit().unwrap();
}

/// One of a post's works ends.
fn end(world: &mut World<'_>, batch: &PostBatch, work: usize, outcome: Outcome) {
    let completion = Completion {
        lane: batch.lane,
        epoch: batch.epoch,
        cookie: batch.works[work].cookie,
        at: world.now,
        outcome,
    };
    world.core.handle_completions(world.now, &[completion]);
    world.core.audit().unwrap();
}

/// Works that the first rail's lane holds.
fn held(world: &World<'_>) -> usize {
    world.core.lanes[0].flight.len()
}

fn phase(world: &World<'_>) -> Phase {
    world.core.lanes[0].phase
}

fn breaks(world: &mut World<'_>, batch: &PostBatch, cause: Cause) {
    let fact = LaneFact::Broken(cause);
    world
        .core
        .handle_lane(world.now, batch.lane, batch.epoch, fact);
    world.core.audit().unwrap();
}

/// Each of so many is told once (the world asserts it), within a second, that it has completed; and the lane is as at first.
fn all_complete(mut world: World<'static>, tags: usize) {
    world.run_until_reported(tags, Duration::from_secs(1));
    assert_eq!(world.reports.len(), tags);
    for report in world.reports.values() {
        assert_eq!(report.status, Status::Completed);
    }
    world.run(world.now + Duration::from_millis(200));
    assert_eq!((held(&world), phase(&world)), (0, Phase::Open));
    assert_eq!(world.core.shared.inflight_bytes(RailId(0)), 0);
}

#[test]
fn submission_ledger_basic() {
    // In before the post is answered; a completion that is faster finds it, and what it covers.
    let (mut world, post, batch) = posted(2);
    assert_eq!(held(&world), 2);
    batch.works.iter().for_each(|work| world.landed(*work));
    end(&mut world, &batch, 1, Outcome::Success);
    assert_eq!(held(&world), 0);
    assert!(world.core.handle_posted(world.now, post, 2, Stop::All));
    let before = world.core.ignored().works;
    end(&mut world, &batch, 1, Outcome::Success);
    assert_eq!(world.core.ignored().works, before + 1, "late");
    world.drain();
    assert_eq!(world.reports.len(), 2);

    // What was not taken comes back whole, and is not told of; the rest stays.
    let (mut world, post, batch) = posted(3);
    answer(&mut world, post, &batch, 1, Stop::Full);
    let flight = &world.core.lanes[0].flight;
    assert_eq!((flight.posted(), flight.bound()), (1, 2));
    world.drain();
    assert!(world.reports.is_empty());
    let fact = LaneFact::Writable;
    world
        .core
        .handle_lane(world.now, batch.lane, batch.epoch, fact);
    all_complete(world, 3);
}

#[test]
fn sq_controller_terminal_degraded() {
    let (mut world, post, batch) = posted(2);
    answer(&mut world, post, &batch, 2, Stop::All);
    breaks(&mut world, &batch, Cause::Fatal);
    // Takes nothing more, and what comes back opens nothing.
    for work in 0..2 {
        let flushed = Outcome::Error(Cause::Flushed);
        end(&mut world, &batch, work, flushed);
        assert!(phase(&world).is_fencing());
        assert_eq!(world.core.lanes[0].room_works(Op::Write), 0);
    }
    world.submit(2, Op::Write, u64::from(SLICE));
    let mut none = PostBatch::default();
    assert_eq!(world.core.poll_post(world.now, &mut none), None);
    // Only a rebuild does, under another epoch, with all its room.
    world.run_until_reported(3, Duration::from_secs(1));
    assert_eq!(phase(&world), Phase::Open);
    assert!(world.core.lanes[0].epoch() > batch.epoch);
    assert_eq!(
        world.core.lanes[0].room_works(Op::Write),
        usize::from(world.limits[0].works_max)
    );
    all_complete(world, 3);
}

#[test]
fn sq_controller_recheck_rolls_back() {
    for cause in [Cause::Flushed, Cause::Reset] {
        let (mut world, post, batch) = posted(2);
        // Closed between the choice and the post.
        breaks(&mut world, &batch, cause);
        answer(&mut world, post, &batch, 0, Stop::Rejected(cause));
        assert_eq!(held(&world), 0, "given back by itself");
        assert_eq!(world.core.shared.inflight_bytes(RailId(0)), 0);
        all_complete(world, 2);
    }
}

#[test]
fn pending_unsignaled_recheck_failure_orphans() {
    let (mut world, post, batch) = posted(3);
    answer(&mut world, post, &batch, 1, Stop::Full);
    // The one that went out asked for nothing, and what should have covered it cannot be posted any more.
    breaks(&mut world, &batch, Cause::Reset);
    let flight = &world.core.lanes[0].flight;
    assert_eq!(
        (flight.posted(), flight.bound()),
        (1, 0),
        "it is held until the fence"
    );
    world.drain();
    assert!(world.reports.is_empty(), "nor is anybody told before that");
    all_complete(world, 3);
}

#[test]
fn pending_unsignaled_reserve_failure_orphans() {
    // Two lanes, each with works of several owners that no signal covers, because the rest of the post found no room.
    let mut world = covering(2);
    world.submit(99, Op::Write, 16 << 20);
    world.run_until_reported(1, Duration::from_millis(100));
    world.reports.clear();
    for tag in 0..16 {
        world.submit(tag, Op::Write, SHORT);
    }
    let mut lanes = Vec::new();
    let mut batch = PostBatch::default();
    while let Some(post) = world.core.poll_post(world.now, &mut batch) {
        let quiet = batch.works.iter().take_while(|work| !work.signal).count();
        assert!(quiet > 0);
        answer(&mut world, post, &batch, quiet, Stop::Full);
        lanes.push((batch.lane, batch.epoch));
    }
    assert_eq!(lanes.len(), 2);
    // They stay full for longer than a lane may.
    for (lane, epoch) in lanes {
        let fact = LaneFact::Broken(Cause::Silent);
        world.core.handle_lane(world.now, lane, epoch, fact);
        world.core.audit().unwrap();
    }
    all_complete(world, 16);

    // Without such works nothing has to end.
    let (mut world, post, batch) = posted(2);
    answer(&mut world, post, &batch, 0, Stop::Full);
    assert_eq!(phase(&world), Phase::Open);
    let fact = LaneFact::Writable;
    world
        .core
        .handle_lane(world.now, batch.lane, batch.epoch, fact);
    all_complete(world, 2);
}

#[test]
fn pending_unsignaled_orphaning_closes_admission_before_recovery() {
    let (mut world, post, batch) = posted(2);
    // A post is out: closed for all others already.
    breaks(&mut world, &batch, Cause::Fatal);
    assert_eq!(world.core.lanes[0].room_works(Op::Write), 0);
    world.submit(2, Op::Write, u64::from(SLICE));
    let mut none = PostBatch::default();
    assert_eq!(world.core.poll_post(world.now, &mut none), None);
    // Nor is it built anew under the feet of what is posted: what may be out is kept until it is proved that none of it moves.
    assert_eq!(held(&world), 2);
    let opens = |action: &LaneAction| matches!(action, LaneAction::Open { .. });
    let actions: Vec<_> = core::iter::from_fn(|| world.core.poll_lane()).collect();
    assert!(!actions.iter().any(opens), "{actions:?}");
    actions.into_iter().for_each(|action| world.act(action));
    assert!(world.core.handle_posted(world.now, post, 2, Stop::All));
    assert_eq!(held(&world), 2);
    all_complete(world, 3);
}

#[test]
fn rdma_session_alive_checks_terminal_sq() {
    let mut world = covering(2);
    world.submit(99, Op::Write, 16 << 20);
    world.run_until_reported(1, Duration::from_millis(100));
    let carried = world.done_bytes(0);
    world.links[0].cut = true;
    world.reset_rail(0);
    world.run(world.now + Duration::from_millis(1));
    // What is submitted now takes lanes that live.
    for tag in 0..8 {
        world.submit(tag, Op::Write, u64::from(SLICE));
    }
    world.run_until_reported(9, Duration::from_secs(1));
    assert_eq!((world.reports.len(), world.done_bytes(0)), (9, carried));
    // The rest is built anew, and used again.
    world.links[0].cut = false;
    world.run(world.now + Duration::from_millis(600));
    world.submit(8, Op::Write, 16 << 20);
    world.run_until_reported(10, Duration::from_secs(1));
    assert!(world.done_bytes(0) > carried);
    assert_eq!(phase(&world), Phase::Open);
}

#[test]
fn partial_post_no_work_posted() {
    let (mut world, post, batch) = posted(2);
    let stop = Stop::Rejected(Cause::LocalLength);
    answer(&mut world, post, &batch, 0, stop);
    // Nothing is out, so the lane lives; the work that was refused fails its request, and that alone.
    assert_eq!(
        (phase(&world), world.core.lanes[0].flight.posted()),
        (Phase::Open, 0)
    );
    world.run_until_reported(2, Duration::from_secs(1));
    let [first, second] = [0, 1].map(|tag| world.reports[&tag]);
    assert_eq!(
        (first.status, first.cause),
        (Status::Failed, Some(Cause::LocalLength))
    );
    assert_eq!(second.status, Status::Completed);
}

#[test]
fn partial_post_unsignaled_head_posted() {
    let (mut world, post, batch) = posted(3);
    answer(&mut world, post, &batch, 2, Stop::Full);
    assert_eq!(phase(&world), Phase::Open);
    // Nothing has to end: the next work is signalled, and covers all.
    let fact = LaneFact::Writable;
    world
        .core
        .handle_lane(world.now, batch.lane, batch.epoch, fact);
    world.submit(3, Op::Write, u64::from(SLICE));
    let (post, next) = next_post(&mut world);
    assert!(next.works[0].signal);
    let count = next.works.len();
    answer(&mut world, post, &next, count, Stop::All);
    assert!(!world.log.iter().any(|line| line.contains("Fence")));
    all_complete(world, 4);
}

#[test]
fn partial_post_that_an_error_was_faster_than() {
    let (mut world, post, batch) = posted(2);
    let failed = Outcome::Error(Cause::RetryExceeded);
    end(&mut world, &batch, 0, failed);
    assert!(phase(&world).is_fencing());
    // Of the two only the one that failed had gone out.
    assert!(world.core.handle_posted(world.now, post, 1, Stop::Full));
    world.core.audit().unwrap();
    all_complete(world, 2);
}

#[test]
fn partial_post_signaled_tail_posted() {
    let (mut world, post, batch) = posted(2);
    answer(&mut world, post, &batch, 2, Stop::All);
    world.submit(2, Op::Write, u64::from(SLICE));
    let (post, next) = next_post(&mut world);
    let stop = Stop::Rejected(Cause::LocalLength);
    answer(&mut world, post, &next, 0, stop);
    // The completion owns what went out; the lane lives.
    assert_eq!((phase(&world), held(&world)), (Phase::Open, 2));
    world.run_until_reported(3, Duration::from_secs(1));
    let failed = world.reports.remove(&2).map(|report| report.cause);
    assert_eq!(failed, Some(Some(Cause::LocalLength)));
    all_complete(world, 2);
}

#[test]
fn partial_post_of_unknown_extent() {
    let (mut world, post, batch) = posted(3);
    answer(&mut world, post, &batch, 1, Stop::Unknown);
    // Of the rest nobody knows: all of it is held until the fence.
    assert!(phase(&world).is_fencing());
    assert_eq!(held(&world), 3);
    world.drain();
    assert!(world.reports.is_empty());
    all_complete(world, 3);
}

#[test]
fn partial_post_fatal_completion_ends_the_lane_until_it_is_rebuilt() {
    let (mut world, post, batch) = posted(3);
    answer(&mut world, post, &batch, 3, Stop::All);
    let cause = Cause::RetryExceeded;
    end(&mut world, &batch, 0, Outcome::Error(cause));
    assert!(phase(&world).is_fencing());
    // The neighbours' works are flushed, which ends nothing more.
    for work in 1..3 {
        end(&mut world, &batch, work, Outcome::Error(Cause::Flushed));
    }
    let fences = |world: &World<'_>| {
        let fences = world.log.iter().filter(|line| line.contains("Fence"));
        fences.count()
    };
    world.run(world.now + Duration::from_millis(100));
    assert_eq!(fences(&world), 1);
    assert_eq!(phase(&world), Phase::Open);
    // Rebuilt, it has all its room, and what comes late from before moves none.
    let before = world.core.ignored().epochs;
    end(&mut world, &batch, 0, Outcome::Success);
    assert_eq!(world.core.ignored().epochs, before + 1);
    all_complete(world, 3);
}

#[test]
fn a_device_that_is_gone_orphans_signalled_works_too() {
    let (mut world, post, batch) = posted(2);
    answer(&mut world, post, &batch, 2, Stop::All);
    // No completion will come, not even of the one that asked for it.
    breaks(&mut world, &batch, Cause::DeviceDown);
    assert_eq!(held(&world), 2);
    all_complete(world, 2);
}
