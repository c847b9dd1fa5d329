//! Segments: registered memory here, described memory there, and the pairs that requests have used.

mod hold;
mod pairs;
mod segment;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, PoisonError, RwLock};

use polyrail_control::codec::{SegmentDescriptor, SegmentKind};
use polyrail_core::units::{PeerId, PlanId};
use polyrail_core::work::Op;
use polyrail_transport::memory::{Access, Region, RegionKey, RegionTable, TrustDomain};
use polyrail_transport::numbered::Numbered;

use crate::error::{RegisterError, SubmitError};

pub(crate) use hold::Holds;
pub(crate) use pairs::{KnownPair, NoPlan, Pairs};
pub use segment::SegmentId;
pub(crate) use segment::{LocalSegment, RemoteSegment, RemoteSlots, Segment, SlotMemory};

/// Segments that one engine can know at a time, its own and its peers'.
pub(crate) const SEGMENTS_MAX: usize = 1 << 16;
/// Segments of lost peers that are remembered, so that whoever still names one is told what became of it.
const LOST_MAX: usize = 4096;
/// The name of the memory that probes use. Cannot be registered: it has a control character.
pub(crate) const SCRATCH_NAME: &str = "\u{1}scratch";

/// A file's segment that was taken out, and the plans that named it.
pub(crate) type Removed = (Arc<RemoteSegment>, Vec<PlanId>);

#[derive(Debug, Default)]
struct Tables {
    segments: Numbered<SegmentId, Segment>,
    names: HashMap<String, SegmentId>,
    keys: Numbered<RegionKey, SegmentId>,
    /// Files that peers may use, as they are told of them.
    offers: Numbered<SegmentId, SegmentDescriptor>,
    plans: Numbered<(SegmentId, SegmentId), PlanId>,
    /// Segments of peers that were lost, the oldest first, and where the peers were.
    lost: VecDeque<(SegmentId, SocketAddr)>,
    last: u32,
    generation: u64,
}

impl Tables {
    fn next_id(&mut self) -> SegmentId {
        self.last = self.last.wrapping_add(1).max(1);
        SegmentId(self.last)
    }
}

/// All segments of an engine.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    tables: RwLock<Tables>,
}

