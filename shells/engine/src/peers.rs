//! Peers: sessions with other engines, and the rails that lead to them.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use polyrail_control::codec::TransportOffer;
use polyrail_control::plane::Introduction;
use polyrail_core::path::class::RailClass;
use polyrail_core::path::hint::Connection;
use polyrail_core::plan::{PLAN_RAILS_MAX, PLAN_TRANSPORTS_MAX, PlanRail, PlanTransport};
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::{RailConfig, Shared};
use polyrail_core::time::Duration;
use polyrail_core::topology::DeviceFacts;
use polyrail_core::transport::MemoryKind;
use polyrail_core::units::{DeviceId, PeerId, RailId, Rate, TransportId};
use polyrail_transport::{RailAddress, SessionId};

use crate::config::{Config, PathConfig};
use crate::error::OpenError;
use crate::fabric::{DEVICES_MAX, Fabric, PEERS_MAX, RAILS_MAX};
use crate::lock::lock;
use crate::machine::{Machine, Whereabouts, facts_of};
use crate::path::PeerPath;
use crate::segments::SegmentId;
use crate::stats::DeviceTraffic;
use crate::transports::Catalog;

/// What a rail joins.
#[derive(Clone, Debug)]
pub(crate) struct RailPair {
    pub(crate) transport: TransportId,
    pub(crate) local: Option<IpAddr>,
    pub(crate) remote: SocketAddr,
    /// The NUMA node of its local device.
    pub(crate) node: Option<u16>,
    /// Where the peer's transport itself is, if that is not on the network; the address above only names the peer.
    pub(crate) own: Option<Arc<[u8]>>,
}

impl RailPair {
    pub(crate) fn address(&self, session: SessionId) -> RailAddress {
        RailAddress {
            transport: self.transport,
            local: self.local,
            remote: self.remote,
            session,
            own: self.own.clone().unwrap_or_default(),
        }
    }

    /// `TRANSPORT:LOCAL>REMOTE`; `*` where the kernel chooses.
    fn name(&self, transport: &str) -> String {
        match self.local {
            Some(local) => format!("{transport}:{local}>{}", self.remote.ip()),
            None => format!("{transport}:*>{}", self.remote.ip()),
        }
    }
}

/// One rail of a peer.
#[derive(Clone, Debug)]
pub(crate) struct PeerRail {
    pub(crate) rail: RailId,
    pub(crate) pair: RailPair,
    /// The fabric of its local device.
    pub(crate) class: RailClass,
}

/// The numbers of a peer and its rails. They mean it for as long as anybody has a share of this; then they are
/// free, for another.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub(crate) peer: PeerId,
    pub(crate) rails: Vec<RailId>,
    freed: Arc<Freed>,
}

/// Numbers that nobody has a share of any more. A lock of its own, which nothing is dropped under.
type Freed = Mutex<Vec<(PeerId, Vec<RailId>)>>;

impl Drop for Numbers {
    fn drop(&mut self) {
        let rails = std::mem::take(&mut self.rails);
        lock(&self.freed).push((self.peer, rails));
    }
}

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
    pub(crate) incarnation: u64,
    pub(crate) rails: Vec<PeerRail>,
    /// The transports that it has.
    pub(crate) offers: Vec<TransportOffer>,
    /// What probes write to.
    pub(crate) scratch: SegmentId,
    /// It understands notifications.
    pub(crate) notifies: bool,
    /// How what goes to it is steered; `None`: it is not.
    pub(crate) path: Option<PeerPath>,
}

impl Peer {
    /// The transports that join memory of these kinds with this peer's, and their rails: each in the tier of its
    /// local device for memory that is where `here` says.
    pub(crate) fn plan_transports(
        &self,
        catalog: &Catalog,
        (local, here): (MemoryKind, &Whereabouts),
        remote: MemoryKind,
    ) -> heapless::Vec<PlanTransport, PLAN_TRANSPORTS_MAX> {
        let ranked = catalog.rank(&self.offers, local, remote);
        let rails = |transport: TransportId| PlanTransport {
            transport,
            rails: self
                .rails
                .iter()
                .filter(|rail| rail.pair.transport == transport)
                .map(|rail| PlanRail {
                    rail: rail.rail,
                    tier: here.tier(rail.pair.local, rail.pair.node),
                    class: rail.class,
                })
                .collect(),
        };
        ranked.into_iter().map(rails).collect()
    }

