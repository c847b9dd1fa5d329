//! Network interfaces.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use serde::Serialize;

use super::sysfs::Sysfs;

/// A network interface's name, and one of its addresses.
pub(super) type Address = (String, IpAddr);

/// A network interface.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Device {
    pub(super) name: String,
    /// `up`, `down` or `unknown`.
    pub(super) state: &'static str,
    /// As the driver has it; `None`: it does not say, as virtual ones do not.
    pub(super) speed_bits_per_sec: Option<u64>,
    /// `None`: unknown, or the machine has one node only and does not bother.
    pub(super) numa_node: Option<u16>,
    pub(super) addresses: Vec<IpAddr>,
}

/// All addresses of this machine.
pub(super) fn addresses() -> io::Result<Vec<Address>> {
    let interfaces = if_addrs::get_if_addrs()?;
    Ok(interfaces
        .into_iter()
        .map(|interface| (interface.name.clone(), interface.ip()))
        .collect())
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

fn device(sysfs: &Sysfs, name: String, addresses: &[Address]) -> Device {
    const MEGABIT: u64 = 1_000_000;
    let at = format!("class/net/{name}");
    // Unknown is -1, or an error from the driver.
    let megabits = sysfs.number::<i64>(&format!("{at}/speed"));
    let megabits = megabits.and_then(|megabits| u64::try_from(megabits).ok());
    let node = sysfs.number::<i32>(&format!("{at}/device/numa_node"));
    Device {
        state: state(sysfs, &at),
        speed_bits_per_sec: megabits
            .filter(|megabits| *megabits > 0)
            .and_then(|megabits| megabits.checked_mul(MEGABIT)),
        numa_node: node.and_then(|node| u16::try_from(node).ok()),
        addresses: addresses
            .iter()
            .filter(|(of, _)| *of == name)
            .map(|(_, address)| *address)
            .collect(),
        name,
    }
}

/// Loopback and tunnels have no carrier to speak of; that they are switched on is all that can be known.
fn state(sysfs: &Sysfs, at: &str) -> &'static str {
    const UP: u32 = 1;
    let flags = sysfs.text(&format!("{at}/flags"));
    let flags = flags.and_then(|text| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok());
    match sysfs.text(&format!("{at}/operstate")).as_deref() {
        Some("up") => "up",
        Some("unknown") if flags.is_some_and(|flags| flags & UP != 0) => "up",
        Some("unknown") | None => "unknown",
        Some(_) => "down",
    }
}
