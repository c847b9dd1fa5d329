//! What is handed out to be carried out: one hop of one chunk.

use super::Staged;
use super::claim::{Chunk, Remote, Role, Step};
use super::route::{Direction, StagedRequest, behind};
use crate::time::Instant;
use crate::units::{PeerId, StageId};
use crate::work::{Op, Place, Priority};

/// Which hop a stage is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hop {
    /// Both places are on this side. Always a write, from `local` to `remote`.
    Copy,
    /// To or from this peer.
    Network {
        /// Whose memory `remote` is.
        peer: PeerId,
    },
}

/// One hop of one chunk, to be carried out like a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage {
    /// Comes back with its report.
    pub id: StageId,
    /// Which hop.
    pub hop: Hop,
    /// Write: from `local` to `remote`. Read: the other way.
    pub op: Op,
    /// The near place.
    pub local: Place,
    /// The far place.
    pub remote: Place,
    /// Bytes.
    pub length: u32,
    /// When its request is given up.
    pub deadline: Option<Instant>,
    /// Its request's; the usual one, where that is a peer's.
    pub priority: Priority,
}

impl Staged<'_> {
    /// The hop that a row is to begin.
    pub(super) fn stage(&self, row: u32) -> Option<Stage> {
        let claim = self.claim(row)?;
        let (pool, slot) = claim.slot.unzip();
        let slot = pool.and_then(|pool| self.pools.place(pool, slot?));
        let id = StageId {
            index: row,
            generation: claim.attempt,
        };
        let copy = |from, to, length| Stage {
            id,
            hop: Hop::Copy,
            op: Op::Write,
            local: from,
            remote: to,
            length,
            deadline: None,
            priority: Priority::Normal,
        };
        let Role::Chunk(chunk) = claim.role else {
            let (lease, place, length) = self.copy_of(row)?;
            return match self.pools.direction(lease.pool)? {
                Direction::In => Some(copy(slot?, place, length)),
                Direction::Out => Some(copy(place, slot?, length)),
            };
        };
        debug_assert!(
            chunk.step != Step::Copy || slot.is_some(),
            "row {row} copies, and has no slot"
        );
        let route = self.route_of(row)?;
        let near = behind(route.local, chunk.offset);
        let stage = match (chunk.step, route.op) {
            (Step::Copy, Op::Write) => copy(near, slot?, chunk.length),
            (Step::Copy, Op::Read) => copy(slot?, near, chunk.length),
            (Step::Network, _) => Stage {
                hop: Hop::Network { peer: route.peer },
                op: route.op,
                ..copy(
                    slot.unwrap_or(near),
                    far_place(&route, &chunk)?,
                    chunk.length,
                )
            },
            (Step::Acquire | Step::Go | Step::Recall | Step::GiveBack, _) => return None,
        };
        Some(Stage {
            deadline: route.deadline,
            priority: route.priority,
            ..stage
        })
    }
}

/// Where the network hop of a chunk begins or ends on the peer's side.
fn far_place(route: &StagedRequest, chunk: &Chunk) -> Option<Place> {
    match (route.remote_pool, chunk.remote) {
        (None, _) => Some(behind(route.remote, chunk.offset)),
        (Some(pool), Remote::Held(slot)) => Some(pool.slots.place(slot)),
        (Some(_), _) => None,
    }
}
