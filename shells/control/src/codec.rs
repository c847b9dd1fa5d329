//! The language of the control plane, without I/O: frames to bytes and back.
//!
//! A connection starts with a [`Greeting`] of fixed size and layout in both directions, so that two versions
//! that share nothing else can still tell each other so. Then come frames: a little-endian `u32` length of at
//! most [`FRAME_BYTES_MAX`], then a [`Frame`] in postcard's format. A length is a limit before it is a
//! size: nothing is reserved that has not arrived.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use polyrail_core::path::view::PathView;
use polyrail_core::stage::StageMessage;
use polyrail_core::transport::MemoryKind;
use polyrail_transport::memory::{Access, RegionKey};
use polyrail_transport::ticket::{Nonce, Proof, Ticket};
use serde::{Deserialize, Serialize};

use crate::process::Process;

/// The version this build speaks. A different one is refused with both numbers in the error.
pub const PROTOCOL_VERSION: u16 = 1;

/// The feature bit of [`Frame::Notify`] and [`Frame::Notified`].
pub const NOTIFICATIONS: u64 = 1;

/// The feature bit of [`Frame::SeePath`] and [`Frame::PathSeen`].
pub const PATHS: u64 = 2;

/// The feature bit of [`Frame::Stage`].
pub const STAGING: u64 = 4;

/// The feature bit of [`Frame::DescriptionAt`].
pub const NODES: u64 = 8;

/// The feature bit of bodies of [`Frame::Notify`] that say first what they are, to the engines.
pub const PARCELS: u64 = 16;

/// The feature bit of [`Frame::Rails`].
pub const RAILS: u64 = 32;

/// The feature bit of [`Frame::JoinLaneProved`]. Engines with a cluster key require it of each other.
pub const TICKETS: u64 = 64;

/// The feature bit of [`Frame::Leaving`].
pub const LEAVING: u64 = 128;

/// The feature bit of [`Frame::Moved`].
pub const MOVED: u64 = 256;

/// The feature bit of [`Frame::Alive`]: every [`Frame::Heartbeat`] is answered, so that a connection on which nobody asks may
/// be silent.
pub const ANSWERED: u64 = 512;

/// The feature bit of lanes that are encrypted ([`ENCRYPTED`](polyrail_transport::ticket::ENCRYPTED)).
pub const ENCRYPTION: u64 = 1024;

/// Not what a build can do, but what an engine wants: that lanes of its sessions are encrypted. One end is enough. Needs
/// [`ENCRYPTION`].
pub const ENCRYPTS: u64 = 2048;

/// Feature bits this build offers. What both ends offer is in force.
pub const FEATURES: u64 = NOTIFICATIONS
    | PATHS
    | STAGING
    | NODES
    | PARCELS
    | RAILS
    | TICKETS
    | LEAVING
    | MOVED
    | ANSWERED
    | ENCRYPTION;

/// The most rails that [`Frame::SeePath`] names.
pub const PATH_RAILS_MAX: usize = 256;

/// The largest frame, without its length.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

/// The size of a [`Greeting`].
pub const GREETING_BYTES: usize = 20;

/// The longest name of an engine or a segment, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The longest [`TransportOffer::address`], in bytes.
pub const TRANSPORT_ADDRESS_BYTES_MAX: usize = 255;

/// The longest body of a notification.
pub const NOTIFICATION_BYTES_MAX: usize = 1024;

/// What an idle [`Decoder`] may keep allocated.
const IDLE_BYTES_MAX: usize = 4096;

const MAGIC: [u8; 8] = *b"polyrail";

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Control frames.
    Control,
    /// A lane of a transport: one [`Frame::JoinLane`] or [`Frame::JoinLaneOf`], its answer, then the transport's own
    /// language. Between engines with a cluster key a [`Frame::LaneChallenge`], a [`Frame::JoinLaneProved`] and a
    /// [`Frame::LaneProved`] come first.
    Lane,
}

/// The first bytes in each direction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// The sender's [`PROTOCOL_VERSION`].
    pub version: u16,
    /// What the connection is for; the answer repeats it.
    pub purpose: Purpose,
    /// The sender's [`FEATURES`], and [`ENCRYPTS`] if it wants that.
    pub features: u64,
}

impl Greeting {
    /// What this build says.
    pub const fn ours(purpose: Purpose) -> Self {
        Self {
            version: PROTOCOL_VERSION,
            purpose,
            features: FEATURES,
        }
    }

