//! Lanes of sessions that have a secret: queue pairs are told to who has proved himself, and to nobody else.

use std::io::Write;

use polyrail_control::codec::{self, Greeting, Purpose};
use polyrail_transport::ticket::{
    EXPORTED_BYTES, Entry, NONCE_BYTES, Nonce, PROOF_BYTES, Proof, SessionSecret,
};

use super::*;

const CHALLENGE: Nonce = Nonce([3; NONCE_BYTES]);

fn secret(byte: u8) -> SessionSecret {
    SessionSecret::new(&[byte; EXPORTED_BYTES], SESSION, 1, 2, Arc::default()).unwrap()
}

/// Greets, asks for a proof as the control plane does, and answers it as `answer` has it. The lane, if that is an
/// answer, and what has come of the initiator so far is a join.
fn accept(
    mut stream: TcpStream,
    answer: impl Fn(&Entry<'_>, &Frame) -> Option<Proof>,
) -> Option<InboundLane> {
    let mut says = Greeting::ours(Purpose::Lane).encode().to_vec();
    codec::encode(&Frame::LaneChallenge { nonce: CHALLENGE }, &mut says).unwrap();
    stream.write_all(&says).unwrap();
    let mut decoder = Decoder::default();
    let (mut byte, mut greeted) = ([0], false);
    loop {
        stream.read_exact(&mut byte).ok()?;
        decoder.push(&byte);
        greeted = greeted || decoder.next_greeting().unwrap().is_some();
        if !greeted {
            continue;
        }
        let Some(frame) = decoder.next_frame().unwrap() else {
            continue;
        };
        let Frame::JoinLaneProved {
            transport,
            session,
            lane,
            epoch,
            ..
        } = &frame
        else {
            panic!("{frame:?}");
        };
        let (lane, epoch) = (LaneId(*lane), Epoch(*epoch));
        let entry = Entry {
            transport,
            session: SessionId(*session),
            lane: Some((lane, epoch)),
        };
        let proof = answer(&entry, &frame)?;
        let mut says = Vec::new();
        codec::encode(&Frame::LaneProved { proof }, &mut says).unwrap();
        stream.write_all(&says).unwrap();
        return Some(InboundLane {
            transport: Some(transport.clone()),
            session: entry.session,
            domain: TrustDomain::COMMON,
            lane,
            epoch,
            stream,
            keys: None,
        });
    }
}

/// Serves one lane at a new address, where the target has `theirs` and the initiator `ours`. Whether it came in.
fn serve(pair: &mut Pair, ours: SessionSecret, theirs: SessionSecret) -> thread::JoinHandle<bool> {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let address = RailAddress {
        remote: listener.local_addr().unwrap(),
        secret: Some(ours),
        ..pair.address.clone()
    };
    pair.endpoint.attach_rail(RailId(0), address);
    let target = pair.target.clone();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let lane = accept(stream, |entry, frame| match frame {
            Frame::JoinLaneProved { ticket, .. } => theirs.admit(entry, CHALLENGE, ticket).ok(),
            _ => None,
        });
        lane.map(|lane| target.admit(lane)).is_some()
    })
}

#[test]
fn bytes_move_once_both_ends_have_proved_themselves_and_not_before() {
    let _turn = turn();
    let mut pair = Pair::new();
    for epoch in 1..4 {
        let served = serve(&mut pair, secret(1), secret(1));
        pair.opened(epoch);
        assert!(served.join().unwrap());
        fill(&pair.local, epoch as u8);
        pair.post(epoch, &[work(1, Op::Write, 0, 4096, true)]);
        assert_eq!(pair.completed(1), [(1, SUCCESS)]);
        assert_eq!(byte(&pair.remote, 4095), epoch as u8);
        pair.fence(epoch);
    }
    // With another secret nobody gets as far as the device.
    let served = serve(&mut pair, secret(2), secret(1));
    assert_eq!(pair.open(4), LaneFact::OpenFailed(Cause::Refused));
    assert!(!served.join().unwrap());
    // An epoch begins once.
    let served = serve(&mut pair, secret(1), secret(1));
    assert_eq!(pair.open(3), LaneFact::OpenFailed(Cause::Refused));
    assert!(served.join().unwrap(), "the transport refuses it");
}

#[test]
fn no_queue_pair_is_told_to_who_has_not_proved_himself() {
    let _turn = turn();
    let mut pair = Pair::new();
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let address = RailAddress {
        remote: listener.local_addr().unwrap(),
        secret: Some(secret(1)),
        ..pair.address.clone()
    };
    pair.endpoint.attach_rail(RailId(0), address);
    let impostor = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut heard = stream.try_clone().unwrap();
        let proof = Proof([4; PROOF_BYTES]);
        let lane = accept(stream, |_, _| Some(proof)).unwrap();
        let mut stream = lane.stream;
        let _ = stream.write_all(&Greeting::ours(Purpose::Lane).encode());
        let mut said = Vec::new();
        // A reset is an end too.
        let _ = heard.read_to_end(&mut said);
        said
    });
    assert_eq!(pair.open(1), LaneFact::OpenFailed(Cause::Refused));
    assert_eq!(impostor.join().unwrap(), [], "nothing behind the ticket");
}
