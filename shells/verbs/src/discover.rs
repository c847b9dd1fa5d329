//! What the kernel says of RDMA devices, without opening them.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::gid::Gid;

/// Rows of a port's table of GIDs that are looked at.
const GIDS_MAX: usize = 256;
/// So many rows in a row that are not in use are taken for the end of the table.
const GIDS_GAP_MAX: usize = 16;

/// Rows of a port's table of partition keys that are looked at.
const PARTITIONS_MAX: u16 = 256;
/// What of a key names the partition. The rest says that the port is a full member, whom limited ones can talk to.
const PARTITION: u16 = 0x7fff;

/// The row of this partition key, of which 15 bits count; `None`: the first that the port is a full member of, or any. An error says
/// which there are.
pub(crate) fn partition(keys: &[(u16, u16)], wanted: Option<u16>) -> Result<u16, String> {
    let is_full = |key: u16| key & !PARTITION != 0;
    let fits = |key: u16| wanted.is_none_or(|wanted| (key ^ wanted) & PARTITION == 0);
    let rows = keys.iter().rev().filter(|(_, key)| fits(*key));
    match (rows.max_by_key(|(_, key)| is_full(*key)), wanted) {
        (Some((row, _)), _) => Ok(*row),
        // A kernel that does not say has one.
        (None, None) => Ok(0),
        (None, Some(wanted)) => {
            let there: Vec<_> = keys.iter().map(|(_, key)| format!("{key:#06x}")).collect();
            let there = there.join(", ");
            Err(format!(
                "partition {wanted:#06x} (verbs/pkey) is not in its table of keys, which has: {there}"
            ))
        }
    }
}

/// What a port's link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkLayer {
    /// RoCE.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
}

/// One name of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GidRow {
    /// Its row in the table.
    pub index: u8,
    /// The name.
    pub gid: Gid,
    /// Whether packets with it are RoCE v2, which routers carry.
    pub is_v2: bool,
    /// The network interface that it is of.
    pub interface: Option<String>,
}

/// A port of an RDMA device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// The device, as the kernel calls it.
    pub device: String,
    /// The port's number, from 1.
    pub port: u8,
    /// What its link is.
    pub link: LinkLayer,
    /// Whether it carries packets now.
    pub is_active: bool,
    /// How fast it says it is.
    pub speed_bits_per_sec: Option<u64>,
    /// The NUMA node of its device, or of the card under it. `None`: unknown.
    pub numa_node: Option<u16>,
    /// Where its device is on the PCI bus, from the root on, if it is on one.
    pub pci_path: Vec<String>,
    /// Its names.
    pub gids: Vec<GidRow>,
    /// Why it cannot be used now, if so.
    pub unusable: Option<String>,
}

/// The row of a port's table of GIDs that an address of this host is in: RoCE v2 before v1, and one whose interface can be seen
/// from here before one of another network namespace.
pub(crate) fn gid_of(gids: &[GidRow], address: IpAddr) -> Option<&GidRow> {
    let gid = Gid::of(address);
    let rows = gids.iter().rev().filter(|row| row.gid == gid);
    rows.max_by_key(|row| (row.is_v2, row.interface.is_some()))
}

/// The row that lanes at an address use: this one, if one is wanted; on InfiniBand, where addresses are in no row, the first; on
/// Ethernet that of the address. An error says which is missing.
pub(crate) fn gid_for(
    gids: &[GidRow],
    link: LinkLayer,
    address: IpAddr,
    wanted: Option<u8>,
) -> Result<&GidRow, String> {
    let row = match (wanted, link) {
        (Some(index), _) => gids.iter().find(|row| row.index == index),
        (None, LinkLayer::InfiniBand) => gids.first(),
        (None, LinkLayer::Ethernet) => gid_of(gids, address),
    };
    const WHY: &str = "no row of its table of GIDs is it";
    row.ok_or_else(|| match wanted {
        Some(index) => format!("GID {index} is missing: {WHY}"),
        None => format!("a GID for {address} is missing: {WHY}"),
    })
}

