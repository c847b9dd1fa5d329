//! The local devices that rails run over, and their traffic.

use std::fmt;
use std::net::IpAddr;

use polyrail_core::rail::Shared;
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::units::DeviceId;

use super::{Peers, RailPair};
use crate::error::Limit;
use crate::fabric::{DEVICES_MAX, Fabric};
use crate::stats::DeviceTraffic;
use crate::transports::Catalog;

/// What local rails run over.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum LocalDevice {
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
    pub(super) fn of(pair: &RailPair, catalog: &Catalog) -> Self {
        match pair.own {
            Some(_) => Self::Own(catalog.name(pair.transport)),
            None => Self::Address(pair.local),
        }
    }
}

impl Peers {
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
            Some((*device, rail.rail, rail.pair.is_spare()))
        });
        let of_disks = self.disk_rails.iter();
        let of_disks = of_disks.map(|(device, rail)| (*device, *rail, false));
        for (device, rail, is_spare) in of_peers.chain(of_disks) {
            let row = traffic.get_mut(device.index());
            if let (Some(row), Some(view)) = (row, shared.view(rail)) {
                row.bytes += view.done_bytes;
                row.inflight_bytes += view.inflight_bytes;
                row.bytes_per_sec += match is_spare {
                    true => 0,
                    false => view.rate.bytes_per_sec(),
                };
            }
        }
        let total: u64 = traffic.iter().map(|row| row.bytes).sum();
        for row in &mut traffic {
            row.share = row.bytes as f64 / total.max(1) as f64;
        }
        traffic
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

    /// The number of a local device that rails to peers run over.
    pub(super) fn device(
        &mut self,
        fabric: &Fabric,
        local: LocalDevice,
    ) -> Result<DeviceId, Limit> {
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
    pub(super) fn take_device(
        &mut self,
        fabric: &Fabric,
        key: LocalDevice,
        estimate: EstimateConfig,
        shared: Option<String>,
    ) -> Result<DeviceId, Limit> {
        if let Some(device) = self.devices.get(&key) {
            return Ok(*device);
        }
        if self.devices.len() >= DEVICES_MAX {
            return Err(Limit {
                what: "local devices",
                most: DEVICES_MAX,
                key: "",
                held_by: "disks, and addresses in rails".into(),
            });
        }
        let device = DeviceId(self.devices.len() as u16);
        fabric.install_device(device, estimate, shared.as_deref());
        self.devices.insert(key, device);
        Ok(device)
    }
}
