//! The edge between the engine and what moves bytes.
//!
//! A transport has two halves. [`Endpoint`] is the initiator's: one belongs to one worker, posts what core
//! decided and reports facts. The rest of [`Transport`] is the target's: it admits inbound lanes, carries
//! out the peer's one-sided operations on [`memory::Region`]s, and fences them when the peer asks.
//!
//! Neither half decides anything. [`fault::FaultProxy`] wraps an [`Endpoint`] to slow, cut or delay rails,
//! so that the engine under test is the shipped one.

pub mod acceptor;
pub mod clock;
pub mod complaint;
pub mod fault;
pub mod lanes;
pub mod mapping;
pub mod memory;
pub mod mishap;
pub mod numbered;
pub mod packets;
pub mod peek;
pub mod place;
pub mod processor;
pub mod service;
pub mod shares;
pub mod tally;
pub mod ticket;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::transport::Capabilities;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef, TransportId};
use polyrail_core::work::{Completion, LaneFact, PostBatch, Posted, Scope, Work};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::clock::Clock;
use crate::memory::{Region, RegionKey, TrustDomain};
use crate::ticket::{LaneKeys, SessionSecret};

/// A session between two engines, drawn at random by the target. Knowing it is what lets a lane in, unless the session
/// has a [`SessionSecret`]: then it is a name, and no secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 16]);

impl fmt::Debug for SessionId {
    /// Two bytes are enough to tell sessions apart in a log, and too few to join one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {:02x}{:02x}…", self.0[0], self.0[1])
    }
}

/// Where a rail runs, as an endpoint needs it to open a lane.
#[derive(Clone, Debug)]
pub struct RailAddress {
    /// The transport that the rail belongs to, in its engine's numbers.
    pub transport: TransportId,
    /// Local address to bind to; `None` lets the kernel choose.
    pub local: Option<IpAddr>,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The session that lanes on it join.
    pub session: SessionId,
    /// What they prove themselves with, and have the peer prove itself, if the engines have a cluster key.
    pub secret: Option<SessionSecret>,
    /// Where the peer's transport itself is, as its [`Transport::address`] says.
    pub own: Arc<[u8]>,
}

/// A peer's segment, as an endpoint needs it to name bytes of it.
#[derive(Clone, Debug)]
pub struct RemoteRegion {
    /// The key that the peer drew when it registered the memory.
    pub key: RegionKey,
    /// Its size in bytes.
    pub bytes: u64,
}

/// What an endpoint reports besides completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneReport {
    /// Which lane.
    pub lane: LaneId,
    /// Its epoch.
    pub epoch: Epoch,
    /// What about it.
    pub fact: LaneFact,
}

/// Where [`Endpoint::poll`] puts what it found. Reused from call to call, so nothing is allocated once
/// the vectors have grown.
#[derive(Debug, Default)]
pub struct Polled {
    /// Completions, in the order in which they were seen.
    pub completions: Vec<Completion>,
    /// Facts about lanes. Those that stem from one lane are in order with each other; hand completions
    /// in first.
    pub lanes: Vec<LaneReport>,
    /// What [`Endpoint::make_visible`] was given: it holds now.
    pub visible: Vec<u64>,
    /// Lanes' epochs that have ended here, and that the peer is to be asked to end too: what they have written can be seen then.
    /// [`Endpoint::arrived`] hears the answer.
    pub fences: Vec<(LaneId, Epoch)>,
}

/// What an endpoint waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Waits {
    /// No work.
    Nothing,
    /// Works that take longer than anybody should spin.
    Long,
    /// Works that may be done any moment, or it does not say.
    Short,
    /// Works that the peer is at, awake, but on this processor: it goes on once it is let.
    Here,
    /// Works that the peer is at, awake and on another processor of this host. It would have to wake who sleeps, which
    /// takes longer than many a work, and has a processor to itself as long as who waits here spins.
    Near,
    /// Works that a device is at, which wakes nobody: who sleeps looks too late. They have begun a short time ago.
    Device,
}

