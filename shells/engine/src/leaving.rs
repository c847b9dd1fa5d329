//! Peers that were given up, until their numbers can mean others.

use std::sync::{Arc, Mutex};

use polyrail_core::units::{PeerId, PlanId, RailId, SegmentRef};

use crate::engine::{PlanIds, lock};
use crate::peers::{Peer, Peers};

/// A peer that was given up. Every worker has a share of it until nothing it does refers to the peer any more.
/// When the last one lets go, the numbers of the peer, its rails and its plans are free.
pub(crate) struct Leaving {
    pub(crate) peer: PeerId,
    pub(crate) rails: Vec<RailId>,
    pub(crate) segments: Vec<SegmentRef>,
    plans: Vec<PlanId>,
    all_peers: Arc<Mutex<Peers>>,
    all_plans: Arc<Mutex<PlanIds>>,
}

impl Leaving {
    /// Of a peer that is in no table any more, and whose segments and plans are in none either.
    pub(crate) fn new(
        peer: &Peer,
        segments: Vec<SegmentRef>,
        plans: Vec<PlanId>,
        all_peers: &Arc<Mutex<Peers>>,
        all_plans: &Arc<Mutex<PlanIds>>,
    ) -> Self {
        Self {
            peer: peer.id,
            rails: peer.rails.iter().map(|rail| rail.rail).collect(),
            segments,
            plans,
            all_peers: all_peers.clone(),
            all_plans: all_plans.clone(),
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        lock(&self.all_plans).free(self.plans.drain(..));
        lock(&self.all_peers).free(self.peer, &self.rails);
    }
}
