//! Posts: what may be said while one is out, what is not answered, and lanes that never have room.

use super::ending::warmed;
use super::*;

/// The post of two small writes over the only rail, and its works.
fn posted() -> (World<'static>, Post, PostBatch) {
    let mut world = warmed(World::new(Policy::Spray, 1));
    world.submit(1, Op::Write, 1000);
    world.submit(2, Op::Write, 1000);
    let mut batch = PostBatch::default();
    let post = world.core.poll_post(world.now, &mut batch).expect("works");
    assert_eq!(batch.works.len(), 2);
    (world, post, batch)
}

/// How the requests of [`posted`] end, both alike.
fn ends(mut world: World<'static>) -> Report {
    world.core.audit().unwrap();
    world.run_until_reported(2, Duration::from_secs(5));
    world.core.audit().unwrap();
    let [first, second] = [1, 2].map(|tag| world.reports.get(&tag).copied().expect("a report"));
    assert_eq!(first, second);
    first
}

#[test]
fn a_lane_may_break_while_a_post_is_out() {
    for accepted in 0..=2 {
        for stop in [
            Stop::All,
            Stop::Full,
            Stop::Rejected(Cause::Reset),
            Stop::Unknown,
        ] {
            let (mut world, post, mut batch) = posted();
            let fact = LaneFact::Broken(Cause::Reset);
            world
                .core
                .handle_lane(world.now, post.lane(), batch.epoch, fact);
            world.core.audit().unwrap();
            batch.works.truncate(accepted);
            world.post(post.lane(), &batch);
            assert!(world.core.handle_posted(world.now, post, accepted, stop));
            assert_eq!(ends(world).status, Status::Completed, "{accepted} {stop:?}");
        }
    }
}

#[test]
fn a_lane_may_be_fenced_and_opened_anew_while_a_post_is_out() {
    let (mut world, post, batch) = posted();
    let (lane, epoch) = (post.lane(), batch.epoch);
    let facts = [
        LaneFact::Broken(Cause::Flushed),
        LaneFact::Fenced {
            scope: Scope::Remote,
            delivered: Some(0),
        },
        LaneFact::Fenced {
            scope: Scope::Local,
            delivered: None,
        },
    ];
    for fact in facts {
        world.core.handle_lane(world.now, lane, epoch, fact);
        world.core.audit().unwrap();
    }
    // Nothing can be posted on what comes next until this one is answered.
    assert!(
        world
            .core
            .poll_post(world.now, &mut PostBatch::default())
            .is_none()
    );
    assert!(
        world
            .core
            .handle_posted(world.now, post, 0, Stop::Rejected(Cause::Flushed))
    );
    assert_eq!(ends(world).status, Status::Completed);
}

#[test]
fn works_may_complete_before_their_post_is_answered() {
    let (mut world, post, batch) = posted();
    let done = |work: &Work| Completion {
        lane: post.lane(),
        epoch: batch.epoch,
        cookie: work.cookie,
        at: world.now,
        outcome: Outcome::Success,
    };
    let done: Vec<_> = batch.works.iter().map(done).collect();
    batch.works.iter().for_each(|work| world.landed(*work));
    world.core.handle_completions(world.now, &done[..1]);
    assert!(world.core.handle_posted(world.now, post, 2, Stop::All));
    world.core.handle_completions(world.now, &done[1..]);
    assert_eq!(ends(world).status, Status::Completed);
}

#[test]
fn a_peer_may_be_gone_while_a_post_is_out() {
    for proof in [Proof::ProcessGone, Proof::SessionEnded] {
        let (mut world, post, _) = posted();
        world.core.handle_peer_gone(world.now, PEER, proof);
        world.core.audit().unwrap();
        assert!(world.core.handle_posted(world.now, post, 0, Stop::All));
        let status = ends(world).status;
        let expected = match proof {
            Proof::ProcessGone => Status::PeerLost,
            Proof::SessionEnded => Status::Completed,
        };
        assert_eq!(status, expected);
    }
}

#[test]
fn an_answer_is_taken_once_and_from_the_right_post() {
    let (mut world, first, _) = posted();
    // Another worker's, or one that was given up, as they look from here.
    let stranger = Post {
        lane: first.lane,
        number: first.number | 1 << 30,
    };
    assert!(
        !world
            .core
            .handle_posted(world.now, stranger, 0, Stop::Unknown)
    );
    assert_eq!(world.core.ignored().posts, 1);
    let lane = first.lane();
    assert!(world.core.handle_posted(world.now, first, 0, Stop::Full));
    let epoch = world.core.lanes[0].epoch();
    world
        .core
        .handle_lane(world.now, lane, epoch, LaneFact::Writable);
    assert_eq!(ends(world).status, Status::Completed);
}

#[test]
fn a_post_that_is_never_answered_holds_up_its_lane_and_nothing_else() {
    let mut world = warmed(World::new(Policy::Spray, 3));
    world.submit(1, Op::Write, 1000);
    let mut batch = PostBatch::default();
    let forgotten = world.core.poll_post(world.now, &mut batch).expect("works");
    world.submit(2, Op::Write, 1000);
    let from = world.now;
    world.run_until_reported(2, Duration::from_secs(10));
    let took = world.now.since(from);
    // Proof for the lane comes from the peer, and from this side.
    assert!(took <= Duration::from_millis(2_050), "{took:?}");
    assert!(
        world
            .reports
            .values()
            .all(|report| report.status == Status::Completed)
    );
    assert!(!world.core.handle_posted(world.now, forgotten, 1, Stop::All));
    assert_eq!(world.core.ignored().posts, 1);
}

