//! Segments: registered memory here, described memory there, and the pairs that requests have used.

mod hold;
mod pairs;
mod plans;
mod remote;
mod segment;
mod standing;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use polyrail_control::codec::{SegmentDescriptor, SegmentKind};
use polyrail_core::units::{PeerId, PlanId};
use polyrail_core::work::Op;
use polyrail_transport::memory::{Access, Region, RegionKey, RegionTable, TrustDomain};
use polyrail_transport::numbered::Numbered;

use self::plans::PairPlans;
use self::remote::Remotes;
use self::standing::Standing;
use crate::error::{Limit, RegisterError};

pub(crate) use hold::Holds;
pub(crate) use pairs::{KnownPair, NoPlan, Pairs};
pub(crate) use remote::{Opened, TakenOut};
pub use segment::SegmentId;
pub(crate) use segment::{LocalSegment, RemoteSegment, RemoteSlots, Segment, SlotMemory};

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
    plans: PairPlans,
    remotes: Remotes,
    /// Ids that follow names.
    standing: HashMap<SegmentId, Standing>,
    /// Segments that there can be at a time, the engine's own and its peers'.
    most: usize,
    last: u32,
    generation: u64,
}

impl Tables {
    fn limit(&self) -> Limit {
        let mut of_peers: HashMap<PeerId, usize> = HashMap::new();
        for segment in self.segments.values() {
            if let Segment::Remote(remote) = segment {
                *of_peers.entry(remote.peer).or_default() += 1;
            }
        }
        let remote: usize = of_peers.values().sum();
        let own = self.segments.len() - remote;
        let most = of_peers.iter().max_by_key(|(_, count)| **count);
        let most = most.map(|(peer, count)| format!(", most of them ({count}) of peer {}", peer.0));
        Limit {
            what: "segments",
            most: self.most,
            key: "limits/segments",
            held_by: format!(
                "{own} of this engine (unregister some), and {remote} of {} peers (close some){}",
                of_peers.len(),
                most.unwrap_or_default()
            ),
        }
    }

    /// A number that no segment has.
    fn next_id(&mut self) -> SegmentId {
        loop {
            self.last = self.last.wrapping_add(1).max(1);
            let id = SegmentId(self.last);
            if !self.segments.contains_key(&id) && !self.standing.contains_key(&id) {
                return id;
            }
        }
    }
}

/// All segments of an engine.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    tables: RwLock<Tables>,
    /// Some peer is about to end. Without, nobody looks which on every submission.
    any_leaving: AtomicBool,
    /// Some segment stands, or has.
    any_standing: AtomicBool,
    /// Memory that was taken back while a device or another process may still have written to it.
    kept: Mutex<HashMap<SegmentId, Arc<LocalSegment>>>,
}

impl Segments {
    /// None yet, and so many at a time.
    pub(crate) fn new(most: usize) -> Self {
        let tables = Tables {
            most,
            ..Tables::default()
        };
        Self {
            tables: RwLock::new(tables),
            ..Self::default()
        }
    }

    /// That there can be no more, and who has those that there are.
    pub(crate) fn limit(&self) -> Limit {
        self.read(Tables::limit)
    }

    /// How many there are, and can be.
    pub(crate) fn used(&self) -> (usize, usize) {
        self.read(|tables| (tables.segments.len(), tables.most))
    }

