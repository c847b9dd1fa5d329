//! What outlives a session, a request or a report, and what is told of it.

use super::StageMessage::*;
use super::talk::*;
use super::*;

const SESSION_ENDED: Option<Proof> = Some(Proof::SessionEnded);
const PROCESS_GONE: Option<Proof> = Some(Proof::ProcessGone);

fn settled(host: &mut Staged<'_>) -> Option<(Local, Remote)> {
    match host.poll_event()? {
        Event::Settled { local, remote, .. } => Some((local, remote)),
        ended @ Event::Ended { .. } => panic!("{ended:?}"),
    }
}

fn ended_as(host: &mut Staged<'_>) -> Option<(Status, Local, Remote)> {
    ended(host).map(|report| (report.status, report.local, report.remote))
}

/// A host with a write whose bytes go to slot 0 of its peer now.
fn writing() -> (Staged<'static>, Stage) {
    let (mut host, begun) = under_way(1);
    ends(&mut host, begun[0], good());
    let hop = stage(&mut host);
    says(&mut host, ms(1));
    (host, hop)
}

/// A host with a write that its peer copies to its place now.
fn far_copying() -> (Staged<'static>, u32) {
    let (mut host, hop) = writing();
    ends(&mut host, hop, good());
    let said = says(&mut host, ms(1));
    let Some(Go { attempt, .. }) = said.last().copied() else {
        panic!("{said:?}");
    };
    (host, attempt)
}

#[test]
fn a_hop_of_a_session_that_is_over_is_called_back_before_its_slot_is_written_to_as_anothers() {
    // The target has one slot, and gives it to the initiator.
    let mut target = staged(2, 3, 8, [1, 1], StagedConfig::DEFAULT);
    let mut initiator = host();
    let tell = |host: &mut Staged<'_>, from, message: StageMessage| {
        host.handle_message(ms(1), from, &message).unwrap();
    };
    let write = request(WRITE, 0, 0, 10, 1);
    initiator.submit(ms(0), &write).unwrap();
    let guest = PeerId(0);
    for message in says(&mut initiator, ms(0)) {
        tell(&mut target, guest, message);
    }
    for message in says(&mut target, ms(0)) {
        tell(&mut initiator, PEER, message);
    }
    let copy = stage(&mut initiator);
    ends(&mut initiator, copy, good());
    let hop = stage(&mut initiator);

    // It forgets the session, and gives the slot to another guest.
    target.handle_peer_gone(ms(2), guest, SESSION_ENDED);
    let reserve = Reserve {
        ticket: ticket(0, 1),
        pool: IN,
    };
    tell(&mut target, PeerId(1), reserve);
    let reserved = Reserved {
        ticket: ticket(0, 1),
        slot: 0,
    };
    assert_eq!(says(&mut target, ms(2)), [reserved]);
    assert_eq!(hop.remote, write.remote_pool.unwrap().slots.place(0));

    // The initiator finds out: what would write there is called back, once.
    initiator.handle_peer_gone(ms(3), PEER, SESSION_ENDED);
    assert_eq!(initiator.poll_revoke(), Some(hop.id));
    assert_eq!(initiator.poll_revoke(), None);
    assert!(initiator.is_held_off(PEER) && !initiator.is_held_off(PeerId(1)));

    // Nothing for that peer begins before it has ended, and everything after.
    initiator.submit(ms(4), &write).unwrap();
    assert_eq!(says(&mut initiator, ms(4)), []);
    let cancelled = report(Status::Cancelled, Some(Cause::Cancelled));
    ends(&mut initiator, hop, cancelled);
    assert!(!initiator.is_held_off(PEER));
    let lost = Some((Status::PeerLost, Local::Released, Remote::Settled));
    assert_eq!(ended_as(&mut initiator), lost);
    assert_eq!(says(&mut initiator, ms(4)).len(), 1, "it asks for a slot");
}

#[test]
fn a_session_is_not_held_off_by_what_does_not_name_the_peers_slots() {
    let (mut host, copies) = under_way(1);
    host.handle_peer_gone(ms(2), PEER, SESSION_ENDED);
    assert!(!host.is_held_off(PEER), "a copy on this side");
    assert_eq!(host.poll_revoke(), Some(copies[0].id));
    // It ends before anybody has called it back: the next attempt of its row is left alone.
    let (mut host, hop) = writing();
    let id = host.requests.id_at(0).unwrap();
    host.cancel(ms(1), id);
    ends(&mut host, hop, good());
    assert_eq!((host.poll_revoke(), stages(&mut host)), (None, Vec::new()));
}

