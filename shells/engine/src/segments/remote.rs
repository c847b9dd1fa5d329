//! Segments of peers: which there are, by their names, and what became of those that have gone.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use polyrail_control::codec::SegmentDescriptor;
use polyrail_core::units::{PeerId, PlanId};

use super::segment::{RemoteSegment, RemoteSlots, Segment, SegmentId};
use super::{Segments, Tables};
use crate::error::{CloseError, SubmitError};
use crate::peers::Peer;
use crate::request::Request;

/// Segments of peers that have gone of themselves and are remembered, so that whoever still names one is told what became
/// of it.
const GONE_MAX: usize = 4096;
/// Segments that are kept although their names mean something else by now, until they are closed, while there is room.
const OUTDATED_MAX: usize = 1024;

/// The segments of peers.
#[derive(Debug, Default)]
pub(super) struct Remotes {
    /// What each name of a peer's means now, as far as it was opened.
    names: HashMap<(PeerId, String), SegmentId>,
    /// What names meant before, the oldest first. Requests to it fail at its owner, who says so.
    outdated: VecDeque<SegmentId>,
    /// Those to be closed once no request uses them: what a name meant long ago, and what was given up.
    leaving: Vec<SegmentId>,
    /// Those that have gone, the oldest first.
    gone: VecDeque<(SegmentId, Gone)>,
    /// Peers that are about to end, and where they are.
    peers_leaving: HashMap<PeerId, SocketAddr>,
}

/// Why a segment has gone that was not closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gone {
    /// With its peer, which was there.
    Lost(SocketAddr),
    /// It was given up, or its owner has had something else under that name for long.
    Closed,
}

impl Remotes {
    fn remember(&mut self, segments: impl Iterator<Item = SegmentId>, why: Gone) {
        self.gone.extend(segments.map(|id| (id, why)));
        let surplus = self.gone.len().saturating_sub(GONE_MAX);
        self.gone.drain(..surplus);
    }

    fn why_gone(&self, id: SegmentId) -> Option<Gone> {
        let mut gone = self.gone.iter().rev();
        gone.find(|(gone, _)| *gone == id).map(|(_, why)| *why)
    }
}

/// Segments that were taken out, and the plans that named them.
#[derive(Debug, Default)]
pub(crate) struct TakenOut {
    pub(crate) segments: Vec<SegmentId>,
    pub(crate) plans: Vec<PlanId>,
}

/// What opening a segment came to.
pub(crate) enum Opened {
    /// It is known.
    Known(SegmentId),
    /// It is new.
    New(SegmentId),
    /// There are as many segments as there can be.
    NoRoom,
}

/// There are as many segments as there can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoRoom;

impl Tables {
    fn remote(&self, id: SegmentId) -> Option<&Arc<RemoteSegment>> {
        match self.segments.get(&id)? {
            Segment::Remote(remote) => Some(remote),
            Segment::Local(_) | Segment::Device(..) => None,
        }
    }

    fn insert_remote(&mut self, segment: RemoteSegment) -> Result<SegmentId, NoRoom> {
        if self.segments.len() >= self.most {
            return Err(NoRoom);
        }
        let id = self.next_id();
        self.segments.insert(id, Segment::Remote(Arc::new(segment)));
        Ok(id)
    }

    /// Takes a segment of a peer out.
    fn take_remote(&mut self, id: SegmentId, out: &mut TakenOut) {
        let Some(Segment::Remote(remote)) = self.segments.remove(&id) else {
            return;
        };
        let name = (remote.peer, remote.descriptor.name.clone());
        if self.remotes.names.get(&name) == Some(&id) {
            self.remotes.names.remove(&name);
        }
        out.segments.push(id);
        out.plans.extend(self.plans.remove(id));
    }

    /// Takes out what is to be closed, unless requests use it.
    fn take_leaving(&mut self) -> TakenOut {
        let mut out = TakenOut::default();
        for id in std::mem::take(&mut self.remotes.leaving) {
            let Some(remote) = self.remote(id).cloned() else {
                continue;
            };
            let name = (remote.peer, remote.descriptor.name.clone());
            let is_current = self.remotes.names.get(&name) == Some(&id);
            if is_current && remote.opens.load(Acquire) > 0 {
                // Given up, and opened once more.
                continue;
            }
            // Whoever submits counts up while it holds the lock for reading, so 0 stays 0 here.
            match remote.requests.load(Acquire) > 0 {
                true => self.remotes.leaving.push(id),
                false => self.take_remote(id, &mut out),
            }
        }
        let taken = out.segments.iter().copied();
        self.remotes.remember(taken, Gone::Closed);
        out
    }

