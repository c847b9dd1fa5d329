//! How requests end that do not end well, and those that never begin.

use super::StageMessage::*;
use super::talk::*;
use super::*;

#[test]
fn a_silent_peer_is_asked_again_and_then_not_waited_for() {
    let mut host = staged(2, 1, 8, [2, 2], StagedConfig::DEFAULT);
    host.submit(ms(0), &request(WRITE, 0, 0, 10, 2)).unwrap();
    host.submit(ms(0), &request(WRITE, 0, 0, 20, 2)).unwrap();
    let reserve = Reserve {
        ticket: ticket(0, 1),
        pool: IN,
    };
    assert_eq!(says(&mut host, ms(0)), [reserve]);
    for at in [10, 20] {
        assert_eq!(host.poll_timeout(), Some(ms(at)));
        host.handle_timeout(ms(at - 1));
        assert_eq!(says(&mut host, ms(at - 1)), []);
        host.handle_timeout(ms(at));
        assert_eq!(says(&mut host, ms(at)), [reserve]);
    }
    // A sign of life, and as much patience again.
    host.handle_message(
        ms(25),
        PEER,
        &Waiting {
            ticket: ticket(0, 1),
        },
    )
    .unwrap();
    host.handle_timeout(ms(2_024));
    says(&mut host, ms(2_024));
    assert_eq!(ended(&mut host), None);
    host.handle_timeout(ms(2_034));
    let silent = Some((Status::Failed, Some(Cause::PeerSilent)));
    assert_eq!([status(&mut host), status(&mut host)], [silent, silent]);
    // Its row is the peer's to give back; who waits for the row does not wait for ever.
    assert_eq!(
        says(&mut host, ms(2_034)),
        [Free {
            ticket: ticket(0, 1),
            fenced: true
        }]
    );
    host.submit(ms(2_044), &request(WRITE, 0, 30, 2, 2))
        .unwrap();
    host.handle_timeout(ms(4_034));
    assert_eq!(status(&mut host), None);
    says(&mut host, ms(4_034));
    host.handle_timeout(ms(4_044));
    assert_eq!(status(&mut host), silent);
    says(&mut host, ms(4_044));
    host.handle_message(
        ms(4_044),
        PEER,
        &Freed {
            ticket: ticket(0, 1),
        },
    )
    .unwrap();
    host.submit(ms(4_044), &request(WRITE, 0, 0, 10, 2))
        .unwrap();
    assert_eq!(
        says(&mut host, ms(4_044)).len(),
        1,
        "the row is of use again"
    );
}

/// A request whose far end is memory that the network reaches.
fn to_memory(base: u64, length: u64) -> StagedRequest {
    let route = Route {
        remote: false,
        ..WRITE
    };
    request(route, 0, base, length, 2)
}

#[test]
fn what_has_waited_as_long_for_a_silent_peer_does_not_find_out_for_itself() {
    // More than there are rows, and more rows than slots: one in line for each.
    let mut host = staged(2, 3, 16, [2, 2], StagedConfig::DEFAULT);
    for base in 0..5 {
        host.submit(ms(0), &to_memory(base << 20, 10)).unwrap();
    }
    let elsewhere = StagedRequest {
        peer: PeerId(1),
        ..to_memory(5 << 20, 10)
    };
    host.submit(ms(0), &elsewhere).unwrap();
    for copy in stages(&mut host) {
        ends(&mut host, copy, good());
    }
    let hops = stages(&mut host);
    assert_eq!(hops.len(), 2, "as many as there are slots");
    host.submit(ms(1_999), &to_memory(6 << 20, 10)).unwrap();
    let silent = Some((Status::Failed, Some(Cause::PeerSilent)));
    let answer = |host: &mut Staged<'_>, hop: Stage| {
        let report = report(Status::Failed, Some(Cause::PeerSilent));
        assert_eq!(host.handle_stage(ms(2_000), hop.id, &report), Ok(()));
        host.audit().unwrap();
    };
    answer(&mut host, hops[0]);
    for name in ["its own", "in line for a slot", "for a row", "for a row"] {
        assert_eq!(status(&mut host), silent, "{name}");
    }
    assert_eq!(status(&mut host), None, "what runs is waited for");
    answer(&mut host, hops[1]);
    assert_eq!(status(&mut host), silent);
    // Neither is repeated. What is younger, and what is for others, has its own time.
    let next = stages(&mut host);
    assert_eq!((next.len(), status(&mut host)), (2, None));
    assert!(next.iter().all(|stage| stage.hop == Hop::Copy));
}

