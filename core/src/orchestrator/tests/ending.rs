//! Every request ends: whatever was copied where, whatever table is full, and also where nothing ever heals.

use super::*;

/// Open lanes on all rails of a world, nothing in flight.
pub(super) fn warmed(mut world: World<'static>) -> World<'static> {
    world.submit(99, Op::Write, 16 << 20);
    world.run_until_reported(1, Duration::from_secs(1));
    world.reports.clear();
    world
}

/// Lets the peer's host lose its power now. How long after that the request of this tag is reported.
fn dies(world: &mut World<'_>, tag: u64) -> Duration {
    world.stopped = true;
    let died_at = world.now;
    while !world.reports.contains_key(&tag) {
        world.run(world.now + Duration::from_millis(1));
        world.core.audit().unwrap();
        assert!(world.now < died_at + Duration::from_secs(60), "never");
    }
    world.now.since(died_at)
}

#[test]
fn a_request_with_a_copy_on_each_rail_is_reported_when_the_peer_dies() {
    // A small write is on one of two rails when the peer's host loses power. A copy goes over the other after 5 ms. Both
    // fences are given up, and neither slice was sent again: nobody was left to end the request.
    for (op, status) in [
        (Op::Write, Status::Indeterminate),
        (Op::Read, Status::Failed),
    ] {
        for rails in 1..=RAILS as u16 {
            for counts in [false, true] {
                let mut world = World::new(Policy::Spray, rails);
                world.limits = [LaneLimits { counts, ..LIMITS }; RAILS];
                let mut world = warmed(world);
                world.submit(1, op, 1000);
                world.drain();
                let took = dies(&mut world, 1);
                let bound = world.core.config.fence_timeout + Duration::from_millis(2);
                assert!(took <= bound, "{op:?}, {rails} rails: {took:?}");
                let report = world.reports[&1];
                assert_eq!(
                    (report.status, report.cause),
                    (status, Some(Cause::PeerSilent))
                );
            }
        }
    }
}

#[test]
fn a_full_table_of_attempts_keeps_no_request_from_its_report() {
    for op in [Op::Write, Op::Read] {
        for rails in [1, 2] {
            let config = Config::new(0, Policy::Spray);
            let mut world = warmed(World::with_attempts(config, &[0; RAILS][..rails], 4));
            // Three slices, all rows but the last one, so that there is none for a copy.
            world.submit(1, op, 3 * u64::from(SLICE));
            world.drain();
            let took = dies(&mut world, 1);
            let bound = world.core.config.fence_timeout + Duration::from_millis(2);
            assert!(took <= bound, "{op:?}, {rails} rails: {took:?}");
        }
    }
}

#[test]
fn names_of_a_transfer_are_reported_when_the_peer_dies() {
    let mut world = warmed(World::new(Policy::Spray, 2));
    for tag in 1..=4 {
        let offset = (1 << 30) + tag * 1000;
        world.submit_at(PLAN, tag, Op::Write, offset, 1000, Priority::Normal);
    }
    world.drain();
    let took = dies(&mut world, 1);
    assert!(took <= world.core.config.fence_timeout + Duration::from_millis(2));
    assert_eq!(world.reports.len(), 4, "{:?}", world.reports);
}

#[test]
fn a_third_rail_takes_what_was_lost_on_two() {
    // Both lanes that have a copy are fenced and nothing answers; a third one is as good as ever.
    let mut world = World::new(Policy::Spray, 3);
    for limits in &mut world.limits {
        limits.counts = false;
    }
    let mut world = warmed(world);
    world.submit(1, Op::Write, 1000);
    world.drain();
    let holders = |world: &World<'_>| -> Vec<u16> {
        let holds = |rail: &u16| world.core.shared.inflight_bytes(RailId(*rail)) > 0;
        (0..3).filter(holds).collect()
    };
    for count in 1..=2 {
        let [.., last] = holders(&world)[..] else {
            panic!("nothing is under way");
        };
        assert_eq!(holders(&world).len(), count, "copies");
        for rail in holders(&world) {
            world.links[usize::from(rail)].cut = true;
        }
        let lane = LaneId::new(0, RailId(last));
        let epoch = world.core.lanes[usize::from(last)].epoch();
        // Nobody answers the fence: what it says is lost.
        let fact = LaneFact::Broken(Cause::Reset);
        world.core.handle_lane(world.now, lane, epoch, fact);
        let mut batch = PostBatch::default();
        while let Some(post) = world.core.poll_post(world.now, &mut batch) {
            world.post(post.lane(), &batch);
            world
                .core
                .handle_posted(world.now, post, batch.works.len(), Stop::All);
        }
        world.core.audit().unwrap();
    }
    assert_eq!(holders(&world).len(), 3, "two that are lost, and a new one");
}

