//! What the two ends of a lane tell each other, over the connection that it was asked for on.
//!
//! After the greeting and [`Frame::JoinLaneOf`](polyrail_control::codec::Frame::JoinLaneOf) there are messages of
//! [`BYTES`] bytes. Numbers are little-endian, what is reserved is 0.
//!
//! | message | from | 0 | 1..4 | 4..8 | 8..24 | 24..32 | 32..40 | rest |
//! |---|---|---|---|---|---|---|---|---|
//! | side: a queue pair | both, once | 1 | MTU, reads, 0 | number | GID | first packet, LID | device's name | 40..56 too |
//! | ask: what opens a region? | initiator | 2 | 0 | 0 | its key | 0 | 0 | 0 |
//! | told: a piece of it, nothing, or not yet | target | 3 | answer, 0, 0 | remote key | the region's key | address | bytes | 40..48: where it begins |
//! | refused: no queue pair | target, once | 4 | reason, 0, 0 | 0 | | | | |
//! | seen: this immediate has come | target | 5 | 0 | its number | 0 | 0 | 0 | 0 |

use std::fmt;

use polyrail_transport::memory::RegionKey;

use crate::gid::Gid;

/// The size of a message.
pub(crate) const BYTES: usize = 64;

/// What a device is called, for the other end's errors; longer names are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct DeviceName([u8; 24]);

impl DeviceName {
    pub(crate) fn new(name: &str) -> Self {
        let mut bytes = [0; 24];
        let length = name.len().min(bytes.len());
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        Self(bytes)
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().position(|byte| *byte == 0);
        let name = &self.0[..end.unwrap_or(self.0.len())];
        f.write_str(&name.escape_ascii().to_string())
    }
}

/// One end's queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Side {
    pub(crate) device: DeviceName,
    pub(crate) queue_pair: u32,
    pub(crate) gid: Gid,
    /// Zero on Ethernet.
    pub(crate) lid: u16,
    /// As verbs number it: 1 is 256 bytes, 5 is 4096.
    pub(crate) mtu: u8,
    /// Reads that it serves at a time.
    pub(crate) reads_max: u8,
    /// The number of the first packet that it sends.
    pub(crate) first_packet: u32,
}

/// What opens a piece of a region to the device at one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) remote_key: u32,
    /// Of its first byte.
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// Where in the region it begins.
    pub(crate) offset: u64,
}

/// What opens a region to the device at one end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Granted {
    /// These, in order. They overlap so that each work lies in one.
    Pieces(Vec<Grant>),
    /// Nothing: the device there could not register it. Another may have.
    Failed,
    /// Nothing.
    Nothing,
}

/// One message about what opens a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Nothing does.
    Nothing,
    /// This does, and that is all of it.
    Last(Grant),
    /// This opens a piece of it, and another message follows.
    More(Grant),
    /// Nothing does at this device.
    Failed,
    /// It is being registered, which takes long. Another answer follows.
    NotYet,
}

impl Granted {
    /// As messages.
    pub(crate) fn answers(&self) -> impl Iterator<Item = Answer> + '_ {
        let (pieces, other) = match self {
            Self::Pieces(pieces) => (&pieces[..], None),
            Self::Failed => (&[][..], Some(Answer::Failed)),
            Self::Nothing => (&[][..], Some(Answer::Nothing)),
        };
        let pieces =
            pieces
                .iter()
                .enumerate()
                .map(|(number, grant)| match number + 1 == pieces.len() {
                    true => Answer::Last(*grant),
                    false => Answer::More(*grant),
                });
        pieces.chain(other)
    }
}

/// Why there is no queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The epoch is over, or a newer one began.
    Over,
    /// The session, or who is where it comes from, has too many lanes.
    Full,
    /// No device there has the address that was dialled.
    NoDevice,
    /// A call failed there; its log says which.
    Failed,
}

