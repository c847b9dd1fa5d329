//! Which way a request goes: in one piece, or through slots.

use polyrail_control::codec::SegmentKind;
use polyrail_core::stage::{Direction, PoolConfig, RemotePool, StagedRequest};
use polyrail_core::transport::MemoryKind;
use polyrail_core::units::{PeerId, PoolId, SegmentRef};
use polyrail_core::work::{Op, Place};

use super::{IN, OUT, place};
use crate::error::SubmitError;
use crate::post::Due;
use crate::request::{Request, check_ends};
use crate::segments::{RemoteSegment, RemoteSlots, Segment, Segments};

/// Whether a transport carries bytes between memory of a kind here and a segment elsewhere.
pub(crate) type Joins<'a> = dyn Fn(MemoryKind, &RemoteSegment) -> bool + 'a;

/// What slots are made of: peers use them.
const SLOTS_ARE: MemoryKind = MemoryKind::Shared;

/// How bytes of one pair of segments move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// A transport carries them.
    Direct,
    /// Through slots here, there, or both.
    Staged {
        peer: PeerId,
        /// The near end is a file, or on a GPU that no transport reaches the far end from.
        local: bool,
        /// The far end is a file, or on a GPU that no transport reaches, of that number there, behind those slots.
        remote: Option<(u32, RemoteSlots)>,
    },
}

/// The ends of a request.
struct Ends {
    /// How large both are, the local one first.
    bytes: [u64; 2],
    /// Whether what `op` does to each may be done.
    allowed: [bool; 2],
    route: Route,
}

impl Segments {
    /// How a request goes whose segments no plan joins. `joins` says whether a transport carries bytes between memory of
    /// that kind here and a peer's segment.
    pub(crate) fn route(
        &self,
        index: usize,
        request: &Request,
        joins: &Joins<'_>,
    ) -> Result<Route, SubmitError> {
        Ok(self.ends(index, request, joins)?.route)
    }

    /// The same, and that it may.
    pub(crate) fn check_route(
        &self,
        index: usize,
        request: &Request,
        joins: &Joins<'_>,
    ) -> Result<Route, SubmitError> {
        let ends = self.ends(index, request, joins)?;
        check_ends(index, request, ends.allowed, ends.bytes)?;
        Ok(ends.route)
    }

    fn ends(
        &self,
        index: usize,
        request: &Request,
        joins: &Joins<'_>,
    ) -> Result<Ends, SubmitError> {
        let stale = |segment| self.missing(index, segment);
        let near = self
            .get(request.local)
            .ok_or_else(|| stale(request.local))?;
        let far = self
            .remote(request.remote)
            .ok_or_else(|| stale(request.remote))?;
        let (local_bytes, may, kind) = match &near {
            Segment::Local(memory) | Segment::Device(memory, _) => {
                (memory.region.bytes(), true, memory.region.memory())
            }
            Segment::Remote(file) if file.is_file_here() => {
                let access = file.descriptor.access;
                let may = request.op == Op::Write || access.allows_remote_write();
                (file.descriptor.bytes, may, MemoryKind::File)
            }
            Segment::Remote(_) => return Err(stale(request.local)),
        };
        let access = far.descriptor.access;
        Ok(Ends {
            bytes: [local_bytes, far.descriptor.bytes],
            allowed: [may, access.allows(request.op)],
            route: route_between(kind, &far, joins).ok_or(SubmitError::TwoFiles {
                index,
                segment: request.remote,
            })?,
        })
    }
}

/// `None`: both are files here.
fn route_between(near: MemoryKind, far: &RemoteSegment, joins: &Joins<'_>) -> Option<Route> {
    let staged = |local, remote| Route::Staged {
        peer: far.peer,
        local,
        remote,
    };
    if far.is_file_here() {
        return match near {
            MemoryKind::File => None,
            MemoryKind::Device | MemoryKind::DeviceShared => Some(staged(true, None)),
            MemoryKind::Host | MemoryKind::Shared => Some(Route::Direct),
        };
    }
    // Where a transport reaches the far end from, if not from here then from a slot here.
    let through_slots = match near {
        MemoryKind::File => true,
        MemoryKind::Device | MemoryKind::DeviceShared => !joins(near, far),
        MemoryKind::Host | MemoryKind::Shared => false,
    };
    let from = if through_slots { SLOTS_ARE } else { near };
    let remote = match (far.descriptor.kind, far.slots) {
        (SegmentKind::File { number }, Some(slots)) => {
            let is_file = far.descriptor.memory == MemoryKind::Host;
            (is_file || !joins(from, far)).then_some((number, slots))
        }
        _ => None,
    };
    match (through_slots, remote) {
        (false, None) => Some(Route::Direct),
        (local, remote) => Some(staged(local, remote)),
    }
}

impl Route {
    /// The request as core stages it; `None`: it needs no staging.
    pub(super) fn staged(self, request: &Request, due: Due) -> Option<StagedRequest> {
        let Self::Staged {
            peer,
            local,
            remote,
        } = self
        else {
            return None;
        };
        let near_pool = match request.op {
            Op::Write => OUT,
            Op::Read => IN,
        };
        let far = match remote {
            None => place(request.remote, request.remote_offset),
            Some((number, _)) => Place {
                segment: SegmentRef(number),
                offset: request.remote_offset,
            },
        };
        Some(StagedRequest {
            peer,
            op: request.op,
            local: place(request.local, request.local_offset),
            remote: far,
            length: request.length,
            local_pool: local.then_some(near_pool),
            remote_pool: remote.map(|(_, slots)| far_pool(request.op, slots)),
            deadline: due.within(),
            priority: due.priority,
        })
    }
}

/// The peer's slots that a request passes.
fn far_pool(op: Op, slots: RemoteSlots) -> RemotePool {
    let (pool, direction): (PoolId, Direction) = match op {
        Op::Write => (IN, Direction::In),
        Op::Read => (OUT, Direction::Out),
    };
    let memory = slots.of(pool);
    RemotePool {
        pool,
        slots: PoolConfig {
            direction,
            first: place(memory.segment, 0),
            slot_bytes: memory.slot_bytes,
            slots: memory.slots,
        },
    }
}