/// A request whose only slice stands on a lane that is given long patience. What it was on is cut.
fn stands(deadline: Instant) -> (World<'static>, RequestId) {
    let mut world = World::new(Policy::Spray, 2);
    for limits in &mut world.limits {
        limits.patience_ms = 1_000;
    }
    let mut world = warmed(world);
    world.deadline = deadline;
    let id = world.submit(1, Op::Write, 1000);
    world.drain();
    let holds = |rail: &u16| world.core.shared.inflight_bytes(RailId(*rail)) > 0;
    let used = (0..2).find(holds).unwrap();
    world.links[usize::from(used)].cut = true;
    (world, id)
}

/// Runs until its request is reported, and tells how long after `from` that was.
fn reported_after(world: &mut World<'_>, from: Instant) -> Duration {
    while !world.reports.contains_key(&1) {
        world.run(world.now + Duration::from_millis(1));
        assert!(world.now < from + Duration::from_secs(20), "never");
    }
    world.now.since(from)
}

#[test]
fn a_deadline_also_ends_what_waits_for_an_original_only() {
    // Suspected after a second; the copy arrives at once, and the original is out as long as its lane stands.
    let deadline = Instant::ZERO + Duration::from_millis(1_600);
    let (mut world, _) = stands(deadline);
    let late = reported_after(&mut world, deadline);
    let bound = world.core.config.cancel_grace + Duration::from_millis(2);
    assert!(late <= bound, "{late:?} after its deadline");
    assert_eq!(
        world.reports[&1].status,
        Status::Completed,
        "its bytes are there"
    );
}

#[test]
fn a_cancel_also_ends_what_waits_for_an_original_only() {
    let (mut world, id) = stands(Instant::MAX);
    world.run(world.now + Duration::from_millis(1_100));
    let row = world.core.requests.get(id).unwrap();
    let is_there = row.acked_bytes == row.length;
    assert_eq!((is_there, row.is_reported()), (true, false), "the scenario");
    let at = world.now;
    assert_eq!(world.core.cancel(at, id), Cancelled::Marked);
    let late = reported_after(&mut world, at);
    let bound = world.core.config.cancel_grace + Duration::from_millis(2);
    assert!(late <= bound, "{late:?} after it was cancelled");
    assert_eq!(
        world.reports[&1].status,
        Status::Completed,
        "its bytes are there"
    );
}

#[test]
fn a_repeated_completion_keeps_no_dead_lane_alive() {
    let mut world = warmed(World::new(Policy::Spray, 2));
    world.submit(1, Op::Write, 64 << 20);
    world.run(world.now + Duration::from_millis(5));
    world.links[1].cut = true;
    let on_second = |key: &&(LaneId, Epoch)| key.0.rail() == RailId(1);
    let (lane, epoch) = *world.lanes.keys().find(on_second).unwrap();
    let until = world.now + Duration::from_millis(100);
    let before = world.core.ignored().works;
    let mut noticed = false;
    while world.now < until {
        world.run(world.now + Duration::from_millis(1));
        // Nothing that is out has this cookie.
        let again = Completion {
            lane,
            epoch,
            cookie: 7,
            at: world.now,
            outcome: Outcome::Success,
        };
        world.core.handle_completions(world.now, &[again]);
        noticed |= world.core.shared.view(RailId(1)).unwrap().state != RailState::Healthy;
    }
    assert!(
        noticed,
        "the lane has moved nothing for a tenth of a second"
    );
    assert!(world.core.ignored().works > before);
}

#[test]
fn a_repeated_completion_is_no_sign_of_life() {
    let mut world = warmed(World::new(Policy::Spray, 1));
    world.stopped = true;
    let (lane, epoch) = *world.lanes.keys().next().unwrap();
    world.submit(1, Op::Write, 1000);
    let until = world.now + Duration::from_secs(3);
    while world.now < until && !world.reports.contains_key(&1) {
        world.run(world.now + Duration::from_millis(50));
        let again = Completion {
            lane,
            epoch,
            cookie: 7,
            at: world.now,
            outcome: Outcome::Success,
        };
        world.core.handle_completions(world.now, &[again]);
    }
    assert_eq!(world.reports[&1].cause, Some(Cause::PeerSilent));
}