#[test]
fn what_finds_no_rail_ends_with_what_would_take_the_same() {
    let mut host = host();
    let other = StagedRequest {
        remote: Place {
            segment: SegmentRef(FAR + 5),
            offset: 0,
        },
        ..to_memory(0, 10)
    };
    for request in [to_memory(0, 10), other, to_memory(1 << 20, 10)] {
        host.submit(ms(0), &request).unwrap();
    }
    let copies = stages(&mut host);
    ends(&mut host, copies[0], good());
    let hop = stage(&mut host);
    let no_rail = report(Status::Failed, Some(Cause::NoRail));
    assert_eq!(host.handle_stage(ms(2_000), hop.id, &no_rail), Ok(()));
    let without = Some((Status::Failed, Some(Cause::NoRail)));
    assert_eq!([status(&mut host), status(&mut host)], [without, without]);
    assert_eq!(status(&mut host), None);
    ends(&mut host, copies[1], good());
    let hop = stage(&mut host);
    assert_eq!(hop.remote.segment, other.remote.segment);
    ends(&mut host, hop, good());
    assert_eq!(status(&mut host), Some((Status::Completed, None)));
}

#[test]
fn a_peer_that_has_forgotten_one_chunk_is_not_silent() {
    let mut host = host();
    for base in [0, 1 << 20] {
        host.submit(ms(0), &request(WRITE, 0, base, 10, 2)).unwrap();
    }
    says(&mut host, ms(0));
    for at in (0..2_010).step_by(10) {
        let answer = Waiting {
            ticket: ticket(1, 1),
        };
        host.handle_message(ms(at), PEER, &answer).unwrap();
        host.handle_timeout(ms(at));
        says(&mut host, ms(at));
    }
    let silent = Some((Status::Failed, Some(Cause::PeerSilent)));
    assert_eq!([status(&mut host), status(&mut host)], [silent, None]);
}

/// A write whose peer has been told to go and says nothing more.
fn gone_silent() -> Staged<'static> {
    let (mut host, begun) = under_way(1);
    ends(&mut host, begun[0], good());
    let network = stage(&mut host);
    ends(&mut host, network, good());
    says(&mut host, ms(1));
    host
}

#[test]
fn a_copy_of_which_nothing_is_heard_may_still_write() {
    let mut host = gone_silent();
    host.handle_timeout(ms(2_001));
    assert_eq!(
        status(&mut host),
        Some((Status::Indeterminate, Some(Cause::PeerSilent)))
    );
    assert_eq!(
        says(&mut host, ms(2_001)).len(),
        1,
        "it is still to be freed"
    );
}

#[test]
fn a_peer_that_is_gone_ends_everything_of_its() {
    // (name, proof, how a write ends whose last hop was under way)
    for (name, proof, status_then) in [
        ("with proof", true, Status::PeerLost),
        ("without", false, Status::Indeterminate),
    ] {
        let mut host = gone_silent();
        host.handle_peer_gone(ms(2), PEER, proof.then_some(Proof::ProcessGone));
        assert_eq!(
            status(&mut host),
            Some((status_then, Some(Cause::PeerGone))),
            "{name}"
        );
        assert_eq!(
            (says(&mut host, ms(2)), host.poll_timeout()),
            (Vec::new(), None),
            "{name}"
        );

        // What runs is waited for; what waits for rows or slots is not.
        let (mut host, begun) = under_way(5);
        host.handle_peer_gone(ms(2), PEER, proof.then_some(Proof::ProcessGone));
        assert_eq!(ended(&mut host), None, "{name}");
        for stage in begun {
            ends(&mut host, stage, good());
        }
        assert_eq!(
            status(&mut host),
            Some((Status::PeerLost, Some(Cause::PeerGone))),
            "{name}"
        );
        assert_eq!(used(&host), [0, 0], "{name}");

        // Its slots here: one that it writes to, one that is copied from.
        let (mut host, copy) = copying(IN);
        hears(
            &mut host,
            Reserve {
                ticket: ticket(2, 1),
                pool: IN,
            },
        );
        host.handle_peer_gone(ms(2), PEER, proof.then_some(Proof::ProcessGone));
        let lost = u32::from(!proof);
        assert_eq!((used(&host)[0], quarantined(&host)[0]), (1, lost), "{name}");
        let reserve = Reserve {
            ticket: ticket(1, 1),
            pool: IN,
        };
        if proof {
            let early = host.handle_message(ms(3), PEER, &reserve);
            assert_eq!(early, Err(Refusal::TicketInUse), "the copy has not ended");
        }
        ends(&mut host, copy, good());
        assert_eq!(
            (used(&host)[0], quarantined(&host)[0]),
            (0, 2 * lost),
            "{name}"
        );
        host.handle_peer_gone(ms(3), PEER, Some(Proof::ProcessGone));
        assert_eq!((used(&host)[0], quarantined(&host)[0]), (0, 0), "{name}");
        hears(&mut host, reserve);
        assert_eq!(used(&host)[0], 1, "{name}: its successor counts from one");
    }
}

