//! A chunk's way, one rule each.

use super::StageMessage::*;
use super::talk::*;
use super::*;

#[test]
fn a_write_reserves_backwards_and_gives_back_what_is_not_named() {
    let mut host = host();
    host.submit(ms(0), &request(WRITE, 0, 1_000, 40, 2))
        .unwrap();
    let t = ticket(0, 1);
    assert_eq!(
        says(&mut host, ms(0)),
        [Reserve {
            ticket: t,
            pool: IN
        }]
    );
    assert_eq!((used(&host), stages(&mut host)), ([0, 0], Vec::new()));

    hears(&mut host, Waiting { ticket: t });
    hears(&mut host, Reserved { ticket: t, slot: 1 });
    let copy = stage(&mut host);
    let slot = pool(Direction::Out, 2).place(0);
    assert_eq!(
        (copy.hop, copy.local, copy.remote, copy.length),
        (Hop::Copy, user(1_000), slot, 40)
    );
    ends(&mut host, copy, good());

    let network = stage(&mut host);
    let far = remote_pool(Direction::In, 2).slots.place(1);
    assert_eq!(
        (network.hop, network.op),
        (Hop::Network { peer: PEER }, Op::Write)
    );
    assert_eq!((network.local, network.remote), (slot, far));
    assert_eq!(used(&host), [0, 1]);
    ends(&mut host, network, good());
    assert_eq!(used(&host), [0, 0]);

    let said = says(&mut host, ms(1));
    let [
        Go {
            ticket: of,
            attempt,
            place,
            length: 40,
        },
    ] = said[..]
    else {
        panic!("{said:?}");
    };
    assert_eq!((of, place), (t, user(DESTINATION + 1_000)));
    let went = |attempt| Went {
        ticket: t,
        attempt,
        end: CopyEnd::Done,
    };
    hears(&mut host, went(attempt + 1));
    assert_eq!(ended(&mut host), None, "an attempt that was not asked for");
    hears(&mut host, went(attempt));
    assert_eq!(ended(&mut host).unwrap().delivered_bytes, 40);
    assert_eq!(says(&mut host, ms(1)), []);
    let late = host.handle_message(ms(1), PEER, &went(attempt));
    assert_eq!(late, Err(Refusal::StaleTicket));
}

#[test]
fn a_read_reserves_backwards_and_gives_back_what_is_not_named() {
    let mut host = host();
    host.submit(ms(0), &request(READ, 0, 0, 40, 2)).unwrap();
    let t = ticket(0, 1);
    assert_eq!(used(&host), [1, 0], "its own slot first");
    assert_eq!(
        says(&mut host, ms(0)),
        [Reserve {
            ticket: t,
            pool: OUT
        }]
    );
    hears(&mut host, Reserved { ticket: t, slot: 0 });
    let said = says(&mut host, ms(1));
    let [Go { attempt, place, .. }] = said[..] else {
        panic!("{said:?}");
    };
    assert_eq!(place, user(0));
    hears(
        &mut host,
        Went {
            ticket: t,
            attempt,
            end: CopyEnd::Done,
        },
    );
    let network = stage(&mut host);
    let slot = pool(Direction::In, 2).place(0);
    assert_eq!((network.op, network.local), (Op::Read, slot));
    ends(&mut host, network, good());
    assert_eq!(
        says(&mut host, ms(1)),
        [Free {
            ticket: t,
            fenced: true
        }]
    );
    let copy = stage(&mut host);
    assert_eq!((copy.local, copy.remote), (slot, user(DESTINATION)));
    ends(&mut host, copy, good());
    assert_eq!(status(&mut host), Some((Status::Completed, None)));
    assert_eq!(used(&host), [0, 0]);
    hears(&mut host, Freed { ticket: t });
    assert_eq!(host.poll_timeout(), None);
}

#[test]
fn two_hops_do_without_one_of_the_slots() {
    let near = |route| Route {
        remote: false,
        ..route
    };
    let far = |route| Route {
        local: false,
        ..route
    };
    // (name, route, whether it copies on this side, whether it talks)
    let cases = [
        ("write through our slot", near(WRITE), true, false),
        ("write through theirs", far(WRITE), false, true),
        ("read through our slot", near(READ), true, false),
        ("read through theirs", far(READ), false, true),
    ];
    for (name, route, copies, talks) in cases {
        let hosts = [host(), host()];
        let mut world = World::new(hosts, 1);
        let request = request(route, 0, 0, 3 * SLOT + 1, 2);
        let id = world.hosts[0].submit(ms(0), &request).unwrap();
        world.run(ms(100));
        assert_eq!(world.reports[0][&id].status, Status::Completed, "{name}");
        assert!(world.is_right(0, &request), "{name}");
        let server = |host, network| {
            world
                .busy
                .keys()
                .any(|busy| (busy.0, busy.1) == (host, network))
        };
        assert_eq!(
            [server(0, false), server(1, false)],
            [copies, talks],
            "{name}"
        );
    }
}

