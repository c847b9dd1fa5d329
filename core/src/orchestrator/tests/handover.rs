//! Requests that come to a transport whose requests the caller carries out itself.

use super::*;
const CLEAN: (Local, Remote) = (Local::Released, Remote::Settled);

/// One rail of its own, and behind it what is handed over.
fn world() -> World<'static> {
    World::ranked_with(
        Config {
            hands_over: Some(TransportId(1)),
            ..Config::new(0, Policy::Spray)
        },
        &[],
        &[1, 1],
    )
}

/// The same, whose rail has failed.
fn without_rail() -> World<'static> {
    let mut world = world();
    world.submit(90, Op::Write, 1);
    world.run_until_reported(1, Duration::from_secs(1));
    cut(&mut world);
    world.submit(91, Op::Read, 1);
    world.run(world.now + Duration::from_millis(20));
    carry_out(&mut world, 91);
    end(&mut world, 91, &how(Status::Completed, CLEAN));
    world.reports.clear();
    world.failovers.clear();
    world.batches = 0;
    world
}

fn cut(world: &mut World<'_>) {
    world.links[0].cut = true;
    world.reset_rail(0);
}

fn how(status: Status, (local, remote): (Local, Remote)) -> Report {
    Report {
        status,
        delivered_bytes: 0,
        cause: (status != Status::Completed).then_some(Cause::MediaError),
        local,
        remote,
    }
}

/// Whoever carries out what is handed over has moved all of it.
fn carry_out(world: &mut World<'_>, tag: u64) {
    let Range { start, end } = world.owners[&tag].clone();
    world.arrived.insert(start, end - start);
}

fn end(world: &mut World<'_>, tag: u64, how: &Report) {
    let place = world.handed.iter().position(|(handed, _)| *handed == tag);
    let (_, id) = world.handed.remove(place.expect("it was handed over"));
    assert!(world.core.hand_back(id, how), "{tag}");
    world.drain();
    world.core.audit().unwrap();
}

#[test]
fn what_a_failed_transport_leaves_is_handed_over_and_its_report_and_batch_follow_its_end() {
    let cases = [
        (Status::Completed, None),
        (Status::Failed, Some(Cause::MediaError)),
        (Status::PeerLost, Some(Cause::MediaError)),
    ];
    for (status, cause) in cases {
        let mut world = world();
        world.submit(0, Op::Read, 64 << 20);
        world.run(ms(3));
        assert!(world.done_bytes(0) > 0 && world.handed.is_empty());
        cut(&mut world);
        world.run(ms(60));
        world.core.audit().unwrap();
        assert_eq!(world.failovers, [(0, 0, 1, 1)]);
        assert_eq!(world.handed.len(), 1, "nothing of it is under way any more");
        assert_eq!((world.reports.len(), world.batches), (0, 0), "it is open");
        carry_out(&mut world, 0);
        end(&mut world, 0, &how(status, CLEAN));
        let report = world.reports[&0];
        assert_eq!((report.status, report.cause), (status, cause));
        assert_eq!(
            report.delivered_bytes == 64 << 20,
            status == Status::Completed
        );
        assert!(report.delivered_bytes >= world.done_bytes(0).min(1 << 20));
        assert_eq!((world.batches, world.core.requests()), (1, 0));
    }
}

#[test]
fn a_request_that_comes_while_no_rail_is_usable_is_handed_over_at_once() {
    let mut world = without_rail();
    let id = world.submit(0, Op::Write, 100);
    world.drain();
    assert_eq!(world.handed, [(0, id)]);
    let handed = world.core.handed(id).unwrap();
    let place = |segment| Place {
        segment: SegmentRef(segment),
        offset: 0,
    };
    assert_eq!((handed.local, handed.remote), (place(1), place(2)));
    assert_eq!((handed.op, handed.length), (Op::Write, 100));
    assert_eq!(
        (handed.deadline, handed.priority),
        (Instant::MAX, Priority::Normal)
    );
    assert!(world.core.transport_of(id).is_some_and(|at| at.0 == 1));
    assert!(!world.log.iter().any(|line| line.contains("RailId(1)")));
    carry_out(&mut world, 0);
    end(&mut world, 0, &how(Status::Completed, CLEAN));
    assert_eq!(world.reports[&0].status, Status::Completed);
    assert!(
        !world.core.hand_back(id, &how(Status::Completed, CLEAN)),
        "it is over"
    );
}

