//! A segment: memory of this process, memory of a peer, or bytes of a file.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use polyrail_control::codec::{SegmentDescriptor, SegmentKind};
use polyrail_core::units::{PeerId, PoolId, SegmentRef};
use polyrail_transport::memory::{Region, TrustDomain};

/// Names a segment to the engine that registered or opened it. Never reused: an old one is told from a new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub(crate) u32);

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}", self.0)
    }
}

impl SegmentId {
    /// Its number in core and in transports.
    pub(crate) fn segment_ref(self) -> SegmentRef {
        SegmentRef(self.0)
    }
}

/// Memory of this process.
#[derive(Debug)]
pub(crate) struct LocalSegment {
    pub(crate) name: String,
    pub(crate) region: Arc<Region>,
    pub(crate) kind: SegmentKind,
    /// The trust domain whose peers may use it; `None`: all may.
    pub(super) domain: Option<TrustDomain>,
    pub(crate) generation: u64,
    /// Requests submitted and not ended that use it.
    pub(crate) requests: AtomicU64,
}

impl LocalSegment {
    /// Whether peers of a trust domain may know of it.
    pub(super) fn is_for(&self, domain: TrustDomain) -> bool {
        self.domain.is_none_or(|own| domain.may_use(own))
    }
}

/// Memory of a peer, or bytes of a file.
#[derive(Debug)]
pub(crate) struct RemoteSegment {
    pub(crate) peer: PeerId,
    pub(crate) descriptor: SegmentDescriptor,
    /// Bytes of a file of this host.
    pub(crate) is_file_here: bool,
    /// Requests submitted and not ended that use it.
    pub(crate) requests: AtomicU64,
    /// How often it was opened, and not closed.
    pub(super) opens: AtomicU64,
    /// Of a peer's file: the slots that it is staged through there.
    pub(crate) slots: Option<RemoteSlots>,
}

impl RemoteSegment {
    /// Bytes of a file of this host.
    pub(crate) fn is_file_here(&self) -> bool {
        self.is_file_here
    }
}

/// A peer's slots for what comes in to it, and for what goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteSlots(pub(crate) [SlotMemory; 2]);

impl RemoteSlots {
    pub(crate) fn of(self, pool: PoolId) -> SlotMemory {
        self.0[usize::from(pool.0 != 0)]
    }
}

/// Slots one behind the other in a segment of a peer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotMemory {
    pub(crate) segment: SegmentId,
    pub(crate) slot_bytes: u32,
    pub(crate) slots: u32,
}

/// Any of them.
#[derive(Clone, Debug)]
pub(crate) enum Segment {
    Local(Arc<LocalSegment>),
    Remote(Arc<RemoteSegment>),
    /// Memory of a GPU of this host: the near end of some requests, and the far end of others.
    Device(Arc<LocalSegment>, Arc<RemoteSegment>),
}
