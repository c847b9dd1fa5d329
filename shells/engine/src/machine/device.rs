//! Network interfaces.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use serde::Serialize;

use super::sysfs::Sysfs;

/// A network interface's name, and one of its addresses.
pub(super) type Address = (String, IpAddr);

/// Speeds in Mbit/s that are believed.
const SPEEDS: RangeInclusive<u64> = 10..=1_600_000;
/// How many interfaces may be stacked: a VLAN over a bond over a card is three.
const STACK_MAX: u8 = 4;

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Device {
    /// What the kernel calls it.
    pub name: String,
    /// Whether it can be used now.
    pub state: DeviceState,
    /// As the driver has it. `None`: it does not say, or there is no hardware behind it, so that what it says is
    /// made up. Rails on it start from this rate.
    pub speed_bits_per_sec: Option<u64>,
    /// The NUMA node that it is attached to. `None`: unknown, or the machine has one node only and does not bother.
    pub numa_node: Option<u16>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// Whether a device can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceState {
    /// It can.
    Up,
    /// It cannot.
    Down,
    /// The machine does not say.
    Unknown,
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Unknown => "unknown",
        })
    }
}

/// All addresses of this machine.
pub(super) fn addresses() -> Vec<Address> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_else(|error| {
        log::warn!("cannot list this machine's addresses: {error}");
        Vec::new()
    });
    interfaces
        .into_iter()
        .map(|interface| (interface.name.clone(), interface.ip()))
        .collect()
}

/// All interfaces that the kernel shows or that have an address, by name.
pub(super) fn list(sysfs: &Sysfs, addresses: &[Address]) -> Vec<Device> {
    // Some entries are no interfaces but switches of the bonding driver.
    let shown = sysfs.names("class/net").into_iter();
    let mut names: BTreeSet<String> = shown.filter(|name| name != "bonding_masters").collect();
    names.extend(addresses.iter().map(|(name, _)| name.clone()));
    names
        .into_iter()
        .map(|name| device(sysfs, name, addresses))
        .collect()
}

/// The interfaces that have these addresses, by name.
pub(super) fn with_addresses(sysfs: &Sysfs, addresses: &[Address]) -> Vec<Device> {
    let names: BTreeSet<_> = addresses.iter().map(|(name, _)| name.clone()).collect();
    names
        .into_iter()
        .map(|name| device(sysfs, name, addresses))
        .collect()
}

fn device(sysfs: &Sysfs, name: String, addresses: &[Address]) -> Device {
    let hardware = hardware(sysfs, &name, STACK_MAX);
    Device {
        state: state(sysfs, &name),
        speed_bits_per_sec: match hardware[..] {
            [] => None,
            _ => speed(sysfs, &name),
        },
        numa_node: common_node(sysfs, &hardware),
        addresses: addresses
            .iter()
            .filter(|(of, _)| *of == name)
            .map(|(_, address)| *address)
            .collect(),
        name,
    }
}

/// The interfaces of hardware that this one is, or is made of; none if a part of it is something else. A tunnel
/// says that it carries 10 Mbit/s and a veth 10 Gbit/s, whatever they run over.
fn hardware(sysfs: &Sysfs, name: &str, stack_max: u8) -> Vec<String> {
    let at = format!("class/net/{name}");
    if sysfs.exists(&format!("{at}/device")) {
        return vec![name.to_owned()];
    }
    if stack_max == 0 {
        return Vec::new();
    }
    let entries = sysfs.names(&at);
    let lower = entries
        .iter()
        .filter_map(|entry| entry.strip_prefix("lower_"));
    let parts: Vec<_> = lower
        .map(|lower| hardware(sysfs, lower, stack_max - 1))
        .collect();
    match parts.iter().any(Vec::is_empty) {
        true => Vec::new(),
        false => parts.concat(),
    }
}

/// Unknown is -1, or an error from the driver.
fn speed(sysfs: &Sysfs, name: &str) -> Option<u64> {
    const MEGABIT: u64 = 1_000_000;
    let megabits = sysfs.number::<i64>(&format!("class/net/{name}/speed"))?;
    let megabits = u64::try_from(megabits).ok()?;
    SPEEDS.contains(&megabits).then(|| megabits * MEGABIT)
}

/// The node of all of these, if it is the same.
fn common_node(sysfs: &Sysfs, hardware: &[String]) -> Option<u16> {
    let (first, rest) = hardware.split_first()?;
    let node = node(sysfs, first)?;
    rest.iter()
        .all(|other| self::node(sysfs, other) == Some(node))
        .then_some(node)
}

/// Unknown is -1. A device of virtio says nothing, but the device that it belongs to does.
fn node(sysfs: &Sysfs, name: &str) -> Option<u16> {
    let number = |path: &str| sysfs.number::<i32>(&format!("class/net/{name}/device/{path}"));
    let node = number("numa_node").or_else(|| number("../numa_node"))?;
    u16::try_from(node).ok()
}