#[test]
fn a_rail_that_flapped_an_hour_ago_is_suspected_as_soon_as_any() {
    let notice = |flaps: u64| {
        let mut world = warmed(World::new(Policy::Spray, 2));
        for _ in 0..flaps {
            world.submit(2, Op::Write, 4 << 20);
            // It is suspected, and all has arrived there.
            world.loses = |rail, work| rail == RailId(1) && work.remote.segment == SegmentRef(2);
            world.run_until_reported(1, Duration::from_secs(2));
            world.loses = |_, _| false;
            world.reports.clear();
            world.run(world.now + Duration::from_secs(1));
        }
        world.run(world.now + Duration::from_secs(3600));
        world.submit(1, Op::Write, 256 << 20);
        world.run(world.now + Duration::from_millis(20));
        let before = world.now;
        world.links[1].cut = true;
        let is_healthy = |world: &World<'_>| {
            world.core.shared.view(RailId(1)).unwrap().state == RailState::Healthy
        };
        while is_healthy(&world) && world.now < before + Duration::from_secs(2) {
            world.run(world.now + Duration::from_millis(1));
        }
        world.now.since(before)
    };
    let (fresh, later) = (notice(0), notice(4));
    assert!(
        later <= fresh.times(2),
        "fresh {fresh:?}, an hour after four flaps {later:?}"
    );
}

/// The only slice of a request of tag 1 comes back refused, on the first of two rails.
fn refused(op: Op, cause: Cause) -> World<'static> {
    let mut world = warmed(World::new(Policy::Spray, 2));
    world.submit(1, op, 1000);
    refuse_first(&mut world, cause);
    world
}

/// The peer refuses the first work that is polled now.
fn refuse_first(world: &mut World<'_>, cause: Cause) {
    let mut batch = PostBatch::default();
    let post = world.core.poll_post(world.now, &mut batch).expect("works");
    let lane = post.lane();
    assert!(world.core.handle_posted(world.now, post, 1, Stop::All));
    let refused = Completion {
        lane,
        epoch: world.core.lanes[lane.rail().index()].epoch(),
        cookie: batch.works[0].cookie,
        at: world.now,
        outcome: Outcome::Error(cause),
    };
    let arrived = Completion {
        outcome: Outcome::Success,
        ..refused
    };
    // A device may lie: it says so twice, and then that it has arrived.
    for told in [refused, refused, arrived] {
        world.core.handle_completions(world.now, &[told]);
        world.core.audit().unwrap();
    }
}

/// Both operations with each cause by which a peer seems to refuse.
fn refusals() -> impl Iterator<Item = (Op, Cause)> {
    let causes = [
        Cause::RemoteAccess,
        Cause::RemoteInvalidRequest,
        Cause::RemoteOperation,
    ];
    let ops = [Op::Write, Op::Read].into_iter();
    ops.flat_map(move |op| causes.map(|cause| (op, cause)))
}

/// The report of tag 1 names the status and cause; nothing was delivered and nothing is in use any more.
#[track_caller]
fn assert_nothing_delivered(world: &World<'_>, status: Status, cause: Cause, case: &str) {
    let report = world.reports[&1];
    assert_eq!(
        (report.status, report.cause),
        (status, Some(cause)),
        "{case}"
    );
    assert_eq!(report.delivered_bytes, 0, "{case}");
    assert_eq!(
        (report.local, report.remote),
        (Local::Released, Remote::Settled),
        "{case}"
    );
}

#[test]
fn what_an_ending_process_seemed_to_refuse_is_lost_with_it() {
    // Of a process that is killed the memory goes first, and its end is known milliseconds later.
    for (op, cause) in refusals() {
        let mut world = refused(op, cause);
        world.stopped = true;
        world.run(world.now + Duration::from_millis(20));
        assert!(!world.reports.contains_key(&1), "{op:?} {cause:?}");
        world
            .core
            .handle_peer_gone(world.now, PEER, Proof::ProcessGone);
        world.run_until_reported(1, Duration::from_secs(1));
        let case = format!("{op:?} {cause:?}");
        assert_nothing_delivered(&world, Status::PeerLost, Cause::PeerGone, &case);
    }
}

