//! Lanes of sessions that have a secret: who proves that he has it comes in, and nobody else of this user.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use polyrail_transport::ticket::{
    EXPORTED_BYTES, NONCE_BYTES, Nonce, PROOF_BYTES, Proof, SessionSecret, Ticket,
};

use super::*;
use crate::reach::entry;

const KEYED: SessionId = SessionId([6; 16]);

fn secret(byte: u8) -> (SessionSecret, Arc<AtomicU64>) {
    let denied = Arc::<AtomicU64>::default();
    let secret = SessionSecret::new(&[byte; EXPORTED_BYTES], KEYED, 1, 2, denied.clone());
    (secret.unwrap(), denied)
}

fn name(epoch: u32) -> LaneName {
    LaneName {
        lane: lane().0,
        epoch,
    }
}

/// A target that lets a session with a secret in, and one that such a session's initiator has.
fn target() -> (Target, SessionSecret, Arc<AtomicU64>) {
    let target = Target::start();
    let (ours, denied) = secret(1);
    let (theirs, _) = secret(2);
    let transport = &target.transport;
    transport.begin_session(KEYED, TrustDomain::COMMON, Some(ours.clone()));
    transport.begin_session(
        SessionId([5; 16]),
        TrustDomain::COMMON,
        Some(theirs.clone()),
    );
    (target, ours, denied)
}

fn member(target: &Target, there: &Region, secret: &SessionSecret) -> Initiator {
    let address = target.transport.address();
    let mut member = Initiator::new(address.clone(), far(there), KEYED);
    let rail = RailAddress {
        transport: TransportId(0),
        local: None,
        remote: ([127, 0, 0, 1], 1).into(),
        session: KEYED,
        secret: Some(secret.clone()),
        own: address.into(),
    };
    member.endpoint.attach_rail(RailId(0), rail);
    member
}

/// Somebody who says what he likes.
struct Peer {
    socket: OwnedFd,
    cookie: OwnCookie,
    file: OwnedFd,
}

impl Peer {
    fn connect(target: &Target) -> Self {
        Self {
            socket: packets::connect_to(&target.transport.address()).unwrap(),
            cookie: OwnCookie::new().unwrap(),
            file: Mailbox::new().unwrap().1,
        }
    }

    fn say(&self, request: &Request, with_mailbox: bool) {
        let mailbox = with_mailbox.then(|| self.file.as_fd());
        packets::send(&self.socket, request, mailbox).unwrap();
    }

    /// `None`: it has been hung up on.
    fn hear(&self) -> Option<Answer> {
        let until = StdInstant::now() + PATIENCE;
        loop {
            match packets::receive(&self.socket) {
                Ok(None) => assert!(StdInstant::now() < until, "no answer"),
                Ok(Some((answer, _))) => return Some(answer),
                Err(_) => return None,
            }
            thread::yield_now();
        }
    }

    fn challenge(&self) -> Nonce {
        self.say(&Request::Challenge, false);
        match self.hear() {
            Some(Answer::Challenge { nonce }) => nonce,
            other => panic!("{other:?}"),
        }
    }

    fn hello(&self, session: SessionId, lane: Option<LaneName>, ticket: Option<Ticket>) {
        let (version, session, cookie) = (VERSION, session.0, self.cookie.cookie());
        let hello = match ticket {
            None => Request::Hello {
                version,
                session,
                cookie,
                lane,
            },
            Some(ticket) => Request::HelloProved {
                version,
                session,
                cookie,
                lane,
                ticket,
            },
        };
        self.say(&hello, lane.is_some());
    }
}