#[test]
fn cancel_and_deadline_wait_for_what_runs_and_for_nothing_else() {
    let at_10 = |route| StagedRequest {
        deadline: Some(ms(10)),
        ..request(route, 0, 0, 5 * SLOT, 2)
    };
    // Nothing runs: it ends at once, and is given back.
    let mut host = host();
    let id = host.submit(ms(0), &at_10(READ)).unwrap();
    assert_eq!(used(&host), [2, 0]);
    says(&mut host, ms(0));
    assert_eq!(host.poll_timeout(), Some(ms(10)));
    host.handle_timeout(ms(10));
    assert_eq!(
        status(&mut host),
        Some((Status::DeadlineExceeded, Some(Cause::DeadlineExceeded)))
    );
    assert_eq!(used(&host), [0, 0]);
    let frees = |said: Vec<StageMessage>| said.iter().all(|said| matches!(said, Free { .. }));
    let said = says(&mut host, ms(10));
    assert!(said.len() == 2 && frees(said), "two had asked");
    assert_eq!(host.cancel(ms(10), id), Cancelled::Stale);

    // Two copies run, the third chunk waits for a slot.
    let (mut host, begun) = under_way(5);
    assert_eq!(begun.len(), 2);
    let id = host.requests.id_at(0).unwrap();
    assert_eq!(host.cancel(ms(1), id), Cancelled::Marked);
    assert_eq!(ended(&mut host), None);
    ends(&mut host, begun[0], good());
    ends(
        &mut host,
        begun[1],
        report(Status::Failed, Some(Cause::Reset)),
    );
    assert_eq!(stages(&mut host), []);
    assert_eq!(host.cancel(ms(1), id), Cancelled::AlreadyEnded);
    assert_eq!(
        status(&mut host),
        Some((Status::Cancelled, Some(Cause::Cancelled)))
    );

    // The peer's copy runs: it may still write.
    let mut host = gone_silent();
    let id = host.requests.id_at(0).unwrap();
    let attempt = host.claim(host.chunk_rows(PEER).start).unwrap().attempt;
    host.cancel(ms(1), id);
    assert_eq!(ended(&mut host), None);
    let failed = CopyEnd::Failed(Cause::Fatal);
    hears(
        &mut host,
        Went {
            ticket: ticket(0, 1),
            attempt,
            end: failed,
        },
    );
    assert_eq!(
        status(&mut host),
        Some((Status::Cancelled, Some(Cause::Cancelled)))
    );
    assert_eq!(says(&mut host, ms(1)).len(), 1, "to be freed");

    // A stage that nobody has been told of does not begin, nor does another in its row that has no slot yet.
    let mut host = staged(2, 1, 8, [1, 1], StagedConfig::DEFAULT);
    let near = |route| Route {
        remote: false,
        ..route
    };
    host.submit(ms(0), &request(near(READ), 1, 0, 10, 2))
        .unwrap();
    stage(&mut host);
    let id = host
        .submit(ms(0), &request(near(WRITE), 0, 0, 10, 2))
        .unwrap();
    host.cancel(ms(0), id);
    assert_eq!(
        status(&mut host),
        Some((Status::Cancelled, Some(Cause::Cancelled)))
    );
    host.submit(ms(0), &request(near(READ), 0, 0, 10, 2))
        .unwrap();
    assert_eq!((stages(&mut host), used(&host)), (Vec::new(), [1, 0]));
    host.shut_down(ms(0));
    assert_eq!(
        status(&mut host),
        Some((Status::ShutDown, Some(Cause::ShutDown)))
    );
}

