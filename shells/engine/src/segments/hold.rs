//! What a request holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use super::segment::{LocalSegment, RemoteSegment, Segment};

/// What a request uses, counted there until it is released. A clone counts only once it is [taken](Self::again).
#[derive(Clone, Debug)]
pub(crate) struct Hold([Held; 2]);

/// One end of a request.
#[derive(Clone, Debug)]
enum Held {
    Memory(Arc<LocalSegment>),
    Remote(Arc<RemoteSegment>),
}

impl Held {
    fn requests(&self) -> &AtomicU64 {
        match self {
            Self::Memory(memory) => &memory.requests,
            Self::Remote(remote) => &remote.requests,
        }
    }
}

impl Hold {
    /// Counts a request that uses these.
    pub(super) fn of(ends: [&Segment; 2]) -> Self {
        let hold = Self(ends.map(|end| match end {
            Segment::Local(memory) | Segment::Device(memory, _) => Held::Memory(memory.clone()),
            Segment::Remote(remote) => Held::Remote(remote.clone()),
        }));
        hold.again();
        hold
    }

    /// Another request uses the same. Only while nobody can take the segments out: see [`Segments::known`](super::Segments::known).
    pub(crate) fn again(&self) {
        for requests in self.counters() {
            requests.fetch_add(1, AcqRel);
        }
    }

    /// Whether the kernel or a device may still touch memory of it.
    pub(crate) fn is_touched(&self) -> bool {
        let mut ends = self.0.iter();
        ends.any(|end| matches!(end, Held::Memory(memory) if memory.region.is_touched()))
    }

    /// The request does not use it any more.
    pub(crate) fn release(&self) {
        for requests in self.counters() {
            requests.fetch_sub(1, AcqRel);
        }
    }

    fn counters(&self) -> impl Iterator<Item = &AtomicU64> {
        self.0.iter().map(Held::requests)
    }
}