#[test]
fn a_failed_stage_repeats_only_its_chunk() {
    let (mut host, begun) = under_way(2);
    let failed = report(Status::Failed, Some(Cause::Reset));
    ends(&mut host, begun[0], failed);
    let again = stage(&mut host);
    assert_eq!(
        (again.local, again.remote),
        (begun[0].local, begun[0].remote)
    );
    assert_ne!(again.id, begun[0].id);
    let late = host.handle_stage(ms(1), begun[0].id, &good());
    assert_eq!(late, Err(Refusal::StaleStage));
    ends(&mut host, begun[1], good());
    let network = stage(&mut host);
    assert_eq!(network.local, begun[1].remote, "the other one goes on");
    // Three attempts in all, whichever stage.
    ends(&mut host, again, good());
    let second = stage(&mut host);
    ends(&mut host, second, failed);
    let third = stage(&mut host);
    assert_eq!(third.local, second.local);
    ends(&mut host, third, failed);
    assert_eq!(
        ended(&mut host),
        None,
        "the other chunk's attempt has not ended"
    );
    ends(&mut host, network, good());
    let last = ended(&mut host).unwrap();
    assert_eq!(
        (last.status, last.cause, last.delivered_bytes),
        (Status::Failed, Some(Cause::Reset), 0)
    );
}

#[test]
fn the_callers_fault_is_not_tried_again() {
    let (mut host, begun) = under_way(1);
    ends(
        &mut host,
        begun[0],
        report(Status::Failed, Some(Cause::LocalProtection)),
    );
    assert_eq!(
        status(&mut host),
        Some((Status::Failed, Some(Cause::LocalProtection)))
    );
}

#[test]
fn what_cannot_be_fenced_is_quarantined_until_staging_is_lost() {
    let (mut host, begun) = under_way(1);
    ends(&mut host, begun[0], good());
    let mut network = stage(&mut host);
    for left in [1, 0] {
        ends(
            &mut host,
            network,
            report(Status::Indeterminate, Some(Cause::Silent)),
        );
        let view = host.pool(OUT).unwrap();
        assert_eq!(
            (view.free, view.used, view.quarantined),
            (left, 0, 2 - left)
        );
        let said = says(&mut host, ms(1));
        let [
            Free {
                ticket,
                fenced: false,
            },
        ] = said[..]
        else {
            panic!("{said:?}");
        };
        // The chunk begins anew, under another ticket, once the peer knows.
        hears(&mut host, Freed { ticket });
        let said = says(&mut host, ms(1));
        let [Reserve { ticket, .. }] = said[..] else {
            panic!("{said:?}");
        };
        hears(&mut host, Reserved { ticket, slot: 0 });
        if left == 1 {
            let copy = stage(&mut host);
            assert_eq!(copy.remote, pool(Direction::Out, 2).place(1));
            ends(&mut host, copy, good());
            network = stage(&mut host);
        }
    }
    assert_eq!(
        status(&mut host),
        Some((Status::Failed, Some(Cause::StagingLost)))
    );
    // So does the next one, until there is proof.
    host.submit(
        ms(1),
        &request(
            Route {
                remote: false,
                ..WRITE
            },
            0,
            0,
            1,
            2,
        ),
    )
    .unwrap();
    assert_eq!(
        status(&mut host),
        Some((Status::Failed, Some(Cause::StagingLost)))
    );
    let suspects: Vec<_> = host.quarantined(OUT).collect();
    assert_eq!(suspects.len(), 2);
    assert_eq!(
        suspects[1].1,
        Suspect {
            stage: Some(network.id),
            peer: Some(PEER)
        }
    );
    assert!(host.restore(ms(2), OUT, 1) && !host.restore(ms(2), OUT, 1));
    host.submit(
        ms(2),
        &request(
            Route {
                remote: false,
                ..WRITE
            },
            0,
            0,
            1,
            2,
        ),
    )
    .unwrap();
    assert_eq!(stage(&mut host).remote, pool(Direction::Out, 2).place(1));
    host.handle_peer_gone(ms(3), PEER, Some(Proof::ProcessGone));
    assert_eq!(host.pool(OUT).unwrap().quarantined, 0);
}

