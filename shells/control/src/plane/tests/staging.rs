//! Words about staging slots over real sockets.

use polyrail_core::units::{PoolId, Ticket};

use super::*;

const TICKET: Ticket = Ticket {
    index: 4,
    generation: 9,
};

fn told_staged(engine: &Engine) -> (Party, StageMessage) {
    engine.told("word about a slot", |told| match told {
        Told::Staged(from, message) => Some((from, message)),
        _ => None,
    })
}

#[test]
fn questions_and_answers_pass_and_go_over_another_rail_next_time() {
    let target = Engine::target();
    let initiator = Engine::initiator();
    let rails = two_rails(&target, &initiator);
    let question = StageMessage::Reserve {
        ticket: TICKET,
        pool: PoolId(1),
    };
    initiator.plane.stage(Party::Peer(PEER), question);
    let (from, heard) = told_staged(&target);
    let Party::Session(session) = from else {
        panic!("asked by {from:?}");
    };
    assert_eq!(heard, question);
    let answer = StageMessage::Reserved {
        ticket: TICKET,
        slot: 3,
    };
    target.plane.stage(from, answer);
    assert_eq!(told_staged(&initiator), (Party::Peer(PEER), answer));

    // One rail says nothing any more: of two words one arrives, in either direction.
    rails[0].swallow(true);
    for _ in 0..2 {
        initiator.plane.stage(Party::Peer(PEER), question);
    }
    assert_eq!(told_staged(&target), (Party::Session(session), question));
    for _ in 0..2 {
        target.plane.stage(Party::Session(session), answer);
    }
    assert_eq!(told_staged(&initiator), (Party::Peer(PEER), answer));

    // To nobody: nothing happens.
    initiator.plane.stage(Party::Peer(PeerId(60)), question);
    target.plane.stage(Party::Session(NOBODY), answer);
}
