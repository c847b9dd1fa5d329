//! How one segment's bytes reach another: the rails that serve a pair of segments.

use crate::units::{PeerId, RailId, SegmentRef};
use crate::work::Place;

/// Rails that one plan can name.
pub const PLAN_RAILS_MAX: usize = 16;

/// Everything core needs to move bytes between two segments. Interned by the engine per pair of segments;
/// the same [`crate::units::PlanId`] means the same plan in every worker.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Plan {
    /// Who owns the remote segment.
    pub peer: PeerId,
    /// The segment on this side.
    pub local: SegmentRef,
    /// The segment on the peer's side.
    pub remote: SegmentRef,
    /// Rails that reach it, with their tiers for this memory.
    pub rails: heapless::Vec<PlanRail, PLAN_RAILS_MAX>,
    /// Where probes read from.
    pub scratch_local: Place,
    /// Where probes write to.
    pub scratch_remote: Place,
    /// How much scratch there is on either side, in bytes.
    pub scratch_bytes: u32,
}

/// One rail of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PlanRail {
    /// The rail.
    pub rail: RailId,
    /// Distance from this plan's memory, 0 nearest. See [`crate::topology`].
    pub tier: u8,
}