#[test]
fn a_slot_that_the_peer_does_not_have_ends_the_request() {
    let mut host = host();
    host.submit(ms(0), &request(WRITE, 0, 0, 10, 2)).unwrap();
    let t = ticket(0, 1);
    // (message, answer): what changes nothing comes first.
    let early = [
        (
            Reserved {
                ticket: ticket(9, 1),
                slot: 0,
            },
            Err(Refusal::UnknownTicket),
        ),
        (
            Reserved {
                ticket: ticket(0, 2),
                slot: 0,
            },
            Err(Refusal::StaleTicket),
        ),
        (Freed { ticket: t }, Err(Refusal::OutOfTurn)),
        (
            Went {
                ticket: t,
                attempt: 0,
                end: CopyEnd::Done,
            },
            Ok(()),
        ),
    ];
    for (message, answer) in early {
        assert_eq!(
            host.handle_message(ms(1), PEER, &message),
            answer,
            "{message:?}"
        );
        assert_eq!(
            (stages(&mut host), ended(&mut host)),
            (Vec::new(), None),
            "{message:?}"
        );
    }
    let hostile = Reserved { ticket: t, slot: 2 };
    assert_eq!(
        host.handle_message(ms(1), PEER, &hostile),
        Err(Refusal::SlotOutOfRange)
    );
    assert_eq!(
        status(&mut host),
        Some((Status::Failed, Some(Cause::BadResponse)))
    );
}

#[test]
fn a_peers_lost_pool_ends_the_request() {
    let mut host = host();
    host.submit(ms(0), &request(WRITE, 0, 0, 10, 2)).unwrap();
    hears(
        &mut host,
        Lost {
            ticket: ticket(0, 1),
        },
    );
    assert_eq!(
        status(&mut host),
        Some((Status::Failed, Some(Cause::StagingLost)))
    );
    // And the owner says so, to those in line too.
    let mut host = talk::host();
    for index in [0, 1, 2] {
        hears(
            &mut host,
            Reserve {
                ticket: ticket(index, 1),
                pool: IN,
            },
        );
    }
    says(&mut host, ms(1));
    for index in [0, 1] {
        hears(
            &mut host,
            Free {
                ticket: ticket(index, 1),
                fenced: false,
            },
        );
    }
    let said = says(&mut host, ms(1));
    assert_eq!(
        said.last(),
        Some(&Lost {
            ticket: ticket(2, 1)
        })
    );
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    use StageRefused::*;
    let right = request(WRITE, 0, 0, 10, 2);
    let huge = Place {
        segment: USER,
        offset: u64::MAX - 9,
    };
    let no_slots = remote_pool(Direction::In, 0);
    // (name, request, answer)
    let cases = [
        ("nothing wrong", right, None),
        (
            "no bytes",
            StagedRequest { length: 0, ..right },
            Some(Empty),
        ),
        (
            "through nothing",
            StagedRequest {
                local_pool: None,
                remote_pool: None,
                ..right
            },
            Some(Direct),
        ),
        (
            "no such peer",
            StagedRequest {
                peer: PeerId(2),
                ..right
            },
            Some(PeerUnknown),
        ),
        (
            "no such pool",
            StagedRequest {
                local_pool: Some(PoolId(2)),
                ..right
            },
            Some(PoolUnknown),
        ),
        (
            "the other direction's pool",
            StagedRequest {
                local_pool: Some(IN),
                ..right
            },
            Some(PoolUnknown),
        ),
        (
            "the near end overflows",
            StagedRequest {
                local: huge,
                ..right
            },
            Some(OutOfRange),
        ),
        (
            "the far end overflows",
            StagedRequest {
                remote: huge,
                ..right
            },
            Some(OutOfRange),
        ),
        (
            "a pool without slots",
            StagedRequest {
                remote_pool: Some(no_slots),
                ..right
            },
            Some(OutOfRange),
        ),
    ];
    for (name, request, answer) in cases {
        assert_eq!(host().submit(ms(0), &request).err(), answer, "{name}");
    }
    let mut host = host();
    for _ in 0..4 {
        host.submit(ms(0), &right).unwrap();
    }
    assert_eq!(host.submit(ms(0), &right), Err(PeerFull));
}

#[test]
fn tables_that_do_not_fit_are_refused() {
    let make = |slots: usize, pools: &[PoolConfig]| {
        let mut slots: Vec<_> = (0..slots).map(|_| Slot::EMPTY).collect();
        let tables = StagedTables {
            peers: &mut [PeerStaging::EMPTY],
            claims: &mut [Claim::EMPTY, Claim::EMPTY],
            requests: &mut [Row::EMPTY],
            slots: &mut slots,
            lines: &mut [Line::EMPTY, Line::EMPTY],
            unproven: &mut [],
        };
        Staged::new(tables, pools, StagedConfig::DEFAULT).is_some()
    };
    let two = pool(Direction::In, 2);
    assert!(make(2, &[two]) && make(0, &[]));
    assert!(!make(1, &[two]), "too few slots");
    assert!(!make(4, &[two, two]), "too few lines");
    assert!(
        !make(
            2,
            &[PoolConfig {
                slot_bytes: 0,
                ..two
            }]
        ),
        "no bytes"
    );
}
