//! Nobody has everything: slots, and rows of requests.

use super::StageMessage::*;
use super::talk::*;
use super::*;

#[test]
fn a_peer_that_never_gives_back_leaves_slots_to_others() {
    let config = StagedConfig {
        party_slots_max: 8,
        ..StagedConfig::DEFAULT
    };
    let mut host = staged(2, 32, 32, [16, 16], config);
    // It lives, asks for all that it may ask for, and frees nothing.
    for index in 0..32 {
        let reserve = Reserve {
            ticket: ticket(index, 1),
            pool: IN,
        };
        hears(&mut host, reserve);
    }
    says(&mut host, ms(0));
    assert_eq!(used(&host), [8, 0]);
    let other = PeerId(1);
    for generation in 1..100 {
        let t = ticket(0, generation);
        let reserve = Reserve {
            ticket: t,
            pool: IN,
        };
        host.handle_message(ms(1), other, &reserve).unwrap();
        let said = says(&mut host, ms(1));
        assert!(matches!(said[..], [Reserved { .. }]), "{said:?}");
        let free = Free {
            ticket: t,
            fenced: true,
        };
        host.handle_message(ms(1), other, &free).unwrap();
        says(&mut host, ms(1));
    }
    // Nor do our own chunks for one peer take all.
    host.submit(ms(1), &request(WRITE, 0, 0, 32 * SLOT, 32))
        .unwrap();
    for message in says(&mut host, ms(1)) {
        if let Reserve { ticket, .. } = message {
            let slot = ticket.index;
            hears(&mut host, Reserved { ticket, slot });
        }
    }
    assert_eq!(used(&host), [8, 8]);
    let elsewhere = Route {
        remote: false,
        ..WRITE
    };
    host.submit(ms(1), &request(elsewhere, 1, 1 << 20, SLOT, 2))
        .unwrap();
    assert_eq!(used(&host), [8, 9]);
    host.audit().unwrap();
}

#[test]
fn requests_to_one_peer_leave_rows_to_others() {
    let mut host = staged(4, 1, 16, [1, 1], StagedConfig::DEFAULT);
    let mut take = |peer| {
        let mut taken = 0;
        loop {
            match host.submit(ms(0), &request(WRITE, peer, 0, 10, 1)) {
                Ok(_) => taken += 1,
                Err(refused) => return (taken, refused),
            }
        }
    };
    // Each has at most as many as are left.
    let refused = StageRefused::PeerFull;
    assert_eq!(
        [take(0), take(1), take(2)],
        [(8, refused), (4, refused), (2, refused)]
    );
    assert_eq!(take(3), (1, refused));
    host.handle_peer_gone(ms(1), PeerId(0), Some(Proof::ProcessGone));
    while host.poll_event().is_some() {}
    host.submit(ms(1), &request(WRITE, 0, 0, 10, 1)).unwrap();
    host.audit().unwrap();
}

#[test]
fn the_last_row_is_not_kept_from_who_has_none() {
    let mut host = staged(2, 1, 2, [1, 1], StagedConfig::DEFAULT);
    let to = |peer| request(WRITE, peer, 0, 10, 1);
    host.submit(ms(0), &to(0)).unwrap();
    assert_eq!(host.submit(ms(0), &to(0)), Err(StageRefused::PeerFull));
    host.submit(ms(0), &to(1)).unwrap();
    assert_eq!(host.submit(ms(0), &to(0)), Err(StageRefused::Full));
}

#[test]
fn requests_to_a_long_silent_peer_are_looked_through_when_one_is_old_enough() {
    // Every row that repeated its question looked through all requests, every ten milliseconds.
    let mut host = staged(2, 2, 16, [2, 2], StagedConfig::DEFAULT);
    let oldest = |host: &Staged<'_>| host.peers[0].oldest;
    let write = request(WRITE, 0, 0, 10, 2);
    for at in [0, 0, 500] {
        host.submit(ms(at), &write).unwrap();
    }
    says(&mut host, ms(0));
    let look = |host: &mut Staged<'_>, at| {
        host.handle_timeout(ms(at));
        says(host, ms(at));
        std::iter::from_fn(|| ended(host)).count()
    };
    assert_eq!((look(&mut host, 1_990), oldest(&host)), (0, ms(0)));
    assert_eq!((look(&mut host, 2_000), oldest(&host)), (2, ms(500)));
    assert_eq!((look(&mut host, 2_490), oldest(&host)), (0, ms(500)));
    assert_eq!((look(&mut host, 2_500), oldest(&host)), (1, Instant::MAX));
    // Its rows go on asking for their end, and there is nothing to look for until there is a request.
    assert_eq!((look(&mut host, 3_000), oldest(&host)), (0, Instant::MAX));
    host.submit(ms(3_000), &write).unwrap();
    assert_eq!((look(&mut host, 4_990), oldest(&host)), (0, ms(3_000)));
    assert_eq!((look(&mut host, 5_000), oldest(&host)), (1, Instant::MAX));
}