impl Refusal {
    const ALL: [Self; 4] = [Self::Over, Self::Full, Self::NoDevice, Self::Failed];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Over => "this epoch of the lane is over",
            Self::Full => "the session, or its host, has too many lanes",
            Self::NoDevice => "no usable RDMA device of the peer has this address",
            Self::Failed => "a call failed at the peer, whose log says which",
        }
    }
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    Side(Side),
    Ask(RegionKey),
    Told(RegionKey, Answer),
    Refused(Refusal),
    Seen(u32),
}

const SIDE: u8 = 1;
const ASK: u8 = 2;
const TOLD: u8 = 3;
const REFUSED: u8 = 4;
const SEEN: u8 = 5;

/// Sequence numbers of packets have so many bits.
const PACKET_MASK: u32 = 0xff_ffff;

impl Message {
    /// As bytes.
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        match self {
            Self::Side(side) => {
                bytes[..3].copy_from_slice(&[SIDE, side.mtu, side.reads_max]);
                bytes[4..8].copy_from_slice(&side.queue_pair.to_le_bytes());
                bytes[8..24].copy_from_slice(&side.gid.0);
                bytes[24..28].copy_from_slice(&side.first_packet.to_le_bytes());
                bytes[28..30].copy_from_slice(&side.lid.to_le_bytes());
                bytes[32..56].copy_from_slice(&side.device.0);
            }
            Self::Ask(key) => {
                bytes[0] = ASK;
                bytes[8..24].copy_from_slice(&key.0);
            }
            Self::Told(key, answer) => {
                let (code, grant) = match answer {
                    Answer::Nothing => (0, None),
                    Answer::Last(grant) => (1, Some(grant)),
                    Answer::More(grant) => (2, Some(grant)),
                    Answer::Failed => (3, None),
                    Answer::NotYet => (4, None),
                };
                bytes[..2].copy_from_slice(&[TOLD, code]);
                bytes[8..24].copy_from_slice(&key.0);
                if let Some(grant) = grant {
                    bytes[4..8].copy_from_slice(&grant.remote_key.to_le_bytes());
                    bytes[24..32].copy_from_slice(&grant.address.to_le_bytes());
                    bytes[32..40].copy_from_slice(&grant.bytes.to_le_bytes());
                    bytes[40..48].copy_from_slice(&grant.offset.to_le_bytes());
                }
            }
            Self::Refused(refusal) => {
                let reason = Refusal::ALL.iter().position(|other| other == refusal);
                bytes[..2].copy_from_slice(&[REFUSED, reason.unwrap_or(0) as u8]);
            }
            Self::Seen(number) => {
                bytes[0] = SEEN;
                bytes[4..8].copy_from_slice(&number.to_le_bytes());
            }
        }
        bytes
    }

    /// From bytes; `Err`: which field has no meaning, and its value.
    pub(crate) fn decode(bytes: &[u8; BYTES]) -> Result<Self, (&'static str, u64)> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let mut sixteen = [0; 16];
        sixteen.copy_from_slice(&bytes[8..24]);
        let message = match (bytes[0], bytes[1]) {
            (SIDE, mtu @ 1..=5) => {
                let first_packet = word(24);
                let mut device = DeviceName::default();
                device.0.copy_from_slice(&bytes[32..56]);
                if first_packet > PACKET_MASK {
                    return Err(("first packet", first_packet.into()));
                }
                Self::Side(Side {
                    device,
                    queue_pair: word(4),
                    gid: Gid(sixteen),
                    lid: word(28) as u16,
                    mtu,
                    reads_max: bytes[2],
                    first_packet,
                })
            }
            (SIDE, mtu) => return Err(("MTU", mtu.into())),
            (ASK, 0) => Self::Ask(RegionKey(sixteen)),
            (TOLD, 0) => Self::Told(RegionKey(sixteen), Answer::Nothing),
            (TOLD, 3) => Self::Told(RegionKey(sixteen), Answer::Failed),
            (TOLD, 4) => Self::Told(RegionKey(sixteen), Answer::NotYet),
            (TOLD, code @ 1..=2) => {
                let grant = Grant {
                    remote_key: word(4),
                    address: long(24),
                    bytes: long(32),
                    offset: long(40),
                };
                if grant.address.checked_add(grant.bytes).is_none() {
                    return Err(("bytes", grant.bytes));
                }
                if grant.offset.checked_add(grant.bytes).is_none() {
                    return Err(("offset", grant.offset));
                }
                let answer = match code {
                    1 => Answer::Last(grant),
                    _ => Answer::More(grant),
                };
                Self::Told(RegionKey(sixteen), answer)
            }
            (REFUSED, reason) => match Refusal::ALL.get(usize::from(reason)) {
                Some(refusal) => Self::Refused(*refusal),
                None => return Err(("reason", reason.into())),
            },
            (SEEN, 0) => Self::Seen(word(4)),
            (ASK | TOLD | SEEN, flag) => return Err(("flag", flag.into())),
            (kind, _) => return Err(("kind", kind.into())),
        };
        // What is reserved must be 0, so that it can come to mean something.
        match message.encode() == *bytes {
            true => Ok(message),
            false => Err(("rest", 1)),
        }
    }
}

