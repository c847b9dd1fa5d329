//! What a lane may carry out at once, and what is known of it afterwards.

use super::*;

/// A world with an open lane on rail 0 that has nothing to do.
fn idle(config: Config, tiers: &[u8]) -> World<'static> {
    let mut world = World::with(config, tiers);
    world.submit(0, Op::Write, 4096);
    world.run_until_reported(1, Duration::from_secs(1));
    world
}

fn usual() -> World<'static> {
    idle(Config::new(0, Policy::Spray), &[0])
}

fn request(length: u64) -> Request {
    Request {
        tag: 0,
        plan: PLAN,
        batch: BatchId::default(),
        local_offset: 100,
        remote_offset: 7,
        length,
        deadline: Instant::MAX,
        priority: Priority::Normal,
        op: Op::Read,
    }
}

#[test]
fn an_idle_lane_is_given_all_of_a_request_as_one_work() {
    let mut world = usual();
    let at_once = world.core.at_once(&request(1 << 20)).expect("it is idle");
    let place = |segment, offset| Place {
        segment: SegmentRef(segment),
        offset,
    };
    assert_eq!(at_once.lane, LaneId::new(0, RailId(0)));
    assert_eq!(at_once.epoch, world.core.lanes[0].epoch());
    let work = at_once.work;
    assert_eq!((work.op, work.length), (Op::Read, 1 << 20));
    assert_eq!((work.local, work.remote), (place(1, 100), place(2, 7)));
    // Nothing has come of asking.
    assert!(world.core.is_quiet());
    assert_eq!(world.core.requests(), 0);
    world.core.audit().expect("all invariants hold");
    world.submit(1, Op::Write, 4096);
    world.run_until_reported(2, Duration::from_secs(1));
}

/// One that has two transports of a rail each; lanes of the better one are open.
fn two_transports() -> World<'static> {
    let mut world = World::ranked(Config::new(0, Policy::Spray), &[1, 1]);
    world.submit(0, Op::Write, 4096);
    world.run_until_reported(1, Duration::from_secs(1));
    world
}

/// The better one has just failed.
fn failed_over() -> World<'static> {
    let mut world = two_transports();
    world.submit(1, Op::Write, 8 << 20);
    world.run(world.now + Duration::from_millis(1));
    world.links[0].cut = true;
    world.reset_rail(0);
    world.run_until_reported(2, Duration::from_secs(10));
    world
}

#[test]
fn where_there_is_something_to_decide_it_is_to_be_submitted() {
    type Make = fn() -> World<'static>;
    let stopped = || {
        let mut world = usual();
        world.stopped = true;
        world.run(world.now + Duration::from_secs(3));
        world
    };
    let busy = || {
        let mut world = usual();
        world.submit(1, Op::Write, 4096);
        world.run(world.now + Duration::from_nanos(1));
        world
    };
    let in_line = || {
        let mut world = usual();
        world.submit(1, Op::Write, 4096);
        world
    };
    let retired = || {
        let mut world = usual();
        world.core.retire_plan(PLAN);
        world
    };
    let gone = || {
        let mut world = usual();
        let now = world.now;
        world.core.handle_peer_gone(now, PEER, Proof::ProcessGone);
        world
    };
    let good = request(4096);
    // (name, world, request, goes at once)
    let cases: [(&str, Make, Request, bool); 17] = [
        ("an idle lane", usual, good, true),
        ("of the best transport", two_transports, good, true),
        (
            "several rails",
            || idle(Config::new(0, Policy::Spray), &[0, 0]),
            good,
            false,
        ),
        (
            "a lane that was never opened",
            || World::new(Policy::Spray, 1),
            good,
            false,
        ),
        ("something on the lane", busy, good, false),
        ("something in line", in_line, good, false),
        ("a silent peer", stopped, good, false),
        ("a peer that has gone", gone, good, false),
        (
            "the other transport, once the best is paused",
            failed_over,
            good,
            true,
        ),
        (
            "no plan",
            usual,
            Request {
                plan: PlanId {
                    index: 1,
                    generation: 1,
                },
                ..good
            },
            false,
        ),
        (
            "an old plan",
            usual,
            Request {
                plan: PlanId {
                    index: 0,
                    generation: 0,
                },
                ..good
            },
            false,
        ),
        ("a retired plan", retired, good, false),
        ("nothing to move", usual, request(0), false),
        (
            "more than a work may be",
            usual,
            request((1 << 20) + 1),
            false,
        ),
        (
            "a deadline",
            usual,
            Request {
                deadline: ms(1_000_000),
                ..good
            },
            false,
        ),
        (
            "past all offsets",
            usual,
            Request {
                remote_offset: u64::MAX,
                ..good
            },
            false,
        ),
        (
            "another policy",
            || idle(Config::new(0, Policy::RoundRobin), &[0]),
            good,
            false,
        ),
    ];
    for (name, make, request, expected) in cases {
        let world = make();
        assert_eq!(world.core.at_once(&request).is_some(), expected, "{name}");
    }
    let world = failed_over();
    let at_once = world
        .core
        .at_once(&good)
        .expect("the other transport is idle");
    assert_eq!(at_once.lane.rail(), RailId(1));
}

#[test]
fn what_was_carried_is_counted_and_now_and_then_measured() {
    let mut world = usual();
    let before = world.done_bytes(0);
    let rate = |world: &World<'_>| {
        let view = world.core.shared.view(RailId(0)).expect("it is there");
        view.rate.bytes_per_sec()
    };
    let mut measured = 0;
    for _ in 0..1600 {
        world.now = world.now + Duration::from_micros(40);
        let at_once = world.core.at_once(&request(1 << 20)).expect("it is idle");
        measured += u32::from(at_once.is_measured);
        // 4 GB/s, where 1 was assumed, and a delay of 50 µs beside.
        let took = Duration::from_nanos((1 << 20) / 4);
        let took = at_once.is_measured.then_some(took);
        world.core.handle_at_once(world.now, &at_once, took);
    }
    assert_eq!(world.done_bytes(0) - before, 1600 << 20);
    assert_eq!(world.core.peers[0].heard_at(), world.now);
    assert_eq!(measured, 100);
    let rate = rate(&world);
    assert!((3_900_000_000..5_100_000_000).contains(&rate), "{rate}");
    world.core.audit().expect("all invariants hold");
}
