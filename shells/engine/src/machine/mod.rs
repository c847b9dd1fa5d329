//! What this machine says of its devices and memory.
//!
//! Everything is read, nothing is asked for: it works unprivileged, in containers, and on machines that say
//! nothing about NUMA; what cannot be known is `None`.

mod changes;
mod device;
mod numa;
mod rdma;
mod sysfs;

use std::net::IpAddr;
use std::path::Path;

use polyrail_control::codec::RailFact;
use polyrail_core::topology::{DeviceFacts, tier};
use polyrail_core::units::Rate;
use polyrail_cuda::Distance;
use polyrail_transport::memory::Region;

use crate::config::Config;

pub(crate) use changes::{Changes, Seen};
pub use device::{Device, DeviceState};
pub use numa::NumaNode;
pub use rdma::{NearGpu, PortGid, RdmaPort, rdma_ports};
use sysfs::Sysfs;

/// All network interfaces of this machine, by name.
///
/// Example: [guide](crate::guide#gpus).
pub fn devices() -> Vec<Device> {
    device::list(&Sysfs::new("/sys"), &device::addresses())
}

/// All NUMA nodes of this machine, in order; none if it says nothing about them.
///
/// Example: [guide](crate::guide#gpus).
pub fn numa_nodes() -> Vec<NumaNode> {
    numa::list(&Sysfs::new("/sys"))
}

/// What an engine knows of the machine that it runs on, as it was when the engine started.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Those that have addresses of the engine.
    pub(crate) devices: Vec<Device>,
    /// The NUMA node of registered memory.
    pub(crate) memory_node: fn(&Region) -> Option<u16>,
    /// How far an interface, by its name, is from a GPU, by its PCI address.
    pub(crate) gpu_distance: fn(&str, &str) -> Option<Distance>,
}

/// Where memory is, so far as devices may be near or far from it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Whereabouts {
    /// Its NUMA node, if that is known and matters.
    node: Option<u16>,
    /// Of a GPU's: how far the devices of these addresses are from it.
    distances: Vec<(IpAddr, Distance)>,
}

impl Whereabouts {
    /// The tier of a device for it: of this address, and on this node.
    pub(crate) fn tier(&self, address: Option<IpAddr>, node: Option<u16>) -> u8 {
        let mut known = self.distances.iter();
        let known = known.find(|(of, _)| Some(*of) == address);
        known.map_or_else(|| tier(self.node, node), |(_, distance)| distance.tier())
    }
}

/// How far an interface of this machine is from a GPU; `None`: it is no PCI device, or nothing is known.
pub(crate) fn gpu_distance(pci: &str, interface: &str) -> Option<Distance> {
    polyrail_cuda::pci::distance(Path::new("/sys"), pci, interface)
}

impl Machine {
    /// This one, as far as an engine with this configuration needs to know.
    pub(crate) fn this(config: &Config) -> Self {
        let listens = config.listen.map(|listen| listen.ip());
        Self::with(config.rails.iter().copied().chain(listens).collect())
    }

    /// This one, as far as these addresses are of it.
    pub(crate) fn with(ours: Vec<IpAddr>) -> Self {
        let mut addresses = match ours.is_empty() {
            true => Vec::new(),
            false => device::addresses(),
        };
        addresses.retain(|(_, address)| ours.contains(address));
        Self {
            devices: device::with_addresses(&Sysfs::new("/sys"), &addresses),
            memory_node: Region::numa_node,
            gpu_distance,
        }
    }

    /// The NUMA node of registered memory, if there is a device that may be near or far.
    pub(crate) fn memory_node(&self, region: &Region) -> Option<u16> {
        let knows = self.devices.iter().any(|device| device.numa_node.is_some());
        knows.then(|| (self.memory_node)(region)).flatten()
    }

    /// Where registered memory is; `gpu`: the PCI address of the GPU that it is on. Asks the kernel.
    pub(crate) fn whereabouts(&self, region: &Region, gpu: Option<&str>) -> Whereabouts {
        let distances = |gpu: &str| {
            let known = self.devices.iter().filter_map(|device| {
                let distance = (self.gpu_distance)(gpu, &device.name)?;
                Some(device.addresses.iter().map(move |at| (*at, distance)))
            });
            known.flatten().collect()
        };
        Whereabouts {
            node: self.memory_node(region),
            distances: gpu.map(distances).unwrap_or_default(),
        }
    }

    /// What decides which remote device this address's device faces.
    pub(crate) fn facts(&self, address: IpAddr) -> DeviceFacts<'_> {
        match self.at(address) {
            Some(device) => DeviceFacts {
                name: Some(&device.name),
                node: device.numa_node,
            },
            None => DeviceFacts::default(),
        }
    }

    /// What all processes of this host can call the device of this address.
    pub(crate) fn device_name(&self, address: IpAddr) -> String {
        let device = self.at(address);
        device.map_or_else(|| address.to_string(), |device| device.name.clone())
    }

    /// What [`Self::facts`] says, for peers.
    pub(crate) fn rail_fact(&self, address: IpAddr) -> RailFact {
        let DeviceFacts { name, node } = self.facts(address);
        RailFact {
            device: name.unwrap_or_default().into(),
            numa_node: node,
        }
    }

    /// How fast the device of this address is said to be.
    pub(crate) fn rate(&self, address: IpAddr) -> Option<Rate> {
        let speed = self.at(address)?.speed_bits_per_sec?;
        Some(Rate::from_bits_per_sec(speed))
    }

    fn at(&self, address: IpAddr) -> Option<&Device> {
        let has = |device: &&Device| device.addresses.contains(&address);
        self.devices.iter().find(has)
    }
}

/// What a peer has said of the device behind one of its rails.
pub(crate) fn facts_of(fact: Option<&RailFact>) -> DeviceFacts<'_> {
    let name = fact.map(|fact| &fact.device[..]);
    DeviceFacts {
        name: name.filter(|name| !name.is_empty()),
        node: fact.and_then(|fact| fact.numa_node),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_knows_is_not_made_up() {
        let none = Machine::this(&Config::default());
        assert_eq!(none.devices, []);
        let here = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(none.facts(here), DeviceFacts::default());
        assert_eq!(
            facts_of(Some(&none.rail_fact(here))),
            DeviceFacts::default()
        );
        assert_eq!(facts_of(None), DeviceFacts::default());
        assert_eq!(none.rate(here), None);
    }

    #[test]
    fn memory_is_only_asked_after_where_it_matters() {
        let region = Region::allocate(1, polyrail_transport::memory::Access::Local).unwrap();
        let machine = |numa_node| Machine {
            devices: vec![Device {
                name: "eth0".into(),
                state: DeviceState::Up,
                speed_bits_per_sec: None,
                numa_node,
                addresses: Vec::new(),
            }],
            memory_node: |_| Some(7),
            gpu_distance: |_, _| None,
        };
        assert_eq!(machine(Some(0)).memory_node(&region), Some(7));
        assert_eq!(machine(None).memory_node(&region), None);
    }
}
