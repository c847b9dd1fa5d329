//! Peers: sessions with other engines, and the rails that lead to them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use polyrail_control::plane::Introduction;
use polyrail_core::plan::{PLAN_RAILS_MAX, PlanRail};
use polyrail_core::rail::RailConfig;
use polyrail_core::topology::RailMap;
use polyrail_core::units::{DeviceId, PeerId, RailId};
use polyrail_transport::{RailAddress, SessionId};

use crate::error::OpenError;
use crate::fabric::{DEVICES_MAX, Fabric, PEERS_MAX, RAILS_MAX, TCP_ESTIMATE};
use crate::segments::SegmentId;

/// One rail of a peer.
#[derive(Clone, Debug)]
pub(crate) struct PeerRail {
    pub(crate) rail: RailId,
    pub(crate) local: Option<IpAddr>,
    pub(crate) remote: SocketAddr,
}

impl PeerRail {
    pub(crate) fn address(&self, session: SessionId) -> RailAddress {
        RailAddress {
            local: self.local,
            remote: self.remote,
            session,
        }
    }

    /// `tcp:LOCAL>REMOTE`; `*` where the kernel chooses.
    fn name(&self) -> String {
        match self.local {
            Some(local) => format!("tcp:{local}>{}", self.remote.ip()),
            None => format!("tcp:*>{}", self.remote.ip()),
        }
    }
}

/// A peer that we have, or had, a session with.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    /// What it calls itself.
    pub(crate) name: String,
    /// The address it was first reached at.
    pub(crate) dialed: SocketAddr,
    pub(crate) session: SessionId,
    pub(crate) incarnation: u64,
    pub(crate) rails: Vec<PeerRail>,
    /// What probes write to.
    pub(crate) scratch: SegmentId,
    /// Another process answers at its address now; nothing will come of this peer any more.
    pub(crate) lost: bool,
}

impl Peer {
    pub(crate) fn plan_rails(&self) -> heapless::Vec<PlanRail, PLAN_RAILS_MAX> {
        self.rails
            .iter()
            .map(|rail| PlanRail {
                rail: rail.rail,
                tier: 0,
            })
            .collect()
    }

    /// The rails as the control plane wants them.
    pub(crate) fn ways(&self) -> Vec<(Option<IpAddr>, SocketAddr)> {
        self.rails
            .iter()
            .map(|rail| (rail.local, rail.remote))
            .collect()
    }
}

/// All peers of an engine, and the numbers of its rails and devices.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    peers: Vec<Peer>,
    rail_names: Vec<String>,
    devices: HashMap<Option<IpAddr>, DeviceId>,
}

impl Peers {
    /// The peer that answers at an address.
    pub(crate) fn at(&self, dialed: SocketAddr) -> Option<&Peer> {
        self.peers.iter().find(|peer| {
            !peer.lost
                && (peer.dialed == dialed || peer.rails.iter().any(|rail| rail.remote == dialed))
        })
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

    /// What a rail is called.
    pub(crate) fn rail_name(&self, rail: RailId) -> &str {
        self.rail_names
            .get(rail.index())
            .map_or("?", String::as_str)
    }

    /// The number for the next peer.
    pub(crate) fn next_id(&self) -> Result<PeerId, OpenError> {
        match self.peers.len() {
            count if count < PEERS_MAX => Ok(PeerId(count as u16)),
            _ => Err(OpenError::Full {
                what: "peers",
                limit: PEERS_MAX,
            }),
        }
    }

    pub(crate) fn add(&mut self, peer: Peer) {
        self.peers.push(peer);
    }

    /// Numbers the rails to a peer that has introduced itself, and installs them.
    pub(crate) fn install_rails(
        &mut self,
        fabric: &Fabric,
        id: PeerId,
        dialed: SocketAddr,
        introduction: &Introduction,
        locals: &[IpAddr],
        map: RailMap,
    ) -> Result<Vec<PeerRail>, OpenError> {
        let remotes = match introduction.rails.is_empty() {
            true => std::slice::from_ref(&dialed),
            false => &introduction.rails[..],
        };
        let pairs: Vec<_> = map
            .pairs(locals.len(), remotes.len())
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
        if self.rail_names.len() + pairs.len() > RAILS_MAX {
            return Err(OpenError::Full {
                what: "rails",
                limit: RAILS_MAX,
            });
        }
        let mut rails = Vec::new();
        for (local, remote) in pairs {
            let local = locals.get(local).copied();
            let rail = RailId(self.rail_names.len() as u16);
            let device = self.device(fabric, local)?;
            let config = RailConfig {
                peer: id,
                device,
                estimate: TCP_ESTIMATE,
            };
            let rail = PeerRail {
                rail,
                local,
                remote: remotes[remote],
            };
            let name = rail.name();
            fabric.install_rail(rail.rail, config, &name);
            self.rail_names.push(name);
            rails.push(rail);
        }
        Ok(rails)
    }

    /// The device behind a local address: one each, and one for whatever the kernel chooses.
    fn device(&mut self, fabric: &Fabric, local: Option<IpAddr>) -> Result<DeviceId, OpenError> {
        if let Some(device) = self.devices.get(&local) {
            return Ok(*device);
        }
        if self.devices.len() >= DEVICES_MAX {
            return Err(OpenError::Full {
                what: "local rail addresses",
                limit: DEVICES_MAX,
            });
        }
        let device = DeviceId(self.devices.len() as u16);
        fabric.install_device(device, TCP_ESTIMATE);
        self.devices.insert(local, device);
        Ok(device)
    }
}