    /// A name is about to mean something else: takes out the plans of what it meant, and what others meant long ago.
    fn outdate(&mut self, name: &(PeerId, String)) -> TakenOut {
        let mut plans = Vec::new();
        if let Some(before) = self.remotes.names.remove(name) {
            // Whoever submits counts up while it holds the lock for reading, so 0 stays 0 here.
            let requests = |remote: &Arc<RemoteSegment>| remote.requests.load(Acquire);
            if self.remote(before).map(requests) == Some(0) {
                plans = self.plans.remove(before);
            }
            self.remotes.outdated.push_back(before);
        }
        let most = match self.segments.len() >= self.most {
            true => 0,
            false => OUTDATED_MAX,
        };
        let surplus = self.remotes.outdated.len().saturating_sub(most);
        let surplus = self.remotes.outdated.drain(..surplus);
        self.remotes.leaving.extend(surplus);
        let mut out = self.take_leaving();
        out.plans.append(&mut plans);
        out
    }

    pub(super) fn close(
        &mut self,
        segment: SegmentId,
        later: bool,
        out: &mut TakenOut,
    ) -> Result<(), CloseError> {
        if let Some(closed) = self.close_standing(segment, later, out) {
            return closed;
        }
        let remote = match self.segments.get(&segment) {
            Some(Segment::Remote(remote)) if !remote.is_file_here() => remote,
            Some(_) => return Err(CloseError::Own { segment }),
            // Nothing is left of it to be closed.
            None if self.remotes.why_gone(segment).is_some() => return Ok(()),
            None => return Err(CloseError::Stale { segment }),
        };
        if remote.opens.load(Acquire) > 1 {
            remote.opens.fetch_sub(1, AcqRel);
            return Ok(());
        }
        // Whoever submits counts up while it holds the lock for reading, so 0 stays 0 here.
        match (remote.requests.load(Acquire), later) {
            (0, _) => self.take_remote(segment, out),
            (_, true) => {
                remote.opens.store(0, Release);
                self.remotes.leaving.push(segment);
            }
            (requests, false) => return Err(CloseError::InUse { requests }),
        }
        Ok(())
    }
}

impl Segments {
    /// Notes bytes of a file of this host.
    pub(crate) fn add_file(
        &self,
        disk: PeerId,
        descriptor: SegmentDescriptor,
    ) -> Result<SegmentId, NoRoom> {
        self.write(|tables| {
            tables.insert_remote(RemoteSegment {
                peer: disk,
                descriptor,
                is_file_here: true,
                requests: AtomicU64::new(0),
                opens: AtomicU64::new(0),
                slots: None,
            })
        })
    }

    /// Opens a segment of a peer once more, or for the first time; then what had its name before goes. Only while nobody
    /// else does.
    pub(crate) fn open_remote(
        &self,
        peer: PeerId,
        descriptor: SegmentDescriptor,
        slots: Option<RemoteSlots>,
    ) -> (Opened, TakenOut) {
        let name = (peer, descriptor.name.clone());
        let known = |tables: &Tables| {
            let id = *tables.remotes.names.get(&name)?;
            let remote = tables.remote(id)?;
            let own = &remote.descriptor;
            // Whoever was told before somebody else was has been told what is not so any more.
            let is_it = own.is_of(&descriptor) || own.generation > descriptor.generation;
            is_it.then(|| {
                remote.opens.fetch_add(1, AcqRel);
                Opened::Known(id)
            })
        };
        if let Some(known) = self.read(known) {
            return (known, TakenOut::default());
        }
        self.write(|tables| {
            let outdated = tables.outdate(&name);
            let inserted = tables.insert_remote(RemoteSegment {
                peer,
                descriptor,
                is_file_here: false,
                requests: AtomicU64::new(0),
                opens: AtomicU64::new(1),
                slots,
            });
            let opened = match inserted {
                Ok(id) => {
                    tables.remotes.names.insert(name, id);
                    Opened::New(id)
                }
                Err(NoRoom) => Opened::NoRoom,
            };
            (opened, outdated)
        })
    }

    /// Closes a segment of a peer once. The last time it is taken out, with others that were to be closed. If requests use
    /// it, that is an error, or it is closed `later`.
    pub(crate) fn close_remote(
        &self,
        id: SegmentId,
        later: bool,
    ) -> (Result<(), CloseError>, TakenOut) {
        self.write(|tables| {
            let mut out = tables.take_leaving();
            (tables.close(id, later, &mut out), out)
        })
    }