#[test]
fn neighbours_that_were_merged_are_handed_over_each_for_itself() {
    let mut world = world();
    for tag in 0..4 {
        world.submit_at(PLAN, tag, Op::Read, tag * 100, 100, Priority::Normal);
    }
    cut(&mut world);
    world.corrupts = |_, _| Some(Cause::RetryExceeded);
    world.links[0].cut = false;
    world.run(ms(40));
    world.core.audit().unwrap();
    let mut handed: Vec<_> = world.handed.iter().map(|(tag, _)| *tag).collect();
    handed.sort_unstable();
    assert_eq!(handed, [0, 1, 2, 3]);
    for tag in 0..4 {
        carry_out(&mut world, tag);
        end(&mut world, tag, &how(Status::Completed, CLEAN));
    }
    assert_eq!((world.reports.len(), world.batches), (4, 4));
    assert_eq!(world.core.requests(), 0);
}

/// What ends a request that is handed over, and how it ends then.
type Ender = fn(&mut World<'_>, RequestId);

#[test]
fn what_is_handed_over_is_called_back_once_and_ends_as_core_says() {
    let cancel: Ender = |world, id| {
        assert_eq!(world.core.cancel(world.now, id), Cancelled::Marked);
        world.core.cancel(world.now, id);
    };
    let pass: Ender = |world, _| world.run(world.now + Duration::from_millis(150));
    let shut_down: Ender = |world, _| world.core.shut_down(world.now);
    let gone: Ender = |world, _| {
        let proof = Proof::ProcessGone;
        world.core.handle_peer_gone(world.now, PEER, proof);
    };
    let cases = [
        (cancel, Status::Cancelled, Cause::Cancelled),
        (pass, Status::DeadlineExceeded, Cause::DeadlineExceeded),
        (shut_down, Status::ShutDown, Cause::ShutDown),
        (gone, Status::PeerLost, Cause::PeerGone),
    ];
    for (ender, status, cause) in cases {
        for ended_as in [Status::Cancelled, Status::Failed, Status::Completed] {
            let mut world = without_rail();
            if status == Status::DeadlineExceeded {
                world.deadline = world.now + Duration::from_millis(100);
            }
            let id = world.submit(0, Op::Write, 100);
            world.drain();
            ender(&mut world, id);
            world.drain();
            world.core.audit().unwrap();
            assert_eq!(world.called_back, [0], "{status:?}");
            assert!(world.reports.is_empty(), "whoever has it may still move it");
            world.run(world.now + Duration::from_secs(5));
            assert_eq!((world.called_back.len(), world.reports.len()), (1, 0));
            carry_out(&mut world, 0);
            end(&mut world, 0, &how(ended_as, CLEAN));
            let report = world.reports[&0];
            let expected = match ended_as {
                // It was faster.
                Status::Completed => (Status::Completed, None),
                _ => (status, Some(cause)),
            };
            assert_eq!((report.status, report.cause), expected, "{status:?}");
            assert_eq!((world.batches, world.core.requests()), (1, 0));
        }
    }
}

#[test]
fn what_is_to_end_before_anybody_was_told_of_it_is_never_handed_over() {
    let mut world = without_rail();
    let id = world.submit(0, Op::Write, 100);
    world.core.cancel(world.now, id);
    world.drain();
    assert_eq!(world.reports[&0].status, Status::Cancelled);
    assert_eq!((world.handed.len(), world.called_back.len()), (0, 0));
    assert_eq!(world.core.requests(), 0);
}

#[test]
fn what_may_still_move_is_not_moved_by_another() {
    // The peer stops while the only lane has a write under way, and answers no fence.
    let mut world = world();
    world.answers_fences = false;
    world.submit(0, Op::Write, 1 << 20);
    world.run(Instant::ZERO + Duration::from_micros(300));
    cut(&mut world);
    world.run(ms(4_000));
    world.core.audit().unwrap();
    assert_eq!(world.handed, [], "its bytes may be overtaken by old ones");
    let report = world.reports[&0];
    assert_eq!(
        (report.status, report.remote),
        (Status::Indeterminate, Remote::Unknown)
    );
}

#[test]
fn what_is_handed_back_without_proof_is_settled_when_there_is_some() {
    let mut world = without_rail();
    let id = world.submit(0, Op::Write, 100);
    world.drain();
    world.core.cancel(world.now, id);
    world.drain();
    let (held, released) = (
        (Local::Held, Remote::Unknown),
        (Local::Released, Remote::Unknown),
    );
    end(&mut world, 0, &how(Status::Indeterminate, held));
    let report = world.reports[&0];
    assert_eq!(report.status, Status::Indeterminate);
    assert_eq!(report.cause, Some(Cause::Cancelled));
    assert_eq!((report.local, report.remote), held);
    assert_eq!((world.batches, world.known.len()), (1, 0));
    for (sides, known) in [(held, 0), (released, 1), (released, 1), (CLEAN, 2)] {
        assert!(world.core.hand_back(id, &how(Status::Indeterminate, sides)));
        world.drain();
        world.core.audit().unwrap();
        assert_eq!(world.known.len(), known, "{sides:?}");
    }
    assert_eq!(
        world.known,
        [(0, released.0, released.1), (0, CLEAN.0, CLEAN.1)]
    );
    assert_eq!(world.core.requests(), 0);
}

#[test]
fn a_peer_is_forgotten_once_what_it_had_is_handed_back() {
    for sides in [CLEAN, (Local::Released, Remote::Unknown)] {
        let mut world = without_rail();
        world.submit(0, Op::Write, 100);
        world.drain();
        for _ in 0..3 {
            assert!(!world.core.forget_peer(world.now, PEER), "it is out");
            world.run(world.now + Duration::from_secs(1));
        }
        assert_eq!(world.called_back, [0]);
        end(&mut world, 0, &how(Status::Indeterminate, sides));
        assert_eq!(world.reports.len(), 1);
        let until = world.now + Duration::from_secs(5);
        while !world.core.forget_peer(world.now, PEER) {
            world.run(world.now + Duration::from_millis(5));
            assert!(world.now < until, "never");
        }
        assert_eq!(world.core.requests(), 0);
    }
}

#[test]
fn the_transport_is_left_again_by_new_requests_once_another_is_back() {
    let mut world = without_rail();
    world.links[0].cut = false;
    world.run(world.now + Duration::from_secs(5));
    world.submit(0, Op::Write, 1 << 20);
    world.run_until_reported(1, Duration::from_secs(1));
    assert_eq!(world.reports[&0].status, Status::Completed);
    assert_eq!(world.handed, []);
}

/// What happens to a world of requests that may be handed over.
fn survives_handing_over(steps: Vec<(u8, u8)>) -> bool {
    let mut world = world();
    let mut ids = Vec::new();
    for (step, number) in steps {
        let pick = usize::from(number);
        match step % 8 {
            0 | 1 if ids.len() < 15 => {
                let op = if number % 2 == 0 { Op::Write } else { Op::Read };
                world.deadline = match number % 5 {
                    0 => world.now + Duration::from_millis(u64::from(number)),
                    _ => Instant::MAX,
                };
                let length = 1 + (u64::from(number) << (number % 16));
                ids.push(world.submit(ids.len() as u64, op, length));
            }
            2 => cut(&mut world),
            3 => world.links[0].cut = false,
            4 if !ids.is_empty() => drop(world.core.cancel(world.now, ids[pick % ids.len()])),
            5 | 6 if !world.handed.is_empty() => {
                let (tag, id) = world.handed[pick % world.handed.len()];
                let status = [Status::Completed, Status::Failed, Status::Indeterminate];
                let sides = match number % 3 {
                    2 => (Local::Held, Remote::Unknown),
                    _ => CLEAN,
                };
                carry_out(&mut world, tag);
                world.core.hand_back(id, &how(status[pick % 3], sides));
            }
            _ => world.run(world.now + Duration::from_millis(u64::from(number))),
        }
        world.drain();
        world.core.audit().unwrap();
    }
    world.links[0].cut = false;
    let until = world.now + Duration::from_secs(30);
    while world.core.requests() > 0 && world.now < until {
        for (tag, id) in world.handed.clone() {
            carry_out(&mut world, tag);
            world.core.hand_back(id, &how(Status::Completed, CLEAN));
        }
        world.run(world.now + Duration::from_millis(20));
        world.core.audit().unwrap();
    }
    world.reports.len() == ids.len()
        && world.batches as usize == ids.len()
        && world.core.requests() == 0
}

#[test]
fn each_is_reported_once_whatever_happens_while_it_is_handed_over() {
    QuickCheck::new()
        .tests(300)
        .quickcheck(survives_handing_over as fn(Vec<(u8, u8)>) -> bool);
}
