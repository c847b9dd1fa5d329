//! The rails to a peer: what they join, and how they are numbered and installed.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use polyrail_control::plane::Introduction;
use polyrail_core::path::class::RailClass;
use polyrail_core::plan::{PLAN_RAILS_MAX, PLAN_TRANSPORTS_MAX, PlanRail, PlanTransport};
use polyrail_core::rail::RailConfig;
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::time::Duration;
use polyrail_core::topology::DeviceFacts;
use polyrail_core::units::{RailId, Rate, TransportId};
use polyrail_transport::{RailAddress, SessionId};

use super::devices::LocalDevice;
use super::{Numbers, Peers};
use crate::config::{Config, PathConfig};
use crate::error::OpenError;
use crate::fabric::{Fabric, RAILS_MAX};
use crate::machine::facts_of;
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

/// Connecting may take this long on a busy host without a peer being far. A delay believed too long makes the first bytes look
/// as if they had taken no time.
const FAR_ROUND_TRIP: Duration = Duration::from_millis(2);

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

impl Peers {
    pub(crate) fn rail_names(&self) -> &[String] {
        &self.rail_names
    }

    /// What a rail is called.
    pub(crate) fn rail_name(&self, rail: RailId) -> &str {
        self.rail_names
            .get(rail.index())
            .map_or("?", String::as_str)
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

    /// Numbers the rails to a peer, of which it is known how long the way there and back took, and installs them.
    pub(crate) fn install_rails(
        &mut self,
        fabric: &Fabric,
        numbers: &mut Numbers,
        (pairs, round_trip): (Vec<RailPair>, Duration),
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
                estimate: self.rail_estimate(&pair, round_trip, catalog),
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

    /// The same for a rail, whose transport may know more of it.
    ///
    /// A window that is too short for the way there and back does more than slow the rail for a while: congestion control
    /// that goes by rates, such as BBR, takes what the window lets through for what the network can carry, and then needs
    /// seconds to find out. What is too long is corrected by the first completion.
    fn rail_estimate(
        &self,
        pair: &RailPair,
        round_trip: Duration,
        catalog: &Catalog,
    ) -> EstimateConfig {
        let mut estimate = self.estimate(pair.local);
        if pair.own.is_none() && round_trip >= FAR_ROUND_TRIP {
            estimate.delay_base = estimate.delay_base.max(round_trip);
        }
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
}
