//! What a worker is told.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

use polyrail_core::message::Frame;
use polyrail_core::orchestrator::Proof;
use polyrail_core::plan::Plan;
use polyrail_core::report::Report;
use polyrail_core::time::Instant;
use polyrail_core::units::{PeerId, PlanId, RailId, SegmentRef};
use polyrail_transport::memory::Region;
use polyrail_transport::{RailAddress, RemoteRegion};

use crate::leaving::Leaving;
use crate::rows::RowId;

/// What a worker is told besides submissions.
pub(crate) enum Command {
    AttachLocal(SegmentRef, Arc<Region>),
    DetachLocal(SegmentRef),
    AttachRemote(SegmentRef, RemoteRegion),
    DetachRemote(SegmentRef),
    AttachRail(RailId, RailAddress),
    /// A disk is a peer that is always heard.
    AttachDisk(PeerId),
    InstallPlan(PlanId, Box<Plan>),
    RetirePlan(PlanId),
    Frame(PeerId, Frame),
    PeerGone(PeerId, Proof),
    /// A peer is lost: let go of it as soon as nothing is open with it.
    ForgetPeer(Arc<Leaving>),
    Cancel(RowId),
    /// A request that was handed over to be staged has ended so.
    StagedEnded(u64, Report),
    /// Another worker made room.
    Room,
    /// End, at this time at the latest.
    ShutDown(Instant),
}

/// Commands on their way.
#[derive(Default)]
pub(super) struct Commands {
    queue: Mutex<Vec<Command>>,
    has_any: AtomicBool,
}

impl Commands {
    pub(super) fn put(&self, command: Command) {
        self.queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(command);
        self.has_any.store(true, Release);
    }

    pub(super) fn take(&self) -> Vec<Command> {
        if !self.has_any.load(Relaxed) || !self.has_any.swap(false, AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn has_any(&self) -> bool {
        self.has_any.load(Acquire)
    }
}
