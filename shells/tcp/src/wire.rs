//! The data language of a lane, after [`Frame::LaneReady`](polyrail_control::codec::Frame::LaneReady).
//!
//! The initiator sends requests, each a header of [`REQUEST_BYTES`] and, for a write, the bytes. The target
//! takes them in order, and answers each in order, with a header of [`ANSWER_BYTES`] and, for a read that went
//! well, the bytes. A read's bytes are taken when the socket has room for them, so it may see what writes
//! behind it on the same lane brought. Numbers are little-endian; sequence numbers count from 0 in each epoch.
//!
//! | request | bytes | answer | bytes |
//! |---|---|---|---|
//! | 1 write, 2 read | 0 | 1 write, 2 read | 0 |
//! | 1 if the initiator spins, else 0 | 1 | 0 done, 1 not allowed | 1 |
//! | reserved, 0 | 2..4 | reserved, 0 | 2..4 |
//! | length of the work | 4..8 | the same | 4..8 |
//! | sequence | 8..12 | the same | 8..12 |
//! | key of the region | 12..28 | reserved, 0 | 12..64 |
//! | offset in the region | 28..36 | | |
//! | reserved, 0 | 36..64 | | |
//!
//! Headers are a cache line long: so payloads lie at multiples of one in the kernel's buffers, and copying
//! is much faster than with 12 bytes in front.

use std::fmt;

use polyrail_core::work::Op;
use polyrail_transport::memory::RegionKey;

/// The size of an encoded [`Request`].
pub(crate) const REQUEST_BYTES: usize = 64;

/// The size of an encoded [`Answer`].
pub(crate) const ANSWER_BYTES: usize = 64;

const WRITE: u8 = 1;
const READ: u8 = 2;

/// One work, as the target sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) op: Op,
    /// The initiator spins while it waits: so the target should, for a while.
    pub(crate) spinning: bool,
    pub(crate) length: u32,
    pub(crate) sequence: u32,
    pub(crate) key: RegionKey,
    pub(crate) offset: u64,
}

/// What became of a work at the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    /// Carried out.
    Done,
    /// Key, range or permission forbid it. The target carries out nothing more on this lane.
    NotAllowed,
}

/// The answer to a [`Request`], whose operation, length and sequence it repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) op: Op,
    pub(crate) status: Status,
    pub(crate) length: u32,
    pub(crate) sequence: u32,
}

/// A header that has no meaning: which field, and what it held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadField {
    pub(crate) name: &'static str,
    pub(crate) value: u64,
}

impl fmt::Display for BadField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its {} is {}", self.name, self.value)
    }
}

impl Request {
    /// As bytes.
    pub(crate) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0] = encode_op(self.op);
        bytes[1] = self.spinning.into();
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..28].copy_from_slice(&self.key.0);
        bytes[28..36].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// From bytes. What is reserved must be 0, so that it can come to mean something.
    pub(crate) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, BadField> {
        let spinning = match bytes[1] {
            0 => false,
            1 => true,
            value => return Err(bad("flags", value.into())),
        };
        zero("reserved", u16_at(bytes, 2).into())?;
        zero("rest", sum(&bytes[36..]))?;
        let mut key = RegionKey([0; 16]);
        key.0.copy_from_slice(&bytes[12..28]);
        Ok(Self {
            op: decode_op(bytes[0])?,
            spinning,
            length: u32_at(bytes, 4),
            sequence: u32_at(bytes, 8),
            key,
            offset: u64::from(u32_at(bytes, 28)) | u64::from(u32_at(bytes, 32)) << 32,
        })
    }
}

impl Answer {
    /// As bytes.
    pub(crate) fn encode(&self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[0] = encode_op(self.op);
        bytes[1] = match self.status {
            Status::Done => 0,
            Status::NotAllowed => 1,
        };
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// From bytes.
    pub(crate) fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<Self, BadField> {
        let status = match bytes[1] {
            0 => Status::Done,
            1 => Status::NotAllowed,
            value => return Err(bad("status", value.into())),
        };
        zero("reserved", u16_at(bytes, 2).into())?;
        zero("rest", sum(&bytes[12..]))?;
        Ok(Self {
            op: decode_op(bytes[0])?,
            status,
            length: u32_at(bytes, 4),
            sequence: u32_at(bytes, 8),
        })
    }
}

fn encode_op(op: Op) -> u8 {
    match op {
        Op::Write => WRITE,
        Op::Read => READ,
    }
}

fn decode_op(byte: u8) -> Result<Op, BadField> {
    match byte {
        WRITE => Ok(Op::Write),
        READ => Ok(Op::Read),
        value => Err(bad("kind", value.into())),
    }
}

fn zero(name: &'static str, value: u64) -> Result<(), BadField> {
    if value == 0 {
        Ok(())
    } else {
        Err(bad(name, value))
    }
}

/// 0 only if all of them are.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

fn bad(name: &'static str, value: u64) -> BadField {
    BadField { name, value }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(read: bool) -> Op {
        if read { Op::Read } else { Op::Write }
    }

    quickcheck::quickcheck! {
        fn requests_come_back(read: bool, spinning: bool, length: u32, sequence: u32, key: u128, offset: u64) -> bool {
            let key = RegionKey(key.to_le_bytes());
            let request = Request { op: op(read), spinning, length, sequence, key, offset };
            Request::decode(&request.encode()) == Ok(request)
        }

        fn answers_come_back(read: bool, done: bool, length: u32, sequence: u32) -> bool {
            let status = if done { Status::Done } else { Status::NotAllowed };
            let answer = Answer { op: op(read), status, length, sequence };
            Answer::decode(&answer.encode()) == Ok(answer)
        }

        fn what_decodes_encodes_to_the_same_bytes(noise: Vec<u8>) -> bool {
            let mut bytes = [0; REQUEST_BYTES];
            let seen = noise.len().min(REQUEST_BYTES);
            bytes[..seen].copy_from_slice(&noise[..seen]);
            bytes[0] %= 4;
            // Noise would hardly ever leave what is reserved alone.
            if noise.len().is_multiple_of(2) {
                bytes[36..].fill(0);
            }
            let short = *bytes.first_chunk::<ANSWER_BYTES>().unwrap();
            Request::decode(&bytes).is_ok_and(|r| r.encode() != bytes) as u8
                + Answer::decode(&short).is_ok_and(|a| a.encode() != short) as u8
                == 0
        }
    }

    #[test]
    fn meaningless_headers_name_the_field() {
        // (byte, its value, the field)
        let cases = [
            (0, 0, "kind"),
            (0, 3, "kind"),
            (1, 2, "flags"),
            (2, 1, "reserved"),
            (36, 1, "rest"),
            (63, 255, "rest"),
        ];
        let good = Request {
            op: Op::Write,
            spinning: false,
            length: 1,
            sequence: 0,
            key: RegionKey([7; 16]),
            offset: 0,
        };
        for (at, value, field) in cases {
            let mut bytes = good.encode();
            bytes[at] = value;
            assert_eq!(Request::decode(&bytes).unwrap_err().name, field);
        }
    }
}