/// The first packet's number, drawn at random: packets of an older queue pair of the same number do not fit.
pub(crate) fn first_packet() -> std::io::Result<u32> {
    let drawn = getrandom::u32().map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(drawn & PACKET_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side() -> Side {
        Side {
            device: DeviceName::new("mlx5_0"),
            queue_pair: 17,
            gid: Gid([7; 16]),
            lid: 3,
            mtu: 5,
            reads_max: 16,
            first_packet: PACKET_MASK,
        }
    }

    #[test]
    fn a_name_is_shown_as_text_and_cut() {
        let long = "a".repeat(30);
        assert_eq!(DeviceName::new(&long).to_string(), long[..24]);
        assert_eq!(DeviceName::new("rxe0").to_string(), "rxe0");
        assert_eq!(DeviceName([0x1b; 24]).to_string().len(), 24 * 4);
    }

    #[test]
    fn messages_come_back() {
        let grant = Grant {
            remote_key: 0x1234_5678,
            address: 1 << 47,
            bytes: 1 << 40,
            offset: 1 << 41,
        };
        let key = RegionKey([9; 16]);
        let mut messages = vec![
            Message::Side(side()),
            Message::Ask(key),
            Message::Told(key, Answer::Nothing),
            Message::Told(key, Answer::Last(grant)),
            Message::Told(key, Answer::More(grant)),
            Message::Told(key, Answer::Failed),
            Message::Told(key, Answer::NotYet),
            Message::Seen(u32::MAX),
        ];
        messages.extend(Refusal::ALL.map(Message::Refused));
        for message in messages {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn meaningless_messages_name_the_field() {
        // (message, byte, its value, the field)
        let told = Message::Told(
            RegionKey([1; 16]),
            Answer::Last(Grant {
                remote_key: 1,
                address: 2,
                bytes: u64::MAX / 2,
                offset: 0,
            }),
        );
        let cases = [
            (Message::Side(side()), 0, 9, "kind"),
            (Message::Side(side()), 1, 6, "MTU"),
            (Message::Side(side()), 27, 1, "first packet"),
            (Message::Side(side()), 63, 1, "rest"),
            (Message::Ask(RegionKey([1; 16])), 1, 1, "flag"),
            (Message::Ask(RegionKey([1; 16])), 40, 1, "rest"),
            (Message::Seen(7), 9, 1, "rest"),
            (Message::Refused(Refusal::Over), 1, 4, "reason"),
            (told, 31, 0xff, "bytes"),
            (told, 47, 0xff, "offset"),
        ];
        for (message, at, value, field) in cases {
            let mut bytes = message.encode();
            bytes[at] = value;
            assert_eq!(Message::decode(&bytes).unwrap_err().0, field);
        }
    }
}
