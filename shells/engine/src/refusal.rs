//! An endpoint that moves nothing: of a transport that only ends requests, and of a worker that has ended.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use polyrail_core::time::Instant;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{Cause, LaneFact, LaneLimits, PostBatch, Posted, Scope, Stop};
use polyrail_transport::memory::Region;
use polyrail_transport::{Endpoint, LaneReport, Polled, RailAddress, RemoteRegion, Waits};

/// What its lanes say of each work: that it is the request's own fault, so that it ends.
pub(crate) const REFUSED: Cause = Cause::LocalOperation;

/// Lanes that open at once, and take nothing.
pub(crate) struct Refusal {
    facts: Vec<LaneReport>,
    fd: Arc<OwnedFd>,
}

impl Refusal {
    /// One whose descriptor is this; it never has anything to say there.
    pub(crate) fn new(fd: Arc<OwnedFd>) -> Self {
        let facts = Vec::new();
        Self { facts, fd }
    }
}

impl Endpoint for Refusal {
    fn attach_local(&mut self, _: SegmentRef, _: Arc<Region>) {}

    fn detach_local(&mut self, _: SegmentRef) {}

    fn attach_remote(&mut self, _: SegmentRef, _: RemoteRegion) {}

    fn attach_rail(&mut self, _: RailId, _: RailAddress) {}

    fn open(&mut self, lane: LaneId, epoch: Epoch, _: Instant) {
        let limits = LaneLimits::new(1, u32::MAX);
        let fact = LaneFact::Opened { limits };
        self.facts.push(LaneReport { lane, epoch, fact });
    }

    fn post(&mut self, _: &PostBatch) -> Posted {
        Posted {
            accepted: 0,
            stop: Stop::Rejected(REFUSED),
        }
    }

    fn poll(&mut self, _: Instant, out: &mut Polled) {
        out.lanes.append(&mut self.facts);
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, _: Scope) {
        let fact = |scope| LaneFact::Fenced {
            scope,
            delivered: None,
        };
        let facts = [Scope::Local, Scope::Remote].map(fact);
        let facts = facts.map(|fact| LaneReport { lane, epoch, fact });
        self.facts.extend(facts);
    }

    fn close(&mut self, _: LaneId, _: Epoch) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (!self.facts.is_empty()).then_some(Instant::ZERO)
    }

    fn waits(&self) -> Waits {
        Waits::Nothing
    }
}
