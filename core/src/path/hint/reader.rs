//! A client's side of the hint record: a lease, and reading what the agent says.

use core::fmt;
use core::ops::Deref;
use core::sync::atomic::Ordering::*;

use super::{
    Client, Connection, ConnectionId, Header, MAGIC, Slot, lease_word, pid_of, store_address,
    uses_of, words_for,
};
use crate::path::share::Shares;
use crate::sync::AtomicU64;
use crate::time::{Duration, Instant};

/// Why there is no hint. All of them mean the built-in policy; the first two also that it is time to attach anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoHint {
    /// There is no record, it is of another version, or its agent has ended well.
    Absent,
    /// An agent was started after this reader attached, or it believes that the client is gone.
    Restarted,
    /// The agent has not been heard of for so long, or its heartbeat is so far ahead of our time.
    Stale {
        /// How long.
        age: Duration,
    },
    /// The agent was writing whenever we looked, or died while it wrote.
    Torn,
    /// The agent lives and has nothing to say.
    Unset,
}

impl fmt::Display for NoHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("there is no agent"),
            Self::Restarted => f.write_str("the agent was started anew"),
            Self::Stale { age } => write!(f, "the agent has been silent for {age:?}"),
            Self::Torn => f.write_str("the agent does not finish writing"),
            Self::Unset => f.write_str("the agent has said nothing"),
        }
    }
}

/// Reads the shares of one connection. Its slot is given back when it is dropped.
///
/// `W` is whatever holds the memory: a slice, or a shell's mapping.
#[derive(Debug)]
pub struct HintReader<W: Deref<Target = [AtomicU64]>> {
    words: W,
    generation: u64,
    age_max: Duration,
    /// Slot and lease; `None` if all were taken.
    lease: Option<(u32, u64)>,
}

impl<W: Deref<Target = [AtomicU64]>> HintReader<W> {
    /// Finds the agent's record in `words` and leases a slot for this connection, if one is free. An agent that has
    /// not been heard of for more than `age_max` will count as silent.
    pub fn attach(
        words: W,
        client: Client,
        connection: Connection,
        age_max: Duration,
    ) -> Result<Self, NoHint> {
        let header = Header::of(&words).ok_or(NoHint::Absent)?;
        let generation = header.generation().load(Acquire);
        if generation == 0 || header.magic().load(Acquire) != MAGIC {
            return Err(NoHint::Absent);
        }
        let slots = u32::try_from(header.slots().load(Acquire)).unwrap_or(u32::MAX);
        if words_for(slots) > words.len() {
            return Err(NoHint::Absent);
        }
        let lease = (0..slots).find_map(|index| {
            let slot = Slot::of(&words, index)?;
            claim(slot, client, connection).map(|lease| (index, lease))
        });
        Ok(Self {
            words,
            generation,
            age_max,
            lease,
        })
    }

    /// How the agent names this connection. `None`: no slot was free, so only what it says of all counts.
    pub fn connection_id(&self) -> Option<ConnectionId> {
        self.lease.map(|(slot, lease)| ConnectionId {
            slot,
            uses: uses_of(lease),
        })
    }

    /// Which agent it is, and how long ago it was heard of: for people.
    pub fn agent(&self, now: Instant) -> Option<(u64, Duration)> {
        let heartbeat = Header::of(&self.words)?.heartbeat().load(Relaxed);
        Some((self.generation, now.since(Instant::from_nanos(heartbeat))))
    }

    /// What the connection's bytes should be, if an agent that lives has said so; else the built-in policy holds.
    /// `now` is of the host's monotonic clock, which the agent reads too.
    pub fn read(&self, now: Instant) -> Option<Shares> {
        self.try_read(now).ok()
    }

    /// The same, with the reason.
    pub fn try_read(&self, now: Instant) -> Result<Shares, NoHint> {
        let header = Header::of(&self.words).ok_or(NoHint::Absent)?;
        let shares = match self.own_shares()? {
            Some(shares) => Some(shares),
            None => header.all().read().ok_or(NoHint::Torn)?.1,
        };
        // Afterwards: then what was read cannot be of a later agent than this says.
        match header.generation().load(Acquire) {
            0 => return Err(NoHint::Absent),
            generation if generation != self.generation => return Err(NoHint::Restarted),
            _ => {}
        }
        let heartbeat = Instant::from_nanos(header.heartbeat().load(Relaxed));
        let age = now.since(heartbeat).max(heartbeat.since(now));
        if age > self.age_max {
            return Err(NoHint::Stale { age });
        }
        shares.ok_or(NoHint::Unset)
    }

    /// What the agent says of this connection alone.
    fn own_shares(&self) -> Result<Option<Shares>, NoHint> {
        let Some((index, lease)) = self.lease else {
            return Ok(None);
        };
        let slot = Slot::of(&self.words, index).ok_or(NoHint::Absent)?;
        let (named, shares) = slot.block().read().ok_or(NoHint::Torn)?;
        if slot.lease().load(Relaxed) != lease {
            return Err(NoHint::Restarted);
        }
        // What was said of an earlier lease of the slot is not for us.
        Ok(shares.filter(|_| named == lease))
    }
}

impl<W: Deref<Target = [AtomicU64]>> Drop for HintReader<W> {
    fn drop(&mut self) {
        let slot = self.lease.and_then(|(index, lease)| {
            let slot = Slot::of(&self.words, index)?;
            Some((slot, lease))
        });
        if let Some((slot, lease)) = slot {
            slot.free(lease);
        }
    }
}

/// Leases the slot if it is free.
fn claim(slot: Slot<'_>, client: Client, connection: Connection) -> Option<u64> {
    let free = slot.lease().load(Relaxed);
    if pid_of(free) != 0 || client.pid == 0 {
        return None;
    }
    let uses = uses_of(free).wrapping_add(1);
    let lease = lease_word(uses, client.pid);
    slot.lease()
        .compare_exchange(free, lease, AcqRel, Relaxed)
        .ok()?;
    slot.started().store(client.started, Relaxed);
    store_address(slot.own(), connection.own);
    store_address(slot.peer(), connection.peer);
    slot.ready().store(u64::from(uses), Release);
    Some(lease)
}
