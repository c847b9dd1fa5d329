//! Whose bytes are where: both hosts' memories, as ranges whose content is where it came from.

use std::collections::BTreeMap;

use polyrail_core::report::{Local, Remote, Report};
use polyrail_core::stage::{Direction, PoolConfig, RemotePool, Stage, StagedRequest};
use polyrail_core::units::{PoolId, SegmentRef, StagedId};
use polyrail_core::work::{Op, Place, Priority};

use super::hop::Where;
use super::setup::{Setting, Setup};
use super::{PEER, World};

/// A host's request.
pub(super) type Owner = (usize, StagedId);
/// Host, segment as that host numbers it, offset.
type Spot = (usize, u32, u64);
/// Whose memory bytes came from, from where, and how many.
pub(super) type Content = (usize, u64, u32);

/// Segments as a host numbers its own: memory of the GPU, then the pools.
const GPU: SegmentRef = SegmentRef(0);
const POOLS: [(Direction, PoolId, SegmentRef); 2] = [
    (Direction::In, PoolId(0), SegmentRef(1)),
    (Direction::Out, PoolId(1), SegmentRef(2)),
];
/// The other host's segments have these numbers and so many more.
const FAR: u32 = 10;
/// Where destinations are, in either GPU; below it are sources. Each request has a terabyte of either.
const DESTINATION: u64 = 1 << 62;
const REQUEST_SHIFT: u32 = 40;

/// What is where.
#[derive(Debug, Default)]
pub(super) struct Memory {
    slots: BTreeMap<Spot, Content>,
    /// The requests, by the number that their places begin with.
    owners: Vec<(Owner, Op)>,
}

impl Memory {
    /// The number of the next request.
    pub(super) fn numbers(&self) -> u64 {
        self.owners.len() as u64
    }

    /// The next number is this request's.
    pub(super) fn own(&mut self, owner: Owner, op: Op) {
        self.owners.push((owner, op));
    }
}

fn pool(setup: &Setup, setting: &Setting, place: usize, far: u32) -> PoolConfig {
    let (direction, _, segment) = POOLS[place];
    PoolConfig {
        direction,
        first: Place {
            segment: SegmentRef(segment.0 + far),
            offset: 0,
        },
        slot_bytes: setup.slot_bytes,
        slots: setting.slots,
    }
}

/// The pools of a host.
pub(super) fn pools(setup: &Setup, setting: &Setting) -> [PoolConfig; 2] {
    [0, 1].map(|place| pool(setup, setting, place, 0))
}

/// The pools' numbers.
pub(super) fn pool_ids() -> [PoolId; 2] {
    POOLS.map(|(_, id, _)| id)
}

/// The request of this number, of a thread.
pub(super) fn request(
    setup: &Setup,
    setting: &Setting,
    thread: usize,
    number: u64,
) -> StagedRequest {
    let thread = &setup.threads[thread];
    let base = number << REQUEST_SHIFT;
    // Of the pools: which one on this side, and which on the other.
    let (near, far, ours, theirs) = match thread.op {
        Op::Write => (base, DESTINATION + base, 1, 0),
        Op::Read => (DESTINATION + base, base, 0, 1),
    };
    StagedRequest {
        peer: PEER,
        op: thread.op,
        local: Place {
            segment: GPU,
            offset: near,
        },
        remote: Place {
            // Whoever touches it numbers it.
            segment: SegmentRef(if thread.remote_gpu { GPU.0 } else { FAR }),
            offset: far,
        },
        length: thread.block,
        local_pool: thread.local_gpu.then_some(POOLS[ours].1),
        remote_pool: thread.remote_gpu.then(|| RemotePool {
            pool: POOLS[theirs].1,
            slots: pool(setup, setting, theirs, FAR),
        }),
        deadline: None,
        priority: Priority::Normal,
    }
}

/// Which server carries out a hop: where it is, and which host bytes leave, or are copied at.
pub(super) fn place_of(host: usize, stage: &Stage) -> (Where, usize, bool) {
    use polyrail_core::stage::Hop;
    match stage.hop {
        Hop::Copy => (Where::Copy, host, stage.local.segment == POOLS[0].2),
        Hop::Network { .. } => (Where::Network, super::source(host, stage.op), false),
    }
}

/// Whether a place is in a slot of the other host.
pub(super) fn is_far_slot(place: Place) -> bool {
    place.segment.0 > FAR
}

/// A place as whoever owns the memory numbers it.
fn spot(host: usize, place: Place) -> Spot {
    match place.segment.0.checked_sub(FAR) {
        None => (host, place.segment.0, place.offset),
        Some(segment) => (1 - host, segment, place.offset),
    }
}

impl World<'_> {
    /// A hop reads what is there.
    pub(super) fn read(&mut self, host: usize, stage: &Stage) -> Content {
        let from = match stage.op {
            Op::Write => spot(host, stage.local),
            Op::Read => spot(host, stage.remote),
        };
        if from.1 != GPU.0 {
            let found = self.memory.slots.get(&from).copied();
            // Nothing has been there yet: what comes of it is seen where it goes.
            return found.unwrap_or((from.0, u64::MAX, stage.length));
        }
        if let Some((owner, op, report)) = self.owner(from.2)
            && op == Op::Write
            && report.is_some_and(|report| report.local == Local::Released)
        {
            self.violate(format!("the source of {owner:?} is read after its report"));
        }
        (from.0, from.2, stage.length)
    }

    /// A hop writes it.
    pub(super) fn write(&mut self, host: usize, stage: &Stage, content: Content) {
        let to = match stage.op {
            Op::Write => spot(host, stage.remote),
            Op::Read => spot(host, stage.local),
        };
        if to.1 != GPU.0 {
            self.memory.slots.insert(to, content);
            return;
        }
        let source = to.2.wrapping_sub(DESTINATION);
        let Some((owner, op, report)) = self.owner(source) else {
            return self.violate(format!("bytes at {to:?}, which is nobody's"));
        };
        if (content.1, content.2) != (source, stage.length) || content.0 == to.0 {
            return self.violate(format!(
                "{owner:?} gets other bytes: {content:?} at {source}"
            ));
        }
        let is_over = |report: Report| match op {
            Op::Write => report.remote == Remote::Settled,
            Op::Read => report.local == Local::Released,
        };
        if report.is_some_and(is_over) {
            return self.violate(format!("{owner:?} is written to after its report"));
        }
        self.memory.slots.insert(to, content);
    }

    /// Whose a place is, by its offset in sources, and how that ended.
    fn owner(&self, offset: u64) -> Option<(Owner, Op, Option<Report>)> {
        let (owner, op) = *self.memory.owners.get((offset >> REQUEST_SHIFT) as usize)?;
        Some((owner, op, self.reports.get(&owner).copied()))
    }

    /// Whether all bytes of the request of this number are where they should be; after that they are forgotten.
    pub(super) fn is_whole(&mut self, number: u64, length: u64) -> bool {
        let Some((owner, op)) = self.memory.owners.get(number as usize).copied() else {
            return false;
        };
        let (source, target) = (super::source(owner.0, op), 1 - super::source(owner.0, op));
        let base = number << REQUEST_SHIFT;
        let chunk = u64::from(self.setup.slot_bytes);
        (0..length.div_ceil(chunk)).all(|index| {
            let done = index * chunk;
            let bytes = (length - done).min(chunk) as u32;
            let found = self
                .memory
                .slots
                .remove(&(target, GPU.0, DESTINATION + base + done));
            found == Some((source, base + done, bytes))
        })
    }
}
