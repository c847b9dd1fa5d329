//! Tickets: how the two ends of a lane prove to each other that they are of the lane's session.
//!
//! Where engines have a cluster key, both ends of a session have a [`SessionSecret`], which nobody else has. Whoever
//! accepts a lane draws a [`Nonce`] and says it first. The initiator answers with a [`Ticket`], whose proof is a MAC
//! over that nonce, one of its own, and all that the lane is; the target with a [`Proof`] over the same. So what was
//! said once proves nothing to anybody else, nor a second time, and nothing has to be remembered of lanes that have not
//! proved themselves.
//!
//! How the messages travel is each transport's business. `docs/security.md` has the bytes.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use polyrail_core::units::{Epoch, LaneId};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::hmac::{self, HMAC_SHA256};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::SessionId;

/// What a lane's bytes go in: as they are.
pub const CLEAR: u8 = 0;

/// What a lane's bytes go in: in records of TLS 1.3, of the cipher AES-128-GCM, with [`LaneKeys`].
pub const ENCRYPTED: u8 = 1;

/// The size of a key of AES-128-GCM.
pub const KEY_BYTES: usize = 16;

/// The size of what each record's nonce is made of.
pub const IV_BYTES: usize = 12;

/// The size of a [`Nonce`].
pub const NONCE_BYTES: usize = 16;

/// The size of a [`Proof`].
pub const PROOF_BYTES: usize = 32;

/// The size of a [`Ticket`] as [`Ticket::to_bytes`] has it.
pub const TICKET_BYTES: usize = 1 + NONCE_BYTES + PROOF_BYTES;

/// The size of what TLS gives both ends of a session.
pub const EXPORTED_BYTES: usize = 32;

const SALT: &[u8] = b"polyrail session 1";
const LANES: &[u8] = b"lanes: HMAC-SHA-256";
const MESSAGE: &[u8] = b"polyrail lane 1";
const PAYLOAD_SALT: &[u8] = b"polyrail payload 1";

/// Random bytes that were never said before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Nonce(pub [u8; NONCE_BYTES]);

impl Nonce {
    /// A new one.
    pub fn draw() -> io::Result<Self> {
        let mut bytes = [0; NONCE_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(bytes))
    }
}

/// What only an end of the session can have made. It is no secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Proof(pub [u8; PROOF_BYTES]);

/// What an initiator says to come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ticket {
    /// What the lane's bytes are to go in: [`CLEAR`] or [`ENCRYPTED`].
    pub protection: u8,
    /// Of the initiator's.
    pub nonce: Nonce,
    /// That it is of the session.
    pub proof: Proof,
}

impl Ticket {
    /// As bytes.
    pub fn to_bytes(&self) -> [u8; TICKET_BYTES] {
        let mut bytes = [0; TICKET_BYTES];
        bytes[0] = self.protection;
        bytes[1..1 + NONCE_BYTES].copy_from_slice(&self.nonce.0);
        bytes[1 + NONCE_BYTES..].copy_from_slice(&self.proof.0);
        bytes
    }

    /// From bytes.
    pub fn from_bytes(bytes: &[u8; TICKET_BYTES]) -> Self {
        let (mut nonce, mut proof) = ([0; NONCE_BYTES], [0; PROOF_BYTES]);
        nonce.copy_from_slice(&bytes[1..1 + NONCE_BYTES]);
        proof.copy_from_slice(&bytes[1 + NONCE_BYTES..]);
        Self {
            protection: bytes[0],
            nonce: Nonce(nonce),
            proof: Proof(proof),
        }
    }
}

/// What a ticket is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The transport.
    pub transport: &'a str,
    /// The session.
    pub session: SessionId,
    /// The lane and its epoch; `None`: nothing but an answer whether this transport is reached.
    pub lane: Option<(LaneId, Epoch)>,
}

/// Who proves.
#[derive(Clone, Copy)]
enum Side {
    Initiator = 1,
    Target = 2,
}

