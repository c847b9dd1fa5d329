//! Peers that were given up, until their numbers can mean others.

use std::sync::{Arc, Mutex};

use polyrail_core::units::{PlanId, SegmentRef};

use crate::lock::lock;
use crate::peers::Numbers;
use crate::plans::PlanIds;

/// A peer that was given up. Every worker has a share of it until nothing it does refers to the peer any more.
/// When the last one lets go, the numbers of its plans are free, and its own as well unless somebody else still
/// has a share of those.
pub(crate) struct Leaving {
    pub(crate) numbers: Arc<Numbers>,
    pub(crate) segments: Vec<SegmentRef>,
    pub(crate) plans: Vec<PlanId>,
    all_plans: Arc<Mutex<PlanIds>>,
}

impl Leaving {
    /// Of a peer that is in no table any more, and whose segments and plans are in none either.
    pub(crate) fn new(
        numbers: Arc<Numbers>,
        segments: Vec<SegmentRef>,
        plans: Vec<PlanId>,
        all_plans: &Arc<Mutex<PlanIds>>,
    ) -> Self {
        Self {
            numbers,
            segments,
            plans,
            all_plans: all_plans.clone(),
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        lock(&self.all_plans).free(self.plans.drain(..));
    }
}