#[test]
fn what_may_still_touch_the_requests_own_memory_is_reported() {
    let open = report(Status::Indeterminate, Some(Cause::Silent));
    // A copy from the request's memory.
    let (mut host, begun) = under_way(1);
    ends(&mut host, begun[0], open);
    let ended_so = ended(&mut host).unwrap();
    assert_eq!(
        (ended_so.status, ended_so.local, ended_so.remote),
        (Status::Indeterminate, Local::Held, Remote::Settled)
    );
    assert_eq!(quarantined(&host), [0, 1]);

    // The peer's copy into it; a read's copy out of it is no matter for the destination.
    for (route, expected) in [
        (WRITE, Some((Status::Indeterminate, Some(Cause::Fatal)))),
        (READ, None),
    ] {
        let mut host = talk::host();
        host.submit(ms(0), &request(route, 0, 0, 10, 2)).unwrap();
        says(&mut host, ms(0));
        hears(
            &mut host,
            Reserved {
                ticket: ticket(0, 1),
                slot: 0,
            },
        );
        while let Some(stage) = host.poll_stage() {
            ends(&mut host, stage, good());
        }
        let said = says(&mut host, ms(1));
        let [
            Go {
                ticket, attempt, ..
            },
        ] = said[..]
        else {
            panic!("{said:?}");
        };
        hears(
            &mut host,
            Went {
                ticket,
                attempt,
                end: CopyEnd::Unfenced(Cause::Fatal),
            },
        );
        assert_eq!(status(&mut host), expected);
        assert_eq!(
            says(&mut host, ms(1)),
            [Free {
                ticket,
                fenced: true
            }]
        );
    }
}

#[test]
fn requests_to_one_peer_take_turns() {
    let mut host = staged(1, 1, 8, [1, 1], StagedConfig::DEFAULT);
    let route = Route {
        remote: false,
        ..WRITE
    };
    for number in 0..3 {
        host.submit(ms(0), &request(route, 0, number << 20, 3 * SLOT, 1))
            .unwrap();
    }
    let mut turns = Vec::new();
    while let Some(stage) = host.poll_stage() {
        if stage.hop == Hop::Copy {
            turns.push(stage.local.offset >> 20);
        }
        ends(&mut host, stage, good());
    }
    // The first one had a second chunk in line before the others came.
    assert_eq!(turns, [0, 0, 1, 2, 0, 1, 2, 1, 2]);
}

#[test]
fn chunks_begin_by_priority_and_no_priority_starves() {
    use Priority::*;
    let route = Route {
        remote: false,
        ..WRITE
    };
    // (what, chunks of each, milliseconds that each stage takes, how many begin of which request in a row)
    let cases = [
        ("quickly", 12, 0, &[(0, 1), (2, 12), (1, 12), (0, 11)][..]),
        // Who has had no turn for eight of others', and for 10 ms, gets one.
        (
            "slowly",
            12,
            1,
            &[
                (0, 1),
                (2, 8),
                (0, 1),
                (1, 1),
                (2, 4),
                (1, 3),
                (0, 1),
                (1, 8),
                (0, 9),
            ],
        ),
    ];
    for (name, chunks, takes, order) in cases {
        let mut host = staged(1, 1, 8, [1, 1], StagedConfig::DEFAULT);
        for (number, priority) in (0..).zip([Low, Normal, High]) {
            let request = StagedRequest {
                priority,
                ..request(route, 0, number << 20, chunks * SLOT, 1)
            };
            host.submit(ms(0), &request).unwrap();
        }
        let (mut now, mut begun) = (0, Vec::new());
        while let Some(stage) = host.poll_stage() {
            if stage.hop == Hop::Copy {
                begun.push(stage.local.offset >> 20);
            }
            // One slot: what goes on is what began last.
            let of = [Low, Normal, High][begun[begun.len() - 1] as usize];
            assert_eq!(stage.priority, of, "{name}");
            now += takes;
            host.handle_stage(ms(now), stage.id, &good()).unwrap();
            host.audit().unwrap();
        }
        let runs = begun.chunk_by(|one, next| one == next);
        let runs: Vec<_> = runs.map(|run| (run[0], run.len())).collect();
        assert_eq!(runs, order, "{name}");
    }
}
