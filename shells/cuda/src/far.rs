//! Where the far end of a copy is.

use std::sync::Arc;

use polyrail_core::units::{LaneId, SegmentRef};
use polyrail_core::work::{Cause, Work};
use polyrail_transport::RemoteRegion;
use polyrail_transport::memory::{Pinned, Region, RegionTable};
use polyrail_transport::numbered::Numbered;

use crate::driver::End;

/// The far end of a work, and what keeps it there.
pub(crate) struct FarEnd {
    pub(crate) end: End,
    pub(crate) kept: Option<Pinned>,
}

/// Finds far ends.
pub(crate) trait Far: Send {
    fn attach(&mut self, segment: SegmentRef, region: RemoteRegion);
    fn detach(&mut self, segment: SegmentRef);
    /// The far end of a work on a lane.
    fn pin(&self, lane: LaneId, work: &Work) -> Result<FarEnd, Cause>;
}

/// Memory of this process's own devices.
pub(crate) struct Own {
    regions: Arc<dyn RegionTable>,
    known: Numbered<SegmentRef, Arc<Region>>,
}

impl Own {
    pub(crate) fn new(regions: Arc<dyn RegionTable>) -> Self {
        Self {
            regions,
            known: Numbered::default(),
        }
    }
}

impl Far for Own {
    fn attach(&mut self, segment: SegmentRef, region: RemoteRegion) {
        let found = self.regions.find(&region.key);
        if let Some(found) = found.filter(|found| found.device().is_some()) {
            self.known.insert(segment, found);
        }
    }

    fn detach(&mut self, segment: SegmentRef) {
        self.known.remove(&segment);
    }

    fn pin(&self, _: LaneId, work: &Work) -> Result<FarEnd, Cause> {
        let region = self.known.get(&work.remote.segment);
        let region = region.ok_or(Cause::RemoteAccess)?;
        let pinned = region.pin_any(work.remote.offset, work.length.into());
        let pinned = pinned.ok_or(Cause::RemoteAccess)?;
        let end = End {
            address: pinned.address().as_ptr() as u64,
            ordinal: region.device().map(|device| device.ordinal()),
        };
        let kept = Some(pinned);
        Ok(FarEnd { end, kept })
    }
}