/// Why somebody is not taken for an end of the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// It has said no ticket.
    Missing,
    /// Its proof is not the one of this session, lane, epoch and transport, and of what was just said.
    Proof,
    /// It wants its bytes to go in something else than the session is for.
    Protection {
        /// What its ticket says.
        got: u8,
        /// What is right.
        right: u8,
    },
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("a lane without a ticket, and the session has a secret"),
            Self::Proof => f.write_str("its proof is not one of this lane and session"),
            Self::Protection { got, right } => {
                let word = match *right {
                    ENCRYPTED => "encrypted",
                    _ => "clear",
                };
                write!(
                    f,
                    "it wants protection {got} of the lane's bytes; {right} ({word}) is right"
                )
            }
        }
    }
}

impl std::error::Error for Denied {}

impl From<Denied> for io::Error {
    fn from(denied: Denied) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, denied)
    }
}

/// What both ends of a session have and nobody else. Overwritten with the last copy.
#[derive(Clone)]
pub struct SessionSecret {
    key: Arc<Zeroizing<[u8; PROOF_BYTES]>>,
    /// Counts those who did not prove that they have it.
    denied: Arc<AtomicU64>,
    /// What bytes of its lanes go in.
    protection: u8,
}

/// What the bytes of one lane are encrypted with, in each direction. Overwritten when it is dropped; it stays where it was made,
/// so that whoever hands it on leaves no copy.
pub struct LaneKeys(Box<Directions>);

struct Directions {
    initiator: Zeroizing<[u8; KEY_BYTES + IV_BYTES]>,
    target: Zeroizing<[u8; KEY_BYTES + IV_BYTES]>,
}

/// What bytes are encrypted with in one direction: the key, and what the nonces of records are made of.
pub type Direction<'a> = (&'a [u8], &'a [u8]);

impl LaneKeys {
    /// What the initiator encrypts with: [`KEY_BYTES`] and [`IV_BYTES`].
    pub fn of_initiator(&self) -> Direction<'_> {
        self.0.initiator.split_at(KEY_BYTES)
    }

    /// What the target encrypts with.
    pub fn of_target(&self) -> Direction<'_> {
        self.0.target.split_at(KEY_BYTES)
    }
}

impl fmt::Debug for LaneKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LaneKeys")
    }
}

impl SessionSecret {
    /// The secret of a session, from what TLS gave both ends of the connection that it began on, and from the
    /// incarnations of both. Whoever is not let in for want of it is counted in `denied`.
    pub fn new(
        exported: &[u8; EXPORTED_BYTES],
        session: SessionId,
        initiator: u64,
        target: u64,
        denied: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let unable = |_| io::Error::other("no secret comes of the session");
        let (initiator, target) = (initiator.to_le_bytes(), target.to_le_bytes());
        let root = Salt::new(HKDF_SHA256, SALT).extract(exported);
        let info = [LANES, &session.0, &initiator, &target];
        let expanded = root.expand(&info, HKDF_SHA256).map_err(unable)?;
        // Filled where it stays: what is moved leaves a copy.
        let mut key = Arc::new(Zeroizing::new([0; PROOF_BYTES]));
        expanded
            .fill(&mut **Arc::make_mut(&mut key))
            .map_err(unable)?;
        Ok(Self {
            key,
            denied,
            protection: CLEAR,
        })
    }

    /// The same for a session whose lanes are encrypted: an end wants that.
    pub fn encrypting(self) -> Self {
        Self {
            protection: ENCRYPTED,
            ..self
        }
    }

    /// The same for lanes that no wire carries: what is within a host goes as it is.
    pub fn within_host(self) -> Self {
        Self {
            protection: CLEAR,
            ..self
        }
    }

    /// Whether lanes are encrypted.
    pub fn encrypts(&self) -> bool {
        self.protection == ENCRYPTED
    }