    /// As bytes.
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10] = match self.purpose {
            Purpose::Control => 1,
            Purpose::Lane => 2,
        };
        bytes[12..20].copy_from_slice(&self.features.to_le_bytes());
        bytes
    }

    /// From bytes. Any version is understood this far; whether we speak it is [`Self::check_version`]'s
    /// business, so that both can be named.
    pub fn decode(bytes: &[u8; GREETING_BYTES]) -> Result<Self, CodecError> {
        if bytes[..8] != MAGIC {
            return Err(CodecError::NotPolyrail {
                got: bytes[..8].try_into().unwrap_or_default(),
            });
        }
        let purpose = match bytes[10] {
            1 => Purpose::Control,
            2 => Purpose::Lane,
            got => return Err(CodecError::UnknownPurpose { got }),
        };
        Ok(Self {
            version: u16::from_le_bytes([bytes[8], bytes[9]]),
            purpose,
            features: u64::from_le_bytes(bytes[12..20].try_into().unwrap_or_default()),
        })
    }

    /// Whether this build can talk to one that greets so.
    pub fn check_version(&self) -> Result<(), CodecError> {
        if self.version == PROTOCOL_VERSION {
            Ok(())
        } else {
            Err(CodecError::Version {
                ours: PROTOCOL_VERSION,
                theirs: self.version,
            })
        }
    }
}

/// A transport as one engine offers it to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TransportOffer {
    /// What it is called. At most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// The bits of its [`polyrail_core::transport::Capabilities`].
    pub capabilities: u16,
    /// Where the transport itself is reached, in its own words; empty: at the addresses of the rails. At most
    /// [`TRANSPORT_ADDRESS_BYTES_MAX`] bytes.
    pub address: Vec<u8>,
}

/// What an engine says of the device behind one of its rail addresses. It need not be true; whoever believes it
/// chooses its own rails by it, and nothing else.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RailFact {
    /// What its host calls it, at most [`NAME_BYTES_MAX`] bytes; empty: unknown.
    pub device: String,
    /// The NUMA node that it is attached to.
    pub numa_node: Option<u16>,
}

