//! Segments of peers: how they are found by their names.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use polyrail_control::codec::{SegmentDescriptor, SegmentKind};
use polyrail_control::plane::{AskError, SessionLoss};
use polyrail_core::units::PeerId;
use polyrail_transport::RemoteRegion;

use crate::engine::Engine;
use crate::error::{CloseError, OpenError};
use crate::lock::lock;
use crate::post::Command;
use crate::segments::{Opened, RemoteSlots, SegmentId, SlotMemory, TakenOut};
use crate::staging::{IN, OUT, pool_name};

/// How long a peer may take to describe a segment.
pub(crate) const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(3);

/// The first pause before a peer is tried again; doubles.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How a segment of a peer is opened, beyond its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenTerms {
    /// How long to try again, with pauses that grow from 10 ms to 1 s, until the peer is there and has the segment. What waiting
    /// cannot mend is an error at once. `None`: one try.
    pub within: Option<Duration>,
    /// The id follows its name: when the peer is lost and a process serves the segment at its address again, the id leads
    /// there, and so do [prepared transfers](crate::PreparedTransfer) that name it.
    ///
    /// What was submitted before goes to the old process only, and ends as without this. While the peer is away, submissions
    /// are refused as [`SubmitError::PeerLost`](crate::SubmitError::PeerLost). What the new segment allows and how long it is
    /// is checked in each submission. [`Engine::peer_events`] tells when it goes on. A segment that a peer takes back and
    /// registers anew while it lives is not followed.
    pub standing: bool,
}

/// When nobody waits for a peer any more.
#[derive(Clone, Copy)]
pub(crate) struct Until(Option<Instant>);

impl Until {
    /// One try takes as long as it takes.
    pub(crate) fn never() -> Self {
        Self(None)
    }

    /// What is left, but `most` at most.
    pub(crate) fn within(self, most: Duration) -> Duration {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        self.0.map_or(most, |until| {
            left(until).clamp(Duration::from_millis(1), most)
        })
    }
}

/// Pauses between tries, each twice as long as the one before.
pub(crate) struct Pauses {
    next: Duration,
    most: Duration,
}

impl Pauses {
    pub(crate) fn new(most: Duration) -> Self {
        let next = PAUSE_MIN;
        Self { next, most }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let longer = (self.next * 2).min(self.most);
        std::mem::replace(&mut self.next, longer)
    }
}

impl Engine {
    /// Opens a segment of a peer, named `HOST:PORT/SEGMENT`. Makes a session with the peer if there is none.
    /// Opening it again gives the same id while it is the same memory.
    ///
    /// Example: [guide](crate::guide#segments-of-peers).
    pub fn open_segment(&self, address: &str) -> Result<SegmentId, OpenError> {
        self.open_segment_with(address, &OpenTerms::default())
    }

    /// The same on other terms: until the peer is there, or to be followed when its process is started anew.
    ///
    /// Example: [guide](crate::guide#peers-that-come-and-go).
    pub fn open_segment_with(
        &self,
        address: &str,
        terms: &OpenTerms,
    ) -> Result<SegmentId, OpenError> {
        let (owner, segment) = self.open_within(address, terms.within)?;
        if !terms.standing {
            return Ok(segment);
        }
        let stood = self.inner.segments.stand(address, owner, segment);
        let Ok((standing, surplus)) = stood else {
            let _ = self.close_remote(segment, true);
            return Err(OpenError::Full(self.inner.segments.limit()));
        };
        if let Some(surplus) = surplus {
            let _ = self.close_remote(surplus, true);
        }
        // Its owner may have been lost before it stood.
        self.follow_away();
        Ok(standing)
    }

