//! Requests that nothing can come of when they come, and those that never do: core writes their reports too.

use super::*;
use crate::report::Unbegun;

fn request(tag: u64, batch: BatchId) -> Request {
    Request {
        tag,
        plan: PLAN,
        batch,
        local_offset: tag << 30,
        remote_offset: tag << 30,
        length: 100,
        deadline: Instant::MAX,
        op: Op::Read,
        priority: Priority::Normal,
    }
}

fn submit(world: &mut World<'_>, tag: u64, batch: BatchId) -> RequestId {
    let id = world.core.submit(world.now, &request(tag, batch)).unwrap();
    world.owners.insert(tag, tag << 30..(tag << 30) + 100);
    id
}

#[test]
fn what_far_memory_denied_to_one_of_a_batch_it_denies_to_all_of_it_and_to_no_other() {
    let mut world = World::new(Policy::Spray, 1);
    let (batch, other) = (
        world.core.open_batch(0).unwrap(),
        world.core.open_batch(1).unwrap(),
    );
    world.corrupts = |_, work| (work.remote.offset == 0).then_some(Cause::RemoteAccess);
    submit(&mut world, 0, batch);
    world.run_until_reported(1, Duration::from_secs(1));
    world.corrupts = |_, _| None;
    let posted = world.posted.works;
    submit(&mut world, 1, batch);
    world.drain();
    assert_eq!(world.posted.works, posted, "it costs no lane");
    submit(&mut world, 2, other);
    world.core.seal_batch(other);
    world.core.seal_batch(batch);
    world.run_until_reported(3, Duration::from_secs(1));
    let how = |tag| (world.reports[&tag].status, world.reports[&tag].cause);
    let denied = (Status::Failed, Some(Cause::RemoteAccess));
    assert_eq!(
        [how(0), how(1), how(2)],
        [denied, denied, (Status::Completed, None)]
    );
    assert_eq!(world.batches, 2);
}

#[test]
fn those_that_wait_when_their_batch_is_denied_end_with_it() {
    // The lane takes one work at a time, and the first one is refused.
    let mut world = World::new(Policy::Spray, 1);
    world.limits = [LaneLimits::new(1, 1 << 20); RAILS];
    let batch = world.core.open_batch(0).unwrap();
    world.corrupts =
        |_, work| (work.remote.segment == SegmentRef(2)).then_some(Cause::RemoteAccess);
    for tag in 0..40 {
        submit(&mut world, tag, batch);
    }
    world.core.seal_batch(batch);
    world.run_until_reported(40, Duration::from_secs(1));
    let denied = |report: &Report| {
        (report.status, report.cause) == (Status::Failed, Some(Cause::RemoteAccess))
    };
    assert!(world.reports.len() == 40 && world.reports.values().all(denied));
    let users = |line: &&std::string::String| line.contains("Open {");
    assert!(
        world.log.iter().filter(users).count() <= 3,
        "not one lane each"
    );
    assert_eq!(world.batches, 1);
}

#[test]
fn what_comes_late_for_a_lost_peer_ends_as_the_peer_did_until_its_plan_is_another() {
    for (proof, status) in [
        (Some(Proof::ProcessGone), Status::PeerLost),
        (None, Status::Failed),
    ] {
        let mut world = World::new(Policy::Spray, 1);
        if let Some(proof) = proof {
            world.core.handle_peer_gone(world.now, PEER, proof);
        }
        assert!(world.core.forget_peer(world.now, PEER));
        let batch = world.core.open_batch(0).unwrap();
        submit(&mut world, 0, batch);
        world.core.seal_batch(batch);
        world.drain();
        let report = world.reports[&0];
        assert_eq!(
            (report.status, report.cause),
            (status, Some(Cause::PeerGone))
        );
        assert_eq!((world.batches, world.core.requests()), (1, 0));
        // The row means another plan, and what is said of the one before stays.
        let next = PlanId {
            generation: PLAN.generation + 1,
            ..PLAN
        };
        assert!(world.core.install_plan(world.now, next, &plan_of(PEER)));
        world.submit(1, Op::Write, 100);
        world.submit_with(next, 2, Op::Write, 100);
        world.run_until_reported(3, Duration::from_secs(1));
        assert_eq!(world.reports[&1].status, status);
        assert_eq!(world.reports[&2].status, Status::Completed);
        let unknown = PlanId {
            generation: 77,
            ..PLAN
        };
        let batch = world.core.open_batch(3).unwrap();
        let request = Request {
            plan: unknown,
            ..request(3, batch)
        };
        assert_eq!(
            world.core.submit(world.now, &request),
            Err(SubmitError::PlanMissing)
        );
    }
}

#[test]
fn what_comes_after_the_shutdown_ends_with_it() {
    let mut world = World::new(Policy::Spray, 1);
    world.core.shut_down(world.now);
    world.submit(0, Op::Write, 100);
    world.drain();
    assert_eq!(world.reports[&0].status, Status::ShutDown);
    assert_eq!((world.posted.works, world.batches), (0, 1));
}

#[test]
fn what_never_comes_is_counted_in_its_batch() {
    let mut world = World::new(Policy::Spray, 1);
    let batch = world.core.open_batch(0).unwrap();
    submit(&mut world, 0, batch);
    let report = world.core.withdraw(batch, 999_999, Unbegun::Cancelled);
    assert_eq!(
        (report.status, report.cause),
        (Status::Cancelled, Some(Cause::Cancelled))
    );
    assert!(report.is_proved() && report.delivered_bytes == 0);
    world.core.seal_batch(batch);
    world.core.withdraw(batch, 1, Unbegun::Cancelled);
    let standing = world.core.batch(batch).unwrap();
    assert_eq!(
        (standing.requests, standing.ended, standing.status),
        (1_000_000, 999_999, Status::Pending)
    );
    world.run_until_reported(1, Duration::from_secs(1));
    assert_eq!(
        (world.reports[&0].status, world.batches),
        (Status::Completed, 1)
    );
}
