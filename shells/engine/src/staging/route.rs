//! Which way a request goes: in one piece, or through slots.

use polyrail_control::codec::SegmentKind;
use polyrail_core::stage::{Direction, PoolConfig, RemotePool, StagedRequest};
use polyrail_core::units::{PeerId, PoolId, SegmentRef};
use polyrail_core::work::{Op, Place};

use super::{IN, OUT, place};
use crate::engine::{Request, check_ends};
use crate::error::SubmitError;
use crate::post::Due;
use crate::segments::{RemoteSegment, RemoteSlots, Segment, Segments};

/// How bytes of one pair of segments move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// A transport carries them.
    Direct,
    /// Through slots here, there, or both.
    Staged {
        peer: PeerId,
        /// The near end is a file.
        local: bool,
        /// The far end is a file, of that number there, behind those slots.
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
    /// How a request goes whose segments no plan joins.
    pub(crate) fn route(&self, index: usize, request: &Request) -> Result<Route, SubmitError> {
        Ok(self.ends(index, request)?.route)
    }

    /// The same, and that it may.
    pub(crate) fn check_route(
        &self,
        index: usize,
        request: &Request,
    ) -> Result<Route, SubmitError> {
        let ends = self.ends(index, request)?;
        check_ends(index, request, ends.allowed, ends.bytes)?;
        Ok(ends.route)
    }

    fn ends(&self, index: usize, request: &Request) -> Result<Ends, SubmitError> {
        let stale = |segment| self.missing(index, segment);
        let near = self
            .get(request.local)
            .ok_or_else(|| stale(request.local))?;
        let far = self
            .remote(request.remote)
            .ok_or_else(|| stale(request.remote))?;
        let (local_bytes, may, file) = match &near {
            Segment::Local(memory) => (memory.region.bytes(), true, false),
            Segment::Remote(file) if file.is_file_here() => {
                let access = file.descriptor.access;
                let may = request.op == Op::Write || access.allows_remote_write();
                (file.descriptor.bytes, may, true)
            }
            Segment::Remote(_) => return Err(stale(request.local)),
        };
        let access = far.descriptor.access;
        Ok(Ends {
            bytes: [local_bytes, far.descriptor.bytes],
            allowed: [may, access.allows(request.op)],
            route: route_between(file, &far).ok_or(SubmitError::TwoFiles {
                index,
                segment: request.remote,
            })?,
        })
    }
}

/// `None`: both are files here.
fn route_between(near_is_file: bool, far: &RemoteSegment) -> Option<Route> {
    if far.is_file_here() {
        return (!near_is_file).then_some(Route::Direct);
    }
    let remote = match (far.descriptor.kind, far.slots) {
        (SegmentKind::File { number }, Some(slots)) => Some((number, slots)),
        _ => None,
    };
    if !near_is_file && remote.is_none() {
        return Some(Route::Direct);
    }
    Some(Route::Staged {
        peer: far.peer,
        local: near_is_file,
        remote,
    })
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
