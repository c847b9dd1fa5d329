//! A lane on its way in, from its initiator's side and without I/O: who it is, and between engines with a cluster key
//! the proof of both ends. What comes after that is the transport's own.

use std::io;

use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::RailAddress;
use polyrail_transport::ticket::{Entry, LaneKeys, Proving, Said};

use crate::codec::{self, Decoder, Frame, GREETING_BYTES, Greeting, Purpose};

/// The longest frame that a target says here: a refusal.
const FRAME_BYTES_MAX: usize = 8 * 1024;

/// The transport that a lane is of when it names none.
const TCP: &str = "tcp";

/// A lane that asks to come in.
#[derive(Debug)]
pub struct Joining {
    transport: String,
    address: RailAddress,
    lane: LaneId,
    epoch: Epoch,
    decoder: Decoder,
    /// The target has greeted.
    is_greeted: bool,
    /// Once it is over the rest is the transport's.
    proving: Proving,
}

impl Joining {
    /// Begins, and what is to be said first. Whoever has said all of it goes on with [`Self::wants`].
    pub fn start(
        transport: &str,
        address: &RailAddress,
        lane: LaneId,
        epoch: Epoch,
    ) -> io::Result<(Self, Vec<u8>)> {
        let mut says = Greeting::ours(Purpose::Lane).encode().to_vec();
        if address.secret.is_none() {
            let (session, lane, epoch) = (address.session.0, lane.0, epoch.0);
            let join = match transport {
                TCP => Frame::JoinLane {
                    session,
                    lane,
                    epoch,
                },
                transport => Frame::JoinLaneOf {
                    transport: transport.into(),
                    session,
                    lane,
                    epoch,
                },
            };
            codec::encode(&join, &mut says).map_err(io::Error::other)?;
        }
        let joining = Self {
            transport: transport.into(),
            proving: Proving::new(address.secret.as_ref()),
            address: address.clone(),
            lane,
            epoch,
            decoder: Decoder::default(),
            is_greeted: false,
        };
        Ok((joining, says))
    }

    /// How many bytes are to be read next; more are not this one's. 0: what comes now is the transport's.
    pub fn wants(&self) -> usize {
        match (self.proving.is_over(), self.is_greeted) {
            (true, _) => 0,
            (false, false) => GREETING_BYTES - self.decoder.pending_bytes(),
            (false, true) => self.decoder.missing_bytes(),
        }
    }

    /// What the lane is encrypted with from now on, if it is, once [`Self::wants`] is 0. Given once.
    pub fn take_keys(&mut self) -> Option<LaneKeys> {
        self.proving.take_keys()
    }

    /// Takes what came, [`Self::wants`] bytes at most, and gives what is to be said to that. After an error the lane is
    /// not to be opened: nothing has been said on it that means anything to others.
    pub fn handle(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.decoder.push(bytes);
        let mut says = Vec::new();
        if self.proving.is_over() {
            return Ok(says);
        }
        if !self.is_greeted {
            if let Some(greeting) = self.decoder.next_greeting().map_err(nonsense)? {
                greeting.check_version().map_err(nonsense)?;
                if greeting.purpose != Purpose::Lane {
                    return Err(nonsense("it answered for another purpose"));
                }
                self.is_greeted = true;
            }
            return Ok(says);
        }
        let said = match self.decoder.next_frame_within(FRAME_BYTES_MAX) {
            Err(error) => return Err(nonsense(error)),
            Ok(None) => return Ok(says),
            Ok(Some(Frame::LaneChallenge { nonce })) => Said::Challenge(nonce),
            Ok(Some(Frame::LaneProved { proof })) => Said::Proof(proof),
            Ok(Some(Frame::Refused { reason, text })) => {
                return Err(nonsense(format!("refused: {reason}, {text:?}")));
            }
            Ok(Some(_)) => Said::Other,
        };
        let entry = Entry {
            transport: &self.transport,
            session: self.address.session,
            lane: Some((self.lane, self.epoch)),
        };
        if let Some(ticket) = self.proving.hear(&entry, said)? {
            let join = Frame::JoinLaneProved {
                transport: self.transport.clone(),
                session: self.address.session.0,
                lane: self.lane.0,
                epoch: self.epoch.0,
                ticket,
            };
            codec::encode(&join, &mut says).map_err(io::Error::other)?;
        }
        Ok(says)
    }
}