impl Port {
    /// Why it can never be used, if so: it carries packets and has no GID, as ports that stand for virtual functions. One that is down
    /// may get some.
    pub(crate) fn nameless(&self) -> Option<&str> {
        let is_it = self.is_active && self.gids.is_empty();
        self.unusable.as_deref().filter(|_| is_it)
    }

    /// How many steps of the PCI bus are between this device and another: 0 behind the same switch port, more the
    /// further up their ways meet. `None`: one of them is not on the bus, or they are on different ones.
    pub fn pci_distance(&self, other: &[String]) -> Option<usize> {
        let common = self
            .pci_path
            .iter()
            .zip(other)
            .take_while(|(a, b)| a == b)
            .count();
        let far = self.pci_path.len().max(other.len());
        (common > 0).then(|| far - common)
    }
}

/// The tree in which the kernel says it, or one made up by a test.
#[derive(Clone, Debug)]
pub(crate) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim().to_owned())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    /// All ports of all devices, in order.
    pub(crate) fn ports(&self) -> Vec<Port> {
        let numbers = self.port_numbers().into_iter();
        numbers
            .map(|(device, port)| self.port(&device, port))
            .collect()
    }

    /// The names of all devices with the numbers of their ports, in order. Only folders are read.
    pub(crate) fn port_numbers(&self) -> Vec<(String, u8)> {
        let devices = self.names("class/infiniband");
        let of_device = |device: String| {
            let numbers = self.names(&format!("class/infiniband/{device}/ports"));
            let mut numbers: Vec<u8> = numbers.iter().filter_map(|n| n.parse().ok()).collect();
            numbers.sort_unstable();
            numbers.into_iter().map(move |port| (device.clone(), port))
        };
        devices.into_iter().flat_map(of_device).collect()
    }

    /// One port, as it is now.
    pub(crate) fn port(&self, device: &str, port: u8) -> Port {
        let at = format!("class/infiniband/{device}");
        let text = |file: &str| self.text(&format!("{at}/ports/{port}/{file}"));
        let link = match text("link_layer").as_deref() {
            Some("InfiniBand") => LinkLayer::InfiniBand,
            _ => LinkLayer::Ethernet,
        };
        let is_active = self.is_active(device, port);
        let gids = self.gids(device, port, link);
        let unusable = match (is_active, gids.is_empty(), text("state")) {
            (false, _, Some(state)) => Some(format!("port {port} is {}", word(&state))),
            (false, _, None) => Some(format!("port {port} does not say how it is")),
            (true, true, _) => Some(format!("port {port} has no GID")),
            (true, false, _) => None,
        };
        let card = self.card(device);
        let node = card.as_deref().and_then(|card| self.node(card));
        Port {
            device: device.into(),
            port,
            link,
            is_active,
            speed_bits_per_sec: self.speed_bits_per_sec(device, port),
            numa_node: node,
            pci_path: card.map(|card| self.pci_path(&card)).unwrap_or_default(),
            gids,
            unusable,
        }
    }

    /// How fast a port says it is. The kernel may ask the device.
    pub(crate) fn speed_bits_per_sec(&self, device: &str, port: u8) -> Option<u64> {
        let rate = self.text(&format!("class/infiniband/{device}/ports/{port}/rate"));
        rate.and_then(|rate| bits_per_sec(&rate))
    }

    /// Whether a port carries packets now. The kernel may ask the device.
    fn is_active(&self, device: &str, port: u8) -> bool {
        let state = self.text(&format!("class/infiniband/{device}/ports/{port}/state"));
        state.is_some_and(|state| word(&state) == "ACTIVE")
    }

    /// The rows of a port's table of partition keys that are in use.
    pub(crate) fn partition_keys(&self, device: &str, port: u8) -> Vec<(u16, u16)> {
        let at = format!("class/infiniband/{device}/ports/{port}/pkeys");
        let key = |row: u16| {
            let text = self.text(&format!("{at}/{row}"))?;
            let key = u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()?;
            Some((row, key))
        };
        let rows = (0..PARTITIONS_MAX).map_while(key);
        rows.filter(|(_, key)| key & PARTITION != 0).collect()
    }

    /// The names of a port. The kernel has them itself, and asks no device.
    pub(crate) fn gids(&self, device: &str, port: u8, link: LinkLayer) -> Vec<GidRow> {
        let at = format!("class/infiniband/{device}/ports/{port}");
        let row = |index: usize| {
            let gid = Gid::parse(&self.text(&format!("{at}/gids/{index}"))?)?;
            let kind = self.text(&format!("{at}/gid_attrs/types/{index}"));
            // A row that is not in use has no kind; reading it is an error.
            if gid.is_empty() || kind.is_none() && link == LinkLayer::Ethernet {
                return None;
            }
            Some(GidRow {
                index: u8::try_from(index).ok()?,
                gid,
                is_v2: kind.as_deref() == Some("RoCE v2"),
                interface: self.text(&format!("{at}/gid_attrs/ndevs/{index}")),
            })
        };
        let mut rows: Vec<GidRow> = Vec::new();
        let mut gap = 0;
        for index in 0..GIDS_MAX {
            let found = row(index);
            gap = if found.is_some() { 0 } else { gap + 1 };
            rows.extend(found);
            if gap == GIDS_GAP_MAX {
                break;
            }
        }
        rows
    }

    /// The network interface that has this address.
    pub(crate) fn interface_of(&self, address: IpAddr) -> Option<String> {
        let all = if_addrs::get_if_addrs().unwrap_or_default();
        let has = |interface: &if_addrs::Interface| interface.ip() == address;
        all.into_iter().find(has).map(|interface| interface.name)
    }

    /// Whether a network interface is a port of an InfiniBand device.
    pub(crate) fn is_of(&self, interface: &str, device: &str, port: u8) -> bool {
        let card = |link: String| fs::canonicalize(self.root.join(link)).ok();
        let cards = [
            card(format!("class/net/{interface}/device")),
            card(format!("class/infiniband/{device}/device")),
        ];
        let number = self.text(&format!("class/net/{interface}/dev_port"));
        // Counted from 0 there, from 1 here.
        let is_port = number.is_none_or(|number| number.parse() == Ok(port.saturating_sub(1)));
        cards[0].is_some() && cards[0] == cards[1] && is_port
    }

    /// The folder of the card that a device is on: by its own link, or by that of the interface that it runs over.
    fn card(&self, device: &str) -> Option<PathBuf> {
        let own = format!("class/infiniband/{device}/device");
        let over = self.text(&format!("class/infiniband/{device}/parent"));
        let over = over.map(|interface| format!("class/net/{interface}/device"));
        let mut links = [Some(own), over].into_iter().flatten();
        links.find_map(|link| fs::canonicalize(self.root.join(link)).ok())
    }

    /// Whether a module of the kernel lets devices register memory of GPUs by its address, as if it were the host's:
    /// `nvidia-peermem`, or what it was called before it came with the driver.
    pub(crate) fn has_peer_memory(&self) -> bool {
        const SIGNS: [&str; 3] = [
            "module/nvidia_peermem",
            "kernel/mm/memory_peers/nv_mem",
            "kernel/mm/memory_peers/nv_mem_nc",
        ];
        SIGNS.iter().any(|sign| self.root.join(sign).exists())
    }

    /// The GPUs on PCI buses, by address, and where each is, from the root on.
    pub(crate) fn gpus(&self) -> Vec<(String, Vec<String>)> {
        let at = "bus/pci/devices";
        let is_display = |name: &String| {
            let class = self.text(&format!("{at}/{name}/class"));
            class.is_some_and(|class| class.starts_with("0x03"))
        };
        let path = |name: String| {
            let folder = fs::canonicalize(self.root.join(format!("{at}/{name}"))).ok()?;
            Some((name, self.pci_path(&folder)))
        };
        let names = self.names(at).into_iter().filter(is_display);
        names.filter_map(path).collect()
    }

    /// The NUMA node of a card; a device on a bus of its own says nothing, and its parent does.
    fn node(&self, card: &std::path::Path) -> Option<u16> {
        let folders = card
            .ancestors()
            .take_while(|folder| folder.starts_with(&self.root));
        let said = |folder: &std::path::Path| {
            fs::read_to_string(folder.join("numa_node"))
                .ok()?
                .trim()
                .parse::<i32>()
                .ok()
        };
        let node = folders.filter_map(said).next()?;
        u16::try_from(node).ok()
    }

    /// The steps of a folder that are PCI addresses.
    fn pci_path(&self, card: &std::path::Path) -> Vec<String> {
        let steps = card
            .components()
            .filter_map(|step| step.as_os_str().to_str());
        let is_pci = |step: &&str| step.starts_with("pci") || step.matches(':').count() == 2;
        steps.filter(is_pci).map(str::to_owned).collect()
    }
}

