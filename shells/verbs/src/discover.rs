//! What the kernel says of RDMA devices, without opening them.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::gid::Gid;

/// Rows of a port's table of GIDs that are looked at.
const GIDS_MAX: usize = 256;
/// So many rows in a row that are not in use are taken for the end of the table.
const GIDS_GAP_MAX: usize = 16;

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

impl Port {
    /// The row of the table of GIDs that an address of this host is in: RoCE v2 before v1.
    pub(crate) fn gid_of(&self, address: IpAddr) -> Option<&GidRow> {
        let gid = Gid::of(address);
        let rows = self.gids.iter().filter(|row| row.gid == gid);
        rows.max_by_key(|row| row.is_v2)
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
        let devices = self.names("class/infiniband");
        let of_device = |device: String| {
            let numbers = self.names(&format!("class/infiniband/{device}/ports"));
            let mut numbers: Vec<u8> = numbers.iter().filter_map(|n| n.parse().ok()).collect();
            numbers.sort_unstable();
            numbers
                .into_iter()
                .map(move |port| self.port(&device, port))
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
            speed_bits_per_sec: text("rate").and_then(|rate| bits_per_sec(&rate)),
            numa_node: node,
            pci_path: card.map(|card| self.pci_path(&card)).unwrap_or_default(),
            gids,
            unusable,
        }
    }

    /// Whether a port carries packets now.
    pub(crate) fn is_active(&self, device: &str, port: u8) -> bool {
        let state = self.text(&format!("class/infiniband/{device}/ports/{port}/state"));
        state.is_some_and(|state| word(&state) == "ACTIVE")
    }

    fn gids(&self, device: &str, port: u8, link: LinkLayer) -> Vec<GidRow> {
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
        let row = port.gid_of([10, 77, 0, 1].into()).unwrap();
        assert_eq!((row.index, row.interface.as_deref()), (3, Some("eth0")));
        assert_eq!(port.gid_of([10, 77, 0, 2].into()), None);
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