impl Segments {
    fn read<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        look(&self.tables.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut Tables) -> T) -> T {
        change(&mut self.tables.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers memory of this process under a name, for peers of a trust domain, or of all.
    pub(crate) fn add_local(
        &self,
        name: &str,
        region: Region,
        kind: SegmentKind,
        domain: Option<TrustDomain>,
    ) -> Result<SegmentId, RegisterError> {
        self.add_own(name, region, kind, None, domain)
    }

    /// Registers memory of a GPU of this host, which is a peer to core.
    pub(crate) fn add_device(
        &self,
        name: &str,
        region: Region,
        gpu: PeerId,
    ) -> Result<SegmentId, RegisterError> {
        let domain = Some(TrustDomain::COMMON);
        self.add_own(name, region, SegmentKind::Memory, Some(gpu), domain)
    }

    fn add_own(
        &self,
        name: &str,
        region: Region,
        kind: SegmentKind,
        gpu: Option<PeerId>,
        domain: Option<TrustDomain>,
    ) -> Result<SegmentId, RegisterError> {
        self.write(|tables| {
            if tables.names.contains_key(name) {
                return Err(RegisterError::NameTaken { name: name.into() });
            }
            if tables.segments.len() >= SEGMENTS_MAX {
                return Err(RegisterError::Full {
                    limit: SEGMENTS_MAX,
                });
            }
            let id = tables.next_id();
            tables.generation += 1;
            tables.keys.insert(region.key(), id);
            tables.names.insert(name.into(), id);
            let far = gpu.map(|peer| RemoteSegment {
                peer,
                descriptor: SegmentDescriptor {
                    name: name.into(),
                    generation: tables.generation,
                    bytes: region.bytes(),
                    key: region.key(),
                    // What peers may do is not what this engine may.
                    access: Access::RemoteReadWrite,
                    memory: region.memory(),
                    kind,
                    numa_node: None,
                },
                requests: None,
                slots: None,
            });
            let near = Arc::new(LocalSegment {
                name: name.into(),
                region: Arc::new(region),
                // Peers that cannot reach it are staged to it by its number, like to a file.
                kind: match gpu {
                    Some(_) => SegmentKind::File { number: id.0 },
                    None => kind,
                },
                domain,
                generation: tables.generation,
                requests: AtomicU64::new(0),
            });
            let segment = match far {
                Some(far) => Segment::Device(near, Arc::new(far)),
                None => Segment::Local(near),
            };
            tables.segments.insert(id, segment);
            Ok(id)
        })
    }

    /// Notes a peer's segment; `None`: no room.
    pub(crate) fn add_remote(
        &self,
        peer: PeerId,
        descriptor: SegmentDescriptor,
        is_file: bool,
        slots: Option<RemoteSlots>,
    ) -> Option<SegmentId> {
        self.write(|tables| {
            if tables.segments.len() >= SEGMENTS_MAX {
                return None;
            }
            let id = tables.next_id();
            let segment = RemoteSegment {
                peer,
                descriptor,
                requests: is_file.then(AtomicU64::default),
                slots,
            };
            tables
                .segments
                .insert(id, Segment::Remote(Arc::new(segment)));
            Some(id)
        })
    }

    /// Lets peers use a file under a name.
    pub(crate) fn offer(
        &self,
        id: SegmentId,
        name: &str,
        access: Access,
    ) -> Result<(), RegisterError> {
        self.write(|tables| {
            let stale = RegisterError::Stale { segment: id };
            let Some(Segment::Remote(file)) = tables.segments.get(&id).cloned() else {
                return Err(stale);
            };
            if !file.is_file_here() || file.descriptor.name == SCRATCH_NAME {
                return Err(stale);
            }
            if tables.names.contains_key(name) {
                return Err(RegisterError::NameTaken { name: name.into() });
            }
            tables.generation += 1;
            let offer = SegmentDescriptor {
                name: name.into(),
                generation: tables.generation,
                access,
                kind: SegmentKind::File { number: id.0 },
                ..file.descriptor.clone()
            };
            if let Some(before) = tables.offers.insert(id, offer) {
                tables.names.remove(&before.name);
            }
            tables.names.insert(name.into(), id);
            Ok(())
        })
    }

    /// Whether a peer may read or write a file, or memory of a GPU, of this number.
    pub(crate) fn is_offered(&self, number: u32, op: Op) -> bool {
        let id = SegmentId(number);
        if let Some(Segment::Device(memory, _)) = self.get(id) {
            return memory.region.access().allows(op);
        }
        let offer = self.read(|tables| tables.offers.get(&id).cloned());
        offer.is_some_and(|offer| offer.access.allows(op))
    }

    /// Whether it is a file's.
    pub(crate) fn is_file(&self, id: SegmentId) -> bool {
        self.remote(id).is_some_and(|remote| remote.is_file_here())
    }

    /// Takes a file's segment out, unless requests use it: with the plans that named it.
    pub(crate) fn remove_file(&self, id: SegmentId) -> Result<Removed, RegisterError> {
        self.write(|tables| {
            let stale = RegisterError::Stale { segment: id };
            let Some(Segment::Remote(file)) = tables.segments.get(&id).cloned() else {
                return Err(stale);
            };
            // Whoever submits counts up while it holds the lock for reading, so 0 stays 0 here.
            let requests = file.requests.as_ref().ok_or(stale)?.load(Acquire);
            if requests > 0 {
                return Err(RegisterError::InUse { requests });
            }
            tables.segments.remove(&id);
            if let Some(offer) = tables.offers.remove(&id) {
                tables.names.remove(&offer.name);
            }
            let plans = tables.plans.extract_if(|(_, to), _| *to == id);
            let plans = plans.map(|(_, plan)| plan).collect();
            Ok((file, plans))
        })
    }

    /// The segment of this peer, name and key, if it has been opened already.
    pub(crate) fn find_remote(
        &self,
        peer: PeerId,
        descriptor: &SegmentDescriptor,
    ) -> Option<SegmentId> {
        self.read(|tables| {
            tables
                .segments
                .iter()
                .find_map(|(id, segment)| match segment {
                    Segment::Remote(remote)
                        if remote.peer == peer && remote.descriptor.is_of(descriptor) =>
                    {
                        Some(*id)
                    }
                    Segment::Remote(_) | Segment::Local(_) | Segment::Device(..) => None,
                })
        })
    }

    pub(crate) fn get(&self, id: SegmentId) -> Option<Segment> {
        self.read(|tables| tables.segments.get(&id).cloned())
    }

    pub(crate) fn local(&self, id: SegmentId) -> Option<Arc<LocalSegment>> {
        match self.get(id)? {
            Segment::Local(local) | Segment::Device(local, _) => Some(local),
            Segment::Remote(_) => None,
        }
    }

    pub(crate) fn remote(&self, id: SegmentId) -> Option<Arc<RemoteSegment>> {
        match self.get(id)? {
            Segment::Remote(remote) | Segment::Device(_, remote) => Some(remote),
            Segment::Local(_) => None,
        }
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<SegmentId> {
        self.read(|tables| tables.names.get(name).copied())
    }

    /// What peers of a trust domain may know of a segment; `None`: there is none that they may see.
    pub(crate) fn describe(
        &self,
        name: &str,
        domain: TrustDomain,
        node: impl FnOnce(&Region) -> Option<u16>,
    ) -> Option<SegmentDescriptor> {
        let id = self.by_name(name)?;
        if let Some(file) = self.read(|tables| tables.offers.get(&id).cloned()) {
            // What is offered passes through slots, which are for the common domain.
            return (domain == TrustDomain::COMMON).then_some(file);
        }
        let local = self.local(id)?;
        let region = &local.region;
        let may = region.access().allows_remote_read() && local.is_for(domain);
        may.then(|| SegmentDescriptor {
            name: local.name.clone(),
            generation: local.generation,
            bytes: region.bytes(),
            key: region.key(),
            access: region.access(),
            memory: region.memory(),
            kind: local.kind,
            numa_node: node(region),
        })
    }

    /// Takes a local segment out, unless requests use it: with the plans that named it.
    pub(crate) fn remove_local(
        &self,
        id: SegmentId,
        has_ended: bool,
    ) -> Result<(Arc<LocalSegment>, Vec<PlanId>), RegisterError> {
        self.write(|tables| {
            let Some(Segment::Local(local) | Segment::Device(local, _)) =
                tables.segments.get(&id).cloned()
            else {
                return Err(RegisterError::Stale { segment: id });
            };
            // Whoever submits counts up while it holds the lock for reading, so 0 stays 0 here.
            let requests = local.requests.load(Acquire);
            let is_free = has_ended && !local.region.is_touched();
            if requests > 0 && !is_free {
                return Err(RegisterError::InUse { requests });
            }
            tables.segments.remove(&id);
            tables.names.remove(&local.name);
            tables.keys.remove(&local.region.key());
            let retired = tables
                .plans
                .extract_if(|(from, to), _| *from == id || *to == id)
                .map(|(_, plan)| plan)
                .collect();
            Ok((local, retired))
        })
    }

    /// All memory of this process, with its names.
    pub(crate) fn regions(&self) -> Vec<(String, Arc<Region>)> {
        let own = |segment: &Segment| match segment {
            Segment::Local(local) | Segment::Device(local, _) => {
                Some((local.name.to_string(), local.region.clone()))
            }
            Segment::Remote(_) => None,
        };
        self.read(|tables| tables.segments.values().filter_map(own).collect())
    }

    /// Forgets a peer's segment that nothing was done with.
    pub(crate) fn remove_remote(&self, id: SegmentId) {
        self.write(|tables| {
            if let Some(Segment::Remote(_)) = tables.segments.get(&id) {
                tables.segments.remove(&id);
            }
        });
    }

    /// Takes out everything of a peer that is lost: its segments, and the plans that named them.
    pub(crate) fn remove_peer(
        &self,
        peer: PeerId,
        address: SocketAddr,
    ) -> (Vec<SegmentId>, Vec<PlanId>) {
        self.write(|tables| {
            let is_of_peer = |_: &SegmentId, segment: &mut Segment| match segment {
                Segment::Remote(remote) => remote.peer == peer,
                Segment::Local(_) | Segment::Device(..) => false,
            };
            let segments: Vec<_> = tables.segments.extract_if(is_of_peer).collect();
            let segments: Vec<_> = segments.into_iter().map(|(id, _)| id).collect();
            let plans = tables
                .plans
                .extract_if(|(_, to), _| segments.contains(to))
                .map(|(_, plan)| plan)
                .collect();
            tables.lost.extend(segments.iter().map(|id| (*id, address)));
            let surplus = tables.lost.len().saturating_sub(LOST_MAX);
            tables.lost.drain(..surplus);
            (segments, plans)
        })
    }

    /// Where the peer was that had this segment, if it was lost not too long ago.
    pub(crate) fn lost(&self, id: SegmentId) -> Option<SocketAddr> {
        self.read(|tables| {
            let mut lost = tables.lost.iter().rev();
            lost.find(|(lost, _)| *lost == id).map(|(_, peer)| *peer)
        })
    }

    /// Why a request cannot name a segment that is not there.
    pub(crate) fn missing(&self, index: usize, segment: SegmentId) -> SubmitError {
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

impl RegionTable for Segments {
    fn find(&self, key: &RegionKey, domain: TrustDomain) -> Option<Arc<Region>> {
        self.read(|tables| match tables.segments.get(tables.keys.get(key)?) {
            Some(Segment::Local(local) | Segment::Device(local, _)) => {
                local.is_for(domain).then(|| local.region.clone())
            }
            Some(Segment::Remote(_)) | None => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::config::Config;
    use crate::engine::Engine;

    #[test]
    fn what_an_engine_has_left_in_use_is_free_once_nothing_touches_it() {
        let engine = Engine::new(Config::named("ends")).unwrap();
        let id = engine.allocate("here", 4096, Access::Local).unwrap();
        let local = engine.inner.segments.local(id).unwrap();
        // A request that nobody has seen the end of.
        local.requests.fetch_add(1, AcqRel);
        let in_use = || matches!(engine.unregister(id), Err(RegisterError::InUse { .. }));
        assert!(in_use());
        let pinned = local.region.pin(0, 1).unwrap();
        engine.shutdown();
        assert!(in_use(), "the kernel may still write there");
        drop(pinned);
        engine.unregister(id).unwrap();
    }
}