/// What engines say to each other. "Initiator" is who connected, "target" who listens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Frame {
    /// Initiator: who I am. The first frame on a control connection.
    Hello {
        /// The engine's name, for logs and errors.
        name: String,
        /// Drawn at random when the process started.
        incarnation: u64,
        /// The session to join; `None` asks for a new one.
        session: Option<[u8; 16]>,
        /// Reserved, and empty: TLS proves that somebody holds the cluster's key.
        token: Vec<u8>,
    },
    /// Target: come in.
    Welcome {
        /// The engine's name.
        name: String,
        /// Drawn at random when the process started.
        incarnation: u64,
        /// The session; what lanes and further connections name.
        session: [u8; 16],
        /// Addresses of its rails, all with the same port, in order.
        rails: Vec<SocketAddr>,
        /// The devices behind those addresses, in the same order; of those that are missing nothing is known.
        rail_facts: Vec<RailFact>,
        /// The transports that it has.
        transports: Vec<TransportOffer>,
        /// Memory that probes may write to.
        scratch: SegmentDescriptor,
        /// How often it will send a [`Frame::Heartbeat`], in milliseconds.
        heartbeat_ms: u32,
    },
    /// Either: no. The sender closes the connection after it.
    Refused {
        /// Which no.
        reason: Refusal,
        /// In words, naming the sender's side.
        text: String,
    },
    /// Either: I am alive. With the feature [`ANSWERED`]: and are you? Without, it is sent on every control connection.
    Heartbeat,
    /// Initiator: what is the segment of this name?
    Describe {
        /// Comes back in the answer.
        question: u64,
        /// The segment.
        name: String,
    },
    /// Target: this.
    Description {
        /// From the question.
        question: u64,
        /// The segment, or `None`: there is none of that name that peers may see.
        segment: Option<SegmentDescriptor>,
    },
    /// Initiator: let no write of this lane up to this epoch reach memory any more, and say so.
    Fence {
        /// Its number for the lane.
        lane: u32,
        /// Up to which epoch.
        epoch: u32,
    },
    /// Target: the last receive has returned.
    Fenced {
        /// From the question.
        lane: u32,
        /// From the question.
        epoch: u32,
        /// Works of that epoch that reached memory whole, in order from the first.
        delivered: u32,
    },
    /// Initiator: do this (the program's own business, not the engine's). Calls of a session are numbered
    /// from 1 and carried out one at a time; a repeated number is answered again, not carried out again.
    Call {
        /// The call's number.
        number: u64,
        /// What to do, as the two programs agreed.
        method: u16,
        /// With what.
        body: Vec<u8>,
    },
    /// Target: done, or why not.
    Answer {
        /// From the call.
        number: u64,
        /// What came of it.
        result: Result<Vec<u8>, String>,
    },
    /// Initiator, the one frame of a [`Purpose::Lane`] connection: this is that lane.
    JoinLane {
        /// The session.
        session: [u8; 16],
        /// The initiator's number for the lane.
        lane: u32,
        /// Its epoch.
        epoch: u32,
    },
    /// Target: the lane is served.
    LaneReady {
        /// Works that may be posted and not completed.
        works_max: u16,
        /// Bytes of the largest work.
        work_bytes_max: u32,
    },
    /// Either: I am going away in good order; no more will come.
    Goodbye,
    /// Target, instead of [`Frame::Welcome`]: I do not know the session (any more), and this is who I am.
    /// Everything of the session has ended here, if the incarnation is the one that welcomed it. Closes
    /// the connection after it.
    SessionUnknown {
        /// The engine's name.
        name: String,
        /// Drawn at random when the process started.
        incarnation: u64,
    },
    /// Either, once a control connection is open: this is my process, should it be one that you can see.
    Process(Process),
    /// Initiator: tell your program this. Notifications of a session are numbered from 1; each number is
    /// taken once, and only after the one before it. Needs the feature [`NOTIFICATIONS`].
    Notify {
        /// The notification's number.
        number: u64,
        /// At most [`NOTIFICATION_BYTES_MAX`] bytes.
        body: Vec<u8>,
    },
    /// Target: this far they have been taken. Needs the feature [`NOTIFICATIONS`].
    Notified {
        /// The last that was taken; 0: none.
        number: u64,
        /// Whether there is room for the next; if not, it is to be sent again, after another of these with
        /// `true`, or in a while.
        room: bool,
    },
    /// Initiator: how do you see this connection? Needs the feature [`PATHS`].
    SeePath {
        /// Comes back in the answer.
        question: u64,
        /// Its rails: the initiator's address, and the target's. At most [`PATH_RAILS_MAX`].
        rails: Vec<(IpAddr, IpAddr)>,
    },
    /// Target: so. Needs the feature [`PATHS`].
    PathSeen {
        /// From the question.
        question: u64,
        /// `None`: it does no path isolation.
        view: Option<PathView>,
    },
    /// Initiator: a question about a staging slot of the target's. Target: an answer. May be lost, doubled and overtaken:
    /// whoever asks repeats itself. Needs the feature [`STAGING`].
    Stage(StageMessage),
    /// Initiator, the one frame of a [`Purpose::Lane`] connection: this is that lane, of a transport that the target
    /// has offered and that answers in its own language.
    JoinLaneOf {
        /// What the transport is called, at most [`NAME_BYTES_MAX`] bytes.
        transport: String,
        /// The session.
        session: [u8; 16],
        /// The initiator's number for the lane.
        lane: u32,
        /// Its epoch.
        epoch: u32,
    },
    /// Target, instead of [`Frame::Description`]: this, and it is on that NUMA node. Needs the feature [`NODES`].
    DescriptionAt {
        /// From the question.
        question: u64,
        /// The segment.
        segment: SegmentDescriptor,
        /// Its [`SegmentDescriptor::numa_node`].
        numa_node: u16,
    },
    /// Target: this is what I have said in [`Frame::Welcome`], as it is now. Needs the feature [`RAILS`].
    Rails {
        /// Addresses of its rails: those it had, and behind them others.
        rails: Vec<SocketAddr>,
        /// The devices behind those addresses, in the same order; of those that are missing nothing is known.
        rail_facts: Vec<RailFact>,
        /// The transports that it has.
        transports: Vec<TransportOffer>,
    },
    /// Target with a cluster key, behind its greeting on a [`Purpose::Lane`] connection: prove that you are of the
    /// session, and say this with it.
    LaneChallenge {
        /// Drawn for this connection.
        nonce: Nonce,
    },
    /// Initiator, the answer to [`Frame::LaneChallenge`]: this is that lane.
    JoinLaneProved {
        /// What the transport is called, at most [`NAME_BYTES_MAX`] bytes.
        transport: String,
        /// The session.
        session: [u8; 16],
        /// The initiator's number for the lane.
        lane: u32,
        /// Its epoch.
        epoch: u32,
        /// That it is of the session.
        ticket: Ticket,
    },
    /// Target: so am I. What comes next is what answers a lane without a ticket.
    LaneProved {
        /// That it is of the session.
        proof: Proof,
    },
    /// Target: I am about to end. Begin nothing more with me, and say [`Frame::Goodbye`] when what is under way has ended.
    /// Needs the feature [`LEAVING`].
    Leaving,
    /// Initiator: so many bytes have gone to you and come from you since I met you, as I count them. Needs the feature
    /// [`MOVED`].
    Moved {
        /// All of them, over every transport.
        bytes: u64,
    },
    /// The answer to a [`Frame::Heartbeat`]. Needs the feature [`ANSWERED`].
    Alive,
}