#[test]
fn a_request_ends_in_time_though_the_peer_says_that_it_copies() {
    // (name, what it says in the end, how the request ends, what is told then)
    let (t, cause) = (ticket(0, 1), Cause::Fatal);
    let attempt = far_copying().1;
    let went = |end| Went {
        ticket: t,
        attempt,
        end,
    };
    let open = (Status::Indeterminate, Local::Released, Remote::Unknown);
    let known = (Status::DeadlineExceeded, Local::Released, Remote::Settled);
    let clean = Some((Local::Released, Remote::Settled));
    let cases = [
        ("it stops", 500, Freed { ticket: t }, known, None),
        ("it was ready", 500, went(CopyEnd::Done), known, None),
        ("it failed", 500, went(CopyEnd::Failed(cause)), known, None),
        ("it cannot", 500, went(CopyEnd::Unfenced(cause)), open, None),
        ("it stops late", 5_000, Freed { ticket: t }, open, clean),
        (
            "late, and not",
            5_000,
            went(CopyEnd::Unfenced(cause)),
            open,
            None,
        ),
    ];
    for (name, at, answer, expected, then) in cases {
        let mut host = host();
        let write = StagedRequest {
            deadline: Some(ms(100)),
            ..request(WRITE, 0, 0, 10, 2)
        };
        host.submit(ms(0), &write).unwrap();
        hears(&mut host, Reserved { ticket: t, slot: 0 });
        for _ in 0..2 {
            let hop = stage(&mut host);
            ends(&mut host, hop, good());
        }
        let mut reported = None;
        for now in (10..at).step_by(10).map(ms) {
            // The peer lives, and answers whatever it is asked.
            for question in says(&mut host, now) {
                let is_free = matches!(question, Free { fenced: true, .. });
                assert_eq!(is_free, now >= ms(100), "{name}: {question:?}");
                let going = Going { ticket: t, attempt };
                host.handle_message(now, PEER, &going).unwrap();
            }
            host.handle_timeout(now);
            host.audit().unwrap();
            if let Some(report) = ended_as(&mut host) {
                reported = Some((now, report));
            }
        }
        hears(&mut host, answer);
        if at > 500 {
            let (when, report) = reported.take().expect(name);
            assert!(when <= ms(2_110), "{name}: {when:?}");
            assert_eq!(report, expected, "{name}");
        } else {
            assert_eq!(reported, None, "{name}");
            assert_eq!(ended_as(&mut host), Some(expected), "{name}");
        }
        assert_eq!(settled(&mut host), then, "{name}");
        // What is open for good is known when the process is gone.
        host.handle_peer_gone(ms(6_000), PEER, SESSION_ENDED);
        assert_eq!(settled(&mut host), None, "{name}");
        host.handle_peer_gone(ms(6_000), PEER, PROCESS_GONE);
        let was_open = expected == open && then.is_none();
        assert_eq!(settled(&mut host), clean.filter(|_| was_open), "{name}");
        host.audit().unwrap();
    }
    // What a peer copies from its memory to its slot touches nothing of the request's.
    let mut host = host();
    let near = Route {
        local: false,
        ..READ
    };
    let id = host.submit(ms(0), &request(near, 0, 0, 10, 2)).unwrap();
    hears(&mut host, Reserved { ticket: t, slot: 0 });
    says(&mut host, ms(0));
    host.cancel(ms(1), id);
    assert_eq!(
        status(&mut host),
        Some((Status::Cancelled, Some(Cause::Cancelled)))
    );
    let free = Free {
        ticket: t,
        fenced: true,
    };
    assert_eq!(says(&mut host, ms(1)), [free]);
}

#[test]
fn a_session_that_is_over_says_nothing_of_the_peers_copies() {
    for (proof, expected) in [
        (
            SESSION_ENDED,
            (Status::Indeterminate, Local::Released, Remote::Unknown),
        ),
        (
            PROCESS_GONE,
            (Status::PeerLost, Local::Released, Remote::Settled),
        ),
    ] {
        let mut host = far_copying().0;
        host.handle_peer_gone(ms(2), PEER, proof);
        assert_eq!(ended_as(&mut host), Some(expected));
        // Nor does whoever has its number next.
        let mut host = far_copying().0;
        host.handle_peer_gone(ms(2), PEER, None);
        assert_eq!(
            ended_as(&mut host).map(|report| report.2),
            Some(Remote::Unknown)
        );
        let is_another = proof == SESSION_ENDED;
        if is_another {
            host.submit(ms(3), &request(WRITE, 0, 0, 10, 2)).unwrap();
        }
        host.handle_peer_gone(ms(4), PEER, PROCESS_GONE);
        if is_another {
            assert!(ended(&mut host).is_some());
        }
        let told = (!is_another).then_some((Local::Released, Remote::Settled));
        assert_eq!(settled(&mut host), told);
        host.audit().unwrap();
    }
}

