//! What two engines say to each other, as plain types. Encoding them is the control shell's business.

use crate::units::{Epoch, LaneId, PeerId};

/// Something for a peer. Repeated until answered, so a shell may send it over every way it has and
/// need not care whether it arrived. Idempotent on the peer's side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Message {
    /// Let no further write of this lane's epoch, or an older one, reach memory, and say so.
    Fence {
        /// To whom.
        peer: PeerId,
        /// Which lane.
        lane: LaneId,
        /// Up to which epoch.
        epoch: Epoch,
    },
}

/// Something a peer said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Frame {
    /// Anything at all: the peer is alive.
    Alive,
    /// The answer to [`Message::Fence`]: the peer's last receive on the lane has returned.
    Fenced {
        /// Which lane.
        lane: LaneId,
        /// Up to which epoch.
        epoch: Epoch,
        /// Works of that epoch that reached memory whole, in the order of posting.
        delivered: u32,
    },
}
