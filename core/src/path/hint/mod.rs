//! The hint record: what an agent outside of the engine wants each class to carry, in memory that both map.
//!
//! The memory is words of 64 bits, so that core needs nothing but atomics: the shells map it. One agent writes
//! ([`HintWriter`]); a client reads with a [`HintReader`] per connection, without a lock or a system call, in a
//! bounded number of steps. Clients lease a slot per connection in the same memory; what the agent says of all
//! connections serves those that find none free.
//!
//! | words | what |
//! |---|---|
//! | 0 | magic and version |
//! | 1 | generation: which start of an agent wrote this; 0 while there is none |
//! | 2 | heartbeat: when the agent lived last, in nanoseconds of the host's monotonic clock |
//! | 3 | slots |
//! | 4 | starts of agents so far |
//! | 8–11 | the shares of all connections, as a block |
//! | 16 + 16 s | lease of slot s: uses (upper half), pid (lower half; 0: free) |
//! | … + 1 | when that process began |
//! | … + 2 to 5 | the connection's own address, the peer's: IPv6, or IPv4 in its clothes |
//! | … + 6 | uses, once the client has written the five words before |
//! | … + 8 to 11 | the connection's own shares, as a block |
//!
//! A block is a sequence number, odd while it is written, the lease that it is for, and eight shares of 16 bits (all 0:
//! nothing said).
//!
//! Source: MPIB path isolation document, "Advanced Mode — Future", for hints and what it leaves open (slots for
//! connections, an agent that fails). The MPIB program's record has no heartbeat, no generation and slots that are
//! never given back, and its reader waits for ever for a writer that died at its work.

mod reader;
mod writer;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::num::ParseIntError;
use core::str::FromStr;
use core::sync::atomic::Ordering::*;

use super::class::CLASSES_MAX;
use super::share::Shares;
use crate::sync::{AtomicU64, fence};

pub use reader::{HintReader, NoHint};
pub use writer::{HintWriter, Lease, NoSuchConnection, TooShort};

/// The first word of a record: "PRHINT", and the version of the layout.
pub const MAGIC: u64 = u64::from_be_bytes(*b"PRHINT\0\x01");
const HEADER_WORDS: usize = 16;
const SLOT_WORDS: usize = 16;
/// How often a block is read before it counts as torn. A second time is like the first to the model checker.
const READS_MAX: usize = if cfg!(loom) { 1 } else { 4 };

/// Slots that a record can have.
pub const SLOTS_MAX: u32 = 65_536;

/// How many words a record with so many slots takes.
pub const fn words_for(slots: u32) -> usize {
    HEADER_WORDS + slots as usize * SLOT_WORDS
}

/// A process that reads hints, as the system tells it from others that had or will have its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    /// Its number; not 0.
    pub pid: u32,
    /// When it began, in the system's unit.
    pub started: u64,
}

/// What a client leases a slot for: the addresses of a connection's two ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Connection {
    /// The client's.
    pub own: IpAddr,
    /// Its peer's.
    pub peer: IpAddr,
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.own, self.peer)
    }
}

/// A lease of a slot, told from earlier ones of the same slot. Said as `SLOT.USE`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId {
    /// Which slot.
    pub slot: u32,
    /// How often that slot has been leased.
    pub uses: u32,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.uses)
    }
}

impl FromStr for ConnectionId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let (slot, uses) = text.split_once('.').unwrap_or((text, ""));
        Ok(Self {
            slot: slot.parse()?,
            uses: uses.parse()?,
        })
    }
}

/// The head of a record.
#[derive(Clone, Copy)]
struct Header<'a>(&'a [AtomicU64; HEADER_WORDS]);

impl<'a> Header<'a> {
    fn of(words: &'a [AtomicU64]) -> Option<Self> {
        words.first_chunk().map(Self)
    }

    const fn magic(self) -> &'a AtomicU64 {
        &self.0[0]
    }

    const fn generation(self) -> &'a AtomicU64 {
        &self.0[1]
    }

    const fn heartbeat(self) -> &'a AtomicU64 {
        &self.0[2]
    }

    const fn slots(self) -> &'a AtomicU64 {
        &self.0[3]
    }

    const fn starts(self) -> &'a AtomicU64 {
        &self.0[4]
    }

    /// What holds for all connections.
    const fn all(self) -> Block<'a> {
        let [_, _, _, _, _, _, _, _, sequence, lease, low, high, ..] = self.0;
        Block {
            sequence,
            lease,
            shares: [low, high],
        }
    }
}

