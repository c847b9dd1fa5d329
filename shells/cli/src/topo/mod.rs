//! `polyrail topo`: what this machine has to move bytes with.
//!
//! Everything is read, nothing is asked for: it works unprivileged, in containers, and on machines that say
//! nothing about NUMA; what cannot be known is left out.

mod device;
mod numa;
mod sysfs;
mod text;

use std::io::{self, Write};

use polyrail::{Availability, TransportInfo};
use serde::Serialize;

use crate::exit::Failure;
use crate::settings::ConfigArgs;
use device::Device;
use numa::NumaNode;
use sysfs::Sysfs;

/// Shows this machine's devices, NUMA nodes, the tier of each device for each memory, and the transports, with
/// the reason where one is missing.
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
    numa_nodes: Vec<NumaNode>,
    tiers: Vec<Tier>,
    transports: Vec<Transport>,
    notes: Vec<String>,
}

/// How far a device is from a memory: 0 is nearest.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Tier {
    /// `cpu:NODE`, or `cpu` if the machine says nothing about NUMA.
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
    let notes = args.settings.load_quietly()?.notes;
    let addresses = device::addresses().unwrap_or_else(|e| {
        log::warn!("cannot list this machine's addresses: {e}");
        Vec::new()
    });
    let topology = Topology::read(&Sysfs::new("/sys"), &addresses, notes);
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
    fn read(sysfs: &Sysfs, addresses: &[device::Address], mut notes: Vec<String>) -> Self {
        let devices = device::list(sysfs, addresses);
        let numa_nodes = numa::list(sysfs);
        if numa_nodes.is_empty() {
            notes
                .push("this machine says nothing about NUMA: all memory counts as near".to_owned());
        }
        Self {
            tiers: tiers(&numa_nodes, &devices),
            devices,
            numa_nodes,
            transports: polyrail::transports().into_iter().map(transport).collect(),
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
    use super::*;

    /// A machine with two nodes, a device on each, and one that nobody knows the place of.
    fn machine() -> (tempfile::TempDir, Topology) {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("class/net/eth0/operstate", "up\n"),
            ("class/net/eth0/speed", "25000\n"),
            ("class/net/eth0/device/numa_node", "0\n"),
            ("class/net/eth1/operstate", "down\n"),
            ("class/net/eth1/speed", "-1\n"),
            ("class/net/eth1/device/numa_node", "1\n"),
            ("class/net/lo/operstate", "unknown\n"),
            ("class/net/lo/flags", "0x9\n"),
            ("devices/system/node/node0/cpulist", "0-3\n"),
            (
                "devices/system/node/node0/meminfo",
                "Node 0 MemTotal:  1024 kB\n",
            ),
            ("devices/system/node/node0/distance", "10 21\n"),
            ("devices/system/node/node1/cpulist", "4-7\n"),
            ("devices/system/node/node1/meminfo", "nonsense\n"),
            ("devices/system/node/node1/distance", "21 10\n"),
            ("devices/system/node/possible", "0-1\n"),
        ];
        for (path, content) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let addresses = [
            ("lo".to_owned(), "127.0.0.1".parse().unwrap()),
            ("eth0".to_owned(), "10.0.0.1".parse().unwrap()),
            ("eth0".to_owned(), "fe80::1".parse().unwrap()),
            ("tun7".to_owned(), "10.9.0.1".parse().unwrap()),
        ];
        let topology = Topology::read(&Sysfs::new(root.path()), &addresses, Vec::new());
        (root, topology)
    }

    #[test]
    fn devices_have_what_the_machine_says_of_them() {
        let (_root, topology) = machine();
        let found: Vec<_> = topology
            .devices
            .iter()
            .map(|d| {
                let Device {
                    name,
                    state,
                    speed_bits_per_sec,
                    numa_node,
                    addresses,
                } = d;
                (
                    name.as_str(),
                    *state,
                    *speed_bits_per_sec,
                    *numa_node,
                    addresses.len(),
                )
            })
            .collect();
        let expected = [
            ("eth0", "up", Some(25_000_000_000), Some(0), 2),
            ("eth1", "down", None, Some(1), 0),
            ("lo", "up", None, None, 1),
            ("tun7", "unknown", None, None, 1),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn tiers_follow_the_nodes() {
        let (_root, topology) = machine();
        let far: Vec<_> = topology
            .tiers
            .iter()
            .filter(|tier| tier.tier > 0)
            .map(|tier| (tier.memory.as_str(), tier.device.as_str(), tier.tier))
            .collect();
        assert_eq!(far, [("cpu:0", "eth1", 1), ("cpu:1", "eth0", 1)]);
        assert_eq!(topology.tiers.len(), 2 * 4);
        assert_eq!(topology.numa_nodes[0].memory_bytes, Some(1 << 20));
        assert_eq!(topology.numa_nodes[1].memory_bytes, None);
        assert_eq!(topology.numa_nodes[1].distances, [21, 10]);
    }

    #[test]
    fn a_machine_that_says_nothing_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        let addresses = [("eth0".to_owned(), "10.0.0.1".parse().unwrap())];
        let topology = Topology::read(&Sysfs::new(root.path()), &addresses, Vec::new());
        assert_eq!((topology.devices.len(), topology.numa_nodes.len()), (1, 0));
        assert_eq!(topology.tiers[0].memory, "cpu");
        assert!(topology.notes[0].contains("NUMA"), "{topology:?}");
        let page = text::page(&topology);
        assert!(page.contains("eth0") && page.contains("tcp"), "{page}");
    }
}
