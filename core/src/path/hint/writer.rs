//! The agent's side of the hint record. There is one at a time; the shell sees to that.

use core::fmt;
use core::ops::Deref;
use core::sync::atomic::Ordering::*;

use super::{
    Client, Connection, ConnectionId, HEADER_WORDS, Header, MAGIC, SLOT_WORDS, SLOTS_MAX, Slot,
    lease_word, load_address, pid_of, uses_of, words_for,
};
use crate::path::share::Shares;
use crate::sync::{AtomicU64, fence};
use crate::time::Instant;

/// The memory holds no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooShort {
    /// Words that were handed in.
    pub words: usize,
    /// Words that a record with one slot takes.
    pub words_min: usize,
}

impl fmt::Display for TooShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { words, words_min } = self;
        write!(
            f,
            "a hint record takes at least {words_min} words, not {words}"
        )
    }
}

/// No connection has this id any more: its client gave the slot back or is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoSuchConnection(pub ConnectionId);

impl fmt::Display for NoSuchConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no connection {}", self.0)
    }
}

/// A slot that is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Which one.
    pub id: ConnectionId,
    /// The number of the process that has it.
    pub pid: u32,
    /// When that process began, and what it has the slot for. `None`: it is about to say.
    pub details: Option<(u64, Connection)>,
    /// What has been said of this connection alone.
    pub shares: Option<Shares>,
}

/// Writes the record. Dropped, it says that there is no agent any more.
///
/// `W` is whatever holds the memory: a slice, or a shell's mapping.
#[derive(Debug)]
pub struct HintWriter<W: Deref<Target = [AtomicU64]>> {
    words: W,
    slots: u32,
    all: Option<Shares>,
}

impl<W: Deref<Target = [AtomicU64]>> HintWriter<W> {
    /// Makes a record of all of `words`, fresh ones or those of an agent that is gone. What that one said is
    /// forgotten, its leases are over, and its readers are told so.
    pub fn start(words: W, now: Instant) -> Result<Self, TooShort> {
        let slots = words.len().saturating_sub(HEADER_WORDS) / SLOT_WORDS;
        let slots = u32::try_from(slots).unwrap_or(SLOTS_MAX).min(SLOTS_MAX);
        let too_short = TooShort {
            words: words.len(),
            words_min: words_for(1),
        };
        let header = Header::of(&words).filter(|_| slots > 0).ok_or(too_short)?;
        // Nobody attaches from here on, until all is in its place.
        header.generation().store(0, Release);
        fence(SeqCst);
        let generation = header.starts().load(Relaxed).wrapping_add(1).max(1);
        header.starts().store(generation, Relaxed);
        header.all().write(0, None);
        for slot in (0..slots).filter_map(|index| Slot::of(&words, index)) {
            let lease = slot.lease().load(Relaxed);
            slot.lease().store(lease_word(uses_of(lease), 0), Relaxed);
            slot.block().write(0, None);
        }
        header.slots().store(u64::from(slots), Relaxed);
        header.heartbeat().store(now.as_nanos(), Relaxed);
        header.magic().store(MAGIC, Relaxed);
        header.generation().store(generation, Release);
        Ok(Self {
            words,
            slots,
            all: None,
        })
    }

    /// How many connections can have a slot.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// A sign of life. Due several times in what readers let pass.
    pub fn beat(&mut self, now: Instant) {
        if let Some(header) = Header::of(&self.words) {
            header.heartbeat().store(now.as_nanos(), Relaxed);
        }
    }

    /// What holds for all connections that nothing was said of alone.
    pub const fn all(&self) -> Option<Shares> {
        self.all
    }

    /// Says what holds for all connections, present and later; what was said of one alone is over. `None`: their
    /// built-in policy.
    pub fn set_all(&mut self, shares: Option<Shares>) {
        if let Some(header) = Header::of(&self.words) {
            header.all().write(0, shares);
        }
        self.all = shares;
        for slot in (0..self.slots).filter_map(|index| Slot::of(&self.words, index)) {
            if slot.block().lease.load(Relaxed) != 0 {
                slot.block().write(0, None);
            }
        }
    }

    /// Says what holds for one connection. `None`: the same as for all.
    pub fn set(
        &mut self,
        id: ConnectionId,
        shares: Option<Shares>,
    ) -> Result<(), NoSuchConnection> {
        let none = NoSuchConnection(id);
        let slot = self.slot(id.slot).ok_or(none)?;
        let lease = slot.lease().load(Acquire);
        if pid_of(lease) == 0 || uses_of(lease) != id.uses {
            return Err(none);
        }
        // Should the lease change now, the shares are for nobody.
        let named = if shares.is_some() { lease } else { 0 };
        slot.block().write(named, shares);
        Ok(())
    }

    /// The slots that are taken, in order.
    pub fn leases(&self) -> impl Iterator<Item = Lease> {
        (0..self.slots).filter_map(|index| self.lease(index))
    }

    /// A client has ended, so says the system: frees its slots and says how many. Without the time when it began, the
    /// ones for which none was written yet.
    pub fn handle_client_gone(&mut self, pid: u32, started: Option<u64>) -> u32 {
        let of_client = |lease: &Lease| {
            lease.pid == pid && lease.details.map(|(started, _)| started) == started
        };
        let freed = self.leases().filter(of_client).filter(|lease| {
            let word = lease_word(lease.id.uses, pid);
            self.slot(lease.id.slot).is_some_and(|slot| slot.free(word))
        });
        freed.count() as u32
    }

    fn lease(&self, index: u32) -> Option<Lease> {
        let slot = self.slot(index)?;
        let lease = slot.lease().load(Acquire);
        let (uses, pid) = (uses_of(lease), pid_of(lease));
        let ready = slot.ready().load(Acquire) == u64::from(uses);
        let details = ready.then(|| {
            let connection = Connection {
                own: load_address(slot.own()),
                peer: load_address(slot.peer()),
            };
            (slot.started().load(Relaxed), connection)
        });
        // The block is only written here, so it is never torn.
        let (named, shares) = slot.block().read()?;
        fence(Acquire);
        // Not if it changed hands meanwhile.
        (pid != 0 && slot.lease().load(Relaxed) == lease).then_some(Lease {
            id: ConnectionId { slot: index, uses },
            pid,
            details,
            shares: shares.filter(|_| named == lease),
        })
    }

    fn slot(&self, index: u32) -> Option<Slot<'_>> {
        if index < self.slots {
            Slot::of(&self.words, index)
        } else {
            None
        }
    }
}

impl Lease {
    /// The process that has it, once it has said when it began.
    pub fn client(&self) -> Option<Client> {
        self.details.map(|(started, _)| Client {
            pid: self.pid,
            started,
        })
    }
}

impl<W: Deref<Target = [AtomicU64]>> Drop for HintWriter<W> {
    fn drop(&mut self) {
        if let Some(header) = Header::of(&self.words) {
            header.generation().store(0, Release);
        }
    }
}
