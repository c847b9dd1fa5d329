//! RDMA devices, where this build can use them.

use serde::Serialize;

/// A port of an RDMA device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RdmaPort {
    /// The device, as the kernel calls it.
    pub device: String,
    /// The port's number, from 1.
    pub port: u8,
    /// `ethernet` (RoCE) or `infiniband`.
    pub link: &'static str,
    /// Whether it carries packets now.
    pub active: bool,
    /// How fast it says it is.
    pub speed_bits_per_sec: Option<u64>,
    /// The NUMA node of its device, or of the card under it.
    pub numa_node: Option<u16>,
    /// Where its device is on the PCI bus, from the root on; empty: it is on none.
    pub pci_path: Vec<String>,
    /// The GPUs on the same bus, nearest first.
    pub gpus: Vec<NearGpu>,
    /// Its names.
    pub gids: Vec<PortGid>,
    /// Why it is not used, if so.
    pub unusable: Option<String>,
}

/// A GPU, as seen from an RDMA port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NearGpu {
    /// Its PCI address.
    pub address: String,
    /// How many steps of the bus are between them: 1 under the same switch port, more the further up their ways meet.
    pub steps: usize,
}

/// A name of an RDMA port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PortGid {
    /// Its row in the port's table.
    pub row: u8,
    /// The name, written like an IPv6 address.
    pub gid: String,
    /// Whether packets with it are RoCE v2, which routers carry.
    pub v2: bool,
    /// The network interface that it is of.
    pub interface: Option<String>,
}

/// All ports of all RDMA devices of this machine, in order, each tried out; none if this build has no RDMA.
///
/// Example: [guide](crate::guide#gpus).
pub fn rdma_ports() -> Vec<RdmaPort> {
    #[cfg(feature = "verbs")]
    return polyrail_verbs::examine().into_iter().map(shown).collect();
    #[cfg(not(feature = "verbs"))]
    Vec::new()
}

#[cfg(feature = "verbs")]
fn shown(seen: polyrail_verbs::Examined) -> RdmaPort {
    let polyrail_verbs::Examined { port, gpus } = seen;
    let gid = |row: polyrail_verbs::GidRow| PortGid {
        row: row.index,
        gid: row.gid.to_string(),
        v2: row.is_v2,
        interface: row.interface,
    };
    let gpu = |(address, steps)| NearGpu { address, steps };
    RdmaPort {
        device: port.device,
        port: port.port,
        link: match port.link {
            polyrail_verbs::LinkLayer::Ethernet => "ethernet",
            polyrail_verbs::LinkLayer::InfiniBand => "infiniband",
        },
        active: port.is_active,
        speed_bits_per_sec: port.speed_bits_per_sec,
        numa_node: port.numa_node,
        pci_path: port.pci_path,
        gpus: gpus.into_iter().map(gpu).collect(),
        gids: port.gids.into_iter().map(gid).collect(),
        unusable: port.unusable,
    }
}
