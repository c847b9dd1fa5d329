//! Lanes where there is a cluster key: who is of the session comes in, and nobody else, whatever he has seen.

use polyrail_core::units::TransportId;
use polyrail_transport::RailAddress;
use polyrail_transport::ticket::{
    Entry, NONCE_BYTES, Nonce, PROOF_BYTES, Proof, SessionSecret, Ticket,
};

use super::keys::{begun, initiator, new_key, rest, target};
use super::*;
use crate::security::Joining;

/// A connection that has greeted as a lane does, and what it is to prove itself with.
struct Lane {
    stream: TcpStream,
    decoder: Decoder,
    challenge: Nonce,
}

impl Lane {
    fn greet(to: SocketAddr) -> Self {
        let mut lane = Self {
            stream: say(to, &Greeting::ours(Purpose::Lane).encode()),
            decoder: Decoder::default(),
            challenge: Nonce([0; NONCE_BYTES]),
        };
        lane.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        lane.hear(Decoder::next_greeting);
        match lane.hear(Decoder::next_frame) {
            Frame::LaneChallenge { nonce } => lane.challenge = nonce,
            other => panic!("{other:?}"),
        }
        lane
    }

    fn hear<T>(&mut self, next: fn(&mut Decoder) -> Result<Option<T>, CodecError>) -> T {
        let mut byte = [0];
        loop {
            if let Some(heard) = next(&mut self.decoder).unwrap() {
                return heard;
            }
            self.stream.read_exact(&mut byte).unwrap();
            self.decoder.push(&byte);
        }
    }