fn nonsense(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use polyrail_core::units::TransportId;
    use polyrail_transport::SessionId;
    use polyrail_transport::ticket::{
        NONCE_BYTES, Nonce, PROOF_BYTES, Proof, SessionSecret, Ticket,
    };

    use super::*;
    use crate::codec::Refusal;

    const SESSION: SessionId = SessionId([7; 16]);
    const CHALLENGE: Nonce = Nonce([3; NONCE_BYTES]);

    fn secret() -> (SessionSecret, Arc<AtomicU64>) {
        let denied = Arc::<AtomicU64>::default();
        let secret = SessionSecret::new(&[1; 32], SESSION, 1, 2, denied.clone());
        (secret.unwrap(), denied)
    }

    fn start(secret: Option<SessionSecret>) -> (Joining, Vec<u8>) {
        let address = RailAddress {
            transport: TransportId(0),
            local: None,
            remote: ([127, 0, 0, 1], 1).into(),
            session: SESSION,
            secret,
            own: [].into(),
        };
        Joining::start("tcp", &address, LaneId(5), Epoch(6)).unwrap()
    }

    fn bytes_of(purpose: Option<Purpose>, frames: &[Frame]) -> Vec<u8> {
        let greeting = purpose.map(|purpose| Greeting::ours(purpose).encode().to_vec());
        let mut bytes = greeting.unwrap_or_default();
        for frame in frames {
            codec::encode(frame, &mut bytes).unwrap();
        }
        bytes
    }

    /// Hands bytes over as they are asked for; what is said to them, and how many were left.
    fn hear(joining: &mut Joining, mut bytes: &[u8], most: usize) -> io::Result<(Vec<u8>, usize)> {
        let mut says = Vec::new();
        while joining.wants() > 0 && !bytes.is_empty() {
            let (some, rest) = bytes.split_at(joining.wants().min(most).min(bytes.len()));
            says.extend(joining.handle(some)?);
            bytes = rest;
        }
        Ok((says, bytes.len()))
    }

    fn ticket_of(says: &[u8]) -> Ticket {
        let mut decoder = Decoder::default();
        decoder.push(says);
        match decoder.next_frame() {
            Ok(Some(Frame::JoinLaneProved {
                transport,
                session,
                lane,
                epoch,
                ticket,
            })) => {
                assert_eq!((transport.as_str(), session), ("tcp", SESSION.0));
                assert_eq!((lane, epoch), (5, 6));
                ticket
            }
            other => panic!("{other:?}"),
        }
    }

    fn entry() -> Entry<'static> {
        Entry {
            transport: "tcp",
            session: SESSION,
            lane: Some((LaneId(5), Epoch(6))),
        }
    }

    #[test]
    fn a_session_without_a_secret_joins_as_ever() {
        let (joining, says) = start(None);
        assert_eq!(joining.wants(), 0);
        let join = Frame::JoinLane {
            session: SESSION.0,
            lane: 5,
            epoch: 6,
        };
        assert_eq!(says, bytes_of(Some(Purpose::Lane), &[join]));
    }

    #[test]
    fn nothing_but_a_proof_is_taken_for_one_and_nothing_behind_it_is_touched() {
        for most in [1, 7, 1 << 10] {
            let ((ours, _), (theirs, denied)) = (secret(), secret());
            let (mut joining, says) = start(Some(ours));
            assert_eq!(says, Greeting::ours(Purpose::Lane).encode(), "and no more");
            let challenge = Frame::LaneChallenge { nonce: CHALLENGE };
            let first = bytes_of(Some(Purpose::Lane), &[challenge]);
            let (says, left) = hear(&mut joining, &first, most).unwrap();
            assert_eq!(left, 0);
            let proof = theirs
                .admit(&entry(), CHALLENGE, &ticket_of(&says))
                .unwrap();
            let mut second = bytes_of(None, &[Frame::LaneProved { proof }]);
            second.extend([9; 100]);
            let (says, left) = hear(&mut joining, &second, most).unwrap();
            assert_eq!((says.len(), left, joining.wants()), (0, 100, 0));
            assert_eq!(denied.load(Relaxed), 0);
        }
    }

    #[test]
    fn an_impostor_hears_no_more_than_a_ticket() {
        let ready = Frame::LaneReady {
            works_max: 1,
            work_bytes_max: 1,
        };
        let lane = Some(Purpose::Lane);
        let refused = || Frame::Refused {
            reason: Refusal::Key,
            text: "x".repeat(1000),
        };
        // (name, what it says first, whether it is denied for want of proof, what is said of it)
        let cases = [
            (
                "in without a ticket",
                bytes_of(lane, std::slice::from_ref(&ready)),
                true,
                "without a ticket",
            ),
            (
                "no",
                bytes_of(lane, &[refused()]),
                false,
                "refused: cluster key",
            ),
            (
                "another purpose",
                bytes_of(Some(Purpose::Control), &[]),
                false,
                "another purpose",
            ),
            (
                "another program",
                b"SSH-2.0-OpenSSH_9.9p1\r\n".to_vec(),
                false,
                "not a polyrail",
            ),
            (
                "a long frame",
                [bytes_of(lane, &[]), vec![0xff; 4]].concat(),
                false,
                "is the limit",
            ),
        ];
        for (name, bytes, is_denied, said) in cases {
            let (ours, denied) = secret();
            let (mut joining, _) = start(Some(ours));
            let error = hear(&mut joining, &bytes, 1 << 10).unwrap_err().to_string();
            assert!(error.contains(said), "{name}: {error}");
            assert_eq!(denied.load(Relaxed), u64::from(is_denied), "{name}");
        }
        // Behind a ticket: (name, what answers it)
        type Answer = fn(&SessionSecret, Ticket) -> Frame;
        let cases: [(&str, Answer); 4] = [
            ("yes and no proof", |_, _| Frame::LaneReady {
                works_max: 1,
                work_bytes_max: 1,
            }),
            ("a proof of nothing", |_, _| Frame::LaneProved {
                proof: Proof([0; PROOF_BYTES]),
            }),
            ("the ticket's own", |_, ticket| Frame::LaneProved {
                proof: ticket.proof,
            }),
            ("one of another lane", |theirs, _| {
                let entry = Entry {
                    lane: Some((LaneId(6), Epoch(6))),
                    ..entry()
                };
                let ticket = theirs.ticket(&entry, CHALLENGE).unwrap();
                let proof = theirs.admit(&entry, CHALLENGE, &ticket).unwrap();
                Frame::LaneProved { proof }
            }),
        ];
        for (name, answer) in cases {
            let ((ours, denied), (theirs, _)) = (secret(), secret());
            let (mut joining, _) = start(Some(ours));
            let challenge = Frame::LaneChallenge { nonce: CHALLENGE };
            let first = bytes_of(lane, &[challenge]);
            let (says, _) = hear(&mut joining, &first, 1 << 10).unwrap();
            let second = bytes_of(None, &[answer(&theirs, ticket_of(&says))]);
            let error = hear(&mut joining, &second, 1 << 10).unwrap_err();
            assert_eq!(
                error.kind(),
                io::ErrorKind::PermissionDenied,
                "{name}: {error}"
            );
            assert_eq!(denied.load(Relaxed), 1, "{name}");
        }
    }
}