impl Frame {
    /// What kind of frame it is, for errors and logs.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "Hello",
            Self::Welcome { .. } => "Welcome",
            Self::Refused { .. } => "Refused",
            Self::Heartbeat => "Heartbeat",
            Self::Describe { .. } => "Describe",
            Self::Description { .. } => "Description",
            Self::Fence { .. } => "Fence",
            Self::Fenced { .. } => "Fenced",
            Self::Call { .. } => "Call",
            Self::Answer { .. } => "Answer",
            Self::JoinLane { .. } => "JoinLane",
            Self::LaneReady { .. } => "LaneReady",
            Self::Goodbye => "Goodbye",
            Self::SessionUnknown { .. } => "SessionUnknown",
            Self::Process(_) => "Process",
            Self::Notify { .. } => "Notify",
            Self::Notified { .. } => "Notified",
            Self::SeePath { .. } => "SeePath",
            Self::PathSeen { .. } => "PathSeen",
            Self::Stage(_) => "Stage",
            Self::JoinLaneOf { .. } => "JoinLaneOf",
            Self::DescriptionAt { .. } => "DescriptionAt",
            Self::Rails { .. } => "Rails",
            Self::LaneChallenge { .. } => "LaneChallenge",
            Self::JoinLaneProved { .. } => "JoinLaneProved",
            Self::LaneProved { .. } => "LaneProved",
            Self::Leaving => "Leaving",
            Self::Moved { .. } => "Moved",
            Self::Alive => "Alive",
        }
    }
}

/// A segment as its owner describes it to peers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SegmentDescriptor {
    /// Its name.
    pub name: String,
    /// Grows when the segment of that name is registered anew.
    pub generation: u64,
    /// Its size.
    pub bytes: u64,
    /// What opens it: random, per registration.
    pub key: RegionKey,
    /// What a peer may do with it.
    pub access: Access,
    /// Where it is.
    pub memory: MemoryKind,
    /// What it is, and so how its bytes are reached.
    pub kind: SegmentKind,
    /// The NUMA node that it is on, as its owner has seen it last; `None`: unknown. Only [`Frame::DescriptionAt`] carries it.
    #[serde(skip)]
    pub numa_node: Option<u16>,
}

impl SegmentDescriptor {
    /// Whether both describe the same registration. The node may have been found out in between.
    pub fn is_of(&self, other: &Self) -> bool {
        let Self {
            name,
            generation,
            bytes,
            key,
            access,
            memory,
            kind,
            numa_node: _,
        } = self;
        (generation, key, name) == (&other.generation, &other.key, &other.name)
            && (bytes, access, memory, kind)
                == (&other.bytes, &other.access, &other.memory, &other.kind)
    }
}

/// What a segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum SegmentKind {
    /// Memory, which transports reach by its key.
    #[default]
    Memory,
    /// Slots of so many bytes for what is staged there, in memory.
    Slots {
        /// Of each. Not 0.
        bytes: u32,
    },
    /// Bytes of a file: staged through such slots, and named by this number in [`Frame::Stage`].
    File {
        /// The owner's number for it.
        number: u32,
    },
}