    fn says(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        codec::encode(frame, &mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }

    /// Why it is not let in.
    fn refused(mut self) -> (Refusal, String) {
        match self.hear(Decoder::next_frame) {
            Frame::Refused { reason, text } => {
                assert_eq!(rest(self.stream), [], "nothing more is said to it");
                (reason, text)
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A member with a session, and what it needs to join lanes of it.
struct Member {
    engine: Engine,
    session: SessionId,
    secret: SessionSecret,
}

impl Member {
    fn of(engine: Engine, to: SocketAddr) -> Self {
        let met = engine.connect(to);
        Self {
            engine,
            session: met.session,
            secret: met.secret.unwrap(),
        }
    }

    fn entry(&self) -> Entry<'static> {
        Entry {
            transport: "tcp",
            session: self.session,
            lane: Some((LANE, EPOCH)),
        }
    }

    fn address(&self, remote: SocketAddr) -> RailAddress {
        RailAddress {
            transport: TransportId(0),
            local: None,
            remote,
            session: self.session,
            secret: Some(self.secret.clone()),
            own: [].into(),
        }
    }
}

fn join_of(entry: &Entry<'_>, ticket: Ticket) -> Frame {
    let (lane, epoch) = entry.lane.unwrap();
    Frame::JoinLaneProved {
        transport: entry.transport.into(),
        session: entry.session.0,
        lane: lane.0,
        epoch: epoch.0,
        ticket,
    }
}

/// Joins as an endpoint does.
fn joins(address: &RailAddress, epoch: Epoch) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address.remote)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut joining, says) = Joining::start("tcp", address, LANE, epoch)?;
    stream.write_all(&says)?;
    let mut bytes = [0; 64];
    while let wants @ 1.. = joining.wants() {
        let bytes = &mut bytes[..wants.min(64)];
        stream.read_exact(bytes)?;
        stream.write_all(&joining.handle(bytes)?)?;
    }
    Ok(stream)
}

fn told_lane(target: &Engine) -> InboundLane {
    target.told("lane", |told| match told {
        Told::Lane(lane) => Some(lane),
        _ => None,
    })
}

fn has_no_lane(target: &Engine) {
    let lane = |told| matches!(told, Told::Lane(_));
    assert!(!target.told.try_iter().any(lane));
}

#[test]
fn a_lane_of_a_session_comes_in_however_often_its_connections_were_cut() {
    let key = new_key();
    let target = target(Some(&key));
    let forwarder = Forwarder::start("127.0.0.3:0", target.listens[0]);
    let member = Member::of(initiator(Some(&key)), forwarder.address);
    let ways = vec![(None, forwarder.address)];
    member.engine.plane.maintain(PEER, ways);
    for turn in 1..4 {
        forwarder.cut();
        member.engine.describe_works();
        let address = member.address(target.listens[0]);
        let mut ours = joins(&address, Epoch(turn)).unwrap();
        let mut lane = told_lane(&target);
        let of = (
            lane.transport.as_deref(),
            lane.session,
            lane.lane,
            lane.epoch,
        );
        assert_eq!(of, (Some("tcp"), member.session, LANE, Epoch(turn)));
        // The rest is the transport's, both ways, from its first byte on.
        lane.stream.set_nonblocking(false).unwrap();
        lane.stream.write_all(b"there").unwrap();
        ours.write_all(b"and back").unwrap();
        let (mut there, mut back) = ([0; 5], [0; 8]);
        ours.read_exact(&mut there).unwrap();
        lane.stream.read_exact(&mut back).unwrap();
        assert_eq!((&there, &back), (b"there", b"and back"));
    }
    assert_eq!(begun(&target), 1);
    assert_eq!(target.plane.lanes_denied(), 0);
    assert_eq!(member.engine.plane.lanes_denied(), 0);
}

#[test]
fn who_has_seen_everything_and_has_no_secret_joins_no_lane() {
    let key = new_key();
    let target = target(Some(&key));
    let to = target.listens[0];
    let member = Member::of(initiator(Some(&key)), to);
    let other = Member::of(initiator(Some(&key)), to);
    let entry = member.entry();
    // What was said on a lane that came in.
    let mut fair = Lane::greet(to);
    let recorded = member.secret.ticket(&entry, fair.challenge).unwrap();
    fair.says(&join_of(&entry, recorded));
    let Frame::LaneProved { proof: answered } = fair.hear(Decoder::next_frame) else {
        panic!("no proof");
    };
    let lane = told_lane(&target);
    assert_eq!(lane.epoch, EPOCH);
    let (number, epoch) = (LANE.0, EPOCH.0);
    let at = |lane, epoch| Entry {
        lane: Some((LaneId(lane), Epoch(epoch))),
        ..entry
    };
    let of = |transport| Entry { transport, ..entry };
    let made_up = Ticket {
        protection: 0,
        nonce: Nonce([1; NONCE_BYTES]),
        proof: Proof([2; PROOF_BYTES]),
    };
    // A ticket for this connection and another entry than the one that is asked for.
    let fresh =
        |of: &Member, entry: Entry<'_>, challenge| of.secret.ticket(&entry, challenge).unwrap();
    type Makes<'a> = Box<dyn Fn(Nonce) -> Ticket + 'a>;
    let cases: Vec<(&str, Makes<'_>)> = vec![
        ("a stolen session and no secret", Box::new(|_| made_up)),
        ("a replayed ticket", Box::new(|_| recorded)),
        (
            "the target's proof, reflected",
            Box::new(|_| Ticket {
                proof: answered,
                ..recorded
            }),
        ),
        (
            "its own challenge for a nonce",
            Box::new(|challenge| Ticket {
                nonce: challenge,
                ..recorded
            }),
        ),
        (
            "a ticket of another session",
            Box::new(|challenge| fresh(&other, entry, challenge)),
        ),
        (
            "of another session of that name",
            Box::new(|challenge| fresh(&other, other.entry(), challenge)),
        ),
        (
            "a ticket of another lane",
            Box::new(|challenge| fresh(&member, at(number + 1, epoch), challenge)),
        ),
        (
            "a ticket of another epoch",
            Box::new(|challenge| fresh(&member, at(number, epoch + 1), challenge)),
        ),
        (
            "a ticket of an older epoch",
            Box::new(|challenge| fresh(&member, at(number, epoch - 1), challenge)),
        ),
        (
            "a ticket of another transport",
            Box::new(|challenge| fresh(&member, of("shm"), challenge)),
        ),
        (
            "of no lane",
            Box::new(|challenge| {
                fresh(
                    &member,
                    Entry {
                        lane: None,
                        ..entry
                    },
                    challenge,
                )
            }),
        ),
        (
            "a protection that somebody has changed",
            Box::new(|challenge| Ticket {
                protection: 1,
                ..fresh(&member, entry, challenge)
            }),
        ),
        (
            "for another connection",
            Box::new(|_| fresh(&member, entry, Lane::greet(to).challenge)),
        ),
    ];
    for (turn, (name, makes)) in cases.iter().enumerate() {
        let mut lane = Lane::greet(to);
        let ticket = makes(lane.challenge);
        lane.says(&join_of(&entry, ticket));
        let (reason, text) = lane.refused();
        assert_eq!(reason, Refusal::Key, "{name}: {text}");
        assert_eq!(target.plane.lanes_denied(), 1 + turn as u64, "{name}");
        member.engine.describe_works();
        has_no_lane(&target);
    }
    let mut denied = cases.len() as u64;
    // Without a ticket, behind the challenge or before it.
    for (name, frame) in [
        ("a lane without a ticket", join(member.session)),
        (
            "the same of a named transport",
            Frame::JoinLaneOf {
                transport: "verbs".into(),
                session: member.session.0,
                lane: number,
                epoch,
            },
        ),
    ] {
        let mut lane = Lane::greet(to);
        lane.says(&frame);
        let (reason, text) = lane.refused();
        assert_eq!(reason, Refusal::Key, "{name}: {text}");
        assert!(text.contains("ticket"), "{name}: {text}");
        let at_once = rest(say(to, &greeted(Purpose::Lane, &[frame])));
        assert!(!at_once.is_empty(), "{name}");
        denied += 2;
        until("both are counted", || target.plane.lanes_denied() == denied);
    }
    // What has no place there is no lane either: nothing behind a ticket counts before it is answered.
    let mut lane = Lane::greet(to);
    let ticket = fresh(&member, entry, lane.challenge);
    let mut bytes = Vec::new();
    codec::encode(&join_of(&entry, ticket), &mut bytes).unwrap();
    bytes.extend([1; 64]);
    lane.stream.write_all(&bytes).unwrap();
    assert_eq!(lane.refused().0, Refusal::Protocol);
    member.engine.describe_works();
    other.engine.describe_works();
    has_no_lane(&target);
    assert_eq!(begun(&target), 2);
    // And the member's next lane comes in beside all that.
    joins(&member.address(to), Epoch(epoch + 1)).unwrap();
    assert_eq!(told_lane(&target).epoch, Epoch(epoch + 1));
    assert_eq!(target.plane.lanes_denied(), denied);
}

#[test]
fn a_session_that_is_made_anew_has_another_secret() {
    let key = new_key();
    let target = target(Some(&key));
    let to = target.listens[0];
    let before = Member::of(initiator(Some(&key)), to);
    before.engine.plane.disconnect(PEER);
    let met = before.engine.connect(to);
    assert_ne!(met.session, before.session);
    let address = RailAddress {
        session: met.session,
        ..before.address(to)
    };
    let error = joins(&address, EPOCH).unwrap_err().to_string();
    assert!(error.contains("refused: cluster key"), "{error}");
    let address = RailAddress {
        secret: met.secret,
        ..address
    };
    joins(&address, EPOCH).unwrap();
    assert_eq!(told_lane(&target).session, met.session);
    // And the session that is over lets nobody in.
    assert!(joins(&before.address(to), EPOCH).is_err());
    has_no_lane(&target);
}

#[test]
fn a_ticket_is_nothing_where_there_is_no_key() {
    let target = target(None);
    let fair = initiator(None);
    let met = fair.connect(target.listens[0]);
    assert!(met.secret.is_none());
    let ticket = Ticket {
        protection: 0,
        nonce: Nonce([1; NONCE_BYTES]),
        proof: Proof([2; PROOF_BYTES]),
    };
    let entry = Entry {
        transport: "tcp",
        session: met.session,
        lane: Some((LANE, EPOCH)),
    };
    let said = rest(say(
        target.listens[0],
        &greeted(Purpose::Lane, &[join_of(&entry, ticket)]),
    ));
    let mut decoder = Decoder::default();
    decoder.push(&said);
    decoder.next_greeting().unwrap().unwrap();
    let frame = decoder.next_frame().unwrap();
    let reason = |frame: &Option<Frame>| match frame {
        Some(Frame::Refused { reason, .. }) => Some(*reason),
        _ => None,
    };
    assert_eq!(reason(&frame), Some(Refusal::Protocol), "{frame:?}");
    fair.describe_works();
    has_no_lane(&target);
}

#[test]
fn forged_lanes_in_thousands_take_nothing_from_members() {
    const LANES: usize = 2000;
    let key = new_key();
    let target = target(Some(&key));
    let to = target.listens[0];
    let member = Member::of(initiator(Some(&key)), to);
    let entry = member.entry();
    let forged = Ticket {
        protection: 0,
        nonce: Nonce([1; NONCE_BYTES]),
        proof: Proof([2; PROOF_BYTES]),
    };
    for number in 0..LANES {
        let mut lane = Lane::greet(to);
        lane.says(&join_of(&entry, forged));
        assert_eq!(lane.refused().0, Refusal::Key);
        if number % 100 == 0 {
            member.engine.describe_works();
        }
    }
    assert_eq!(target.plane.lanes_denied(), LANES as u64);
    has_no_lane(&target);
    joins(&member.address(to), EPOCH).unwrap();
    told_lane(&target);
}
