//! How one segment's bytes reach another: the transports that join a pair of segments, best first, and the
//! rails of each.
//!
//! Source: TENT failover document, "Cross-transport failover", for the ranked list.

use crate::path::class::RailClass;
use crate::path::config::PathConfig;
use crate::path::island::PathClass;
use crate::path::layout::QueuePairs;
use crate::units::{PeerId, RailId, SegmentRef, TransportId};
use crate::work::Place;

/// Rails of one transport that one plan can name.
pub const PLAN_RAILS_MAX: usize = 16;
/// Transports that one plan can rank.
pub const PLAN_TRANSPORTS_MAX: usize = 4;
/// Rails that one plan can name altogether.
pub const PEER_RAILS_MAX: usize = PLAN_RAILS_MAX * PLAN_TRANSPORTS_MAX;

/// Rails of one transport, with their tiers.
pub type PlanRails = heapless::Vec<PlanRail, PLAN_RAILS_MAX>;

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
    /// The transports that reach it, the best one first.
    pub transports: heapless::Vec<PlanTransport, PLAN_TRANSPORTS_MAX>,
    /// Where probes read from.
    pub scratch_local: Place,
    /// Where probes write to.
    pub scratch_remote: Place,
    /// How much scratch there is on either side, in bytes.
    pub scratch_bytes: u32,
    /// How path isolation steers what goes to this peer; `None`: it does not, and classes mean nothing.
    pub path: Option<PlanPath>,
}

/// What path isolation is to know of a peer. All plans to a peer have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PlanPath {
    /// What steers it, checked. Both ends have the same.
    pub config: PathConfig,
    /// Where the peer is, as both ends have agreed.
    pub class: PathClass,
}

/// One transport of a plan.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PlanTransport {
    /// The shell's number for it.
    pub transport: TransportId,
    /// Rails that reach the remote segment, with their tiers for this memory.
    pub rails: PlanRails,
}

/// Something of each rail of a transport; what does not fit is left out, where `collect` would panic.
pub(crate) fn of_rails<T>(items: impl Iterator<Item = T>) -> heapless::Vec<T, PLAN_RAILS_MAX> {
    let mut rails = heapless::Vec::new();
    for item in items {
        if rails.push(item).is_err() {
            break;
        }
    }
    rails
}

/// For who finds no plan.
pub(crate) static NO_RAILS: PlanRails = PlanRails::new();

impl Plan {
    /// The rails of the transport at `rank`, 0 the best; none if there is no such transport.
    pub fn rails(&self, rank: u8) -> &PlanRails {
        let transport = self.transports.get(usize::from(rank));
        transport.map_or(&NO_RAILS, |row| &row.rails)
    }

    /// A number of the rails of a transport, with their order, tiers and classes: the same for the same ones, and for others
    /// another one, but for one in 2^31; the highest bit may be dropped.
    pub(crate) fn rails_number(&self, rank: u8) -> u32 {
        // FNV-1a.
        let mix = |number: u32, byte: u8| (number ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        self.rails(rank).iter().fold(0x811c_9dc5, |number, row| {
            let [high, low] = row.rail.0.to_be_bytes();
            [high, low, row.tier, row.class.0]
                .into_iter()
                .fold(number, mix)
        })
    }

    /// Takes the rails out that path isolation suppresses: what is not there, nobody opens.
    pub(crate) fn suppress(&mut self) {
        let Some(path) = self.path else {
            return;
        };
        let there = QueuePairs::new(&path.config, path.class).classes();
        for row in &mut self.transports {
            row.rails.retain(|rail| there.contains(rail.class));
        }
    }

    /// All rails, of all transports.
    pub fn all_rails(&self) -> impl Iterator<Item = PlanRail> + '_ {
        self.transports
            .iter()
            .flat_map(|row| row.rails.iter().copied())
    }
}

/// One rail of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PlanRail {
    /// The rail.
    pub rail: RailId,
    /// Distance from this plan's memory, 0 nearest. See [`crate::topology`].
    pub tier: u8,
    /// What fabric it is of, for [`Plan::path`].
    pub class: RailClass,
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    quickcheck! {
        fn all_rails_are_those_of_the_ranks_in_their_order(ranks: Vec<Vec<u16>>) -> bool {
            let rails = |numbers: &Vec<u16>| {
                let numbers = numbers.iter().take(PLAN_RAILS_MAX);
                numbers.map(|number| PlanRail { rail: RailId(*number), tier: 0, class: RailClass::PRIMARY }).collect()
            };
            let transport = |numbers| PlanTransport { transport: TransportId(0), rails: rails(numbers) };
            let plan = Plan {
                peer: PeerId(0),
                local: SegmentRef(0),
                remote: SegmentRef(1),
                transports: ranks.iter().take(PLAN_TRANSPORTS_MAX).map(transport).collect(),
                scratch_local: Place::default(),
                scratch_remote: Place::default(),
                scratch_bytes: 0,
                path: None,
            };
            let by_rank = (0..=u8::MAX).flat_map(|rank| plan.rails(rank).iter().copied());
            plan.all_rails().eq(by_rank) && plan.all_rails().count() <= PEER_RAILS_MAX
        }
    }
}