    /// What the bytes of a lane are encrypted with whose ends have proved themselves by this. `None`: they go in clear.
    pub fn keys(
        &self,
        entry: &Entry<'_>,
        challenge: Nonce,
        ticket: &Ticket,
    ) -> Result<Option<LaneKeys>, Denied> {
        if !self.encrypts() {
            return Ok(None);
        }
        let root = Salt::new(HKDF_SHA256, PAYLOAD_SALT).extract(&**self.key);
        let fill = |side, bytes: &mut [u8]| {
            let message = message(side, entry, challenge, ticket);
            let info = [&*message];
            let expanded = root.expand(&info, Length(KEY_BYTES + IV_BYTES));
            // It does not happen: HKDF gives up to 8,160 bytes.
            expanded
                .and_then(|expanded| expanded.fill(bytes))
                .map_err(|_| self.deny(Denied::Proof))
        };
        let mut both = Box::new(Directions {
            initiator: Zeroizing::new([0; KEY_BYTES + IV_BYTES]),
            target: Zeroizing::new([0; KEY_BYTES + IV_BYTES]),
        });
        fill(Side::Initiator, &mut *both.initiator)?;
        fill(Side::Target, &mut *both.target)?;
        Ok(Some(LaneKeys(both)))
    }

    /// Initiator: the ticket for who has said `challenge`.
    pub fn ticket(&self, entry: &Entry<'_>, challenge: Nonce) -> io::Result<Ticket> {
        let mut ticket = Ticket {
            protection: self.protection,
            nonce: Nonce::draw()?,
            proof: Proof([0; PROOF_BYTES]),
        };
        let message = message(Side::Initiator, entry, challenge, &ticket);
        ticket.proof = self.prove(&message);
        Ok(ticket)
    }

    /// Target: what answers the ticket of somebody to whom `challenge` was said, and to nobody else. Why there is no
    /// answer.
    pub fn admit(
        &self,
        entry: &Entry<'_>,
        challenge: Nonce,
        ticket: &Ticket,
    ) -> Result<Proof, Denied> {
        let said = message(Side::Initiator, entry, challenge, ticket);
        self.verify(&said, &ticket.proof)?;
        if ticket.protection != self.protection {
            return Err(self.deny(Denied::Protection {
                got: ticket.protection,
                right: self.protection,
            }));
        }
        Ok(self.prove(&message(Side::Target, entry, challenge, ticket)))
    }

    /// Initiator: whether that is the target's answer to the ticket.
    pub fn check(
        &self,
        entry: &Entry<'_>,
        challenge: Nonce,
        ticket: &Ticket,
        proof: &Proof,
    ) -> Result<(), Denied> {
        self.verify(&message(Side::Target, entry, challenge, ticket), proof)
    }

    /// Counts somebody who is not let in.
    pub fn deny(&self, denied: Denied) -> Denied {
        self.denied.fetch_add(1, Relaxed);
        denied
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(HMAC_SHA256, &**self.key)
    }

    fn prove(&self, message: &[u8]) -> Proof {
        let tag = hmac::sign(&self.key(), message);
        Proof(tag.as_ref().first_chunk().copied().unwrap_or_default())
    }

    /// In a time that does not depend on how much of the proof is right.
    fn verify(&self, message: &[u8], proof: &Proof) -> Result<(), Denied> {
        let verified = hmac::verify(&self.key(), message, &proof.0);
        verified.map_err(|_| self.deny(Denied::Proof))
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionSecret")
    }
}

/// How many bytes [`LaneKeys`] has for one direction.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Target: what answers somebody who was told to prove himself with the nonce, and has said that ticket; `None` of both: he has
/// not. `None`: the session has no secret, and there is nothing to prove. Asked before anything is kept of a lane.
pub fn admit(
    secret: Option<&SessionSecret>,
    entry: &Entry<'_>,
    said: Option<(Nonce, &Ticket)>,
) -> Result<Option<Proof>, Denied> {
    match (secret, said) {
        (None, _) => Ok(None),
        (Some(secret), Some((challenge, ticket))) => {
            secret.admit(entry, challenge, ticket).map(Some)
        }
        (Some(secret), None) => Err(secret.deny(Denied::Missing)),
    }
}

/// What a target says to an initiator that asks to come in.
#[derive(Clone, Copy, Debug)]
pub enum Said {
    /// Prove yourself, with this.
    Challenge(Nonce),
    /// I have the secret as well.
    Proof(Proof),
    /// Something else.
    Other,
}

