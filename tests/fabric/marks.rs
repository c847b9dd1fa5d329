//! What the requests of the dark experiment move, and how each byte says which request it is of.

use std::time::Duration;

use polyrail::Op;

/// Requests of one kind, in slots of their own, so many at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) name: &'static str,
    pub(crate) op: Op,
    /// Bytes of a request.
    pub(crate) bytes: usize,
    /// How many are under way at a time; there are twice as many slots.
    pub(crate) depth: usize,
    /// How long it takes from one to the next. Small ones go first wherever there is no room for all: without a pause,
    /// nothing else would be under way.
    pub(crate) pause: Duration,
}

/// All of them. Their slots lie one after the other in the target's memory.
pub(crate) const STREAMS: [Stream; 4] = [
    Stream {
        name: "small write",
        op: Op::Write,
        bytes: 4 << 10,
        depth: 8,
        pause: Duration::from_millis(2),
    },
    Stream {
        name: "small read",
        op: Op::Read,
        bytes: 4 << 10,
        depth: 8,
        pause: Duration::from_millis(2),
    },
    Stream {
        name: "large write",
        op: Op::Write,
        bytes: 8 << 20,
        depth: 2,
        pause: Duration::ZERO,
    },
    Stream {
        name: "large read",
        op: Op::Read,
        bytes: 8 << 20,
        depth: 2,
        pause: Duration::ZERO,
    },
];

impl Stream {
    /// Whether its requests go as one slice.
    pub(crate) const fn is_small(&self) -> bool {
        self.bytes <= 64 << 10
    }

    /// How many slots it has.
    pub(crate) const fn slots(&self) -> usize {
        2 * self.depth
    }

    /// Where a slot begins within the stream's own.
    pub(crate) const fn slot_offset(&self, slot: usize) -> usize {
        slot * self.bytes
    }

    /// Bytes of all slots.
    pub(crate) const fn total(&self) -> usize {
        self.slots() * self.bytes
    }
}

/// Where a stream's slots begin in the target's memory.
pub(crate) fn offset(stream: usize) -> usize {
    STREAMS[..stream].iter().map(Stream::total).sum()
}

/// Bytes of the target's memory.
pub(crate) fn memory_bytes() -> usize {
    offset(STREAMS.len())
}

/// What the `version`-th request of a slot moves. Version 0 is what is there before the first one.
pub(crate) fn pattern(stream: usize, slot: usize, version: u64) -> Vec<u8> {
    let bytes = STREAMS[stream].bytes;
    let seed = (stream as u64) << 56 | (slot as u64) << 48 | version;
    let words = (0..bytes as u64 / 8).map(|word| mixed(seed ^ word << 24));
    words.flat_map(u64::to_le_bytes).collect()
}

/// How many bytes of a slot are as that request moves them, in whole words.
pub(crate) fn alike(is: &[u8], pattern: &[u8]) -> u64 {
    let words = is.chunks_exact(8).zip(pattern.chunks_exact(8));
    8 * words.filter(|(is, should)| is == should).count() as u64
}

/// The last step of splitmix64.
fn mixed(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
