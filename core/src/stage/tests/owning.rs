//! Our slots in a peer's use, one rule each.

use super::StageMessage::*;
use super::talk::*;
use super::*;

/// See the cases.
type Exchange<'a> = (
    &'a str,
    &'a [StageMessage],
    StageMessage,
    Option<StageMessage>,
    Option<Refusal>,
    u32,
);

#[test]
fn the_owner_answers_what_is_true() {
    let t = ticket(0, 5);
    let reserve = Reserve {
        ticket: t,
        pool: IN,
    };
    let go = |attempt, length| Go {
        ticket: t,
        attempt,
        place: user(7),
        length,
    };
    let free = |fenced| Free { ticket: t, fenced };
    let has = Reserved { ticket: t, slot: 0 };
    let going = |attempt| Going { ticket: t, attempt };
    let freed = Freed { ticket: t };
    let later = ticket(0, 6);
    let other = |index| Reserve {
        ticket: ticket(index, 1),
        pool: IN,
    };
    // (name, what is said before, what is said, answer, refusal, slots used then)
    let none = &[][..];
    let cases: [Exchange<'_>; 21] = [
        ("a slot", none, reserve, Some(has), None, 1),
        ("the same slot", &[reserve], reserve, Some(has), None, 1),
        (
            "no such pool",
            none,
            Reserve {
                ticket: t,
                pool: PoolId(2),
            },
            Some(Lost { ticket: t }),
            None,
            0,
        ),
        (
            "no such row",
            none,
            Reserve {
                ticket: ticket(3, 1),
                pool: IN,
            },
            None,
            Some(Refusal::UnknownTicket),
            0,
        ),
        (
            "an old ticket",
            &[reserve],
            Reserve {
                ticket: ticket(0, 4),
                pool: IN,
            },
            None,
            Some(Refusal::StaleTicket),
            1,
        ),
        (
            "its row is in use",
            &[reserve],
            Reserve {
                ticket: later,
                pool: IN,
            },
            None,
            Some(Refusal::TicketInUse),
            1,
        ),
        (
            "goes without a slot",
            &[other(1), other(2), reserve],
            go(3, 50),
            None,
            Some(Refusal::OutOfTurn),
            2,
        ),
        ("goes", &[reserve], go(3, 50), Some(going(3)), None, 1),
        (
            "goes once",
            &[reserve, go(3, 50)],
            go(3, 50),
            Some(going(3)),
            None,
            1,
        ),
        (
            "one at a time",
            &[reserve, go(3, 50)],
            go(4, 50),
            None,
            Some(Refusal::SlotBusy),
            1,
        ),
        (
            "an earlier one",
            &[reserve, go(3, 50)],
            go(2, 50),
            None,
            Some(Refusal::SlotBusy),
            1,
        ),
        (
            "goes with nothing",
            none,
            go(3, 50),
            None,
            Some(Refusal::OutOfTurn),
            0,
        ),
        (
            "no bytes",
            &[reserve],
            go(3, 0),
            None,
            Some(Refusal::LengthOutOfRange),
            1,
        ),
        (
            "more than a slot",
            &[reserve],
            go(3, SLOT_BYTES + 1),
            None,
            Some(Refusal::LengthOutOfRange),
            1,
        ),
        ("free", &[reserve], free(true), Some(freed), None, 0),
        (
            "freed twice",
            &[reserve, free(true)],
            free(true),
            Some(freed),
            None,
            0,
        ),
        (
            "called off before it began",
            &[reserve, go(3, 50)],
            free(true),
            Some(freed),
            None,
            0,
        ),
        ("not fenced", &[reserve], free(false), Some(freed), None, 0),
        (
            "freed before it is asked for",
            none,
            free(true),
            Some(freed),
            None,
            0,
        ),
        (
            "the question comes late",
            &[free(true)],
            reserve,
            Some(freed),
            None,
            0,
        ),
        (
            "the row is used again",
            &[reserve, free(true)],
            Reserve {
                ticket: later,
                pool: IN,
            },
            Some(Reserved {
                ticket: later,
                slot: 1,
            }),
            None,
            1,
        ),
    ];
    for (name, before, said, answer, refusal, then) in cases {
        let mut host = host();
        for message in before {
            hears(&mut host, *message);
        }
        says(&mut host, ms(1));
        let heard = host.handle_message(ms(1), PEER, &said);
        assert_eq!(heard.err(), refusal, "{name}");
        assert_eq!(says(&mut host, ms(1)).pop(), answer, "{name}");
        assert_eq!(used(&host)[0], then, "{name}");
        let lost = u32::from(name == "not fenced");
        assert_eq!(quarantined(&host)[0], lost, "{name}");
        host.audit().unwrap();
    }
    let stranger = host().handle_message(ms(1), PeerId(2), &reserve);
    assert_eq!(stranger, Err(Refusal::UnknownPeer));
}