    /// Tries until it is open: where, and what.
    fn open_within(
        &self,
        address: &str,
        within: Option<Duration>,
    ) -> Result<(SocketAddr, SegmentId), OpenError> {
        let began = Instant::now();
        let until = Until(within.and_then(|within| began.checked_add(within)));
        let mut pauses = Pauses::new(PAUSE_MAX);
        let mut tries = 0;
        loop {
            tries += 1;
            let last = match self.open_once(address, until) {
                Err(error) if error.may_pass() => error,
                opened => return opened,
            };
            let Some(within) = within else {
                return Err(last);
            };
            let pause = pauses.next();
            if began.elapsed() + pause >= within {
                return Err(OpenError::NotInTime {
                    within,
                    tries,
                    last: Box::new(last),
                });
            }
            std::thread::sleep(pause);
        }
    }

    /// Tries once.
    pub(crate) fn open_once(
        &self,
        address: &str,
        until: Until,
    ) -> Result<(SocketAddr, SegmentId), OpenError> {
        if !self.inner.is_ours() {
            return Err(OpenError::Forked);
        }
        let (host, name) = split_address(address)?;
        let remote = resolve(host)?;
        let inner = &self.inner;
        if self.takes_nothing() {
            return Err(OpenError::ShutDown);
        }
        let describe = |peer: PeerId| {
            let timeout = until.within(DESCRIBE_TIMEOUT);
            inner.sessions.plane.describe(peer, name, timeout)
        };
        let mut peer = self.peer_at(remote, until)?;
        if inner.segments.is_leaving(peer.id) {
            return Err(OpenError::Leaving { peer: remote });
        }
        let mut described = describe(peer.id);
        match &described {
            // It has forgotten us, or was given up meanwhile.
            Err(
                AskError::SessionLost(SessionLoss::Forgotten { .. })
                | AskError::NoPeer { .. }
                | AskError::Disconnected { .. },
            ) => {
                self.reconnect(peer.id, peer.incarnation)
                    .map_err(OpenError::Connect)?;
                peer = self.peer_at(remote, until)?;
                described = describe(peer.id);
            }
            // It has ended, or another process answers there now.
            Err(AskError::SessionLost(_)) => {
                self.lose_peer(peer.id, peer.incarnation);
                peer = self.peer_at(remote, until)?;
                described = describe(peer.id);
            }
            _ => {}
        }
        let descriptor =
            described
                .map_err(OpenError::Ask)?
                .ok_or_else(|| OpenError::NoSuchSegment {
                    peer: remote,
                    name: name.into(),
                })?;
        let slots = match descriptor.kind {
            SegmentKind::File { .. } => Some(self.slots_of(peer.id, remote)?),
            SegmentKind::Memory | SegmentKind::Slots { .. } => None,
        };
        let id = self.add_segment(peer.id, descriptor, slots)?;
        // It may have been lost meanwhile, and its number be another's soon.
        let known = lock(&inner.sessions.peers)
            .get(peer.id)
            .map(|peer| peer.incarnation);
        if known != Some(peer.incarnation) {
            inner.segments.remove_remote(id);
            self.inner
                .workers
                .tell(|| Command::DetachRemote(id.segment_ref()));
            return Err(OpenError::PeerLost { peer: remote });
        }
        Ok((remote, id))
    }

    /// The slots of a peer that offers files.
    fn slots_of(&self, peer: PeerId, address: SocketAddr) -> Result<RemoteSlots, OpenError> {
        let of = |pool| {
            let asked = self
                .inner
                .sessions
                .plane
                .describe(peer, pool_name(pool), DESCRIBE_TIMEOUT);
            let memory = asked.map_err(OpenError::Ask)?;
            let none = OpenError::NoSlots { peer: address };
            let Some(memory) = memory else {
                return Err(none);
            };
            let SegmentKind::Slots { bytes: slot_bytes } = memory.kind else {
                return Err(none);
            };
            let slots = memory.bytes.checked_div(slot_bytes.into());
            let slots = slots.and_then(|slots| u32::try_from(slots).ok());
            let Some(slots) = slots.filter(|slots| *slots > 0) else {
                return Err(none);
            };
            Ok(SlotMemory {
                segment: self.add_segment(peer, memory, None)?,
                slot_bytes,
                slots,
            })
        };
        Ok(RemoteSlots([of(IN)?, of(OUT)?]))
    }

