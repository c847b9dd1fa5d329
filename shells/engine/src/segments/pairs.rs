//! Pairs of segments that requests have used, and the plan of each.

use std::sync::atomic::Ordering::Acquire;
use std::sync::{PoisonError, RwLockReadGuard};

use polyrail_core::units::{PeerId, PlanId};

use super::hold::{Hold, Holds};
use super::segment::{LocalSegment, RemoteSegment, Segment, SegmentId};
use super::{Segments, Tables};
use crate::error::SubmitError;
use crate::request::Request;

/// Why there is no plan for a pair of segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoPlan {
    /// One of them does not exist any more.
    Stale(SegmentId),
    /// There are too many.
    Full,
}

impl Segments {
    /// The plan of a pair of segments, made by `make` when it is first asked for. Where there are too many, some that no
    /// request uses make room, and `retire` is told.
    pub(crate) fn plan(
        &self,
        pair: (SegmentId, SegmentId),
        make: impl Fn() -> Result<PlanId, NoPlan>,
        retire: impl FnOnce(Vec<PlanId>),
    ) -> Result<PlanId, NoPlan> {
        if let Some(plan) = self.read(|tables| tables.plans.get(pair)) {
            return Ok(plan);
        }
        self.write(|tables| {
            if let Some(plan) = tables.plans.get(pair) {
                return Ok(plan);
            }
            // Gone since it was looked at: nobody would ever retire a plan for it.
            for segment in [pair.0, pair.1] {
                if !tables.segments.contains_key(&segment) {
                    return Err(NoPlan::Stale(segment));
                }
            }
            let mut plan = make();
            if plan == Err(NoPlan::Full) {
                retire(tables.make_room());
                plan = make();
            }
            let plan = plan?;
            tables.plans.add(pair, plan);
            Ok(plan)
        })
    }

    /// The pairs with a peer's segments that have met.
    pub(crate) fn pairs_with(&self, peer: PeerId) -> Vec<(SegmentId, SegmentId)> {
        let is_of = |tables: &Tables, id: &SegmentId| match tables.segments.get(id) {
            Some(Segment::Remote(remote) | Segment::Device(_, remote)) => remote.peer == peer,
            Some(Segment::Local(_)) | None => false,
        };
        self.read(|tables| {
            let pairs = tables.plans.pairs();
            pairs.filter(|(_, remote)| is_of(tables, remote)).collect()
        })
    }

    /// All that is known now. Nothing is registered or unregistered while the answer lives: keep it short.
    pub(crate) fn known(&self) -> Known<'_> {
        Known(self.tables.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Tables {
    /// Takes out some plans that no request uses: a request uses both of its ends.
    fn make_room(&mut self) -> Vec<PlanId> {
        let segments = &self.segments;
        let is_free = |id: &SegmentId| match segments.get(id) {
            Some(Segment::Local(memory) | Segment::Device(memory, _)) => {
                memory.requests.load(Acquire) == 0
            }
            Some(Segment::Remote(remote)) => remote.requests.load(Acquire) == 0,
            None => true,
        };
        self.plans
            .make_room(|(local, remote)| is_free(&local) || is_free(&remote))
    }
}

/// Segments and plans, held as they are.
pub(crate) struct Known<'a>(RwLockReadGuard<'a, Tables>);

/// Two segments that have a plan.
#[derive(Clone, Copy)]
pub(crate) struct KnownPair<'a> {
    pub(crate) local: &'a LocalSegment,
    pub(crate) remote: &'a RemoteSegment,
    pub(crate) plan: PlanId,
}

impl Known<'_> {
    /// A local and a remote segment, if both are there and have met before.
    pub(crate) fn pair(&self, ids: (SegmentId, SegmentId)) -> Option<KnownPair<'_>> {
        let (Segment::Local(local) | Segment::Device(local, _)) = self.0.segments.get(&ids.0)?
        else {
            return None;
        };
        let (Segment::Remote(remote) | Segment::Device(_, remote)) = self.0.segments.get(&ids.1)?
        else {
            return None;
        };
        let plan = self.0.plans.get(ids)?;
        Some(KnownPair {
            local,
            remote,
            plan,
        })
    }

    /// Counts requests at the segments that they use. `Err`: one of these is not there; none is counted.
    pub(crate) fn hold(&self, requests: &[Request]) -> Result<Holds, SubmitError> {
        let mut holds = Holds::default();
        let mut index = 0;
        for run in requests.chunk_by(|a, b| (a.local, a.remote) == (b.local, b.remote)) {
            let Some(request) = run.first() else { continue };
            let segment = |id| {
                let found = self.0.segments.get(&id);
                found.ok_or_else(|| self.0.missing(index, id))
            };
            let both =
                segment(request.local).and_then(|local| Ok([local, segment(request.remote)?]));
            let ends = match both {
                Ok(ends) => ends,
                Err(error) => {
                    holds.release_all();
                    return Err(error);
                }
            };
            let count = run.len() as u32;
            holds.add(count, Hold::of(ends, count));
            index += run.len();
        }
        Ok(holds)
    }
}

/// Looks pairs up one after the other; most are like the one before.
pub(crate) struct Pairs<'a> {
    known: &'a Known<'a>,
    last: Option<((SegmentId, SegmentId), KnownPair<'a>)>,
}

impl<'a> Pairs<'a> {
    pub(crate) fn of(known: &'a Known<'_>) -> Self {
        Self { known, last: None }
    }

    /// See [`Known::pair`].
    pub(crate) fn find(&mut self, ids: (SegmentId, SegmentId)) -> Option<KnownPair<'a>> {
        if let Some((_, found)) = self.last.filter(|(last, _)| *last == ids) {
            return Some(found);
        }
        let found = self.known.pair(ids)?;
        self.last = Some((ids, found));
        Some(found)
    }
}