/// Why an engine said no.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// It speaks another version.
    Version,
    /// One side has a cluster key and the other has none.
    Key,
    /// It does not know the session (any more). By itself no proof of anything: who answered is not said.
    /// [`Frame::SessionUnknown`] says it.
    SessionUnknown,
    /// The lane's epoch has been fenced.
    EpochFenced,
    /// It has no room.
    Full,
    /// What came made no sense.
    Protocol,
    /// It is shutting down, or ending the session. Not yet proof that anything has ended.
    ShuttingDown,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "other protocol version",
            Self::Key => "cluster key",
            Self::SessionUnknown => "session unknown",
            Self::EpochFenced => "lane's epoch fenced",
            Self::Full => "no room",
            Self::Protocol => "protocol error",
            Self::ShuttingDown => "shutting down",
        })
    }
}

/// What is wrong with bytes that came.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CodecError {
    /// The connection does not start like one of ours.
    NotPolyrail {
        /// Its first bytes.
        got: [u8; 8],
    },
    /// A greeting for something we do not know.
    UnknownPurpose {
        /// The byte.
        got: u8,
    },
    /// Another version.
    Version {
        /// What this build speaks.
        ours: u16,
        /// What came.
        theirs: u16,
    },
    /// A frame longer than any frame may be.
    TooLong {
        /// The length that was announced, or would have been.
        bytes: usize,
        /// The limit there.
        most: usize,
    },
    /// A frame whose content is not one.
    Malformed {
        /// Its length.
        bytes: usize,
    },
}

impl CodecError {
    /// Whether what came begins as TLS does: an engine with a cluster key, to one without.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(
            self,
            Self::NotPolyrail {
                got: [0x16, 0x03 | 0x00, ..]
            }
        )
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPolyrail { .. } if self.is_tls() => {
                f.write_str("it speaks TLS as engines with a cluster key do, and this engine has none (security/key_file)")
            }
            Self::NotPolyrail { got } => write!(
                f,
                "not a polyrail connection: it starts with \"{}\" instead of \"polyrail\"",
                got.escape_ascii()
            ),
            Self::UnknownPurpose { got } => {
                write!(
                    f,
                    "greeting for unknown purpose {got}: 1 (control) or 2 (lane) expected"
                )
            }
            Self::Version { ours, theirs } => {
                write!(
                    f,
                    "peer speaks protocol version {theirs}, this side speaks {ours}"
                )
            }
            Self::TooLong { bytes, most } => {
                write!(f, "frame of {bytes} bytes; {most} is the limit")
            }
            Self::Malformed { bytes } => write!(f, "frame of {bytes} bytes has no valid content"),
        }
    }
}

impl std::error::Error for CodecError {}

/// Appends a frame to `out`. On error `out` is as before.
pub fn encode(frame: &Frame, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let body = postcard::to_allocvec(frame).map_err(|_| CodecError::Malformed { bytes: 0 })?;
    if body.len() > FRAME_BYTES_MAX {
        return Err(CodecError::TooLong {
            bytes: body.len(),
            most: FRAME_BYTES_MAX,
        });
    }
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&body);
    Ok(())
}

/// Collects bytes as they come and gives frames as they are whole.
///
/// It keeps at most one frame's worth of bytes plus what one [`Self::push`] brought, provided the caller
/// drains [`Self::next_frame`] before pushing more.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// Bytes of `bytes` that frames already given took.
    taken: usize,
}

impl Decoder {
    /// Adds bytes that came.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        if self.bytes.is_empty() {
            // What one large frame needed is not kept for the life of the connection.
            self.bytes.shrink_to(IDLE_BYTES_MAX);
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the greeting, once it is whole.
    pub fn next_greeting(&mut self) -> Result<Option<Greeting>, CodecError> {
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        let seen = rest.len().min(MAGIC.len());
        if rest[..seen] != MAGIC[..seen] {
            // Wrong already: do not wait for the rest of something that is not ours.
            let mut got = [0; 8];
            got[..seen].copy_from_slice(&rest[..seen]);
            return Err(CodecError::NotPolyrail { got });
        }
        let Some(greeting) = rest.first_chunk::<GREETING_BYTES>() else {
            return Ok(None);
        };
        let greeting = Greeting::decode(greeting)?;
        self.taken += GREETING_BYTES;
        Ok(Some(greeting))
    }

