//! NUMA nodes.

use serde::Serialize;

use super::sysfs::Sysfs;

/// A node of memory and cores.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct NumaNode {
    pub(super) node: u16,
    /// Its cores, as the kernel writes it: `0-3,8`.
    pub(super) cpus: String,
    pub(super) memory_bytes: Option<u64>,
    /// To each node in order, 10 being its own.
    pub(super) distances: Vec<u16>,
}

/// All nodes; none if the machine says nothing about them.
pub(super) fn list(sysfs: &Sysfs) -> Vec<NumaNode> {
    const FOLDER: &str = "devices/system/node";
    let names = sysfs.names(FOLDER);
    let number = |name: &String| name.strip_prefix("node")?.parse().ok();
    let mut nodes: Vec<u16> = names.iter().filter_map(number).collect();
    nodes.sort_unstable();
    nodes
        .into_iter()
        .map(|node| {
            let text = |file: &str| sysfs.text(&format!("{FOLDER}/node{node}/{file}"));
            NumaNode {
                node,
                cpus: text("cpulist").unwrap_or_default(),
                memory_bytes: text("meminfo").and_then(|text| memory_bytes(&text)),
                distances: distances(&text("distance").unwrap_or_default()),
            }
        })
        .collect()
}

/// The number of a line such as `Node 0 MemTotal:  1024 kB`.
fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

fn distances(text: &str) -> Vec<u16> {
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}