/// One connection's part of a record.
#[derive(Clone, Copy)]
struct Slot<'a>(&'a [AtomicU64; SLOT_WORDS]);

impl<'a> Slot<'a> {
    fn of(words: &'a [AtomicU64], index: u32) -> Option<Self> {
        let rest = words.get(words_for(index)..)?;
        rest.first_chunk().map(Self)
    }

    const fn lease(self) -> &'a AtomicU64 {
        &self.0[0]
    }

    const fn started(self) -> &'a AtomicU64 {
        &self.0[1]
    }

    const fn own(self) -> [&'a AtomicU64; 2] {
        [&self.0[2], &self.0[3]]
    }

    const fn peer(self) -> [&'a AtomicU64; 2] {
        [&self.0[4], &self.0[5]]
    }

    /// The use that the words before belong to.
    const fn ready(self) -> &'a AtomicU64 {
        &self.0[6]
    }

    const fn block(self) -> Block<'a> {
        let [_, _, _, _, _, _, _, _, sequence, lease, low, high, ..] = self.0;
        Block {
            sequence,
            lease,
            shares: [low, high],
        }
    }

    /// Gives the slot back, if it still is of this lease.
    fn free(self, lease: u64) -> bool {
        let free = lease_word(uses_of(lease), 0);
        self.lease()
            .compare_exchange(lease, free, AcqRel, Relaxed)
            .is_ok()
    }
}

const fn lease_word(uses: u32, pid: u32) -> u64 {
    (uses as u64) << 32 | pid as u64
}

const fn uses_of(lease: u64) -> u32 {
    (lease >> 32) as u32
}

const fn pid_of(lease: u64) -> u32 {
    lease as u32
}

/// Shares under a sequence number: one writes, any number read.
#[derive(Clone, Copy)]
struct Block<'a> {
    sequence: &'a AtomicU64,
    lease: &'a AtomicU64,
    shares: [&'a AtomicU64; 2],
}

impl Block<'_> {
    /// Also good after a writer that died at its work and left the number odd.
    fn write(self, lease: u64, shares: Option<Shares>) {
        let odd = self.sequence.load(Relaxed) | 1;
        self.sequence.store(odd, Relaxed);
        // Whoever sees one of the words below sees the odd number too.
        fence(Release);
        self.lease.store(lease, Relaxed);
        for (word, value) in self.shares.iter().zip(share_words(shares)) {
            word.store(value, Relaxed);
        }
        self.sequence.store(odd.wrapping_add(1), Release);
    }

    /// The lease and the shares as some write left them together. `None`: writers were always at it.
    fn read(self) -> Option<(u64, Option<Shares>)> {
        (0..READS_MAX).find_map(|_| {
            let before = self.sequence.load(Acquire);
            let lease = self.lease.load(Relaxed);
            let words = self.shares.map(|word| word.load(Relaxed));
            fence(Acquire);
            let after = self.sequence.load(Relaxed);
            (before == after && before & 1 == 0).then(|| (lease, shares_of(words)))
        })
    }
}

fn share_words(shares: Option<Shares>) -> [u64; 2] {
    let parts = shares.map_or([0; CLASSES_MAX], |shares| shares.parts());
    let mut words = [0; 2];
    for (word, parts) in words.iter_mut().zip(parts.chunks(4)) {
        *word = parts
            .iter()
            .rev()
            .fold(0, |word, part| word << 16 | u64::from(*part));
    }
    words
}

/// `None` also for what no writer of ours says.
fn shares_of(words: [u64; 2]) -> Option<Shares> {
    let mut parts = [0; CLASSES_MAX];
    for (parts, word) in parts.chunks_mut(4).zip(words) {
        for (part, shift) in parts.iter_mut().zip([0, 16, 32, 48]) {
            *part = (word >> shift) as u16;
        }
    }
    Shares::new(parts).ok()
}

fn store_address(words: [&AtomicU64; 2], address: IpAddr) {
    let bits = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
    .to_bits();
    for (word, value) in words.iter().zip([(bits >> 64) as u64, bits as u64]) {
        word.store(value, Relaxed);
    }
}

fn load_address(words: [&AtomicU64; 2]) -> IpAddr {
    let [high, low] = words.map(|word| u128::from(word.load(Relaxed)));
    IpAddr::V6(Ipv6Addr::from_bits(high << 64 | low)).to_canonical()
}