    /// Forgets a peer's segment that nothing was done with.
    pub(crate) fn remove_remote(&self, id: SegmentId) {
        self.write(|tables| tables.take_remote(id, &mut TakenOut::default()));
    }

    /// Takes out everything of a peer that is lost: its segments, and the plans that named them. `remove` takes the peer itself
    /// out. Nobody sees the one without the other, so that who names a segment hears that it was lost. `None`: there is no such
    /// peer, or requests use its segments, and it was to be done `only_if_idle`.
    pub(crate) fn remove_peer(
        &self,
        id: PeerId,
        only_if_idle: bool,
        remove: impl FnOnce() -> Option<Peer>,
    ) -> Option<(Peer, TakenOut)> {
        self.write(|tables| {
            // Whoever submits counts up while it holds the lock for reading, so 0 stays 0 here.
            if only_if_idle && tables.requests_with(id) > 0 {
                return None;
            }
            let peer = remove()?;
            let is_of_peer = |(id, segment): (&SegmentId, &Segment)| match segment {
                Segment::Remote(remote) => (remote.peer == peer.id).then_some(*id),
                Segment::Local(_) | Segment::Device(..) => None,
            };
            let own: Vec<_> = tables.segments.iter().filter_map(is_of_peer).collect();
            let mut out = TakenOut::default();
            for id in own {
                tables.take_remote(id, &mut out);
            }
            tables.remotes.peers_leaving.remove(&peer.id);
            let is_any = !tables.remotes.peers_leaving.is_empty();
            self.any_leaving.store(is_any, Release);
            let taken = out.segments.iter().copied();
            tables.remotes.remember(taken, Gone::Lost(peer.dialed));
            Some((peer, out))
        })
    }

    /// Nothing more begins with a peer, which is there. `false`: that is so already.
    pub(crate) fn set_leaving(&self, peer: PeerId, address: SocketAddr) -> bool {
        self.write(|tables| {
            let is_new = tables.remotes.peers_leaving.insert(peer, address).is_none();
            self.any_leaving.store(true, Release);
            is_new
        })
    }

    /// Whether a peer is about to end.
    pub(crate) fn is_leaving(&self, peer: PeerId) -> bool {
        self.any_leaving.load(Acquire)
            && self.read(|tables| tables.remotes.peers_leaving.contains_key(&peer))
    }

    /// An error if one of these requests is to a peer that is about to end.
    pub(crate) fn check_leaving(&self, requests: &[Request]) -> Result<(), SubmitError> {
        if !self.any_leaving.load(Acquire) {
            return Ok(());
        }
        self.read(|tables| {
            for (index, request) in requests.iter().enumerate() {
                let segment = request.remote;
                let peer = tables.remote(segment).map(|remote| remote.peer);
                let leaving = peer.and_then(|peer| tables.remotes.peers_leaving.get(&peer));
                if let Some(peer) = leaving.copied() {
                    return Err(SubmitError::PeerLost {
                        index,
                        segment,
                        peer,
                    });
                }
            }
            Ok(())
        })
    }

    /// Where the peer was that had this segment, if it was lost not too long ago.
    pub(crate) fn lost(&self, id: SegmentId) -> Option<SocketAddr> {
        self.read(|tables| tables.lost(id))
    }

    /// Why a request cannot name a segment that is not there.
    pub(crate) fn missing(&self, index: usize, segment: SegmentId) -> SubmitError {
        self.read(|tables| tables.missing(index, segment))
    }
}

impl Tables {
    /// Requests that use a peer's segments and have not ended.
    fn requests_with(&self, peer: PeerId) -> u64 {
        let requests = |segment: &Segment| match segment {
            Segment::Remote(remote) if remote.peer == peer => remote.requests.load(Acquire),
            _ => 0,
        };
        self.segments.values().map(requests).sum()
    }

    fn lost(&self, id: SegmentId) -> Option<SocketAddr> {
        match self.remotes.why_gone(id)? {
            Gone::Lost(peer) => Some(peer),
            Gone::Closed => None,
        }
    }

    /// See [`Segments::missing`].
    pub(super) fn missing(&self, index: usize, segment: SegmentId) -> SubmitError {
        match self.lost(segment) {
            Some(peer) => SubmitError::PeerLost {
                index,
                segment,
                peer,
            },
            None => SubmitError::Stale { index, segment },
        }
    }
}