    /// Makes a peer's segment known, if it is not.
    pub(crate) fn add_segment(
        &self,
        peer: PeerId,
        descriptor: SegmentDescriptor,
        slots: Option<RemoteSlots>,
    ) -> Result<SegmentId, OpenError> {
        let segments = &self.inner.segments;
        let _opening = lock(&self.inner.sessions.opening);
        let region = RemoteRegion {
            key: descriptor.key,
            bytes: descriptor.bytes,
        };
        let (opened, outdated) = segments.open_remote(peer, descriptor, slots);
        self.let_go(outdated);
        match opened {
            Opened::Known(id) => Ok(id),
            Opened::New(id) => {
                self.inner
                    .workers
                    .tell(|| Command::AttachRemote(id.segment_ref(), region.clone()));
                Ok(id)
            }
            Opened::NoRoom => Err(OpenError::Full(segments.limit())),
        }
    }

    /// Closes a segment of a peer that [`Self::open_segment`] has opened: it and its name here are not in the way of others
    /// any more, and what this engine maps of it is unmapped. Its owner keeps its memory. One that was opened several times
    /// under the same id is to be closed as often.
    ///
    /// `InUse` while requests that use it have not ended: wait for them, or cancel them, and try again. Afterwards the
    /// id means nothing, and is never used again: requests that name it are refused.
    ///
    /// Segments of a peer that is lost are closed already, and so may those be whose name has been opened anew since its owner
    /// has something else under it. To close them is right, and does nothing.
    ///
    /// Example: [guide](crate::guide#segments-of-peers).
    pub fn close_segment(&self, segment: SegmentId) -> Result<(), CloseError> {
        if !self.inner.is_ours() {
            return Err(CloseError::Forked);
        }
        self.close_remote(segment, false)
    }

    /// The same for whoever cannot wait for requests that use the segment: it is closed once they have ended, when another
    /// segment of a peer is opened or closed.
    ///
    /// Example: [guide](crate::guide#segments-of-peers).
    pub fn close_segment_later(&self, segment: SegmentId) -> Result<(), CloseError> {
        if !self.inner.is_ours() {
            return Err(CloseError::Forked);
        }
        self.close_remote(segment, true)
    }

    pub(crate) fn close_remote(&self, segment: SegmentId, later: bool) -> Result<(), CloseError> {
        let (closed, taken_out) = self.inner.segments.close_remote(segment, later);
        self.let_go(taken_out);
        closed
    }

    /// No request uses these segments, and nobody finds them any more.
    fn let_go(&self, TakenOut { segments, plans }: TakenOut) {
        self.retire_plans(plans);
        for segment in segments {
            self.inner
                .workers
                .tell(|| Command::DetachRemote(segment.segment_ref()));
        }
    }
}

/// `HOST:PORT/SEGMENT` in its two parts.
fn split_address(text: &str) -> Result<(&str, &str), OpenError> {
    let bad = || OpenError::BadAddress { text: text.into() };
    let (host, name) = text.split_once('/').ok_or_else(bad)?;
    let (name_of_host, port) = host.rsplit_once(':').ok_or_else(bad)?;
    if name.is_empty() || name_of_host.is_empty() || port.parse::<u16>().is_err() {
        return Err(bad());
    }
    Ok((host, name))
}

pub(crate) fn resolve(host: &str) -> Result<SocketAddr, OpenError> {
    let unresolved = |source| OpenError::Unresolved {
        host: host.into(),
        source,
    };
    let no_address = || std::io::Error::other("the name has no address");
    let mut addresses = host.to_socket_addrs().map_err(unresolved)?;
    addresses.next().ok_or_else(no_address).map_err(unresolved)
}