/// One turn of a shell, and so long until the next; what a lane posts that `is_full` finds no room.
fn turn(world: &mut World<'_>, step: Duration, mut is_full: impl FnMut(RailId) -> bool) {
    let mut batch = PostBatch::default();
    while let Some(post) = world.core.poll_post(world.now, &mut batch) {
        let (accepted, stop) = if is_full(post.lane().rail()) {
            (0, Stop::Full)
        } else {
            world.post(post.lane(), &batch);
            (batch.works.len(), Stop::All)
        };
        world.core.handle_posted(world.now, post, accepted, stop);
    }
    while let Some(action) = world.core.poll_lane() {
        world.act(action);
    }
    while let Some(event) = world.core.poll_event() {
        world.event(event);
    }
    world.core.audit().unwrap();
    world.now = world.now + step;
    world.happen();
}

/// Three rails, of which the first one says whenever it is asked that it has no room. When the request was reported.
fn full_for_ever(rails: u16, op: Op) -> World<'static> {
    let mut world = warmed(World::new(Policy::Spray, rails));
    world.submit(1, op, 16 * u64::from(SLICE));
    let until = world.now + Duration::from_secs(10);
    while world.now < until && !world.reports.contains_key(&1) {
        turn(&mut world, Duration::from_micros(100), |rail| {
            rail == RailId(0)
        });
    }
    world
}

#[test]
fn what_waits_for_a_lane_that_is_full_for_ever_goes_elsewhere() {
    for op in [Op::Write, Op::Read] {
        let world = full_for_ever(3, op);
        assert_eq!(world.reports[&1].status, Status::Completed);
        assert!(world.now < ms(100), "{op:?}: {:?}", world.now);
    }
}

#[test]
fn a_lane_that_is_full_for_ever_fails_its_requests_if_there_is_no_other() {
    let world = full_for_ever(1, Op::Write);
    let report = world.reports[&1];
    assert_eq!(report.status, Status::Failed, "{report:?}");
    assert!(
        world
            .log
            .iter()
            .filter(|line| line.contains("Open"))
            .count()
            > 1
    );
}

#[test]
fn what_is_ignored_is_counted_by_reason() {
    let mut world = warmed(World::new(Policy::Spray, 1));
    let (lane, epoch) = *world.lanes.keys().next().unwrap();
    let done = |lane, epoch| Completion {
        lane,
        epoch,
        cookie: 7,
        at: world.now,
        outcome: Outcome::Success,
    };
    let before = world.core.ignored();
    let other = Epoch(epoch.0 + 1);
    let all = [
        done(lane, epoch),
        done(lane, other),
        done(LaneId::new(1, RailId(0)), epoch),
    ];
    world.core.handle_completions(world.now, &all);
    world
        .core
        .handle_lane(world.now, lane, other, LaneFact::Writable);
    world
        .core
        .handle_lane(world.now, lane, epoch, LaneFact::Opened { limits: LIMITS });
    let unasked = LaneFact::Fenced {
        scope: Scope::Remote,
        delivered: Some(3),
    };
    world.core.handle_lane(world.now, lane, epoch, unasked);
    let found = world.core.ignored();
    let expected = Ignored {
        works: before.works + 1,
        epochs: before.epochs + 2,
        lanes: before.lanes + 1,
        facts: before.facts + 2,
        ..before
    };
    assert_eq!(found, expected);
    assert_eq!(found.total(), before.total() + 6);
}

#[test]
fn a_probe_on_a_lane_that_is_full_for_a_while_comes_to_its_end() {
    let mut world = warmed(World::new(Policy::Spray, 1));
    world.reset_rail(0);
    world.happen();
    let mut full = 5_u32;
    while world.core.shared.view(RailId(0)).unwrap().state != RailState::Healthy {
        turn(&mut world, Duration::from_micros(100), |_| {
            let is_full = full > 0;
            full -= u32::from(is_full);
            is_full
        });
        assert!(world.now < ms(500), "probing for ever");
    }
    assert_eq!(full, 0);
}

#[test]
fn a_lane_that_says_it_takes_nothing_is_not_waited_for_for_ever() {
    for rails in [1, 2] {
        let mut world = World::new(Policy::Spray, rails);
        world.limits = [LaneLimits {
            works_max: 0,
            reads_max: 0,
            ..LIMITS
        }; RAILS];
        for op in [Op::Write, Op::Read] {
            world.submit(op as u64, op, 4 * u64::from(SLICE));
        }
        // It is given one work at a time, and says what it does with it.
        let until = world.now + Duration::from_secs(5);
        while world.reports.len() < 2 && world.now < until {
            let mut batch = PostBatch::default();
            while let Some(post) = world.core.poll_post(world.now, &mut batch) {
                assert_eq!(batch.works.len(), 1);
                world.core.handle_posted(world.now, post, 0, Stop::Full);
            }
            while let Some(action) = world.core.poll_lane() {
                world.act(action);
            }
            while let Some(event) = world.core.poll_event() {
                world.event(event);
            }
            world.now = world.now + Duration::from_micros(500);
            world.happen();
        }
        assert_eq!(world.reports.len(), 2, "{rails} rails");
    }
}
