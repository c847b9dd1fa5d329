//! Peers: sessions with other engines, and the rails that lead to them.

mod devices;
mod news;
mod numbers;
mod rails;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use polyrail_control::plane::Introduction;
use polyrail_core::path::hint::Connection;
use polyrail_core::plan::{PLAN_TRANSPORTS_MAX, PlanRail, PlanTransport};
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::{RailView, Shared};
use polyrail_core::topology::tier;
use polyrail_core::transport::MemoryKind;
use polyrail_core::units::{DeviceId, PeerId, RailId, TransportId};
use polyrail_transport::SessionId;
use polyrail_transport::ticket::SessionSecret;

use crate::config::LimitsConfig;
use crate::machine::{Machine, Whereabouts};
use crate::path::PeerPath;
use crate::segments::SegmentId;
use crate::transports::Catalog;

pub(crate) use news::News;
pub use news::{PeerEvent, PeerEvents, PeerState, PeerStatus};
pub(crate) use numbers::Numbers;
pub(crate) use rails::{PeerRail, PlanRoom, RailPair};

use devices::LocalDevice;
use numbers::Freed;

/// A control connection is kept on each rail, and on spares up to so many: with that many ways it takes no spare to hear a
/// peer.
const WAYS_WITH_SPARES_MAX: usize = 8;

/// A peer that we have, or had, a session with.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) numbers: Arc<Numbers>,
    /// What it calls itself.
    pub(crate) name: String,
    /// The address it was first reached at.
    pub(crate) dialed: SocketAddr,
    pub(crate) session: SessionId,
    /// What lanes of it prove themselves with, if there is a cluster key.
    pub(crate) secret: Option<SessionSecret>,
    pub(crate) incarnation: u64,
    pub(crate) rails: Vec<PeerRail>,
    /// Why what it has offered since makes no rails.
    pub(crate) rails_wrong: Option<String>,
    /// What it has said of itself last, and the transports that hold between it and this engine.
    pub(crate) met: Arc<Introduction>,
    /// What probes write to.
    pub(crate) scratch: SegmentId,
    /// It understands notifications.
    pub(crate) notifies: bool,
    /// And those that come in parcels.
    pub(crate) parcels: bool,
    /// How what goes to it is steered; `None`: it is not.
    pub(crate) path: Option<PeerPath>,
}

impl Peer {
    /// The transports that join memory of these kinds with this peer's, and their rails: each in the tier of its local device for
    /// memory that is where `here` says, and as much farther as its remote device is from memory on the node `there`. So bytes
    /// that cross to another node on both sides are farther than those that do so once.
    pub(crate) fn plan_transports(
        &self,
        catalog: &Catalog,
        (local, here): (MemoryKind, &Whereabouts),
        (remote, there): (MemoryKind, Option<u16>),
    ) -> heapless::Vec<PlanTransport, PLAN_TRANSPORTS_MAX> {
        let ranked = catalog.rank(&self.met.transports, local, remote);
        let rails = |transport: TransportId| PlanTransport {
            transport,
            rails: self
                .rails
                .iter()
                .filter(|rail| rail.pair.transport == transport)
                .map(|rail| PlanRail {
                    rail: rail.rail,
                    tier: here.tier(rail.pair.local, rail.pair.node)
                        + tier(there, rail.pair.remote_node),
                    class: rail.class,
                })
                .collect(),
        };
        ranked.into_iter().map(rails).collect()
    }

    /// Bytes that were acknowledged on its rails, both directions.
    pub(crate) fn moved_bytes(&self, shared: &Shared<'_>) -> u64 {
        self.views(shared).map(|view| view.done_bytes).sum()
    }

    /// Whether nothing is in flight on its rails.
    pub(crate) fn is_idle(&self, shared: &Shared<'_>) -> bool {
        self.views(shared).all(|view| view.inflight_bytes == 0)
    }

    fn views(&self, shared: &Shared<'_>) -> impl Iterator<Item = RailView> {
        self.rails.iter().filter_map(|rail| shared.view(rail.rail))
    }