#[test]
fn the_owners_copy_decides_when_a_slot_is_free() {
    use CopyEnd::{Done, Failed, Unfenced};
    let t = ticket(1, 1);
    let failed = report(Status::Failed, Some(Cause::Fatal));
    let open = report(Status::Indeterminate, Some(Cause::Fatal));
    let went = |end| Went {
        ticket: t,
        attempt: 1,
        end,
    };
    let freed = Freed { ticket: t };
    // (name, pool, freed meanwhile and whether fenced, report, answer, slots used and quarantined then)
    let cases = [
        (
            "what came in has gone on",
            IN,
            None,
            good(),
            went(Done),
            0,
            0,
        ),
        (
            "what goes out is read next",
            OUT,
            None,
            good(),
            went(Done),
            1,
            0,
        ),
        (
            "it may be tried again",
            IN,
            None,
            failed,
            went(Failed(Cause::Fatal)),
            1,
            0,
        ),
        (
            "it may go on",
            IN,
            None,
            open,
            went(Unfenced(Cause::Fatal)),
            0,
            1,
        ),
        ("freed meanwhile", OUT, Some(true), good(), freed, 0, 0),
        (
            "freed meanwhile, failed",
            IN,
            Some(true),
            failed,
            freed,
            0,
            0,
        ),
        ("freed without proof", IN, Some(false), good(), freed, 0, 1),
        (
            "freed meanwhile, and it may go on",
            IN,
            Some(true),
            open,
            went(Unfenced(Cause::Fatal)),
            0,
            1,
        ),
    ];
    for (name, pool, free, report, answer, slots, lost) in cases {
        let (mut host, copy) = copying(pool);
        let slot = super::pool(host.pools.direction(pool).unwrap(), 2).place(0);
        let ends_of_copy = if pool == IN {
            (slot, user(7))
        } else {
            (user(7), slot)
        };
        assert_eq!((copy.local, copy.remote), ends_of_copy, "{name}");
        if let Some(fenced) = free {
            hears(&mut host, Free { ticket: t, fenced });
            let going = Going {
                ticket: t,
                attempt: 1,
            };
            assert_eq!(says(&mut host, ms(0)), [going], "{name}");
            assert_eq!(host.poll_revoke(), Some(copy.id), "{name}");
        }
        ends(&mut host, copy, report);
        assert_eq!(says(&mut host, ms(1)), [answer], "{name}");
        let view = host.pool(pool).unwrap();
        assert_eq!((view.used, view.quarantined), (slots, lost), "{name}");
    }
    // Another attempt after a failure, and only then.
    let go = Go {
        ticket: t,
        attempt: 2,
        place: user(7),
        length: 30,
    };
    let (mut host, copy) = copying(IN);
    ends(&mut host, copy, failed);
    hears(&mut host, go);
    let again = stage(&mut host);
    ends(&mut host, again, good());
    let (mut host, copy) = copying(OUT);
    ends(&mut host, copy, good());
    let answer = host.handle_message(ms(1), PEER, &go);
    assert_eq!(answer, Err(Refusal::OutOfTurn));
}

#[test]
fn slots_go_to_peers_in_turn_and_to_nobody_in_excess() {
    let config = StagedConfig {
        party_slots_max: 2,
        ..StagedConfig::DEFAULT
    };
    let mut host = staged(3, 3, 1, [3, 1], config);
    let mut ask = |peer, index| {
        let reserve = Reserve {
            ticket: ticket(index, 1),
            pool: IN,
        };
        host.handle_message(ms(0), PeerId(peer), &reserve).unwrap();
        host.poll_message(ms(0)).unwrap().1
    };
    let waiting = |index| Waiting {
        ticket: ticket(index, 1),
    };
    let reserved = |index, slot| Reserved {
        ticket: ticket(index, 1),
        slot,
    };
    assert_eq!(
        [ask(0, 0), ask(0, 1), ask(0, 2)],
        [reserved(0, 0), reserved(1, 1), waiting(2)]
    );
    assert_eq!(
        [ask(1, 0), ask(1, 1), ask(2, 0)],
        [reserved(0, 2), waiting(1), waiting(0)]
    );
    let mut free = |peer, index| {
        let free = Free {
            ticket: ticket(index, 1),
            fenced: true,
        };
        host.handle_message(ms(0), PeerId(peer), &free).unwrap();
        std::iter::from_fn(|| host.poll_message(ms(0))).collect::<Vec<_>>()
    };
    let freed = |peer, index| {
        (
            PeerId(peer),
            Freed {
                ticket: ticket(index, 1),
            },
        )
    };
    // Who asked first gets it, unless he has as many as he may.
    assert_eq!(free(0, 0), [freed(0, 0), (PeerId(1), reserved(1, 0))]);
    assert_eq!(free(0, 1), [freed(0, 1), (PeerId(2), reserved(0, 1))]);
    assert_eq!(free(1, 0), [freed(1, 0), (PeerId(0), reserved(2, 2))]);
}
