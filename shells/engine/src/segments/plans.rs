//! The plans of pairs of segments that have met.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use polyrail_core::units::PlanId;
use polyrail_transport::numbered::Numbered;

use super::segment::SegmentId;

/// What part of all pairs makes room at a time, so that looking for those that may costs each new pair little.
const PART: usize = 8;

/// A pair: the local segment, and the remote one.
pub(super) type Ids = (SegmentId, SegmentId);

/// All of them.
#[derive(Debug, Default)]
pub(super) struct PairPlans {
    rows: Numbered<Ids, Row>,
    /// Those of each segment, whichever end it is.
    of: BTreeSet<(SegmentId, Ids)>,
}

#[derive(Debug)]
struct Row {
    plan: PlanId,
    /// Somebody has asked for it since it was last looked for pairs that may make room.
    is_used: AtomicBool,
}

impl PairPlans {
    /// The plan of a pair, for whoever is about to use it.
    pub(super) fn get(&self, ids: Ids) -> Option<PlanId> {
        let row = self.rows.get(&ids)?;
        // Whoever only reads leaves the line where others read it.
        if !row.is_used.load(Relaxed) {
            row.is_used.store(true, Relaxed);
        }
        Some(row.plan)
    }

    pub(super) fn add(&mut self, ids: Ids, plan: PlanId) {
        let is_used = AtomicBool::new(true);
        self.rows.insert(ids, Row { plan, is_used });
        self.of.extend([(ids.0, ids), (ids.1, ids)]);
    }

    /// All pairs.
    pub(super) fn pairs(&self) -> impl Iterator<Item = Ids> + '_ {
        self.rows.keys().copied()
    }

    fn take(&mut self, ids: Ids) -> Option<PlanId> {
        for end in [ids.0, ids.1] {
            self.of.remove(&(end, ids));
        }
        self.rows.remove(&ids).map(|row| row.plan)
    }

    /// Takes out all pairs of a segment.
    pub(super) fn remove(&mut self, segment: SegmentId) -> Vec<PlanId> {
        let least = SegmentId(0);
        let behind = self.of.range((segment, (least, least))..);
        let own = behind.take_while(|(end, _)| *end == segment);
        let own: Vec<_> = own.map(|(_, ids)| *ids).collect();
        own.into_iter().filter_map(|ids| self.take(ids)).collect()
    }

    /// Takes out some pairs that are idle: those that nobody has asked for in a while, if there are such.
    pub(super) fn make_room(&mut self, is_idle: impl Fn(Ids) -> bool) -> Vec<PlanId> {
        let most = self.rows.len().div_ceil(PART);
        let idle = |unused: bool| {
            let rows = self.rows.iter();
            let rows = rows.filter(|(ids, row)| {
                is_idle(**ids) && !(unused && row.is_used.swap(false, Relaxed))
            });
            rows.take(most).map(|(ids, _)| *ids).collect::<Vec<_>>()
        };
        let mut chosen = idle(true);
        if chosen.is_empty() {
            chosen = idle(false);
        }
        let plans = chosen.into_iter().filter_map(|ids| self.take(ids));
        plans.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(local: u32, remote: u32) -> Ids {
        (SegmentId(local), SegmentId(remote))
    }

    fn plan(index: u32) -> PlanId {
        PlanId {
            index,
            generation: 1,
        }
    }

    /// One local segment, and so many remote ones.
    fn one_with(remotes: u32) -> PairPlans {
        let mut plans = PairPlans::default();
        for remote in 2..2 + remotes {
            plans.add(ids(1, remote), plan(remote));
        }
        plans
    }

    #[test]
    fn the_pairs_of_a_segment_go_with_it_and_no_others() {
        let mut plans = one_with(3);
        plans.add(ids(9, 3), plan(7));
        assert_eq!(plans.remove(SegmentId(3)), [plan(3), plan(7)]);
        assert_eq!(plans.remove(SegmentId(3)), []);
        assert_eq!(plans.get(ids(1, 3)), None);
        assert_eq!(plans.get(ids(1, 2)), Some(plan(2)));
        assert_eq!(plans.remove(SegmentId(1)), [plan(2), plan(4)]);
        assert!(plans.rows.is_empty() && plans.of.is_empty());
    }

    #[test]
    fn pairs_that_nobody_asked_for_make_room_first_and_busy_ones_never() {
        let mut plans = one_with(80);
        let is_idle = |ids: Ids| ids.1 != SegmentId(5);
        // All were asked for when they were made.
        assert_eq!(plans.make_room(is_idle).len(), 10);
        let kept: Vec<_> = plans.rows.keys().copied().take(20).collect();
        for _ in 0..4 {
            for ids in &kept {
                plans.get(*ids).expect("it is asked for all the time");
            }
            assert!(!plans.make_room(is_idle).is_empty());
        }
        while !plans.make_room(is_idle).is_empty() {}
        assert_eq!(plans.rows.len(), 1);
        assert_eq!(plans.get(ids(1, 5)), Some(plan(5)));
    }
}