/// The initiator's half of a transport, owned by one worker. No call blocks.
pub trait Endpoint: Send {
    /// Names a local segment, before any work refers to it. The endpoint drops its reference in
    /// [`Self::detach_local`].
    fn attach_local(&mut self, segment: SegmentRef, region: Arc<Region>);

    /// Forgets a local segment. Works that still name it fail.
    fn detach_local(&mut self, segment: SegmentRef);

    /// Names a segment of a peer, before any work refers to it. Naming it again replaces it.
    fn attach_remote(&mut self, segment: SegmentRef, region: RemoteRegion);

    /// Says where a rail runs, before a lane is opened on it. Saying it again replaces it for lanes
    /// opened later.
    fn attach_rail(&mut self, rail: RailId, address: RailAddress);

    /// An address of this host is gone, or there (again): lanes that start at it break at once, and none is opened until it is
    /// there; paused rails are then worth a look. Endpoints that hear of their devices in other ways need not listen.
    fn set_there(&mut self, address: IpAddr, is_there: bool) {
        let _ = (address, is_there);
    }

    /// A rail is withdrawn, or used again: its lanes break at once, and none is opened until it is used. For endpoints that are
    /// made of others; those that are not are not asked to open such lanes.
    fn set_used(&mut self, rail: RailId, is_used: bool) {
        let _ = (rail, is_used);
    }

    /// Forgets a segment of a peer that was given up. No work names it any more.
    fn detach_remote(&mut self, _segment: SegmentRef) {}

    /// Forgets a rail to a peer that was given up. Its lanes are closed, and their epochs are not used again
    /// when the number means another rail.
    fn forget_rail(&mut self, _rail: RailId) {}

    /// Starts to open a lane. Ends in [`LaneFact::Opened`] or [`LaneFact::OpenFailed`], the latter at
    /// `by` at the latest.
    fn open(&mut self, lane: LaneId, epoch: Epoch, by: Instant);

    /// Takes works. They are carried out in order; each ends in one completion, unless the lane breaks.
    fn post(&mut self, batch: &PostBatch) -> Posted;

    /// Carries works out, whole and all of them, if that takes nothing but copying by this thread. `false`: it takes more, or
    /// something went wrong. Then they may have been carried out in part, nothing has been said of that, and they are to be
    /// posted.
    fn carry_at_once(&mut self, now: Instant, lane: LaneId, epoch: Epoch, works: &[Work]) -> bool {
        let _ = (now, lane, epoch, works);
        false
    }

    /// Moves what can be moved and appends what happened to `out`. Bounded work.
    fn poll(&mut self, now: Instant, out: &mut Polled);

    /// Ends a lane's epoch on this side and answers with [`LaneFact::Fenced`] of `scope` (in a later
    /// [`Self::poll`]). After [`Scope::Local`] the endpoint touches no memory for it any more. A fence of
    /// an epoch that is already over is answered again.
    fn fence(&mut self, lane: LaneId, epoch: Epoch, scope: Scope);

    /// The peer has answered the fence of a lane's epoch with `told`. How many of its works have arrived whole, in the order of
    /// posting. Most targets count works, and tell just that.
    fn arrived(&mut self, lane: LaneId, epoch: Epoch, told: u32) -> u32 {
        let _ = (lane, epoch);
        told
    }

    /// Closes a lane that has nothing posted, or gives up opening it. Answers nothing.
    fn close(&mut self, lane: LaneId, epoch: Epoch);

    /// A descriptor that polls readable when [`Self::poll`] has something to do, from [`Self::arm`] to the next call
    /// of something else.
    fn fd(&self) -> BorrowedFd<'_>;

    /// When [`Self::poll`] has something to do although the descriptor says nothing. Whoever is going to sleep on the
    /// descriptor asks this first: from then on it tells of everything, until the next [`Self::poll`].
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Whoever drives this endpoint is going to sleep on [`Self::fd`].
    ///
    /// One that finds what comes by looking need not have the kernel tell the descriptor each time.
    fn arm(&mut self) {}