/// The word of `4: ACTIVE`.
fn word(state: &str) -> &str {
    state.split_whitespace().last().unwrap_or(state)
}

/// The number of `100 Gb/sec (4X EDR)`.
fn bits_per_sec(rate: &str) -> Option<u64> {
    let gigabits: f64 = rate.split_whitespace().next()?.parse().ok()?;
    let good = rate.contains("Gb/sec") && gigabits > 0.0 && gigabits < 1e5;
    good.then_some((gigabits * 1e9) as u64)
}

/// All ports of all RDMA devices of this machine, in order; those too that cannot be used.
pub fn ports() -> Vec<Port> {
    Sysfs::new("/sys").ports()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examine::examine_with;

    /// A machine that says this of itself.
    fn machine(files: &[(&str, &str)], links: &[(&str, &str)]) -> (tempfile::TempDir, Sysfs) {
        let root = tempfile::tempdir().unwrap();
        // Compared with canonical paths.
        let base = root.path().canonicalize().unwrap();
        for (path, content) in files {
            let path = base.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        for (link, to) in links {
            let link = base.join(link);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(base.join(to), link).unwrap();
        }
        (root, Sysfs::new(base))
    }

    const V4: &str = "0000:0000:0000:0000:0000:ffff:0a4d:0001\n";

    #[test]
    fn a_port_says_what_it_is() {
        let at = |file: &str| format!("class/infiniband/mlx5_0/ports/1/{file}");
        let files = [
            (at("state"), "4: ACTIVE\n"),
            (at("rate"), "100 Gb/sec (4X EDR)\n"),
            (at("link_layer"), "Ethernet\n"),
            (at("gids/0"), "fe80:0000:0000:0000:5054:00ff:fe77:0000\n"),
            (at("gid_attrs/types/0"), "IB/RoCE v1\n"),
            (at("gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            (at("gids/2"), V4),
            (at("gid_attrs/types/2"), "IB/RoCE v1\n"),
            (at("gids/3"), V4),
            (at("gid_attrs/types/3"), "RoCE v2\n"),
            (at("gid_attrs/ndevs/3"), "eth0\n"),
            (
                "devices/pci0000:00/0000:00:01.0/0000:01:00.0/numa_node".into(),
                "1\n",
            ),
        ];
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (&path[..], *text))
            .collect();
        let card = "devices/pci0000:00/0000:00:01.0/0000:01:00.0";
        let (_root, sysfs) = machine(&files, &[("class/infiniband/mlx5_0/device", card)]);
        let ports = sysfs.ports();
        let port = &ports[0];
        assert_eq!((ports.len(), port.port, port.is_active), (1, 1, true));
        assert_eq!((port.numa_node, port.link), (Some(1), LinkLayer::Ethernet));
        assert_eq!(port.speed_bits_per_sec, Some(100_000_000_000));
        assert_eq!(port.gids.len(), 3, "{port:?}");
        let row = gid_of(&port.gids, [10, 77, 0, 1].into()).unwrap();
        assert_eq!((row.index, row.interface.as_deref()), (3, Some("eth0")));
        assert_eq!(gid_of(&port.gids, [10, 77, 0, 2].into()), None);
        assert_eq!(port.unusable, None);
        let path = |steps: &[&str]| {
            steps
                .iter()
                .map(|step| (*step).into())
                .collect::<Vec<String>>()
        };
        // (another device's way, distance)
        let cases = [
            (
                path(&["pci0000:00", "0000:00:01.0", "0000:01:00.0"]),
                Some(0),
            ),
            (
                path(&["pci0000:00", "0000:00:01.0", "0000:02:00.0"]),
                Some(1),
            ),
            (
                path(&["pci0000:00", "0000:00:02.0", "0000:03:00.0"]),
                Some(2),
            ),
            (path(&["pci0000:80", "0000:80:02.0"]), None),
            (Vec::new(), None),
        ];
        for (other, distance) in cases {
            assert_eq!(port.pci_distance(&other), distance, "{other:?}");
        }
    }

    /// As `show_gids` lists tables of clusters: which row lanes at an address get, and why.
    #[test]
    fn the_row_of_a_rails_address() {
        let mapped = |address: &str| match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => address.to_ipv6_mapped().to_string(),
            _ => address.to_owned(),
        };
        const V1: &str = "IB/RoCE v1";
        const V2: &str = "RoCE v2";
        const LINK: &str = "fe80::ba59:9fff:fe01:1";
        type Table = &'static [(u8, &'static str, &'static str, Option<&'static str>)];
        // What every port on Ethernet begins with.
        const BEGIN: [(u8, &str, &str, Option<&str>); 2] =
            [(0, LINK, V1, Some("bond0")), (1, LINK, V2, Some("bond0"))];
        let [first, second] = BEGIN;
        let bond: Table = &[
            BEGIN[0],
            BEGIN[1],
            (2, "10.0.0.1", V1, Some("bond0")),
            (3, "10.0.0.1", V2, Some("bond0")),
        ];
        let vlans: Table = &[
            BEGIN[0],
            BEGIN[1],
            (2, "10.0.0.1", V1, Some("bond0")),
            (3, "10.0.0.1", V2, Some("bond0")),
            (4, LINK, V1, Some("bond0.100")),
            (5, LINK, V2, Some("bond0.100")),
            (6, "10.1.0.1", V1, Some("bond0.100")),
            (7, "10.1.0.1", V2, Some("bond0.100")),
            (8, "fd00::1", V2, Some("bond0.100")),
        ];
        let gap: Table = &[BEGIN[0], BEGIN[1], (14, "10.0.0.1", V2, Some("eth0"))];
        let pods: Table = &[
            BEGIN[1],
            (2, "10.0.0.1", V2, None),
            (3, "10.0.0.1", V1, Some("net1")),
            (4, "10.0.0.1", V2, Some("net1")),
            (5, "10.0.0.1", V2, None),
        ];
        let infiniband: Table = &[
            (0, "fe80::ec0d:9a03:2f:1", V1, None),
            (1, "fec0::ec0d:9a03:2f:1", V1, None),
        ];
        let ethernet = "Ethernet";
        // (which cluster, link, table, rail's address, `gid_row`, the row, why)
        let cases = [
            (
                "a bond",
                ethernet,
                bond,
                "10.0.0.1",
                None,
                Some(3),
                "v2, which routers carry, before v1",
            ),
            (
                "the same",
                ethernet,
                bond,
                "10.0.0.1",
                Some(2),
                Some(2),
                "the row that is wanted, whatever is in it",
            ),
            (
                "the same",
                ethernet,
                bond,
                "10.0.0.1",
                Some(9),
                None,
                "that row is not in use",
            ),
            (
                "VLANs",
                ethernet,
                vlans,
                "10.1.0.1",
                None,
                Some(7),
                "packets get the tag of the row's interface",
            ),
            (
                "VLANs, the untagged one",
                ethernet,
                vlans,
                "10.0.0.1",
                None,
                Some(3),
                "the same",
            ),
            (
                "VLANs, IPv6",
                ethernet,
                vlans,
                "fd00::1",
                None,
                Some(8),
                "the address itself is the GID",
            ),
            (
                "link-local rails over VLANs",
                ethernet,
                vlans,
                LINK,
                None,
                Some(1),
                "the first of several",
            ),
            (
                "rows that were freed",
                ethernet,
                gap,
                "10.0.0.1",
                None,
                Some(14),
                "a gap is not the end",
            ),
            (
                "link-local only",
                ethernet,
                &BEGIN,
                "10.0.0.1",
                None,
                None,
                "it would be in another subnet than the rail",
            ),
            (
                "RoCE v1 only",
                ethernet,
                &[first, (2, "10.0.0.1", V1, Some("eth0"))],
                "10.0.0.1",
                None,
                Some(2),
                "there is no v2",
            ),
            (
                "pods",
                ethernet,
                pods,
                "10.0.0.1",
                None,
                Some(4),
                "the others are of other namespaces",
            ),
            (
                "another subnet",
                ethernet,
                &[second, (3, "10.9.0.1", V2, Some("eth0"))],
                "10.0.0.1",
                None,
                None,
                "not the rail's",
            ),
            (
                "InfiniBand",
                "InfiniBand",
                infiniband,
                "10.0.0.1",
                None,
                Some(0),
                "the default one: addresses are in no row",
            ),
            (
                "two subnets of InfiniBand",
                "InfiniBand",
                infiniband,
                "10.0.0.1",
                Some(1),
                Some(1),
                "the prefix says which",
            ),
        ];
        for (cluster, link, table, address, wanted, row, why) in cases {
            let at = |file: String| format!("class/infiniband/mlx5_bond_0/ports/1/{file}");
            let mut files = vec![
                (at("state".into()), "4: ACTIVE\n".to_owned()),
                (at("link_layer".into()), format!("{link}\n")),
            ];
            for (index, gid, kind, interface) in table {
                files.push((at(format!("gids/{index}")), format!("{}\n", mapped(gid))));
                files.push((at(format!("gid_attrs/types/{index}")), format!("{kind}\n")));
                if let Some(interface) = interface {
                    files.push((
                        at(format!("gid_attrs/ndevs/{index}")),
                        format!("{interface}\n"),
                    ));
                }
            }
            let files: Vec<_> = files
                .iter()
                .map(|(path, text)| (&path[..], &text[..]))
                .collect();
            let (_root, sysfs) = machine(&files, &[]);
            let port = &sysfs.ports()[0];
            let chosen = gid_for(&port.gids, port.link, address.parse().unwrap(), wanted);
            let index = chosen.as_ref().ok().map(|row| row.index);
            assert_eq!(index, row, "{cluster}, {address}, {wanted:?}: {why}");
            if let Err(said) = chosen {
                assert!(
                    said.contains("is missing: no row of its table of GIDs is it"),
                    "{said}"
                );
            }
        }
    }

    #[test]
    fn the_partition_that_a_pair_is_in() {
        // (keys, wanted, row)
        let cases: [(&[(u16, u16)], _, _); 9] = [
            (&[(0, 0xffff)], None, Some(0)),
            (&[], None, Some(0)),
            (&[(0, 0x7fff), (1, 0x8001), (2, 0x8002)], None, Some(1)),
            (&[(0, 0x7fff), (1, 0x0001)], None, Some(0)),
            (&[(0, 0xffff), (1, 0x8001)], Some(0x8001), Some(1)),
            (&[(0, 0xffff), (1, 0x8001)], Some(0x0001), Some(1)),
            (&[(0, 0x7fff), (3, 0xffff)], Some(0xffff), Some(3)),
            (&[(0, 0x7fff)], Some(0xffff), Some(0)),
            (&[(0, 0xffff)], Some(0x8001), None),
        ];
        for (keys, wanted, row) in cases {
            assert_eq!(partition(keys, wanted).ok(), row, "{keys:x?} {wanted:x?}");
        }
    }

    #[test]
    fn a_device_over_an_interface_is_where_that_is() {
        let files = [
            ("class/infiniband/rxe0/parent", "eth1\n"),
            ("class/infiniband/rxe0/ports/1/state", "1: DOWN\n"),
            ("class/infiniband/rxe0/ports/1/rate", "nonsense\n"),
            ("devices/pci0000:40/0000:40:00.0/numa_node", "0\n"),
            ("devices/pci0000:40/0000:40:00.0/virtio3/status", "7\n"),
        ];
        let card = "devices/pci0000:40/0000:40:00.0/virtio3";
        let (_root, sysfs) = machine(&files, &[("class/net/eth1/device", card)]);
        let port = &sysfs.ports()[0];
        assert_eq!((port.numa_node, port.speed_bits_per_sec), (Some(0), None));
        assert_eq!(port.pci_path, ["pci0000:40", "0000:40:00.0"]);
        assert_eq!(port.unusable.as_deref(), Some("port 1 is DOWN"));
    }

    #[test]
    fn why_a_port_cannot_be_used() {
        // (its state, the table's only row, why)
        let cases = [
            ("4: ACTIVE\n", V4, None),
            ("2: INIT\n", V4, Some("port 1 is INIT")),
            (
                "4: ACTIVE\n",
                "0000:0000:0000:0000:0000:0000:0000:0000\n",
                Some("port 1 has no GID"),
            ),
        ];
        for (state, gid, why) in cases {
            let files = [
                ("class/infiniband/rxe0/ports/1/state", state),
                ("class/infiniband/rxe0/ports/1/gids/0", gid),
                (
                    "class/infiniband/rxe0/ports/1/gid_attrs/types/0",
                    "RoCE v2\n",
                ),
            ];
            let (_root, sysfs) = machine(&files, &[]);
            assert_eq!(sysfs.ports()[0].unusable.as_deref(), why);
        }
        let (_root, sysfs) = machine(&[], &[]);
        assert_eq!(sysfs.ports(), []);
    }

    #[test]
    fn a_port_that_is_examined_says_why_it_cannot_be_opened_and_what_is_near() {
        let _turn = crate::tests::turn();
        let near = "devices/pci0000:00/0000:00:01.0/0000:02:00.0";
        let far = "devices/pci0000:00/0000:00:03.0/0000:04:00.0";
        let other = "devices/pci0000:80/0000:80:01.0";
        let class = |card: &str, class: &'static str| (format!("{card}/class"), class);
        let mut files = vec![
            class(near, "0x030200\n"),
            class(far, "0x030000\n"),
            class(other, "0x030000\n"),
            class("devices/pci0000:00/0000:00:01.0/0000:01:00.0", "0x020000\n"),
        ];
        for name in ["stub0", "mlx5_9"] {
            let at = |file: &str| format!("class/infiniband/{name}/ports/1/{file}");
            files.extend([
                (at("state"), "4: ACTIVE\n"),
                (at("gids/0"), V4),
                (at("gid_attrs/types/0"), "RoCE v2\n"),
            ]);
        }
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (&path[..], *text))
            .collect();
        let card = "devices/pci0000:00/0000:00:01.0/0000:01:00.0";
        let links = [
            ("class/infiniband/stub0/device", card),
            ("bus/pci/devices/0000:01:00.0", card),
            ("bus/pci/devices/0000:02:00.0", near),
            ("bus/pci/devices/0000:04:00.0", far),
            ("bus/pci/devices/0000:80:01.0", other),
        ];
        let (_root, sysfs) = machine(&files, &links);
        let seen = examine_with(&Ok(crate::stub::calls()), &sysfs);
        let why: Vec<_> = seen
            .iter()
            .map(|seen| (&seen.port.device[..], seen.port.unusable.as_deref()))
            .collect();
        assert_eq!(why, [("mlx5_9", Some("no such device")), ("stub0", None)]);
        let gpus = [("0000:02:00.0".to_owned(), 1), ("0000:04:00.0".into(), 2)];
        assert_eq!((&seen[0].gpus[..], &seen[1].gpus[..]), (&[][..], &gpus[..]));
        let missing = || Err(std::io::Error::other("libibverbs.so.1: not there"));
        for seen in examine_with(&missing(), &sysfs) {
            let why = seen.port.unusable.unwrap();
            assert_eq!(why, "libibverbs.so.1: not there");
        }
    }
}
