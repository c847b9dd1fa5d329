//! What can be said of all RDMA ports of a machine, for people who ask why one is not used.

use std::io;

use crate::Settings;
use crate::device::Device;
use crate::discover::{Port, Sysfs};
use crate::ffi::raw::Calls;

/// A port that was tried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Examined {
    /// What the kernel says of it; [`Port::unusable`] also if it cannot be opened.
    pub port: Port,
    /// The GPUs on the same PCI bus by their addresses, and how many steps they are away; nearest first.
    pub gpus: Vec<(String, usize)>,
}

/// All ports of all RDMA devices of this machine, in order, each tried out; those too that cannot be used.
pub fn examine() -> Vec<Examined> {
    examine_with(&crate::ffi::load(), &Sysfs::new("/sys"))
}

pub(crate) fn examine_with(calls: &io::Result<Calls>, sysfs: &Sysfs) -> Vec<Examined> {
    let gpus = sysfs.gpus();
    let examined = |mut port: Port| {
        if port.unusable.is_none() {
            port.unusable = open(calls, sysfs, &port).err();
        }
        let near =
            |(name, path): &(String, Vec<String>)| Some((name.clone(), port.pci_distance(path)?));
        let mut gpus: Vec<_> = gpus.iter().filter_map(near).collect();
        gpus.sort_by_key(|(_, steps)| *steps);
        Examined { port, gpus }
    };
    sysfs.ports().into_iter().map(examined).collect()
}

fn open(calls: &io::Result<Calls>, sysfs: &Sysfs, port: &Port) -> Result<(), String> {
    let calls = calls.as_ref().map_err(io::Error::to_string)?;
    let opened = Device::open(calls, sysfs, port, 0, Settings::default());
    opened.map(drop).map_err(|error| error.to_string())
}
