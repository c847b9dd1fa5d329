//! Members that answer in the place of others, keys that were replaced, and what is said to who has proved nothing.

use polyrail_transport::ticket::{NONCE_BYTES, Nonce, PROOF_BYTES, Proof, Ticket};
use rustls::{ClientConnection, ServerConnection};

use super::keys::{certified, hello_frame, initiator, new_key, rest, target};
use super::*;
use crate::security::ClusterKey;

/// What a member says who has got a connection that was meant for another one.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Lie {
    /// That he is the other one, and that all that he is asked for is done.
    Welcome,
    /// That the other one has forgotten the session.
    Unknown,
}

const LIE: u32 = 4711;

/// Has one answer so wherever he is called. He tells of each connection that has ended after he had said it.
fn impostor(key: Arc<ClusterKey>, incarnation: u64, lie: Lie) -> (SocketAddr, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.66:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (ended, ends) = channel();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let has_lied = answer_falsely(stream, &key, address, incarnation, lie);
            if has_lied && ended.send(()).is_err() {
                return;
            }
        }
    });
    (address, ends)
}

/// Until the connection ends. Whether it came to the lie.
fn answer_falsely(
    mut stream: TcpStream,
    key: &ClusterKey,
    address: SocketAddr,
    incarnation: u64,
    lie: Lie,
) -> bool {
    let mut tls = ServerConnection::new(key.server.clone()).unwrap();
    let mut decoder = Decoder::default();
    let (mut greeted, mut has_lied) = (false, false);
    loop {
        while tls.wants_write() {
            if tls.write_tls(&mut stream).is_err() {
                return has_lied;
            }
        }
        if !matches!(tls.read_tls(&mut stream), Ok(1..)) || tls.process_new_packets().is_err() {
            return has_lied;
        }
        let mut heard = Vec::new();
        let _ = tls.reader().read_to_end(&mut heard);
        decoder.push(&heard);
        if !greeted {
            if decoder.next_greeting().unwrap().is_none() {
                continue;
            }
            greeted = true;
            let says = Greeting::ours(Purpose::Control).encode();
            tls.writer().write_all(&says).unwrap();
        }
        while let Some(frame) = decoder.next_frame().unwrap() {
            let answer = match frame {
                Frame::Hello { .. } if lie == Lie::Unknown => Frame::SessionUnknown {
                    name: "beta".into(),
                    incarnation,
                },
                Frame::Hello { session, .. } => Frame::Welcome {
                    name: "beta".into(),
                    incarnation,
                    session: session.unwrap_or([3; 16]),
                    rails: vec![address],
                    rail_facts: vec![],
                    transports: vec![],
                    scratch: segment("scratch"),
                    heartbeat_ms: 500,
                },
                Frame::Fence { lane, epoch } => Frame::Fenced {
                    lane,
                    epoch,
                    delivered: LIE,
                },
                _ => continue,
            };
            has_lied = true;
            let mut bytes = Vec::new();
            codec::encode(&answer, &mut bytes).unwrap();
            tls.writer().write_all(&bytes).unwrap();
        }
    }
}

#[test]
fn a_member_of_another_name_is_not_believed_to_be_the_peer() {
    for lie in [Lie::Welcome, Lie::Unknown] {
        let [alpha, beta, mallory] =
            certified(["alpha.example", "beta.example", "mallory.example"]);
        let target = target(Some(&beta));
        let member = initiator(Some(&alpha));
        let to = target.listens[0];
        let met = member.connect(to);
        assert_eq!(met.member.as_deref(), Some("beta.example"));
        let (at, ends) = impostor(mallory, met.incarnation, lie);
        // Another rail, whose connection somebody on the way leads elsewhere.
        member.plane.maintain(PEER, vec![(None, to), (None, at)]);
        // He has been heard, twice, and sent away.
        for _ in 0..2 {
            ends.recv_timeout(PATIENCE).unwrap();
        }
        member.plane.fence(PEER, LANE, EPOCH);
        member.describe_works();
        let delivered = member.told("fenced", |told| match told {
            Told::Fenced(.., delivered) => Some(delivered),
            Told::Lost(_, loss) => panic!("{lie:?}: {loss}"),
            _ => None,
        });
        assert_eq!(delivered, DELIVERED, "{lie:?}: what the target has said");
        let mut others = member.told.try_iter();
        assert!(
            !others.any(|told| matches!(told, Told::Lost(..))),
            "{lie:?}"
        );
    }
}

