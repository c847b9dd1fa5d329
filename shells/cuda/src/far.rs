//! Where the far end of a copy is.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use polyrail_core::time::Instant;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{Cause, Work};
use polyrail_transport::memory::{Pinned, Region, RegionTable, TrustDomain};
use polyrail_transport::numbered::Numbered;
use polyrail_transport::{RailAddress, RemoteRegion};

use crate::driver::End;
use crate::ipc::Use;

/// What keeps one end of a copy where it is.
pub(crate) enum Kept {
    Region { pinned: Pinned },
    Import { of: Arc<Use> },
}

/// The far end of a work, and what keeps it there.
pub(crate) struct FarEnd {
    pub(crate) end: End,
    /// A device copies it by itself: it is on one, or pinned.
    pub(crate) is_pinned: bool,
    pub(crate) kept: Kept,
}

/// What is known of a work's far end.
pub(crate) enum Pin {
    There(FarEnd),
    /// [`FarEvent::Again`] says when to ask again.
    Wait,
    /// It is where nothing is copied to, and somebody has said so: all that a probe wants to know.
    Answered,
}

/// What became of an opening.
pub(crate) enum Opening {
    Now,
    /// [`FarEvent`] tells.
    Later,
    Failed,
}

/// What a far end reports of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FarEvent {
    Opened(LaneId, Epoch),
    Refused(LaneId, Epoch),
    /// Nobody is there any more.
    Broken(LaneId, Epoch),
    /// Works that wait may go on.
    Again(LaneId, Epoch),
}

/// Finds far ends.
pub(crate) trait Far: Send {
    fn attach(&mut self, segment: SegmentRef, region: RemoteRegion);
    fn detach(&mut self, segment: SegmentRef);
    fn attach_rail(&mut self, _rail: RailId, _address: RailAddress) {}
    fn open(&mut self, _lane: LaneId, _epoch: Epoch, _by: Instant) -> Opening {
        Opening::Now
    }
    /// The far end of a work on a lane that is open, whose near end is on that device; `None`: on the host.
    fn pin(&mut self, lane: LaneId, work: &Work, near: Option<u32>) -> Result<Pin, Cause>;
    /// What a work ends with that cannot be copied, though nothing is wrong with it.
    fn refusal(&self) -> Cause;
    fn poll(&mut self, _now: Instant, _out: &mut Vec<FarEvent>) {}
    /// Whether what has been copied has got there.
    fn is_sound(&self, _lane: LaneId) -> bool {
        true
    }
    /// A lane is over, and nothing is copied for it any more.
    fn end(&mut self, _lane: LaneId) {}
    /// A lane is over, and what its device still does is not known.
    fn abandon(&mut self, _lane: LaneId) {}
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// When [`Self::poll`] has something to do by itself.
    fn due(&self) -> Option<Instant> {
        None
    }
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
        let found = self.regions.find(&region.key, TrustDomain::COMMON);
        if let Some(found) = found.filter(|found| found.device().is_some()) {
            self.known.insert(segment, found);
        }
    }

    fn detach(&mut self, segment: SegmentRef) {
        self.known.remove(&segment);
    }

    fn pin(&mut self, _: LaneId, work: &Work, _: Option<u32>) -> Result<Pin, Cause> {
        let region = self.known.get(&work.remote.segment);
        let region = region.ok_or(Cause::RemoteAccess)?;
        let pinned = region.pin_any(work.remote.offset, work.length.into());
        let pinned = pinned.ok_or(Cause::RemoteAccess)?;
        let end = End {
            address: pinned.address().as_ptr() as u64,
            ordinal: region.device().map(|device| device.ordinal()),
        };
        let kept = Kept::Region { pinned };
        Ok(Pin::There(FarEnd {
            end,
            is_pinned: true,
            kept,
        }))
    }

    /// No other way leads to this memory.
    fn refusal(&self) -> Cause {
        Cause::LocalOperation
    }
}
