//! Where devices are on the PCI bus, as `/sys` tells it. Nothing is asked for, and what cannot be known is `None`.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// How far apart two devices are, the nearest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Distance {
    /// Behind the same PCI switch: they reach each other without the processor.
    Switch,
    /// At the same host bridge.
    Bridge,
    /// On the same NUMA node.
    Node,
    /// Nothing nearer is known.
    System,
}

impl Distance {
    /// The tier of a device so far from a GPU, for the GPU's memory: 0 is nearest.
    ///
    /// Source: TENT §3.1, which counts from 1.
    pub const fn tier(self) -> u8 {
        match self {
            Self::Switch | Self::Bridge => 0,
            Self::Node => 1,
            Self::System => 2,
        }
    }

    /// In a word, for output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Bridge => "bridge",
            Self::Node => "node",
            Self::System => "system",
        }
    }
}

/// The NUMA node of a device, by its PCI address.
pub(crate) fn numa_node(sys: &Path, pci: &str) -> Option<u16> {
    node_of(&device_of(sys, pci))
}

fn device_of(sys: &Path, pci: &str) -> PathBuf {
    sys.join("bus/pci/devices").join(pci)
}

fn node_of(device: &Path) -> Option<u16> {
    let text = fs::read_to_string(device.join("numa_node")).ok()?;
    // Negative: it says nothing.
    text.trim().parse().ok()
}

/// How far a network interface is from a device with a PCI address. `None`: it is no PCI device, or nothing is known.
pub fn distance(sys: &Path, pci: &str, interface: &str) -> Option<Distance> {
    let here = device_of(sys, pci);
    let there = sys.join("class/net").join(interface).join("device");
    let near = fs::canonicalize(&here).ok()?;
    let far = fs::canonicalize(&there).ok()?;
    let bridges = |path: &Path| -> Vec<String> {
        let names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        });
        let mut names: Vec<_> = names.skip_while(|name| !name.starts_with("pci")).collect();
        // The device itself is no bridge.
        names.pop();
        names
    };
    let (near_bridges, far_bridges) = (bridges(&near), bridges(&far));
    let pairs = near_bridges.iter().zip(&far_bridges);
    let common = pairs.take_while(|(a, b)| a == b).count();
    let nodes = (node_of(&near), node_of(&far));
    Some(match common {
        // The host bridge, a root port, and what is behind it.
        3.. => Distance::Switch,
        1.. => Distance::Bridge,
        0 if nodes.0.is_some() && nodes.0 == nodes.1 => Distance::Node,
        0 => Distance::System,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_as_far_apart_as_the_way_between_them() {
        let root = tempfile::tempdir().unwrap();
        let sys = root.path();
        let gpu = "devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0";
        // (interface, where, node)
        let interfaces = [
            (
                "mlx0",
                "devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:1a:00.0",
                "0",
            ),
            ("mlx1", "devices/pci0000:16/0000:16:03.0/0000:2a:00.0", "0"),
            ("mlx2", "devices/pci0000:49/0000:49:01.0/0000:4a:00.0", "0"),
            ("mlx3", "devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0", "1"),
            ("mlx4", "devices/pci0000:d0/0000:d0:01.0/0000:d1:00.0", "-1"),
        ];
        let add = |path: &str, node: &str| {
            fs::create_dir_all(sys.join(path)).unwrap();
            fs::write(sys.join(path).join("numa_node"), format!("{node}\n")).unwrap();
        };
        add(gpu, "0");
        fs::create_dir_all(sys.join("bus/pci/devices")).unwrap();
        let link = |to: &str, at: &str| {
            std::os::unix::fs::symlink(sys.join(to), sys.join(at)).unwrap();
        };
        link(gpu, "bus/pci/devices/0000:19:00.0");
        for (name, path, node) in interfaces {
            add(path, node);
            fs::create_dir_all(sys.join("class/net").join(name)).unwrap();
            link(path, &format!("class/net/{name}/device"));
        }
        fs::create_dir_all(sys.join("class/net/lo")).unwrap();
        // (interface, distance)
        let cases = [
            ("mlx0", Some(Distance::Switch)),
            ("mlx1", Some(Distance::Bridge)),
            ("mlx2", Some(Distance::Node)),
            ("mlx3", Some(Distance::System)),
            ("mlx4", Some(Distance::System)),
            ("lo", None),
            ("none", None),
        ];
        for (interface, expected) in cases {
            let found = distance(sys, "0000:19:00.0", interface);
            assert_eq!(found, expected, "{interface}");
        }
        assert_eq!(numa_node(sys, "0000:19:00.0"), Some(0));
        assert_eq!(numa_node(sys, "0000:20:00.0"), None);
        assert_eq!(distance(sys, "0000:20:00.0", "mlx0"), None);
    }
}
