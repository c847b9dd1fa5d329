//! NUMA nodes.

use serde::Serialize;

use super::sysfs::Sysfs;

/// A node of memory and cores.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NumaNode {
    /// Its number.
    pub node: u16,
    /// Its cores, as the kernel writes it: `0-3,8`.
    pub cpus: String,
    /// How much memory it has, if the kernel says so.
    pub memory_bytes: Option<u64>,
    /// To each node in order, 10 being its own.
    pub distances: Vec<u16>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_what_the_machine_says_of_them() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(list(&Sysfs::new(root.path())), []);
        let files = [
            ("node0/cpulist", "0-3\n"),
            ("node0/meminfo", "Node 0 MemTotal:  1024 kB\n"),
            ("node0/distance", "10 21\n"),
            ("node1/cpulist", "4-7\n"),
            ("node1/meminfo", "nonsense\n"),
            ("node1/distance", "21 10\n"),
            ("possible", "0-1\n"),
        ];
        for (path, content) in files {
            let path = root.path().join("devices/system/node").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let node = |node, cpus: &str, memory_bytes, distances| NumaNode {
            node,
            cpus: cpus.into(),
            memory_bytes,
            distances,
        };
        let expected = [
            node(0, "0-3", Some(1 << 20), vec![10, 21]),
            node(1, "4-7", None, vec![21, 10]),
        ];
        assert_eq!(list(&Sysfs::new(root.path())), expected);
    }
}
