//! TCP whose endpoints can be made to keep memory: they hold back their word that they have let go of it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use polyrail::Region;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::transport::Capabilities;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{LaneFact, PostBatch, Posted, Scope};
use polyrail_tcp::TcpTransport;
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::RegionTable;
use polyrail_transport::{
    Endpoint, FenceAnswer, InboundLane, LaneReport, Polled, RailAddress, RemoteRegion,
    RetireAnswer, SessionId, Transport, Waits,
};

/// Whether they keep it now.
static CLINGS: AtomicBool = AtomicBool::new(false);

/// How soon they notice that they need not any more.
const LOOK: Duration = Duration::from_millis(10);

/// From now on no endpoint says that it has let go of memory, or all say what they held back.
pub(crate) fn cling(clings: bool) {
    CLINGS.store(clings, SeqCst);
}

/// The transport.
pub(crate) struct Clinging(TcpTransport);

impl Clinging {
    pub(crate) fn new(name: &'static str, regions: Arc<dyn RegionTable>) -> Self {
        Self(TcpTransport::named(name, regions))
    }
}

impl Transport for Clinging {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn endpoint(&self, worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        Ok(Box::new(Holder {
            inner: self.0.endpoint(worker, clock)?,
            held: Vec::new(),
            now: Instant::default(),
        }))
    }

    fn admit(&self, lane: InboundLane) {
        self.0.admit(lane);
    }

    fn fence_inbound(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        self.0.fence_inbound(session, lane, epoch, answer);
    }

    fn retire_session(&self, session: SessionId, answer: RetireAnswer) {
        self.0.retire_session(session, answer);
    }
}

/// An endpoint of it.
struct Holder {
    inner: Box<dyn Endpoint>,
    /// What it has not said.
    held: Vec<LaneReport>,
    /// When it was polled last.
    now: Instant,
}

impl Endpoint for Holder {
    fn poll(&mut self, now: Instant, out: &mut Polled) {
        self.now = now;
        let first = out.lanes.len();
        self.inner.poll(now, out);
        if !CLINGS.load(SeqCst) {
            out.lanes.append(&mut self.held);
            return;
        }
        let lets_go = |report: &mut LaneReport| {
            matches!(
                report.fact,
                LaneFact::Fenced {
                    scope: Scope::Local,
                    ..
                }
            )
        };
        self.held.extend(out.lanes.extract_if(first.., lets_go));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let look = (!self.held.is_empty()).then(|| self.now + LOOK);
        self.inner.poll_timeout().into_iter().chain(look).min()
    }

    fn attach_local(&mut self, segment: SegmentRef, region: Arc<Region>) {
        self.inner.attach_local(segment, region);
    }

    fn detach_local(&mut self, segment: SegmentRef) {
        self.inner.detach_local(segment);
    }

    fn attach_remote(&mut self, segment: SegmentRef, region: RemoteRegion) {
        self.inner.attach_remote(segment, region);
    }

    fn attach_rail(&mut self, rail: RailId, address: RailAddress) {
        self.inner.attach_rail(rail, address);
    }

    fn detach_remote(&mut self, segment: SegmentRef) {
        self.inner.detach_remote(segment);
    }

    fn forget_rail(&mut self, rail: RailId) {
        self.inner.forget_rail(rail);
    }

    fn open(&mut self, lane: LaneId, epoch: Epoch, by: Instant) {
        self.inner.open(lane, epoch, by);
    }

    fn post(&mut self, batch: &PostBatch) -> Posted {
        self.inner.post(batch)
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, scope: Scope) {
        self.inner.fence(lane, epoch, scope);
    }

    fn close(&mut self, lane: LaneId, epoch: Epoch) {
        self.inner.close(lane, epoch);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn arm(&mut self) {
        self.inner.arm();
    }

    fn announce(&mut self, spinning: bool) {
        self.inner.announce(spinning);
    }

    fn waits(&self) -> Waits {
        self.inner.waits()
    }
}
