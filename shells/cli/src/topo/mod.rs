//! `polyrail topo`: what this machine has to move bytes with.
//!
//! The same that engines go by. It works unprivileged, in containers, and on machines that say nothing about NUMA;
//! what cannot be known is left out.

mod text;

use std::io::{self, Write};

use polyrail::cuda::Distance;
use polyrail::{Availability, Device, GpuInfo, NumaNode, RdmaPort, TransportInfo};
use serde::Serialize;

use crate::exit::Failure;
use crate::security;
use crate::settings::ConfigArgs;

/// Shows this machine's devices, GPUs, NUMA nodes, the tier of each device for each memory, and the transports, with
/// the reason where one is missing; and who comes in, as it is configured.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  polyrail topo\n  polyrail topo --json")]
pub(crate) struct TopoArgs {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: ConfigArgs,
}

/// All of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Topology {
    devices: Vec<Device>,
    /// None in a build without RDMA.
    rdma: Vec<RdmaPort>,
    numa_nodes: Vec<NumaNode>,
    gpus: Vec<Gpu>,
    tiers: Vec<Tier>,
    transports: Vec<Transport>,
    /// Who comes in, and what is in clear.
    security: String,
    notes: Vec<String>,
}

/// A GPU.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Gpu {
    /// `cuda:N`.
    memory: String,
    name: String,
    /// `GPU-` or, of an instance (MIG), `MIG-`, and its number.
    uuid: String,
    /// Processes share it by a server (MPS).
    mps: bool,
    pci: String,
    numa_node: Option<u16>,
    bytes: u64,
    distances: Vec<GpuDistance>,
}

/// How far a GPU is from a network interface on the PCI bus: `switch`, `bridge`, `node` or `system`.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct GpuDistance {
    device: String,
    distance: &'static str,
}

/// How far a device is from a memory: 0 is nearest.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Tier {
    /// `cuda:N`, `cpu:NODE`, or `cpu` if the machine says nothing about NUMA.
    memory: String,
    device: String,
    tier: u8,
}

/// A transport, and why it is missing if it is.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Transport {
    name: &'static str,
    moves: &'static str,
    available: bool,
    reason: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &TopoArgs) -> Result<(), Failure> {
    let loaded = args.settings.load_quietly()?;
    let (config, notes) = (loaded.config, loaded.notes);
    // Why there are none, the list of transports says.
    let gpus = polyrail::gpus().unwrap_or_default();
    let mut topology = Topology::new(polyrail::devices(), polyrail::numa_nodes(), &gpus, notes);
    topology.security = match config.security.fingerprint() {
        Ok(key) => security::line(key, &config),
        Err(error) => format!("security no engine starts: {error}"),
    };
    let text = match args.json {
        true => serde_json::to_string(&topology)
            .map(|line| line + "\n")
            .map_err(|e| Failure::output(e.into()))?,
        false => text::page(&topology),
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Failure::output)
}

impl Topology {
    fn new(
        devices: Vec<Device>,
        numa_nodes: Vec<NumaNode>,
        gpus: &[GpuInfo],
        mut notes: Vec<String>,
    ) -> Self {
        if numa_nodes.is_empty() {
            notes
                .push("this machine says nothing about NUMA: all memory counts as near".to_owned());
        }
        let mut tiers = tiers(&numa_nodes, &devices);
        tiers.extend(gpus.iter().flat_map(|gpu| tiers_of(gpu, &devices)));
        Self {
            tiers,
            gpus: gpus.iter().map(gpu).collect(),
            devices,
            rdma: polyrail::rdma_ports(),
            numa_nodes,
            transports: polyrail::transports().into_iter().map(transport).collect(),
            security: String::new(),
            notes,
        }
    }
}