    /// There can be so many from now on. What there is more stays.
    pub(crate) fn set_most(&self, most: usize) {
        self.write(|tables| tables.most = most);
    }

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
            if tables.segments.len() >= tables.most {
                return Err(RegisterError::Full(tables.limit()));
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
                is_file_here: false,
                requests: AtomicU64::new(0),
                opens: AtomicU64::new(0),
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
            if !file.is_file_here() {
                return Err(stale);
            }
            let requests = file.requests.load(Acquire);
            if requests > 0 {
                return Err(RegisterError::InUse { requests });
            }
            tables.segments.remove(&id);
            if let Some(offer) = tables.offers.remove(&id) {
                tables.names.remove(&offer.name);
            }
            Ok((file, tables.plans.remove(id)))
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
            return (domain.whole() == TrustDomain::COMMON).then_some(file);
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
            Ok((local, tables.plans.remove(id)))
        })
    }

    /// What taking memory back comes to, once it is revoked. Whoever is told that nothing proves that it is free may ask
    /// again.
    pub(crate) fn take_back(
        &self,
        id: SegmentId,
        local: Arc<LocalSegment>,
        is_free: bool,
    ) -> Result<(), RegisterError> {
        if is_free {
            return Ok(());
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(id, local);
        Err(RegisterError::Unprovable { segment: id })
    }

    /// Memory of which [`Self::take_back`] has said so.
    pub(crate) fn kept(&self, id: SegmentId) -> Option<Arc<LocalSegment>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(&id).cloned()
    }

    /// Takes back what [`Self::take_back`] has said that of, if that can be proved now. `None`: it is not kept.
    pub(crate) fn take_back_kept(&self, id: SegmentId) -> Option<Result<(), RegisterError>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let local = kept.get(&id)?;
        if local.region.is_touched() {
            return Some(Err(RegisterError::Unprovable { segment: id }));
        }
        let free = kept.remove(&id);
        drop(kept);
        drop(free);
        Some(Ok(()))
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

    use std::sync::Weak;
    use std::time::Instant;

    use polyrail_transport::memory::Loan;

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

    /// A peer that is inside until it is told to leave.
    #[derive(Default)]
    struct Inside(AtomicBool);

    impl Loan for Inside {
        fn end(&self, _deadline: Instant) -> bool {
            self.is_over()
        }

        fn is_over(&self) -> bool {
            self.0.load(Relaxed)
        }
    }

    #[test]
    fn memory_that_a_peer_may_still_write_to_is_given_back_once_it_is_proved_that_it_does_not() {
        let engine = Engine::new(Config::named("lent")).unwrap();
        let mut memory = [0_u8; 64];
        let base = std::ptr::NonNull::from(&mut memory).cast();
        let register = || {
            // SAFETY: it outlives the engine.
            unsafe { engine.register("here", base, 64, Access::RemoteReadWrite) }
        };
        let id = register().unwrap();
        let peer = Arc::new(Inside::default());
        let loan: Weak<Inside> = Arc::downgrade(&peer);
        assert!(engine.region(id).unwrap().lend(loan));
        let unprovable = || matches!(engine.unregister(id), Err(RegisterError::Unprovable { segment }) if segment == id);
        assert!(unprovable() && unprovable());
        // It is no segment any more, and its name is free.
        assert!(engine.region(id).is_none());
        let again = register().unwrap();
        engine.unregister(again).unwrap();
        engine.shutdown();
        assert!(unprovable());
        peer.0.store(true, Relaxed);
        engine.unregister(id).unwrap();
        let error = engine.unregister(id).unwrap_err();
        assert!(matches!(error, RegisterError::Stale { .. }), "{error}");
    }

    #[test]
    fn the_key_of_a_segment_for_peers_that_encrypt_opens_nothing_to_others() {
        let red = TrustDomain(1);
        let segments = Segments::new(8);
        let add = |name, domain| {
            let region = Region::allocate(4096, Access::RemoteRead).unwrap();
            let key = region.key();
            let kind = SegmentKind::Memory;
            segments
                .add_local(name, region, kind, Some(domain))
                .unwrap();
            (key, name)
        };
        let (open, guarded) = (add("open", red), add("guarded", red.encrypted()));
        // (who asks, whether what is open is there, whether what is guarded is)
        for (who, sees_open, sees_guarded) in [
            (red, true, false),
            (red.encrypted(), true, true),
            (TrustDomain::COMMON, false, false),
            (TrustDomain::COMMON.encrypted(), false, false),
        ] {
            for ((key, name), sees) in [(&open, sees_open), (&guarded, sees_guarded)] {
                assert_eq!(segments.find(key, who).is_some(), sees, "{who:?} {name}");
                let described = segments.describe(name, who, |_| None);
                assert_eq!(described.is_some(), sees, "{who:?} {name}");
            }
        }
    }
}
