//! What the requests of a batch hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use super::segment::{LocalSegment, RemoteSegment, Segment};

/// What requests use, counted there until they release it.
#[derive(Clone, Debug)]
pub(super) struct Hold([Held; 2]);

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
    /// Counts requests that use these.
    pub(super) fn of(ends: [&Segment; 2], count: u32) -> Self {
        let hold = Self(ends.map(|end| match end {
            Segment::Local(memory) | Segment::Device(memory, _) => Held::Memory(memory.clone()),
            Segment::Remote(remote) => Held::Remote(remote.clone()),
        }));
        hold.again(count);
        hold
    }

    /// Other requests use the same.
    fn again(&self, count: u32) {
        for requests in self.counters() {
            requests.fetch_add(count.into(), AcqRel);
        }
    }

    /// Whether the kernel or a device may still touch memory of it.
    fn is_touched(&self) -> bool {
        let mut ends = self.0.iter();
        ends.any(|end| matches!(end, Held::Memory(memory) if memory.region.is_touched()))
    }

    /// Requests do not use it any more.
    fn release(&self, count: u32) {
        for requests in self.counters() {
            requests.fetch_sub(count.into(), AcqRel);
        }
    }

    fn counters(&self) -> impl Iterator<Item = &AtomicU64> {
        self.0.iter().map(Held::requests)
    }
}

/// What the requests of a batch use, counted until each releases it. A clone counts only once it is [taken](Self::again).
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds(Vec<Run>);

/// Requests of a batch one behind the other that use the same.
#[derive(Clone, Debug)]
struct Run {
    first: usize,
    count: u32,
    hold: Hold,
}

impl Holds {
    /// The next `count` requests use this, and have been counted there.
    pub(super) fn add(&mut self, count: u32, hold: Hold) {
        let first = self.0.last().map_or(0, Run::end);
        self.0.push(Run { first, count, hold });
    }

    /// The same requests once more. Only while nobody can take the segments out: see
    /// [`Segments::known`](super::Segments::known).
    pub(crate) fn again(&self) {
        for run in &self.0 {
            run.hold.again(run.count);
        }
    }

    /// None of the requests uses anything any more.
    pub(crate) fn release_all(&self) {
        for run in &self.0 {
            run.hold.release(run.count);
        }
    }

    /// So many requests of the run that this one is in do not use anything any more.
    pub(crate) fn release(&self, index: usize, count: u32) {
        if let Some(run) = self.run(index) {
            run.hold.release(count);
        }
    }

    /// Whether the kernel or a device may still touch memory of this request.
    pub(crate) fn is_touched(&self, index: usize) -> bool {
        self.run(index).is_some_and(|run| run.hold.is_touched())
    }

    fn run(&self, index: usize) -> Option<&Run> {
        let place = self.0.partition_point(|run| run.end() <= index);
        self.0.get(place)
    }
}

impl Run {
    fn end(&self) -> usize {
        self.first + self.count as usize
    }
}