fn tiers(nodes: &[NumaNode], devices: &[Device]) -> Vec<Tier> {
    let memories: Vec<Option<u16>> = match nodes {
        [] => vec![None],
        nodes => nodes.iter().map(|node| Some(node.node)).collect(),
    };
    let pairs = memories
        .iter()
        .flat_map(|memory| devices.iter().map(move |device| (*memory, device)));
    pairs
        .map(|(memory, device)| Tier {
            memory: memory.map_or_else(|| "cpu".to_owned(), |node| format!("cpu:{node}")),
            device: device.name.clone(),
            tier: polyrail::tier(memory, device.numa_node),
        })
        .collect()
}

/// Those of a GPU's memory.
fn tiers_of(gpu: &GpuInfo, devices: &[Device]) -> Vec<Tier> {
    let tier = |device: &Device| Tier {
        memory: memory_of(gpu),
        device: device.name.clone(),
        tier: gpu.tier(device),
    };
    devices.iter().map(tier).collect()
}

fn memory_of(gpu: &GpuInfo) -> String {
    format!("cuda:{}", gpu.gpu.ordinal)
}

fn gpu(info: &GpuInfo) -> Gpu {
    let distance = |(device, distance): &(String, Distance)| GpuDistance {
        device: device.clone(),
        distance: distance.name(),
    };
    Gpu {
        memory: memory_of(info),
        name: info.gpu.name.clone(),
        uuid: info.gpu.uuid_text(),
        mps: info.gpu.is_served,
        pci: info.gpu.pci.clone(),
        numa_node: info.numa_node,
        bytes: info.gpu.bytes,
        distances: info.interfaces.iter().map(distance).collect(),
    }
}