    /// Takes the next frame, once it is whole. After an error the connection is of no use.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, CodecError> {
        self.next_frame_within(FRAME_BYTES_MAX)
    }

    /// The same, of a frame of so many bytes at most.
    pub fn next_frame_within(&mut self, most: usize) -> Result<Option<Frame>, CodecError> {
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        let Some((length, rest)) = rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > most {
            return Err(CodecError::TooLong {
                bytes: length,
                most,
            });
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        // A frame with trailing bytes is malformed too: postcard would ignore them.
        let frame = match postcard::take_from_bytes::<Frame>(body) {
            Ok((frame, [])) => frame,
            _ => return Err(CodecError::Malformed { bytes: length }),
        };
        self.taken += 4 + length;
        Ok(Some(frame))
    }

    /// Bytes that the next frame still lacks, as far as is known: first of all its length.
    pub fn missing_bytes(&self) -> usize {
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        match rest.split_first_chunk::<4>() {
            None => 4 - rest.len(),
            Some((length, rest)) => {
                (u32::from_le_bytes(*length) as usize).saturating_sub(rest.len())
            }
        }
    }

    /// Bytes that came and no frame has taken yet.
    pub fn pending_bytes(&self) -> usize {
        self.bytes.len() - self.taken
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use polyrail_core::stage::CopyEnd;
    use polyrail_core::units::{PoolId, SegmentRef, Ticket};
    use polyrail_core::work::{Cause, Place};
    use quickcheck::{Arbitrary, Gen, quickcheck};

    use super::*;

    /// What a decoder may hold besides what one push brought.
    const HELD_MAX: usize = FRAME_BYTES_MAX + 4;

    impl Arbitrary for Frame {
        fn arbitrary(g: &mut Gen) -> Self {
            match u8::arbitrary(g) % 23 {
                0 => Self::Hello {
                    name: String::arbitrary(g),
                    incarnation: u64::arbitrary(g),
                    session: bool::arbitrary(g).then(|| key(g)),
                    token: Vec::arbitrary(g),
                },
                1 => Self::Welcome {
                    name: String::arbitrary(g),
                    incarnation: u64::arbitrary(g),
                    session: key(g),
                    rails: Vec::<(u32, u16, bool)>::arbitrary(g)
                        .into_iter()
                        .map(address)
                        .collect(),
                    rail_facts: Vec::<(String, Option<u16>)>::arbitrary(g)
                        .into_iter()
                        .map(|(device, numa_node)| RailFact { device, numa_node })
                        .collect(),
                    transports: Vec::<(String, u16, Vec<u8>)>::arbitrary(g)
                        .into_iter()
                        .map(|(name, capabilities, address)| TransportOffer {
                            name,
                            capabilities,
                            address,
                        })
                        .collect(),
                    scratch: descriptor(g),
                    heartbeat_ms: u32::arbitrary(g),
                },
                2 => Self::Refused {
                    reason: Refusal::Full,
                    text: String::arbitrary(g),
                },
                3 => Self::Heartbeat,
                4 => Self::Describe {
                    question: u64::arbitrary(g),
                    name: String::arbitrary(g),
                },
                5 => Self::Description {
                    question: u64::arbitrary(g),
                    segment: bool::arbitrary(g).then(|| descriptor(g)),
                },
                6 => Self::Fence {
                    lane: u32::arbitrary(g),
                    epoch: u32::arbitrary(g),
                },
                7 => Self::Fenced {
                    lane: u32::arbitrary(g),
                    epoch: u32::arbitrary(g),
                    delivered: u32::arbitrary(g),
                },
                8 => Self::Call {
                    number: u64::arbitrary(g),
                    method: u16::arbitrary(g),
                    body: Vec::arbitrary(g),
                },
                9 => Self::Answer {
                    number: u64::arbitrary(g),
                    result: Result::arbitrary(g),
                },
                10 => Self::JoinLane {
                    session: key(g),
                    lane: u32::arbitrary(g),
                    epoch: u32::arbitrary(g),
                },
                11 => Self::LaneReady {
                    works_max: u16::arbitrary(g),
                    work_bytes_max: u32::arbitrary(g),
                },
                12 => Self::Goodbye,
                13 => Self::Notify {
                    number: u64::arbitrary(g),
                    body: Vec::arbitrary(g),
                },
                14 => Self::Notified {
                    number: u64::arbitrary(g),
                    room: bool::arbitrary(g),
                },
                15 => Self::SessionUnknown {
                    name: String::arbitrary(g),
                    incarnation: u64::arbitrary(g),
                },
                16 => Self::Stage(stage_message(g)),
                18 => Self::DescriptionAt {
                    question: u64::arbitrary(g),
                    segment: descriptor(g),
                    numa_node: u16::arbitrary(g),
                },
                17 => Self::JoinLaneOf {
                    transport: String::arbitrary(g),
                    session: key(g),
                    lane: u32::arbitrary(g),
                    epoch: u32::arbitrary(g),
                },
                19 => Self::Leaving,
                20 => Self::Moved {
                    bytes: u64::arbitrary(g),
                },
                21 => Self::Alive,
                _ => Self::Process(Process {
                    boot: u128::arbitrary(g),
                    pid_namespace: u64::arbitrary(g),
                    net_namespace: u64::arbitrary(g),
                    pid: u32::arbitrary(g),
                    started: u64::arbitrary(g),
                }),
            }
        }
    }

    fn key(g: &mut Gen) -> [u8; 16] {
        u128::arbitrary(g).to_le_bytes()
    }

    fn address((host, port, v6): (u32, u16, bool)) -> SocketAddr {
        if v6 {
            (Ipv6Addr::from(u128::from(host)), port).into()
        } else {
            (Ipv4Addr::from(host), port).into()
        }
    }

    fn stage_message(g: &mut Gen) -> StageMessage {
        let ticket = Ticket::from_bits(u64::arbitrary(g));
        let attempt = u32::arbitrary(g);
        match u8::arbitrary(g) % 9 {
            0 => StageMessage::Reserve {
                ticket,
                pool: PoolId(u8::arbitrary(g)),
            },
            1 => StageMessage::Go {
                ticket,
                attempt,
                place: Place {
                    segment: SegmentRef(u32::arbitrary(g)),
                    offset: u64::arbitrary(g),
                },
                length: u32::arbitrary(g),
            },
            2 => StageMessage::Free {
                ticket,
                fenced: bool::arbitrary(g),
            },
            3 => StageMessage::Waiting { ticket },
            4 => StageMessage::Reserved {
                ticket,
                slot: u32::arbitrary(g),
            },
            5 => StageMessage::Going { ticket, attempt },
            6 => StageMessage::Went {
                ticket,
                attempt,
                end: CopyEnd::Failed(Cause::Reset),
            },
            7 => StageMessage::Freed { ticket },
            _ => StageMessage::Lost { ticket },
        }
    }

    fn descriptor(g: &mut Gen) -> SegmentDescriptor {
        SegmentDescriptor {
            name: String::arbitrary(g),
            generation: u64::arbitrary(g),
            bytes: u64::arbitrary(g),
            key: RegionKey(key(g)),
            access: Access::RemoteRead,
            memory: MemoryKind::Shared,
            kind: match u8::arbitrary(g) % 3 {
                0 => SegmentKind::Memory,
                1 => SegmentKind::Slots {
                    bytes: u32::arbitrary(g),
                },
                _ => SegmentKind::File {
                    number: u32::arbitrary(g),
                },
            },
            numa_node: None,
        }
    }

    /// Cuts `bytes` into pieces of the given lengths, round and round.
    pub(crate) fn pieces<'a>(
        mut bytes: &'a [u8],
        cuts: &'a [u8],
    ) -> impl Iterator<Item = &'a [u8]> {
        let mut cuts = cuts
            .iter()
            .map(|cut| usize::from(*cut) + 1)
            .chain([7])
            .cycle();
        std::iter::from_fn(move || {
            let length = cuts.next()?.min(bytes.len());
            let (piece, rest) = bytes.split_at(length);
            bytes = rest;
            (length > 0).then_some(piece)
        })
    }

    quickcheck! {
        fn frames_survive_any_chunking(frames: Vec<Frame>, cuts: Vec<u8>) -> bool {
            let mut bytes = Vec::new();
            for frame in &frames {
                encode(frame, &mut bytes).unwrap();
            }
            let mut decoder = Decoder::default();
            let mut got = Vec::new();
            for piece in pieces(&bytes, &cuts) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    got.push(frame);
                }
            }
            got == frames && decoder.pending_bytes() == 0
        }

        fn random_bytes_never_panic_and_never_pile_up(bytes: Vec<u8>, cuts: Vec<u8>) -> bool {
            let mut decoder = Decoder::default();
            pieces(&bytes, &cuts).all(|piece| {
                decoder.push(piece);
                let ended = loop {
                    match decoder.next_frame() {
                        Ok(Some(_)) => {}
                        Ok(None) => break false,
                        Err(_) => break true,
                    }
                };
                ended || decoder.pending_bytes() <= HELD_MAX
            })
        }

        fn random_greetings_never_panic(bytes: Vec<u8>) -> bool {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            !matches!(decoder.next_greeting(), Ok(Some(_)))
        }
    }

    fn frame_bytes(length: u32, body: &[u8]) -> Vec<u8> {
        [&length.to_le_bytes(), body].concat()
    }

    #[test]
    fn bad_frames_give_the_right_error() {
        let huge = FRAME_BYTES_MAX as u32 + 1;
        // (name, bytes, what next_frame says)
        let cases = [
            ("nothing", vec![], Ok(None)),
            ("half a length", vec![1, 0], Ok(None)),
            ("half a frame", frame_bytes(5, &[4, 1]), Ok(None)),
            (
                "one byte too long",
                frame_bytes(huge, &[]),
                Err(CodecError::TooLong {
                    bytes: huge as usize,
                    most: FRAME_BYTES_MAX,
                }),
            ),
            (
                "the largest length",
                frame_bytes(u32::MAX, &[]),
                Err(CodecError::TooLong {
                    bytes: u32::MAX as usize,
                    most: FRAME_BYTES_MAX,
                }),
            ),
            (
                "empty",
                frame_bytes(0, &[]),
                Err(CodecError::Malformed { bytes: 0 }),
            ),
            (
                "unknown kind",
                frame_bytes(1, &[99]),
                Err(CodecError::Malformed { bytes: 1 }),
            ),
            (
                "cut short",
                frame_bytes(2, &[6, 1]),
                Err(CodecError::Malformed { bytes: 2 }),
            ),
            (
                "bytes left over",
                frame_bytes(2, &[3, 0]),
                Err(CodecError::Malformed { bytes: 2 }),
            ),
            ("good", frame_bytes(1, &[3]), Ok(Some(Frame::Heartbeat))),
        ];
        for (name, bytes, expected) in cases {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            assert_eq!(decoder.next_frame(), expected, "{name}");
        }
    }

    #[test]
    fn greetings_say_what_is_wrong_with_them() {
        let good = Greeting::ours(Purpose::Lane);
        let other = Greeting { version: 9, ..good };
        let mut purpose = good.encode();
        purpose[10] = 7;
        // (name, bytes, what next_greeting says)
        let cases = [
            ("good", good.encode().to_vec(), Ok(Some(good))),
            ("one byte missing", good.encode()[..19].to_vec(), Ok(None)),
            ("other version", other.encode().to_vec(), Ok(Some(other))),
            (
                "wrong from the first byte",
                b"G".to_vec(),
                Err(CodecError::NotPolyrail {
                    got: *b"G\0\0\0\0\0\0\0",
                }),
            ),
            (
                "wrong at the end",
                b"polyraiX".to_vec(),
                Err(CodecError::NotPolyrail { got: *b"polyraiX" }),
            ),
            (
                "unknown purpose",
                purpose.to_vec(),
                Err(CodecError::UnknownPurpose { got: 7 }),
            ),
        ];
        for (name, bytes, expected) in cases {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            assert_eq!(decoder.next_greeting(), expected, "{name}");
        }
        assert_eq!(good.check_version(), Ok(()));
        let text = other.check_version().unwrap_err().to_string();
        assert!(text.contains('9') && text.contains('1'), "{text}");
    }

    #[test]
    fn a_frame_that_is_too_long_leaves_no_trace() {
        let frame = Frame::Call {
            number: 1,
            method: 2,
            body: vec![0; FRAME_BYTES_MAX],
        };
        let mut out = vec![1, 2, 3];
        assert!(matches!(
            encode(&frame, &mut out),
            Err(CodecError::TooLong { .. })
        ));
        assert_eq!(out, [1, 2, 3]);
    }

    #[test]
    fn the_memory_of_a_large_frame_is_given_back() {
        let large = Frame::Call {
            number: 1,
            method: 2,
            body: vec![0; FRAME_BYTES_MAX - 16],
        };
        let mut bytes = Vec::new();
        encode(&large, &mut bytes).unwrap();
        let mut decoder = Decoder::default();
        for _ in 0..100 {
            decoder.push(&bytes);
            assert!(decoder.next_frame().unwrap().is_some());
            assert!(decoder.bytes.capacity() <= 2 * HELD_MAX);
        }
        decoder.push(&[0]);
        assert!(decoder.bytes.capacity() <= IDLE_BYTES_MAX);
    }
}