/// What an initiator waits for until both ends have proved themselves.
#[derive(Debug)]
pub enum Proving {
    /// What it has to prove itself with.
    Challenge(SessionSecret),
    /// The target's proof.
    Proof(SessionSecret, Nonce, Ticket),
    /// Nothing: both have, or there is nothing to prove. With what the lane is encrypted with, if it is.
    Over(Option<LaneKeys>),
    /// Nothing any more: the target has not proved itself.
    Failed,
}

impl Proving {
    /// With the secret of the session, if it has one.
    pub fn new(secret: Option<&SessionSecret>) -> Self {
        secret.map_or(Self::Over(None), |secret| Self::Challenge(secret.clone()))
    }

    /// Whether what the target says now is about the lane.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Over(_))
    }

    /// What the lane is encrypted with from now on, once that [is so](Self::is_over). Given once.
    pub fn take_keys(&mut self) -> Option<LaneKeys> {
        match self {
            Self::Over(keys) => keys.take(),
            Self::Challenge(_) | Self::Proof(..) | Self::Failed => None,
        }
    }

    /// Takes what the target says until that is so: the ticket that answers it, if one does. After an error nothing is to be
    /// said to it any more, and whatever it says is one as well.
    pub fn hear(&mut self, entry: &Entry<'_>, said: Said) -> io::Result<Option<Ticket>> {
        match (std::mem::replace(self, Self::Failed), said) {
            (Self::Challenge(secret), Said::Challenge(nonce)) => {
                let ticket = secret.ticket(entry, nonce)?;
                *self = Self::Proof(secret, nonce, ticket);
                Ok(Some(ticket))
            }
            (Self::Proof(secret, nonce, ticket), Said::Proof(proof)) => {
                secret.check(entry, nonce, &ticket, &proof)?;
                *self = Self::Over(secret.keys(entry, nonce, &ticket)?);
                Ok(None)
            }
            (Self::Challenge(secret) | Self::Proof(secret, ..), _) => {
                Err(secret.deny(Denied::Missing).into())
            }
            (over @ Self::Over(_), _) => {
                *self = over;
                Ok(None)
            }
            (Self::Failed, _) => Err(io::Error::from(Denied::Missing)),
        }
    }
}