#[test]
fn members_prove_themselves_and_copy() {
    for shared in [true, false] {
        let (target, secret, denied) = target();
        let there = target.register(4096, Access::RemoteReadWrite, shared);
        let mut member = member(&target, &there, &secret);
        assert!(matches!(member.open(ONE), LaneFact::Opened { .. }));
        put(&member.local, &[7; 100]);
        assert_eq!(member.outcomes(&[write(100)]), [Outcome::Success]);
        assert_eq!(bytes(&there)[..100], [7; 100]);
        let own = ShmTransport::new(Arc::new(Table::default()), 1).unwrap();
        let address = target.transport.address();
        let reached = own.reach(&address, KEYED, Some(&secret));
        assert_eq!(reached, Ok(own.capabilities()));
        assert_eq!(denied.load(Relaxed), 0);
        // Each epoch begins once, whoever asks.
        assert_eq!(
            member.open(ONE),
            LaneFact::OpenFailed(Cause::Refused),
            "again"
        );
        assert!(matches!(member.open(TWO), LaneFact::Opened { .. }));
        assert_eq!(denied.load(Relaxed), 0);
    }
}

#[test]
fn whoever_does_not_prove_it_gets_no_lane_and_ends_nobodys() {
    let (target, ours, denied) = target();
    let there = target.register(4096, Access::RemoteReadWrite, true);
    let mut member = member(&target, &there, &ours);
    assert!(matches!(member.open(ONE), LaneFact::Opened { .. }));
    // What was said on a lane that came in.
    let fair = Peer::connect(&target);
    let challenge = fair.challenge();
    let other = LaneName { lane: 9, epoch: 1 };
    let recorded = ours.ticket(&entry(KEYED, Some(other)), challenge).unwrap();
    fair.hello(KEYED, Some(other), Some(recorded));
    let Some(Answer::Proved { proof: answered }) = fair.hear() else {
        panic!("no proof");
    };
    assert!(matches!(fair.hear(), Some(Answer::Ready { .. })));
    let fresh = |session, lane, challenge| ours.ticket(&entry(session, lane), challenge).unwrap();
    type Makes<'a> = Box<dyn Fn(Nonce) -> Option<Ticket> + 'a>;
    let two = Some(name(2));
    let made_up = Ticket {
        protection: 0,
        nonce: Nonce([1; NONCE_BYTES]),
        proof: Proof([2; PROOF_BYTES]),
    };
    let of_tcp = |challenge| {
        let entry = polyrail_transport::ticket::Entry {
            transport: "tcp",
            ..entry(KEYED, two)
        };
        ours.ticket(&entry, challenge).unwrap()
    };
    let changed = |challenge| Ticket {
        protection: 1,
        ..fresh(KEYED, two, challenge)
    };
    let reflected = Ticket {
        proof: answered,
        ..recorded
    };
    // (name, the lane that is asked for, the ticket)
    let cases: Vec<(&str, Option<LaneName>, Makes<'_>)> = vec![
        ("no ticket", two, Box::new(|_| None)),
        ("no ticket, and only a question", None, Box::new(|_| None)),
        ("a made-up one", two, Box::new(|_| Some(made_up))),
        ("a replayed one", Some(other), Box::new(|_| Some(recorded))),
        (
            "the target's proof",
            Some(other),
            Box::new(|_| Some(reflected)),
        ),
        (
            "one of another lane",
            two,
            Box::new(|challenge| {
                Some(fresh(
                    KEYED,
                    Some(LaneName { lane: 9, epoch: 2 }),
                    challenge,
                ))
            }),
        ),
        (
            "one of another epoch",
            two,
            Box::new(|challenge| Some(fresh(KEYED, Some(name(3)), challenge))),
        ),
        (
            "one of a question",
            two,
            Box::new(|challenge| Some(fresh(KEYED, None, challenge))),
        ),
        (
            "one of another session",
            two,
            Box::new(|challenge| Some(fresh(OTHER, two, challenge))),
        ),
        (
            "one of another transport",
            two,
            Box::new(|challenge| Some(of_tcp(challenge))),
        ),
        (
            "a protection that was changed",
            two,
            Box::new(|challenge| Some(changed(challenge))),
        ),
    ];
    for (turn, (name, lane, makes)) in cases.iter().enumerate() {
        let peer = Peer::connect(&target);
        let ticket = makes(peer.challenge());
        peer.hello(KEYED, *lane, ticket);
        let answer = peer.hear();
        assert!(
            matches!(answer, Some(Answer::Refused { .. })),
            "{name}: {answer:?}"
        );
        assert_eq!(denied.load(Relaxed), 1 + turn as u64, "{name}");
        // Nothing is given to it, and the member's lane goes on.
        let key = there.key();
        let _ = packets::send(&peer.socket, &Request::Map { key, grant: 1 }, None);
        assert_eq!(peer.hear(), None, "{name}");
        assert_eq!(member.outcomes(&[write(1)]), [Outcome::Success], "{name}");
    }
    // Before it was told what to prove, and asked twice.
    let peer = Peer::connect(&target);
    peer.hello(KEYED, two, Some(fresh(KEYED, two, Nonce([0; NONCE_BYTES]))));
    assert!(matches!(peer.hear(), Some(Answer::Refused { .. })));
    assert_eq!(denied.load(Relaxed), 1 + cases.len() as u64);
    let peer = Peer::connect(&target);
    peer.challenge();
    peer.say(&Request::Challenge, false);
    assert_eq!(peer.hear(), None);
    assert_eq!(member.outcomes(&[write(1)]), [Outcome::Success]);
    assert!(matches!(member.open(TWO), LaneFact::Opened { .. }));
}