#[test]
fn what_a_living_peer_refuses_fails_by_that() {
    for (op, cause) in refusals() {
        for answers in [true, false] {
            let mut world = refused(op, cause);
            world.stopped = !answers;
            let from = world.now;
            world.run_until_reported(1, Duration::from_secs(5));
            let took = world.now.since(from);
            let bound = if answers {
                Duration::from_millis(2)
            } else {
                world.core.config.fence_timeout + Duration::from_millis(2)
            };
            assert!(took <= bound, "{op:?} {cause:?} {answers}: {took:?}");
            let case = format!("{op:?} {answers}");
            assert_nothing_delivered(&world, Status::Failed, cause, &case);
        }
    }
}

#[test]
fn a_healthy_rail_whose_fence_is_never_proved_holds_up_nobody() {
    // The swarm found it: what was refused counts against no rail, and the peer answers no fence. The lane was waited for
    // without end, by all that came later, as the rail is healthy.
    for rails in [&[1][..], &[1, 1]] {
        let mut world = warmed(World::ranked(Config::new(0, Policy::Spray), rails));
        world.submit(1, Op::Write, 1000);
        refuse_first(&mut world, Cause::RemoteAccess);
        world.answers_fences = false;
        world.run_until_reported(1, Duration::from_secs(5));
        assert_eq!(world.reports[&1].cause, Some(Cause::RemoteAccess));

        world.submit(2, Op::Write, 1000);
        let from = world.now;
        world.run_until_reported(2, Duration::from_secs(5));
        let took = world.now.since(from);
        let report = world.reports[&2];
        let (status, cause, bound) = match rails {
            [_] => (
                Status::Failed,
                Some(Cause::NoRail),
                world.core.config.fence_timeout + Duration::from_millis(2),
            ),
            _ => (Status::Completed, None, Duration::from_millis(20)),
        };
        assert_eq!((report.status, report.cause), (status, cause), "{rails:?}");
        assert!(took <= bound, "{rails:?}: {took:?}");

        // It is told at last.
        world.answers_fences = true;
        world.submit(3, Op::Write, 1000);
        world.run_until_reported(3, Duration::from_secs(5));
        assert_eq!(world.reports[&3].status, Status::Completed, "{rails:?}");
    }
}

#[test]
fn memory_is_free_when_the_last_lane_that_could_touch_it_has_ended_and_another_is_not_answered_for()
{
    // A swarm over devices that lie found it: both sides of the last lane were proved, so nothing of it was left to be told of, and
    // the memory that was free by that stayed in use until the peer answered for the other one, if ever.
    let mut world = World::new(Policy::Spray, 2);
    for limits in &mut world.limits {
        limits.counts = false;
    }
    let mut world = warmed(world);
    (world.answers_fences, world.ends_after) = (false, Duration::from_secs(3600));
    world.submit(1, Op::Write, 1000);
    world.drain();
    let mut fenced = Vec::new();
    for _ in 0..2 {
        let holds = |rail: &u16| world.core.shared.inflight_bytes(RailId(*rail)) > 0;
        let is_new = |rail: &u16| {
            !fenced
                .iter()
                .any(|(lane, _)| *lane == LaneId::new(0, RailId(*rail)))
        };
        let rail = (0..2).filter(holds).find(is_new).expect("a copy");
        world.links[usize::from(rail)].cut = true;
        let lane = LaneId::new(0, RailId(rail));
        let epoch = world.core.lanes[usize::from(rail)].epoch();
        let broken = LaneFact::Broken(Cause::Reset);
        world.core.handle_lane(world.now, lane, epoch, broken);
        world.drain();
        fenced.push((lane, epoch));
    }
    world.run_until_reported(1, Duration::from_secs(5));
    let report = world.reports[&1];
    assert_eq!(
        (report.local, report.remote),
        (Local::Held, Remote::Unknown)
    );
    for (lane, scope) in [(0, Scope::Local), (1, Scope::Remote), (1, Scope::Local)] {
        assert_eq!(world.known, [], "before {scope:?} of lane {lane}");
        let (lane, epoch) = fenced[lane];
        let fact = LaneFact::Fenced {
            scope,
            delivered: None,
        };
        world.core.handle_lane(world.now, lane, epoch, fact);
        world.drain();
    }
    assert_eq!(world.known, [(1, Local::Released, Remote::Unknown)]);
}