    /// The rails as the control plane wants them, as far as they lead to the peer. Spares only where there are few. Where no
    /// rail that is used is on the network, it keeps to the address that the peer was dialed at.
    pub(crate) fn ways(&self) -> Vec<(Option<IpAddr>, SocketAddr)> {
        let leads = |rail: &&PeerRail| {
            let is_used = !rail.is_withdrawn && rail.pair.own.is_none();
            is_used && self.path.is_none_or(|path| path.has(rail.class))
        };
        let (spares, rails): (Vec<_>, Vec<_>) =
            (self.rails.iter().filter(leads)).partition(|rail| rail.pair.is_spare());
        let few = WAYS_WITH_SPARES_MAX.saturating_sub(rails.len());
        let all = rails.into_iter().chain(spares.into_iter().take(few));
        let mut ways: Vec<_> = all
            .map(|rail| (rail.pair.local, rail.pair.remote))
            .collect();
        let is_off = |rail: &PeerRail| rail.is_withdrawn || rail.pair.own.is_some();
        if self.rails.iter().all(is_off) {
            ways.push((None, self.dialed));
        }
        ways
    }
}

/// All peers of an engine, and the numbers of its rails and devices.
#[derive(Debug)]
pub(crate) struct Peers {
    /// What is assumed of a new rail whose device says nothing.
    estimate: EstimateConfig,
    machine: Arc<Machine>,
    /// The addresses of this host that rails start at.
    locals: Vec<IpAddr>,
    /// A device's own word counts more than `estimate`.
    asks_devices: bool,
    limits: LimitsConfig,
    peers: Vec<Peer>,
    /// Numbers of peers, of those that are being dialed, and of those that were given up and are not free yet.
    taken: BTreeSet<u16>,
    freed: Arc<Freed>,
    /// The last number given.
    last: u16,
    rail_names: Vec<String>,
    /// Rails of peers that were given up.
    free_rails: BTreeSet<u16>,
    devices: HashMap<LocalDevice, DeviceId>,
    /// The rails to disks, and the disk of each.
    disk_rails: Vec<(DeviceId, RailId)>,
}

impl Peers {
    /// Nobody yet.
    pub(crate) fn new(
        estimate: EstimateConfig,
        machine: Arc<Machine>,
        asks_devices: bool,
        limits: &LimitsConfig,
        locals: Vec<IpAddr>,
    ) -> Self {
        Self {
            limits: *limits,
            locals,
            estimate,
            machine,
            asks_devices,
            peers: Vec::new(),
            taken: BTreeSet::new(),
            freed: Arc::default(),
            last: 0,
            rail_names: Vec::new(),
            free_rails: BTreeSet::new(),
            devices: HashMap::new(),
            disk_rails: Vec::new(),
        }
    }

    /// The addresses of this host that rails start at.
    pub(crate) fn locals(&self) -> &[IpAddr] {
        &self.locals
    }

    /// Has rails start at these addresses too.
    pub(crate) fn add_locals(&mut self, locals: &[IpAddr]) {
        self.locals.extend(locals);
    }

    /// Has no rail start at these addresses any more.
    pub(crate) fn remove_locals(&mut self, locals: &[IpAddr]) {
        self.locals.retain(|local| !locals.contains(local));
    }

    /// What is known of this machine is this now.
    pub(crate) fn set_machine(&mut self, machine: Machine) {
        self.machine = Arc::new(machine);
    }

    /// All peers that there is a session with.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter()
    }

    pub(crate) fn ids(&self) -> Vec<PeerId> {
        self.peers.iter().map(|peer| peer.id).collect()
    }

    /// The peer that answers at an address.
    pub(crate) fn at(&self, dialed: SocketAddr) -> Option<&Peer> {
        self.peers.iter().find(|peer| {
            peer.dialed == dialed || peer.rails.iter().any(|rail| rail.pair.remote == dialed)
        })
    }

    /// The same, if it has not been restarted since.
    pub(crate) fn met(&self, dialed: SocketAddr, incarnation: u64) -> Option<&Peer> {
        self.at(dialed)
            .filter(|peer| peer.incarnation == incarnation)
    }

    /// What an agent may steer.
    pub(crate) fn steered(&self) -> Vec<(PeerId, Connection)> {
        let of = |peer: &Peer| Some((peer.id, peer.path?.connection()?));
        self.peers.iter().filter_map(of).collect()
    }

    pub(crate) fn get(&self, id: PeerId) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.id == id)
    }

    pub(crate) fn add(&mut self, peer: Peer) {
        self.peers.push(peer);
    }

    /// Takes a peer out.
    pub(crate) fn remove(&mut self, id: PeerId, incarnation: u64) -> Option<Peer> {
        let is_it = |peer: &Peer| (peer.id, peer.incarnation) == (id, incarnation);
        let index = self.peers.iter().position(is_it)?;
        Some(self.peers.swap_remove(index))
    }
}