#[test]
fn a_target_that_does_not_prove_it_is_asked_for_nothing() {
    let (nonce, proof) = (Nonce([3; NONCE_BYTES]), Proof([4; PROOF_BYTES]));
    let ready = || Answer::Ready {
        cookie: OwnCookie::new().unwrap().cookie(),
        no_pull: None,
    };
    // (name, what it says one after the other, and what it is told after each)
    let cases: [(&str, Vec<Answer>); 3] = [
        ("in, without a ticket", vec![ready()]),
        (
            "a proof that is none",
            vec![
                Answer::Challenge { nonce },
                Answer::Proved { proof },
                ready(),
            ],
        ),
        (
            "in, and no proof",
            vec![Answer::Challenge { nonce }, ready()],
        ),
    ];
    for (name, answers) in cases {
        let (ours, denied) = secret(1);
        let at = format!("polyrail-keyed-{}-{}", std::process::id(), answers.len());
        let listener = packets::listen_at(at.as_bytes()).unwrap();
        let here = region(4096, Access::RemoteReadWrite, true);
        let mut member = Initiator::new(at.clone().into_bytes(), far(&here), KEYED);
        let rail = RailAddress {
            transport: TransportId(0),
            local: None,
            remote: ([127, 0, 0, 1], 1).into(),
            session: KEYED,
            secret: Some(ours),
            own: at.into_bytes().into(),
        };
        member.endpoint.attach_rail(RailId(0), rail);
        let by = member.clock.now() + Duration::from_secs(20);
        member.endpoint.open(lane(), ONE, by);
        let socket = packets::accept(&listener).unwrap();
        let mut heard = Vec::new();
        for answer in &answers {
            while let Ok(Some((request, _))) = packets::receive::<Request>(&socket) {
                heard.push(request);
            }
            // It may have hung up.
            let _ = packets::send(&socket, answer, None);
            member.poll();
        }
        let fact = member.fact(ONE);
        assert_eq!(fact, LaneFact::OpenFailed(Cause::Refused), "{name}");
        assert_eq!(denied.load(Relaxed), 1, "{name}");
        while let Ok(Some((request, _))) = packets::receive::<Request>(&socket) {
            heard.push(request);
        }
        assert_eq!(heard.first(), Some(&Request::Challenge), "{name}");
        let more = heard.get(1..).unwrap_or_default();
        let is_ticket = |request: &Request| matches!(request, Request::HelloProved { .. });
        assert!(
            more.len() <= 1 && more.iter().all(is_ticket),
            "{name}: {heard:?}"
        );
    }
}