fn transport(info: TransportInfo) -> Transport {
    let reason = match info.availability {
        Availability::Available => None,
        Availability::NotBuiltIn => Some("not built in".to_owned()),
        Availability::Failed { why } => Some(why),
        _ => Some("unknown".to_owned()),
    };
    Transport {
        name: info.name,
        moves: info.moves,
        available: reason.is_none(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use polyrail::{DeviceState, NearGpu, PortGid};

    use super::*;

    fn device(name: &str, numa_node: Option<u16>) -> Device {
        Device {
            name: name.into(),
            state: DeviceState::Up,
            speed_bits_per_sec: Some(25_000_000_000),
            numa_node,
            addresses: vec![[10, 0, 0, 1].into()],
        }
    }

    fn node(node: u16) -> NumaNode {
        NumaNode {
            node,
            cpus: "0-3".into(),
            memory_bytes: None,
            distances: vec![10, 21],
        }
    }

    #[test]
    fn tiers_follow_the_nodes() {
        let devices = ["eth0", "eth1"].into_iter().zip([Some(0), Some(1)]);
        let devices = devices.chain([("lo", None), ("tun7", None)]);
        let devices = devices.map(|(name, node)| device(name, node)).collect();
        let topology = Topology::new(devices, vec![node(0), node(1)], &[], Vec::new());
        let far: Vec<_> = topology
            .tiers
            .iter()
            .filter(|tier| tier.tier > 0)
            .map(|tier| (tier.memory.as_str(), tier.device.as_str(), tier.tier))
            .collect();
        assert_eq!(far, [("cpu:0", "eth1", 1), ("cpu:1", "eth0", 1)]);
        assert_eq!(topology.tiers.len(), 2 * 4);
        assert_eq!(topology.notes, Vec::<String>::new());
    }

    #[test]
    fn rdma_ports_are_shown_with_what_they_are_and_why_not() {
        let port = |device: &str, unusable: Option<&str>| RdmaPort {
            device: device.into(),
            port: 1,
            link: "ethernet",
            active: unusable.is_none(),
            speed_bits_per_sec: Some(100_000_000_000),
            numa_node: Some(1),
            pci_path: vec!["pci0000:40".into(), "0000:41:00.0".into()],
            gpus: vec![NearGpu {
                address: "0000:42:00.0".into(),
                steps: 1,
            }],
            gids: vec![PortGid {
                row: 3,
                gid: "::ffff:10.0.0.1".into(),
                v2: true,
                interface: Some("eth0".into()),
            }],
            unusable: unusable.map(str::to_owned),
        };
        let mut topology = Topology::new(Vec::new(), Vec::new(), &[], Vec::new());
        topology.rdma = vec![port("mlx5_0", None), port("mlx5_1", Some("port 1 is DOWN"))];
        let page = text::page(&topology);
        let rows: Vec<Vec<&str>> = page
            .lines()
            .filter(|line| line.contains("mlx5_"))
            .map(|line| {
                line.split("  ")
                    .filter(|cell| !cell.is_empty())
                    .map(str::trim)
                    .collect()
            })
            .collect();
        let shown = [
            "100 Gbit/s",
            "1",
            "0000:41:00.0",
            "0000:42:00.0 at 1",
            "3 ::ffff:10.0.0.1 v2",
        ];
        assert_eq!(
            rows[0][..3],
            ["mlx5_0 port 1", "ethernet", "usable"],
            "{page}"
        );
        assert_eq!(rows[1][2], "not used: port 1 is DOWN", "{page}");
        assert_eq!(rows[0][3..], shown, "{page}");
        let json = serde_json::to_value(&topology).unwrap();
        assert_eq!(json["rdma"][0]["gids"][0]["gid"], "::ffff:10.0.0.1");
        assert_eq!(json["rdma"][0]["gpus"][0]["steps"], 1);
        assert_eq!(json["rdma"][1]["unusable"], "port 1 is DOWN");
    }

    #[test]
    fn gpus_are_shown_with_their_distances() {
        let names = ["mlx0", "mlx1", "mlx2", "mlx3", "eth0"];
        let devices: Vec<_> = names.iter().map(|name| device(name, Some(1))).collect();
        let distances = [
            Distance::Switch,
            Distance::Bridge,
            Distance::Node,
            Distance::System,
        ];
        let interfaces = names.iter().map(|name| (*name).to_owned()).zip(distances);
        let info = GpuInfo {
            gpu: polyrail::cuda::Gpu {
                ordinal: 3,
                name: "H100".into(),
                uuid: [0xab; 16],
                pci: "0000:17:00.0".into(),
                bytes: 80 << 30,
                is_served: true,
            },
            numa_node: Some(0),
            interfaces: interfaces.collect(),
        };
        let topology = Topology::new(devices, vec![node(0), node(1)], &[info], Vec::new());
        let tiers = topology.tiers.iter().filter(|tier| tier.memory == "cuda:3");
        let tiers: Vec<_> = tiers.map(|tier| tier.tier).collect();
        assert_eq!(tiers, [0, 0, 1, 2, 1]);
        let page = text::page(&topology);
        let parts = [
            "cuda:3",
            "H100",
            "GPU-abab",
            "MPS",
            "0000:17:00.0",
            "85.9 GB",
            "mlx0 switch",
        ];
        for part in parts {
            assert!(page.contains(part), "{page}");
        }
        let json = serde_json::to_value(&topology).unwrap();
        assert_eq!(json["gpus"][0]["distances"][3]["distance"], "system");
        assert_eq!(
            json["gpus"][0]["uuid"],
            "GPU-abababab-abab-abab-abab-abababababab"
        );
        assert_eq!(json["gpus"][0]["mps"], true);
    }

    #[test]
    fn a_machine_that_says_nothing_is_no_error() {
        let topology = Topology::new(vec![device("eth0", None)], Vec::new(), &[], Vec::new());
        assert_eq!(topology.tiers[0].memory, "cpu");
        assert!(topology.notes[0].contains("NUMA"), "{topology:?}");
        let page = text::page(&topology);
        assert!(page.contains("eth0") && page.contains("tcp"), "{page}");
        assert!(page.contains("up") && page.contains("25 Gbit/s"), "{page}");
    }
}