/// Loopback and tunnels have no carrier to speak of; that they are switched on is all that can be known.
fn state(sysfs: &Sysfs, name: &str) -> DeviceState {
    const UP: u32 = 1;
    let at = format!("class/net/{name}");
    let flags = sysfs.text(&format!("{at}/flags"));
    let flags = flags.and_then(|text| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok());
    match sysfs.text(&format!("{at}/operstate")).as_deref() {
        Some("up") => DeviceState::Up,
        Some("unknown") if flags.is_some_and(|flags| flags & UP != 0) => DeviceState::Up,
        Some("unknown") | None => DeviceState::Unknown,
        Some(_) => DeviceState::Down,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: u64 = 1_000_000_000;

    /// A machine that says this of itself.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        root
    }

    fn address(name: &str, address: [u8; 4]) -> Address {
        (name.to_owned(), address.into())
    }

    #[test]
    fn devices_have_what_the_machine_says_of_them() {
        let root = machine(&[
            ("class/net/bonding_masters", "bond0\n"),
            ("class/net/eth0/operstate", "up\n"),
            ("class/net/eth0/speed", "25000\n"),
            ("class/net/eth0/device/numa_node", "0\n"),
            ("class/net/eth1/operstate", "down\n"),
            ("class/net/eth1/speed", "-1\n"),
            ("class/net/eth1/device/numa_node", "1\n"),
            ("class/net/eth2/speed", "1600001\n"),
            ("class/net/eth2/device/numa_node", "-1\n"),
            ("class/net/lo/operstate", "unknown\n"),
            ("class/net/lo/flags", "0x9\n"),
        ]);
        let addresses = [
            address("lo", [127, 0, 0, 1]),
            address("eth0", [10, 0, 0, 1]),
            ("eth0".to_owned(), "fe80::1".parse().unwrap()),
            address("tun7", [10, 9, 0, 1]),
        ];
        let found: Vec<_> = list(&Sysfs::new(root.path()), &addresses)
            .into_iter()
            .map(|d| {
                (
                    d.name,
                    d.state,
                    d.speed_bits_per_sec,
                    d.numa_node,
                    d.addresses.len(),
                )
            })
            .collect();
        use DeviceState::{Down, Unknown, Up};
        let expected = [
            ("eth0".to_owned(), Up, Some(25 * GIGABIT), Some(0), 2),
            ("eth1".to_owned(), Down, None, Some(1), 0),
            ("eth2".to_owned(), Unknown, None, None, 0),
            ("lo".to_owned(), Up, None, None, 1),
            ("tun7".to_owned(), Unknown, None, None, 1),
        ];
        assert_eq!(found, expected);
        let some = with_addresses(&Sysfs::new(root.path()), &addresses[1..2]);
        assert_eq!(some.len(), 1);
        assert_eq!((&some[0].name[..], some[0].addresses.len()), ("eth0", 1));
    }

    #[test]
    fn speed_and_node_are_those_of_hardware() {
        let root = machine(&[
            ("class/net/eth0/speed", "100000\n"),
            ("class/net/eth0/device/numa_node", "1\n"),
            ("class/net/eth1/speed", "100000\n"),
            ("class/net/eth1/device/numa_node", "1\n"),
            ("class/net/eth2/speed", "10\n"),
            ("class/net/eth2/device/numa_node", "0\n"),
            ("class/net/eth3/speed", "9\n"),
            ("class/net/eth3/device/vendor", "0x1af4\n"),
            ("class/net/veth0/speed", "10000\n"),
            ("class/net/tun0/speed", "10\n"),
            ("class/net/bond0/speed", "200000\n"),
            ("class/net/bond0/lower_eth0/speed", "100000\n"),
            ("class/net/bond0/lower_eth1/speed", "100000\n"),
            ("class/net/bond0.7/speed", "200000\n"),
            ("class/net/bond0.7/lower_bond0/speed", "200000\n"),
            ("class/net/bond1/speed", "100010\n"),
            ("class/net/bond1/lower_eth0/speed", "100000\n"),
            ("class/net/bond1/lower_eth2/speed", "10\n"),
            ("class/net/br0/speed", "100000\n"),
            ("class/net/br0/lower_eth0/speed", "100000\n"),
            ("class/net/br0/lower_veth0/speed", "10000\n"),
            ("class/net/round/speed", "10000\n"),
            ("class/net/round/lower_round/speed", "10000\n"),
        ]);
        // (interface, speed in Mbit/s, node)
        let cases = [
            ("eth0", Some(100_000), Some(1)),
            ("eth2", Some(10), Some(0)),
            ("eth3", None, None),
            ("veth0", None, None),
            ("tun0", None, None),
            ("bond0", Some(200_000), Some(1)),
            ("bond0.7", Some(200_000), Some(1)),
            ("bond1", Some(100_010), None),
            ("br0", None, None),
            ("round", None, None),
        ];
        for (name, megabits, node) in cases {
            let device = device(&Sysfs::new(root.path()), name.to_owned(), &[]);
            let speed = device.speed_bits_per_sec.map(|speed| speed / 1_000_000);
            assert_eq!((speed, device.numa_node), (megabits, node), "{name}");
        }
    }

    #[test]
    fn a_device_that_says_nothing_is_where_the_one_it_belongs_to_is() {
        let root = machine(&[
            ("devices/pci7/numa_node", "1\n"),
            ("devices/pci7/virtio0/status", "7\n"),
            ("class/net/eth0/speed", "-1\n"),
        ]);
        let at = |path: &str| root.path().join(path);
        let to = at("class/net/eth0/device");
        std::os::unix::fs::symlink(at("devices/pci7/virtio0"), to).unwrap();
        let device = device(&Sysfs::new(root.path()), "eth0".to_owned(), &[]);
        assert_eq!(
            (device.speed_bits_per_sec, device.numa_node),
            (None, Some(1))
        );
    }

    #[test]
    fn a_machine_that_says_nothing_is_no_error() {
        let root = machine(&[]);
        let devices = list(&Sysfs::new(root.path()), &[address("eth0", [10, 0, 0, 1])]);
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].state, DeviceState::Unknown);
    }
}
