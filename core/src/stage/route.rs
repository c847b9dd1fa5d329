//! What is to be moved in stages, and through which pools.

use crate::time::Instant;
use crate::units::{PeerId, PoolId, SegmentRef};
use crate::work::{Op, Place, Priority};

/// Which way bytes pass through a pool's slots. Each pool serves one direction: slots for what comes in are reserved
/// before slots for what goes out, so two hosts that stage towards each other never wait for each other in a circle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Direction {
    /// From the network into this host: our reads, peers' writes.
    In,
    /// From this host to the network: our writes, peers' reads.
    Out,
}

/// Slots of equal size, one behind the other in one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PoolConfig {
    /// What they are for.
    pub direction: Direction,
    /// Where the first one begins.
    pub first: Place,
    /// Bytes of one. At least 1.
    pub slot_bytes: u32,
    /// How many. At least 1.
    pub slots: u32,
}

impl PoolConfig {
    /// Where a slot begins.
    pub(super) const fn place(&self, slot: u32) -> Place {
        let offset = (slot as u64).saturating_mul(self.slot_bytes as u64);
        behind(self.first, offset)
    }

    pub(super) const fn is_valid(&self) -> bool {
        let bytes = (self.slots as u64).saturating_mul(self.slot_bytes as u64);
        bytes > 0 && self.first.offset.checked_add(bytes).is_some()
    }
}

/// A pool of the peer's, as the peer describes it in its metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemotePool {
    /// Its number there.
    pub pool: PoolId,
    /// Its slots; the segment as this side numbers it.
    pub slots: PoolConfig,
}

/// One read or write that no transport can carry out in one piece.
///
/// With both pools it has three hops, with one it has two:
///
/// | | write | read |
/// |---|---|---|
/// | local pool | copy into the slot | … the slot, copy out of it |
/// | always | the network | the network |
/// | remote pool | … the slot, the peer copies out of it | the peer copies into the slot |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StagedRequest {
    /// Whose memory the far end is.
    pub peer: PeerId,
    /// Write: from `local` to `remote`. Read: the other way.
    pub op: Op,
    /// The near end.
    pub local: Place,
    /// The far end. With a remote pool, the segment as the *peer* numbers it: the peer touches it, not we.
    pub remote: Place,
    /// Bytes; at least 1.
    pub length: u64,
    /// The pool on this side, if no transport takes the near end to the network: for what goes out if it is a write,
    /// for what comes in if it is a read.
    pub local_pool: Option<PoolId>,
    /// The pool on the peer's side, if no transport takes the network to the far end.
    pub remote_pool: Option<RemotePool>,
    /// When it is to be given up.
    pub deadline: Option<Instant>,
    /// Whose chunks begin first.
    pub priority: Priority,
}

/// Why a request was not taken. Nothing of it has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StageRefused {
    /// All rows are in use: try again when a request has been reported.
    Full,
    /// Its peer has as many rows as are left for the others: try again when a request has been reported. What is for other
    /// peers need not wait for that.
    PeerFull,
    /// It has no bytes.
    Empty,
    /// It passes through no pool, so there is nothing to stage.
    Direct,
    /// There is no row for that peer.
    PeerUnknown,
    /// There is no such pool here, or it is for the other direction.
    PoolUnknown,
    /// An offset at its end, or at that of the remote pool, does not fit a number; or that pool has no bytes.
    OutOfRange,
}

impl StagedRequest {
    /// The direction of the pool on this side.
    pub(super) const fn local_direction(&self) -> Direction {
        match self.op {
            Op::Write => Direction::Out,
            Op::Read => Direction::In,
        }
    }

    /// Checks what can be checked without tables; `local` is the local pool's configuration.
    pub(super) fn check(&self, local: Option<&PoolConfig>) -> Result<(), StageRefused> {
        if self.length == 0 {
            return Err(StageRefused::Empty);
        }
        if self.local_pool.is_none() && self.remote_pool.is_none() {
            return Err(StageRefused::Direct);
        }
        if self.local_pool.is_some()
            && local.is_none_or(|pool| pool.direction != self.local_direction())
        {
            return Err(StageRefused::PoolUnknown);
        }
        let fits = |place: Place| place.offset.checked_add(self.length).is_some();
        let remote = self.remote_pool.is_none_or(|pool| pool.slots.is_valid());
        if !(fits(self.local) && fits(self.remote) && remote) {
            return Err(StageRefused::OutOfRange);
        }
        Ok(())
    }

    /// What the network joins: the near end and the far one, or slots.
    pub(super) fn joined(&self) -> [Option<SegmentRef>; 2] {
        let near = self.local_pool.is_none().then_some(self.local.segment);
        let far = self.remote_pool.is_none().then_some(self.remote.segment);
        [near, far]
    }

    /// Bytes of a chunk: what fits the smaller of the slots on the way.
    pub(super) fn chunk_bytes(&self, local: Option<&PoolConfig>) -> u32 {
        let local = local.map_or(u32::MAX, |pool| pool.slot_bytes);
        let remote = self
            .remote_pool
            .map_or(u32::MAX, |pool| pool.slots.slot_bytes);
        local.min(remote)
    }
}

/// The place `bytes` further on.
pub(super) const fn behind(place: Place, bytes: u64) -> Place {
    Place {
        segment: place.segment,
        offset: place.offset.saturating_add(bytes),
    }
}