    /// Says whether whoever drives this endpoint spins now while it waits. A transport may tell the peer,
    /// so that both do the same.
    fn announce(&mut self, spinning: bool) {
        let _ = spinning;
    }

    /// Sees to it that everything that has completed in a session can be seen by the peer's program, and says `ticket`
    /// in a later [`Self::poll`], once that is proved. `false`: it can already, and nothing is said.
    fn make_visible(&mut self, session: SessionId, ticket: u64) -> bool {
        let _ = (session, ticket);
        false
    }

    /// What it waits for now.
    fn waits(&self) -> Waits {
        Waits::Short
    }

    /// Sleeps until [`Self::fd`] or `call` polls readable, so long at most. Whether `call` does. It may wake
    /// too early.
    ///
    /// One that sleeps on its own descriptors spares a detour, and the kernel wakes it more directly.
    fn sleep(&mut self, call: BorrowedFd<'_>, longest: Option<Duration>) -> io::Result<bool> {
        sleep(self.fd(), call, longest)
    }
}

/// Sleeps until one of two descriptors polls readable, so long at most. Whether `call` does.
pub fn sleep(
    fd: BorrowedFd<'_>,
    call: BorrowedFd<'_>,
    longest: Option<Duration>,
) -> io::Result<bool> {
    let mut waits = [fd, call].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match rustix::event::poll(&mut waits, longest.map(timespec).as_ref()) {
        Ok(_) => Ok(waits[1].revents().contains(PollFlags::IN)),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// How long [`until_ready`] leaves to a timer of whole milliseconds.
const LONG: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// What to tell `epoll_wait` in the place of `longest`. It counts in whole milliseconds, and rounds up: a shorter sleep is slept
/// here, until `epoll` has something, and it does not sleep any more.
pub fn until_ready(epoll: BorrowedFd<'_>, longest: Option<Timespec>) -> Option<Timespec> {
    let Some(short) = longest.filter(|longest| *longest < LONG && longest.tv_nsec > 0) else {
        return longest;
    };
    let mut waits = [PollFd::from_borrowed_fd(epoll, PollFlags::IN)];
    // If it fails, that sleeps no longer than it should, and says why.
    let _ = rustix::event::poll(&mut waits, Some(&short));
    Some(Timespec::default())
}

/// A span as the kernel takes it, an hour at most.
pub fn timespec(span: Duration) -> Timespec {
    let nanos = span.as_nanos().min(3_600_000_000_000);
    Timespec {
        tv_sec: (nanos / 1_000_000_000) as _,
        tv_nsec: (nanos % 1_000_000_000) as _,
    }
}

/// An inbound lane as the control plane accepted it: authenticated, not yet answered.
#[derive(Debug)]
pub struct InboundLane {
    /// The transport that it is of; `None`: it does not say, as those of TCP.
    pub transport: Option<String>,
    /// Whose.
    pub session: SessionId,
    /// The trust domain that the session is in: the lane reaches regions of this one only.
    pub domain: TrustDomain,
    /// The initiator's number for it.
    pub lane: LaneId,
    /// Its epoch. The transport refuses one that is not newer than the last fenced one, and than the last that it
    /// admitted.
    pub epoch: Epoch,
    /// The connection, non-blocking, with its greeting read and nothing else.
    pub stream: TcpStream,
    /// What the bytes of the lane are encrypted with from now on; `None`: they go in clear.
    pub keys: Option<LaneKeys>,
}

/// What is known of a rail before anything has moved on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prior {
    /// How fast its local device says it is.
    pub bits_per_sec: Option<u64>,
    /// No processor carries its bytes, so longer slices would spare none.
    pub carries_itself: bool,
    /// Where works can share a doorbell and a completion: for how long they may queue so that they do.
    pub batch_span: Duration,
}

/// Called when a fence holds, with the number of works of that epoch that were delivered whole, or with what
/// [`Endpoint::arrived`] makes it of.
pub type FenceAnswer = Box<dyn FnOnce(u32) + Send>;

/// Called when everything of a session has ended.
pub type RetireAnswer = Box<dyn FnOnce() + Send>;

/// A way to move bytes between two engines. Shared by all workers.
pub trait Transport: Send + Sync {
    /// What it is called in rail names, configuration and output. Transports of one name understand each
    /// other.
    fn name(&self) -> &'static str;

    /// What memory it can move bytes to and from, at either end.
    fn capabilities(&self) -> Capabilities;

    /// Whether no wire carries its bytes, so that there is nothing to encrypt.
    fn is_within_host(&self) -> bool {
        false
    }

    /// Whether it can encrypt the bytes of its lanes here: then it does where [`InboundLane::keys`] or the secret of a session
    /// says so. An error says why not, and keeps it out of sessions that ask for that.
    fn can_encrypt(&self) -> io::Result<()> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "it cannot encrypt",
        ))
    }

    /// Where it is reached itself, in its own words, at most 255 bytes; empty: at the addresses of the rails. One
    /// that has such an address has one rail to each peer and one device, whatever the network's are.
    fn address(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Asks a peer that has let this engine into `session` whether this transport reaches it at its
    /// [`Self::address`], and for what memory. May block for a moment. `Err`: it does not, and why.
    fn reach(
        &self,
        address: &[u8],
        session: SessionId,
        secret: Option<&SessionSecret>,
    ) -> Result<Capabilities, String> {
        let _ = (address, session, secret);
        Ok(self.capabilities())
    }

    /// Lets lanes of a session in that do not come through [`Self::admit`]. They reach regions of this trust domain
    /// only. If there is a secret, only those that prove themselves with it.
    fn begin_session(
        &self,
        session: SessionId,
        domain: TrustDomain,
        secret: Option<SessionSecret>,
    ) {
        let _ = (session, domain, secret);
    }

    /// Whether it has a device of this host where a rail to a peer starts: at this address, or where the kernel
    /// chooses. If not, it has no such rail.
    fn runs_at(&self, local: Option<IpAddr>, remote: SocketAddr) -> bool {
        let _ = (local, remote);
        true
    }

    /// Whether it has devices that may come while it runs: then it is asked for them every now and then.
    fn has_devices(&self) -> bool {
        false
    }

    /// Looks for devices that it did not have; `again`: also for those that could not be used when they were tried last. Whether it
    /// runs at more addresses than before.
    fn look_for_devices(&self, again: bool) -> bool {
        let _ = again;
        false
    }

    /// At which of an engine's addresses it can be reached, in its own words for [`Self::serves`] of peers, at most 255
    /// bytes; empty: at all of them. Not for transports that have an [`Self::address`].
    fn places(&self, rails: &[IpAddr]) -> Vec<u8> {
        let _ = rails;
        Vec::new()
    }

    /// Whether a peer whose transport says `places` can be reached at its rail in this position. Where it cannot, there
    /// is no rail, and nothing to probe.
    fn serves(&self, places: &[u8], rail: usize) -> bool {
        let _ = (places, rail);
        true
    }

    /// What is known of such a rail before anything has moved on it.
    fn prior(&self, local: Option<IpAddr>, remote: SocketAddr) -> Prior {
        let _ = (local, remote);
        Prior::default()
    }

    /// The initiator's half for one worker.
    fn endpoint(&self, worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>>;

    /// Takes over an inbound lane, answers its greeting and serves it until it ends. The caller has
    /// checked that the session exists.
    fn admit(&self, lane: InboundLane);

    /// Ends every inbound lane with this number up to this epoch, refuses such lanes from now on, and
    /// then answers: the last receive into memory on their behalf has returned.
    fn fence_inbound(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer);

    /// Ends everything of a session and forgets it. No lane of it is admitted any more: the caller has
    /// removed the session first, and calls this after the last [`Self::admit`] for it.
    fn retire_session(&self, session: SessionId, answer: RetireAnswer);
}