#[test]
fn what_was_reported_without_proof_is_settled_when_there_is_some() {
    let open = report(Status::Indeterminate, Some(Cause::Cancelled));
    let proven = report(Status::Indeterminate, Some(Cause::Cancelled));
    let proven = Report {
        local: Local::Released,
        remote: Remote::Settled,
        ..proven
    };
    let (mut host, copies) = under_way(2);
    ends(&mut host, copies[0], open);
    assert_eq!(ended(&mut host), None, "the other copy runs");
    ends(&mut host, copies[1], open);
    let held = (Status::Indeterminate, Local::Held, Remote::Settled);
    assert_eq!(ended_as(&mut host).map(|report| report.1), Some(held.1));
    assert_eq!((used(&host), quarantined(&host)), ([0, 0], [0, 2]));
    ends(&mut host, copies[1], open);
    assert_eq!((settled(&mut host), quarantined(&host)), (None, [0, 2]));
    ends(&mut host, copies[1], proven);
    assert_eq!(quarantined(&host), [0, 1]);
    let told = settled(&mut host);
    assert!(told.is_none_or(|told| told.0 == Local::Held), "{told:?}");
    ends(&mut host, copies[0], proven);
    assert_eq!(quarantined(&host), [0, 0]);
    assert_eq!(settled(&mut host), Some((Local::Released, Remote::Settled)));
    assert_eq!(settled(&mut host), None);
    let again = host.handle_stage(ms(1), copies[0].id, &proven);
    assert_eq!(again, Err(Refusal::StaleStage));

    // Known before it is reported: then it is reported so.
    let (mut host, copies) = under_way(2);
    ends(&mut host, copies[0], open);
    ends(&mut host, copies[0], proven);
    ends(&mut host, copies[1], good());
    assert_eq!(
        ended_as(&mut host),
        Some((Status::Cancelled, Local::Released, Remote::Settled))
    );
    assert_eq!(settled(&mut host), None);

    // One end and then the other: a hop that reads the program's memory and writes to the peer's.
    let route = Route {
        local: false,
        ..WRITE
    };
    let direct = StagedRequest {
        local_pool: Some(OUT),
        remote_pool: None,
        remote: user(1 << 40),
        ..request(route, 0, 0, 10, 2)
    };
    let mut host = talk::host();
    host.submit(ms(0), &direct).unwrap();
    let copy = stage(&mut host);
    ends(&mut host, copy, good());
    let hop = stage(&mut host);
    ends(&mut host, hop, open);
    assert_eq!(
        ended_as(&mut host),
        Some((Status::Indeterminate, Local::Released, Remote::Unknown))
    );
    assert_eq!(quarantined(&host), [0, 1]);
    let released = Report {
        local: Local::Released,
        ..open
    };
    ends(&mut host, hop, released);
    assert_eq!((settled(&mut host), quarantined(&host)), (None, [0, 0]));
    ends(&mut host, hop, proven);
    assert_eq!(settled(&mut host), Some((Local::Released, Remote::Settled)));
}

#[test]
fn what_cannot_be_remembered_is_not_called_settled() {
    let open = report(Status::Indeterminate, Some(Cause::Cancelled));
    let proven = Report {
        local: Local::Released,
        remote: Remote::Settled,
        ..open
    };
    let mut host = staged(1, 10, 4, [1, 10], StagedConfig::DEFAULT);
    let route = Route {
        remote: false,
        ..WRITE
    };
    host.submit(ms(0), &request(route, 0, 0, 10 * SLOT, 1))
        .unwrap();
    let copies = stages(&mut host);
    for copy in &copies {
        ends(&mut host, *copy, open);
    }
    assert_eq!(
        ended_as(&mut host).map(|report| report.0),
        Some(Status::Indeterminate)
    );
    for copy in &copies {
        ends(&mut host, *copy, proven);
    }
    assert_eq!((settled(&mut host), quarantined(&host)), (None, [0, 0]));
}

#[test]
fn who_falls_silent_while_it_copies_is_not_waited_for_twice() {
    let (mut host, begun) = under_way(2);
    for hop in begun {
        ends(&mut host, hop, good());
    }
    for hop in stages(&mut host) {
        ends(&mut host, hop, good());
    }
    // Both are copied there, and one has been heard of later.
    let attempt = host.claim(host.chunk_rows(PEER).start).unwrap().attempt;
    let going = Going {
        ticket: ticket(0, 1),
        attempt,
    };
    host.handle_message(ms(50), PEER, &going).unwrap();
    let mut reported = None;
    for now in (60..4_000).step_by(10).map(ms) {
        host.handle_timeout(now);
        says(&mut host, now);
        if let Some(report) = ended_as(&mut host) {
            reported = Some((now, report));
        }
    }
    let (when, report) = reported.unwrap();
    let open = (Status::Indeterminate, Local::Released, Remote::Unknown);
    assert_eq!(report, open);
    assert!(when <= ms(2_070), "{when:?}");
}