    /// The rails as the control plane wants them, as far as they lead to the peer.
    pub(crate) fn ways(&self) -> Vec<(Option<IpAddr>, SocketAddr)> {
        let leads = |rail: &&PeerRail| {
            rail.pair.own.is_none() && self.path.is_none_or(|path| path.has(rail.class))
        };
        self.rails
            .iter()
            .filter(leads)
            .map(|rail| (rail.pair.local, rail.pair.remote))
            .collect()
    }
}

/// What local rails run over.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum LocalDevice {
    /// That of an address, or whatever the kernel chooses.
    Address(Option<IpAddr>),
    /// The only one of the transport of this name.
    Own(&'static str),
    /// A disk, by its name.
    Disk(String),
}

impl fmt::Display for LocalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(Some(address)) => address.fmt(f),
            Self::Address(None) => f.write_str("*"),
            Self::Own(name) => f.write_str(name),
            Self::Disk(name) => f.write_str(name),
        }
    }
}

impl LocalDevice {
    fn of(pair: &RailPair, catalog: &Catalog) -> Self {
        match pair.own {
            Some(_) => Self::Own(catalog.name(pair.transport)),
            None => Self::Address(pair.local),
        }
    }
}

/// All peers of an engine, and the numbers of its rails and devices.
#[derive(Debug)]
pub(crate) struct Peers {
    /// What is assumed of a new rail whose device says nothing.
    estimate: EstimateConfig,
    machine: Arc<Machine>,
    /// A device's own word counts more than `estimate`.
    asks_devices: bool,
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
    pub(crate) fn new(estimate: EstimateConfig, machine: Arc<Machine>, asks_devices: bool) -> Self {
        Self {
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

    pub(crate) fn rail_names(&self) -> &[String] {
        &self.rail_names
    }

    /// The traffic of each local device, in the order in which they were numbered.
    pub(crate) fn traffic(&self, shared: Shared<'_>, catalog: &Catalog) -> Vec<DeviceTraffic> {
        let mut devices: Vec<_> = self.devices.iter().collect();
        devices.sort_unstable_by_key(|(_, device)| **device);
        let mut traffic: Vec<_> = devices
            .into_iter()
            .map(|(device, _)| DeviceTraffic {
                device: device.to_string(),
                bytes: 0,
                share: 0.0,
                inflight_bytes: 0,
                bytes_per_sec: 0,
            })
            .collect();
        let of_peers = self.peers.iter().flat_map(|peer| &peer.rails);
        let of_peers = of_peers.filter_map(|rail| {
            let device = self.devices.get(&LocalDevice::of(&rail.pair, catalog))?;
            Some((*device, rail.rail))
        });
        for (device, rail) in of_peers.chain(self.disk_rails.iter().copied()) {
            let row = traffic.get_mut(device.index());
            if let (Some(row), Some(view)) = (row, shared.view(rail)) {
                row.bytes += view.done_bytes;
                row.inflight_bytes += view.inflight_bytes;
                row.bytes_per_sec += view.rate.bytes_per_sec();
            }
        }
        let total: u64 = traffic.iter().map(|row| row.bytes).sum();
        for row in &mut traffic {
            row.share = row.bytes as f64 / total.max(1) as f64;
        }
        traffic
    }

    /// What a rail is called.
    pub(crate) fn rail_name(&self, rail: RailId) -> &str {
        self.rail_names
            .get(rail.index())
            .map_or("?", String::as_str)
    }

    /// Takes a number for a new peer: in turn, so that one that is free is not used again at once.
    pub(crate) fn take_numbers(&mut self) -> Result<Numbers, OpenError> {
        self.gather_freed();
        let limit = PEERS_MAX as u16;
        let next = (1..=limit)
            .map(|step| (self.last + step) % limit)
            .find(|id| !self.taken.contains(id));
        let id = next.ok_or(OpenError::Full {
            what: "peers",
            limit: PEERS_MAX,
        })?;
        self.taken.insert(id);
        self.last = id;
        Ok(Numbers {
            peer: PeerId(id),
            rails: Vec::new(),
            freed: self.freed.clone(),
        })
    }

    fn gather_freed(&mut self) {
        for (peer, rails) in lock(&self.freed).drain(..) {
            self.taken.remove(&peer.0);
            self.free_rails.extend(rails.iter().map(|rail| rail.0));
        }
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

    /// The rails to a peer that has introduced itself, of every transport that both ends have.
    pub(crate) fn pair_rails(
        &self,
        dialed: SocketAddr,
        introduction: &Introduction,
        config: &Config,
        catalog: &Catalog,
    ) -> Result<Vec<RailPair>, OpenError> {
        let locals = &config.rails;
        let remotes = match introduction.rails.is_empty() {
            true => std::slice::from_ref(&dialed),
            false => &introduction.rails[..],
        };
        let ours = locals.iter().map(|local| self.machine.facts(*local));
        let here: Vec<DeviceFacts<'_>> = ours.collect();
        let facts = |position| facts_of(introduction.rail_facts.get(position));
        let there: Vec<DeviceFacts<'_>> = (0..remotes.len()).map(facts).collect();
        let pairs: Vec<_> = config
            .rail_map
            .pairs(&here, &there)
            .map_err(|mismatch| OpenError::Rails {
                peer: dialed,
                mismatch,
            })?
            .collect();
        if pairs.len() > PLAN_RAILS_MAX {
            return Err(OpenError::Full {
                what: "rails to one peer",
                limit: PLAN_RAILS_MAX,
            });
        }
        let common = catalog.common(&introduction.transports);
        if common.is_empty() {
            return Err(OpenError::NoTransport {
                peer: dialed,
                ours: catalog.names(),
                theirs: introduction.transport_names(),
            });
        }
        let pair = |transport, (position, remote): (usize, usize)| RailPair {
            transport,
            local: locals.get(position).copied(),
            remote: remotes[remote],
            node: here.get(position).and_then(|device| device.node),
            own: None,
        };
        let own = |transport: TransportId| {
            let name = catalog.name(transport);
            let mut offers = introduction.transports.iter();
            let address = &offers.find(|offer| offer.name == name)?.address;
            catalog.has_own_rail(transport).then(|| RailPair {
                transport,
                local: None,
                remote: dialed,
                node: None,
                own: Some(address.as_slice().into()),
            })
        };
        let of = |transport| match own(transport) {
            Some(own) => vec![own],
            None => pairs
                .iter()
                .filter(|(_, remote)| catalog.serves(transport, &introduction.transports, *remote))
                .map(|at| pair(transport, *at))
                .filter(|pair| catalog.runs_at(pair))
                .collect(),
        };
        Ok(common.into_iter().flat_map(of).collect())
    }

    /// Numbers the rails to a peer, and installs them.
    pub(crate) fn install_rails(
        &mut self,
        fabric: &Fabric,
        numbers: &mut Numbers,
        pairs: Vec<RailPair>,
        path: &PathConfig,
        catalog: &Catalog,
    ) -> Result<Vec<PeerRail>, OpenError> {
        self.gather_freed();
        if self.rail_names.len() + pairs.len() > RAILS_MAX + self.free_rails.len() {
            return Err(OpenError::Full {
                what: "rails",
                limit: RAILS_MAX,
            });
        }
        let mut devices = Vec::new();
        for pair in &pairs {
            devices.push(self.device(fabric, LocalDevice::of(pair, catalog))?);
        }
        let mut rails = Vec::new();
        for (pair, device) in pairs.into_iter().zip(devices) {
            let rail = self.take_rail();
            numbers.rails.push(rail);
            let config = RailConfig {
                peer: numbers.peer,
                device,
                estimate: self.rail_estimate(&pair, catalog),
            };
            let name = pair.name(catalog.name(pair.transport));
            self.install_rail(fabric, rail, config, name);
            rails.push(PeerRail {
                rail,
                class: path.class(pair.local),
                pair,
            });
        }
        Ok(rails)
    }

    fn install_rail(&mut self, fabric: &Fabric, rail: RailId, config: RailConfig, name: String) {
        fabric.install_rail(rail, config, &name);
        match self.rail_names.get_mut(rail.index()) {
            Some(old) => *old = name,
            None => self.rail_names.push(name),
        }
    }

    /// Numbers the rails to a disk, one for each of its transports, and installs them. They are called
    /// `TRANSPORT:DISK`.
    pub(crate) fn install_disk(
        &mut self,
        fabric: &Fabric,
        numbers: &mut Numbers,
        disk: &str,
        estimate: EstimateConfig,
        transports: &[(TransportId, &'static str)],
    ) -> Result<heapless::Vec<PlanTransport, PLAN_TRANSPORTS_MAX>, OpenError> {
        self.gather_freed();
        if self.rail_names.len() + transports.len() > RAILS_MAX + self.free_rails.len() {
            return Err(OpenError::Full {
                what: "rails",
                limit: RAILS_MAX,
            });
        }
        let device = self.take_device(fabric, LocalDevice::Disk(disk.into()), estimate, None)?;
        let rails = transports.iter().map(|(transport, name)| {
            let rail = self.take_rail();
            numbers.rails.push(rail);
            let config = RailConfig {
                peer: numbers.peer,
                device,
                estimate,
            };
            self.install_rail(fabric, rail, config, format!("{name}:{disk}"));
            self.disk_rails.push((device, rail));
            let rail = PlanRail {
                rail,
                tier: 0,
                class: RailClass::PRIMARY,
            };
            PlanTransport {
                transport: *transport,
                rails: [rail].into_iter().collect(),
            }
        });
        Ok(rails.collect())
    }

    /// A number for a rail: the lowest that is free, or a new one.
    fn take_rail(&mut self) -> RailId {
        let free = self.free_rails.pop_first();
        RailId(free.unwrap_or(self.rail_names.len() as u16))
    }

    /// What is assumed of a new rail from a local address.
    pub(crate) fn estimate(&self, local: Option<IpAddr>) -> EstimateConfig {
        let said = local
            .filter(|_| self.asks_devices)
            .and_then(|local| self.machine.rate(local));
        EstimateConfig {
            rate_nominal: said.unwrap_or(self.estimate.rate_nominal),
            ..self.estimate
        }
    }

    /// The same for a rail, whose transport may know more of it.
    fn rail_estimate(&self, pair: &RailPair, catalog: &Catalog) -> EstimateConfig {
        let mut estimate = self.estimate(pair.local);
        let prior = catalog.prior(pair);
        if let Some(speed) = prior.bits_per_sec.filter(|_| self.asks_devices) {
            estimate.rate_nominal = Rate::from_bits_per_sec(speed);
        }
        if prior.carries_itself {
            estimate.slice_span = Duration::ZERO;
        }
        estimate.batch_span = prior.batch_span;
        estimate
    }

    /// The number of a local device that rails to peers run over.
    fn device(&mut self, fabric: &Fabric, local: LocalDevice) -> Result<DeviceId, OpenError> {
        let (estimate, name) = match &local {
            LocalDevice::Address(local) => (
                self.estimate(*local),
                local.map(|local| self.machine.device_name(local)),
            ),
            LocalDevice::Own(name) => (self.estimate, Some((*name).to_owned())),
            LocalDevice::Disk(_) => (self.estimate, None),
        };
        self.take_device(fabric, local, estimate, name)
    }

    /// The number of a device. Its load is shared under `shared`, if that is said.
    fn take_device(
        &mut self,
        fabric: &Fabric,
        key: LocalDevice,
        estimate: EstimateConfig,
        shared: Option<String>,
    ) -> Result<DeviceId, OpenError> {
        if let Some(device) = self.devices.get(&key) {
            return Ok(*device);
        }
        if self.devices.len() >= DEVICES_MAX {
            return Err(OpenError::Full {
                what: "local devices",
                limit: DEVICES_MAX,
            });
        }
        let device = DeviceId(self.devices.len() as u16);
        fabric.install_device(device, estimate, shared.as_deref());
        self.devices.insert(key, device);
        Ok(device)
    }
}
