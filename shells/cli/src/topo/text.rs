//! The topology as a page for people.

use std::net::IpAddr;

use polyrail::{Device, NumaNode, RdmaPort};

use super::{Gpu, Tier, Topology};

/// All of it, in sections.
pub(super) fn page(topology: &Topology) -> String {
    let mut page = String::from("devices\n");
    page += &table(devices(&topology.devices));
    if !topology.rdma.is_empty() {
        page += "\nRDMA ports\n";
        page += &table(ports(&topology.rdma));
    }
    if !topology.numa_nodes.is_empty() {
        page += "\nNUMA nodes\n";
        page += &table(nodes(&topology.numa_nodes));
    }
    if !topology.gpus.is_empty() {
        page += "\nGPUs\n";
        page += &table(gpus(&topology.gpus));
    }
    page += "\ntiers: how far a device is from a memory, 0 is nearest\n";
    page += &table(tiers(&topology.tiers, &topology.devices));
    page += "\ntransports\n";
    page += &table(transports(topology));
    if !topology.security.is_empty() {
        page += &format!("\n{}\n", topology.security);
    }
    for note in &topology.notes {
        page += &format!("\nnote: {note}\n");
    }
    page
}

fn devices(devices: &[Device]) -> Vec<Vec<String>> {
    let mut rows = vec![header("name|state|speed|node|addresses")];
    rows.extend(devices.iter().map(|device| {
        let addresses: Vec<_> = device.addresses.iter().map(IpAddr::to_string).collect();
        vec![
            device.name.clone(),
            device.state.to_string(),
            device.speed_bits_per_sec.map_or_else(unknown, speed),
            device
                .numa_node
                .map_or_else(unknown, |node| node.to_string()),
            addresses.join(", "),
        ]
    }));
    rows
}

fn ports(ports: &[RdmaPort]) -> Vec<Vec<String>> {
    let mut rows = vec![header("port|link|state|speed|node|PCI|GPUs, steps|GIDs")];
    rows.extend(ports.iter().map(|port| {
        let gpus = port.gpus.iter();
        let gpus: Vec<_> = gpus
            .map(|gpu| format!("{} at {}", gpu.address, gpu.steps))
            .collect();
        let gids = port.gids.iter();
        let gids: Vec<_> = gids
            .map(|gid| format!("{} {}{}", gid.row, gid.gid, if gid.v2 { " v2" } else { "" }))
            .collect();
        vec![
            format!("{} port {}", port.device, port.port),
            port.link.to_owned(),
            match &port.unusable {
                None => "usable".to_owned(),
                Some(why) => format!("not used: {why}"),
            },
            port.speed_bits_per_sec.map_or_else(unknown, speed),
            port.numa_node.map_or_else(unknown, |node| node.to_string()),
            port.pci_path.last().cloned().unwrap_or_else(unknown),
            match gpus.is_empty() {
                true => "-".to_owned(),
                false => gpus.join(", "),
            },
            gids.join(", "),
        ]
    }));
    rows
}

fn gpus(gpus: &[Gpu]) -> Vec<Vec<String>> {
    let mut rows = vec![header(
        "memory|name|number|shared by|pci|node|size|distances",
    )];
    rows.extend(gpus.iter().map(|gpu| {
        let distances = gpu.distances.iter();
        let distances: Vec<_> = distances
            .map(|to| format!("{} {}", to.device, to.distance))
            .collect();
        vec![
            gpu.memory.clone(),
            gpu.name.clone(),
            // Enough of it to tell instances of one GPU apart.
            gpu.uuid.chars().take(12).collect(),
            if gpu.mps { "MPS" } else { "" }.to_owned(),
            gpu.pci.clone(),
            gpu.numa_node.map_or_else(unknown, |node| node.to_string()),
            format!("{:.1} GB", gpu.bytes as f64 / 1e9),
            distances.join(", "),
        ]
    }));
    rows
}

fn nodes(nodes: &[NumaNode]) -> Vec<Vec<String>> {
    let mut rows = vec![header("node|cpus|memory|distances")];
    rows.extend(nodes.iter().map(|node| {
        let distances: Vec<_> = node.distances.iter().map(u16::to_string).collect();
        vec![
            node.node.to_string(),
            node.cpus.clone(),
            node.memory_bytes
                .map_or_else(unknown, |bytes| format!("{:.1} GB", bytes as f64 / 1e9)),
            distances.join(" "),
        ]
    }));
    rows
}

/// One row for each memory, one column for each device. Tiers come memory by memory.
fn tiers(tiers: &[Tier], devices: &[Device]) -> Vec<Vec<String>> {
    let mut first = vec!["memory".to_owned()];
    first.extend(devices.iter().map(|device| device.name.clone()));
    let mut rows = vec![first];
    for row in tiers.chunk_by(|a, b| a.memory == b.memory) {
        let memory = row.first().map(|tier| tier.memory.clone());
        let numbers = row.iter().map(|tier| tier.tier.to_string());
        rows.push(memory.into_iter().chain(numbers).collect());
    }
    rows
}

fn transports(topology: &Topology) -> Vec<Vec<String>> {
    let row = |transport: &super::Transport| {
        let state = match &transport.reason {
            None => "available".to_owned(),
            Some(reason) => format!("missing: {reason}"),
        };
        vec![transport.name.to_owned(), state, transport.moves.to_owned()]
    };
    topology.transports.iter().map(row).collect()
}

fn header(words: &str) -> Vec<String> {
    words.split('|').map(str::to_owned).collect()
}

fn unknown() -> String {
    "?".to_owned()
}

fn speed(bits_per_sec: u64) -> String {
    format!("{} Gbit/s", bits_per_sec as f64 / 1e9)
}

/// Rows with their columns under each other.
fn table(rows: Vec<Vec<String>>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line += &format!("  {cell:<width$}");
        }
        text += line.trim_end();
        text += "\n";
    }
    text
}