/// What is proved. All before the transport's name is of one length, so no two things are the same bytes.
fn message(side: Side, entry: &Entry<'_>, challenge: Nonce, ticket: &Ticket) -> Vec<u8> {
    let (lane, epoch) = entry.lane.unwrap_or_default();
    let mut bytes = Vec::with_capacity(80 + entry.transport.len());
    bytes.extend_from_slice(MESSAGE);
    bytes.extend([side as u8, ticket.protection, entry.lane.is_some().into()]);
    bytes.extend(entry.session.0);
    bytes.extend(lane.0.to_le_bytes());
    bytes.extend(epoch.0.to_le_bytes());
    bytes.extend(ticket.nonce.0);
    bytes.extend(challenge.0);
    bytes.extend_from_slice(entry.transport.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId([7; 16]);
    const ENTRY: Entry<'static> = Entry {
        transport: "tcp",
        session: SESSION,
        lane: Some((LaneId(5), Epoch(6))),
    };

    fn secret(byte: u8) -> (SessionSecret, Arc<AtomicU64>) {
        let denied = Arc::<AtomicU64>::default();
        let secret = SessionSecret::new(&[byte; 32], SESSION, 1, 2, denied.clone());
        (secret.unwrap(), denied)
    }

    fn nonce(byte: u8) -> Nonce {
        Nonce([byte; NONCE_BYTES])
    }

    #[test]
    fn both_ends_prove_themselves_to_each_other() {
        let ((ours, _), (theirs, denied)) = (secret(1), secret(1));
        let ticket = ours.ticket(&ENTRY, nonce(3)).unwrap();
        assert_eq!(Ticket::from_bytes(&ticket.to_bytes()), ticket);
        let proof = theirs.admit(&ENTRY, nonce(3), &ticket).unwrap();
        assert_eq!(ours.check(&ENTRY, nonce(3), &ticket, &proof), Ok(()));
        assert_ne!(proof, ticket.proof);
        let again = ours.ticket(&ENTRY, nonce(3)).unwrap();
        assert_ne!(again.nonce, ticket.nonce);
        assert_eq!(denied.load(Relaxed), 0);
    }

    #[test]
    fn a_ticket_is_for_one_lane_of_one_session_and_for_who_asked() {
        let ((ours, at_ours), (theirs, at_theirs)) = (secret(1), secret(1));
        let ticket = ours.ticket(&ENTRY, nonce(3)).unwrap();
        let proof = theirs.admit(&ENTRY, nonce(3), &ticket).unwrap();
        let lane = |lane, epoch| Entry {
            lane: Some((LaneId(lane), Epoch(epoch))),
            ..ENTRY
        };
        let of = |transport| Entry { transport, ..ENTRY };
        let cases = [
            (
                "another session",
                Entry {
                    session: SessionId([8; 16]),
                    ..ENTRY
                },
                nonce(3),
                ticket,
            ),
            ("another lane", lane(4, 6), nonce(3), ticket),
            ("another epoch", lane(5, 7), nonce(3), ticket),
            ("the same numbers, elsewhere", lane(6, 5), nonce(3), ticket),
            (
                "no lane",
                Entry {
                    lane: None,
                    ..ENTRY
                },
                nonce(3),
                ticket,
            ),
            ("another transport", of("shm"), nonce(3), ticket),
            ("half a transport", of("tc"), nonce(3), ticket),
            ("a replay", ENTRY, nonce(4), ticket),
            (
                "another nonce",
                ENTRY,
                nonce(3),
                Ticket {
                    nonce: nonce(9),
                    ..ticket
                },
            ),
            (
                "the nonces swapped",
                ENTRY,
                ticket.nonce,
                Ticket {
                    nonce: nonce(3),
                    ..ticket
                },
            ),
            (
                "another protection",
                ENTRY,
                nonce(3),
                Ticket {
                    protection: 1,
                    ..ticket
                },
            ),
            (
                "the target's answer, reflected",
                ENTRY,
                nonce(3),
                Ticket { proof, ..ticket },
            ),
        ];
        let count = cases.len() as u64;
        for (name, entry, challenge, said) in cases {
            let admitted = theirs.admit(&entry, challenge, &said);
            assert_eq!(admitted, Err(Denied::Proof), "{name}");
            // Nor is the target's answer to what it was one to this.
            if said.proof == ticket.proof {
                let checked = ours.check(&entry, challenge, &said, &proof);
                assert_eq!(checked, Err(Denied::Proof), "{name}");
            }
        }
        // The initiator's own proof is no answer.
        let reflected = ours.check(&ENTRY, nonce(3), &ticket, &ticket.proof);
        assert_eq!(reflected, Err(Denied::Proof));
        assert_eq!(at_theirs.load(Relaxed), count);
        assert_eq!(at_ours.load(Relaxed), count);
        for bit in 0..8 * PROOF_BYTES {
            let mut wrong = ticket;
            wrong.proof.0[bit / 8] ^= 1 << (bit % 8);
            assert!(theirs.admit(&ENTRY, nonce(3), &wrong).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_secret_proves_nothing() {
        let (ours, _) = secret(1);
        let new = |byte, session, initiator, target| {
            SessionSecret::new(&[byte; 32], session, initiator, target, Arc::default()).unwrap()
        };
        let cases = [
            ("what TLS gave", new(2, SESSION, 1, 2)),
            ("the session", new(1, SessionId([8; 16]), 1, 2)),
            ("the initiator's incarnation", new(1, SESSION, 3, 2)),
            ("the target's incarnation", new(1, SESSION, 1, 3)),
            ("the incarnations swapped", new(1, SESSION, 2, 1)),
        ];
        for (name, other) in cases {
            let ticket = other.ticket(&ENTRY, nonce(3)).unwrap();
            assert!(ours.admit(&ENTRY, nonce(3), &ticket).is_err(), "{name}");
        }
    }

    #[test]
    fn only_the_sessions_protection_is_admitted_and_others_are_refused_in_words() {
        let (clear, denied) = secret(1);
        let encrypting = clear.clone().encrypting();
        // (who admits, what the ticket says, the words of a refusal)
        let cases = [
            (&clear, CLEAR, None),
            (&clear, ENCRYPTED, Some(["protection 1", "0 (clear)"])),
            (&clear, 2, Some(["protection 2", "0 (clear)"])),
            (&encrypting, ENCRYPTED, None),
            (&encrypting, CLEAR, Some(["protection 0", "1 (encrypted)"])),
        ];
        for (admits, protection, words) in cases {
            let mut ticket = clear.ticket(&ENTRY, nonce(3)).unwrap();
            ticket.protection = protection;
            ticket.proof = clear.prove(&message(Side::Initiator, &ENTRY, nonce(3), &ticket));
            let admitted = admits.admit(&ENTRY, nonce(3), &ticket);
            let refusal = admitted.err().map(|denied| denied.to_string());
            assert_eq!(refusal.is_some(), words.is_some(), "{protection}");
            for word in words.into_iter().flatten() {
                let refusal = refusal.as_deref().unwrap_or_default();
                assert!(refusal.contains(word), "{refusal}");
            }
        }
        assert_eq!(denied.load(Relaxed), 3);
        let within = encrypting.clone().within_host();
        let ticket = within.ticket(&ENTRY, nonce(3)).unwrap();
        assert_eq!(ticket.protection, CLEAR, "no wire carries it");
        assert!(within.keys(&ENTRY, nonce(3), &ticket).unwrap().is_none());
    }

    #[test]
    fn both_ends_have_the_same_keys_and_each_connection_its_own() {
        let ours = secret(1).0.encrypting();
        let theirs = secret(1).0.encrypting();
        let mut seen = Vec::new();
        for challenge in [3, 4] {
            let mut proving = Proving::new(Some(&ours));
            let said = Said::Challenge(nonce(challenge));
            let ticket = proving.hear(&ENTRY, said).unwrap().unwrap();
            assert!(proving.take_keys().is_none(), "nothing is proved yet");
            let proof = theirs.admit(&ENTRY, nonce(challenge), &ticket).unwrap();
            proving.hear(&ENTRY, Said::Proof(proof)).unwrap();
            let keys = proving.take_keys().unwrap();
            let at_target = theirs.keys(&ENTRY, nonce(challenge), &ticket);
            let at_target = at_target.unwrap().unwrap();
            assert_eq!(keys.of_initiator(), at_target.of_initiator());
            assert_eq!(keys.of_target(), at_target.of_target());
            assert_eq!(keys.of_target().0.len(), KEY_BYTES);
            assert_eq!(keys.of_target().1.len(), IV_BYTES);
            assert!(proving.take_keys().is_none(), "they are given once");
            for (key, iv) in [keys.of_initiator(), keys.of_target()] {
                seen.extend([key.to_vec(), iv.to_vec()]);
            }
        }
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count, "no two are the same");
    }

    #[test]
    fn an_initiator_that_was_told_nonsense_believes_nothing_that_follows() {
        let made_up = Said::Proof(Proof([0; PROOF_BYTES]));
        // (what it is told, until it believes nothing)
        let cases = [
            vec![Said::Other],
            vec![made_up],
            vec![Said::Challenge(nonce(3)), Said::Challenge(nonce(4))],
            vec![Said::Challenge(nonce(3)), made_up],
        ];
        for said in cases {
            let (ours, denied) = secret(1);
            let (theirs, _) = secret(1);
            let mut proving = Proving::new(Some(&ours.encrypting()));
            let (last, before) = said.split_last().unwrap();
            for said in before {
                assert!(proving.hear(&ENTRY, *said).unwrap().is_some());
            }
            assert!(proving.hear(&ENTRY, *last).is_err(), "{said:?}");
            // Not even what would have been right at first.
            let ticket = theirs.ticket(&ENTRY, nonce(3)).unwrap();
            let proof = theirs.prove(&message(Side::Target, &ENTRY, nonce(3), &ticket));
            for more in [Said::Challenge(nonce(3)), Said::Proof(proof), Said::Other] {
                assert!(!proving.is_over(), "{said:?}");
                assert!(proving.hear(&ENTRY, more).is_err(), "{said:?} {more:?}");
            }
            assert!(!proving.is_over() && proving.take_keys().is_none());
            assert_eq!(denied.load(Relaxed), 1, "{said:?}");
        }
    }

    #[test]
    fn who_hands_on_the_keys_of_a_lane_leaves_no_copy() {
        let encrypting = secret(1).0.encrypting();
        let ticket = encrypting.ticket(&ENTRY, nonce(3)).unwrap();
        let keys = encrypting.keys(&ENTRY, nonce(3), &ticket).unwrap();
        let at = |keys: &LaneKeys| {
            [keys.of_initiator(), keys.of_target()].map(|(key, iv)| (key.as_ptr(), iv.as_ptr()))
        };
        let before = at(keys.as_ref().unwrap());
        let (sender, handed) = std::sync::mpsc::channel();
        sender.send(Box::new(Proving::Over(keys))).unwrap();
        let keys = handed.recv().unwrap().take_keys().unwrap();
        assert_eq!(at(&keys), before);
    }

    #[test]
    fn the_bytes_are_those_of_the_protocols_page() {
        // Made apart from this code, by Python's hmac: see docs/security.md.
        let (secret, _) = secret(1);
        let ticket = Ticket {
            protection: CLEAR,
            nonce: nonce(9),
            proof: Proof([0; PROOF_BYTES]),
        };
        let hex = |proof: Proof| proof.0.map(|byte| format!("{byte:02x}")).concat();
        let of = |side| hex(secret.prove(&message(side, &ENTRY, nonce(3), &ticket)));
        assert_eq!(
            of(Side::Initiator),
            "f5edb67a0e4109ece25eaa02de34c392aad3bf2f562fafbf72060999b14d5588"
        );
        assert_eq!(
            of(Side::Target),
            "27659c4260bda3b2e8ab2c18d27b747a088eb4a3ccbe556969deb2230a4cc20f"
        );
        let ticket = Ticket {
            protection: ENCRYPTED,
            ..ticket
        };
        let keys = secret.encrypting().keys(&ENTRY, nonce(3), &ticket);
        let keys = keys.unwrap().unwrap();
        let hex = |(key, iv): Direction<'_>| {
            let bytes = key.iter().chain(iv);
            bytes.map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(
            hex(keys.of_initiator()),
            "c9bcbb293a4afdb45457dc75feba52fb02f6bbe9cc318707aac7cd82"
        );
        assert_eq!(
            hex(keys.of_target()),
            "834f05739ed3d2b471dec98c1637bb59676ba0b4fe33319f3535ec5f"
        );
    }

    #[test]
    fn nothing_that_holds_a_secret_shows_it() {
        let (secret, _) = secret(1);
        let address = crate::RailAddress {
            transport: polyrail_core::units::TransportId(0),
            local: None,
            remote: ([127, 0, 0, 1], 1).into(),
            session: SESSION,
            secret: Some(secret.clone()),
            own: [].into(),
        };
        let ticket = secret.ticket(&ENTRY, nonce(3)).unwrap();
        let error = secret.admit(&ENTRY, nonce(4), &ticket).unwrap_err();
        let encrypting = secret.clone().encrypting();
        let keys = encrypting.keys(&ENTRY, nonce(3), &ticket).unwrap();
        assert_eq!(format!("{keys:?}"), "Some(LaneKeys)");
        let shown = format!("{secret:?} {secret:#?} {address:?} {ticket:?} {error:?} {error}");
        assert!(shown.starts_with("SessionSecret SessionSecret "), "{shown}");
        let key = &secret.key[..4];
        let hex = key.iter().map(|byte| format!("{byte:02x}"));
        let decimal = key.iter().map(u8::to_string);
        for digits in [
            hex.collect::<String>(),
            decimal.collect::<Vec<_>>().join(", "),
        ] {
            assert!(!shown.contains(&digits), "{shown}");
        }
    }
}
