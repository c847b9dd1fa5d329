//! What a worker is told.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex};

use polyrail_core::message::Frame;
use polyrail_core::orchestrator::Proof;
use polyrail_core::plan::Plan;
use polyrail_core::report::Report;
use polyrail_core::time::Instant;
use polyrail_core::units::{PeerId, PlanId, RailId, RequestId, SegmentRef};
use polyrail_transport::memory::Region;
use polyrail_transport::{RailAddress, RemoteRegion};

use crate::lanes::Question;
use crate::leaving::Leaving;
use crate::lock::lock;
use crate::rows::RowId;

/// What a worker is told besides submissions.
pub(crate) enum Command {
    AttachLocal(SegmentRef, Arc<Region>),
    DetachLocal(SegmentRef),
    AttachRemote(SegmentRef, RemoteRegion),
    DetachRemote(SegmentRef),
    AttachRail(RailId, RailAddress),
    /// Whether an address of this host is there.
    Address(IpAddr, bool),
    /// Whether a rail is used, and not withdrawn.
    Rail(RailId, bool),
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
    StagedEnded(RequestId, Report),
    /// All has been handed in that peers had said before that was asked for.
    CaughtUp,
    /// Another worker made room.
    Room,
    /// What do the lanes hold?
    Lanes(Arc<Question>),
    /// End, at this time at the latest.
    ShutDown(Instant),
}

/// Commands on their way.
pub(super) struct Commands {
    /// `None`: nobody takes them any more.
    queue: Mutex<Option<Vec<Command>>>,
    has_any: AtomicBool,
}

impl Commands {
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::new(Some(Vec::new())),
            has_any: AtomicBool::new(false),
        }
    }

    pub(super) fn put(&self, command: Command) {
        if let Some(queue) = &mut *lock(&self.queue) {
            queue.push(command);
            self.has_any.store(true, Release);
        }
    }

    pub(super) fn take(&self) -> Vec<Command> {
        if !self.has_any.load(Relaxed) || !self.has_any.swap(false, AcqRel) {
            return Vec::new();
        }
        let mut queue = lock(&self.queue);
        queue.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn has_any(&self) -> bool {
        self.has_any.load(Acquire)
    }

    /// Takes no more, and drops those that are there.
    pub(super) fn close(&self) {
        let left = lock(&self.queue).take();
        self.has_any.store(false, Release);
        drop(left);
    }
}