#[test]
fn a_handshake_begins_with_the_key_that_is_there_then() {
    let (old, new) = (new_key(), new_key());
    let target = target(Some(&old));
    // Connected, and let in by the door, before the key is another.
    let mut stream = TcpStream::connect(target.listens[0]).unwrap();
    initiator(Some(&old)).connect(target.listens[0]);
    assert!(target.plane.replace_key(new, None));
    let mut client = ClientConnection::new(old.client.clone(), "x".try_into().unwrap()).unwrap();
    let hello = greeted(Purpose::Control, &[hello_frame(None)]);
    client.writer().write_all(&hello).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let refused = loop {
        while client.wants_write() {
            client.write_tls(&mut stream).unwrap();
        }
        match client.read_tls(&mut stream) {
            Ok(1..) => {}
            _ => break false,
        }
        if client.process_new_packets().is_err() {
            break true;
        }
    };
    assert!(refused, "its key is not the target's any more");
}

#[test]
fn sessions_of_a_key_that_was_replaced_end_when_it_is_said_so() {
    let (old, new) = (new_key(), new_key());
    let target = target(Some(&old));
    let at = target.listens[0];
    let (former, member) = (initiator(Some(&old)), initiator(Some(&old)));
    former.connect(at);
    member.connect(at);
    assert!(member.plane.replace_key(new.clone(), None));
    assert!(target.plane.replace_key(new, Some(Duration::ZERO)));
    // Both lose it. Who has the new key makes another one, and who does not is out.
    for engine in [&former, &member] {
        until("the session is over", || {
            engine
                .plane
                .describe(PEER, "mem", Duration::from_millis(200))
                .is_err()
        });
        engine.plane.disconnect(PEER);
    }
    member.connect(at);
    member.describe_works();
    let error = former.plane.connect(PEER, None, at, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("cluster key"), "{error}");
    // That session began with the new key, and stays.
    let back = new_key();
    assert!(target.plane.replace_key(back, None));
    member.describe_works();
}

#[test]
fn nobody_is_told_whose_engine_it_is_before_he_has_proved_himself() {
    let key = new_key();
    let target = target(Some(&key));
    let member = initiator(Some(&key));
    let known = member.connect(target.listens[0]).session;
    // (a session that there is, and one that there never was)
    let answers = [known, SessionId([0x5a; 16])].map(|session| {
        let join = Frame::JoinLaneProved {
            transport: "tcp".into(),
            session: session.0,
            lane: LANE.0,
            epoch: EPOCH.0,
            ticket: Ticket {
                protection: 0,
                nonce: Nonce([0; NONCE_BYTES]),
                proof: Proof([0; PROOF_BYTES]),
            },
        };
        let said = rest(say(target.listens[0], &greeted(Purpose::Lane, &[join])));
        assert!(!said.windows(4).any(|bytes| bytes == b"beta"), "{said:?}");
        let mut decoder = Decoder::default();
        decoder.push(&said);
        decoder.next_greeting().unwrap().unwrap();
        match (decoder.next_frame().unwrap(), decoder.next_frame().unwrap()) {
            (Some(Frame::LaneChallenge { .. }), Some(refused)) => refused,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(answers[0], answers[1]);
    assert!(matches!(
        answers[0],
        Frame::Refused {
            reason: Refusal::Key,
            ..
        }
    ));
    assert_eq!(target.plane.lanes_denied(), 2);
}
