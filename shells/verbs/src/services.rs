//! The devices that are in use: those that were there at the start, and those that have come since then.
//!
//! **Invariant:** a device keeps its place. One that goes away has failed there, until one of its name is there again.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use log::Level;
use polyrail_transport::memory::RegionTable;
use polyrail_transport::shares::Shares;

use crate::Settings;
use crate::device::{Device, Site, local_address};
use crate::discover::Sysfs;
use crate::ffi::raw::Calls;
use crate::lock::lock;
use crate::registry::Registry;
use crate::service::Service;

/// How often a port that cannot be used is tried, unless something has changed: whoever has the right to open it may get that a
/// moment after the device is there.
const TRIES_MAX: u32 = 10;

pub(crate) struct Services {
    calls: Calls,
    sysfs: Sysfs,
    regions: Arc<dyn RegionTable>,
    registry: Arc<Registry>,
    settings: Settings,
    /// Lanes of peers, over all devices.
    pub(crate) shares: Arc<Mutex<Shares>>,
    open: RwLock<Vec<Arc<Service>>>,
    /// Ports that cannot be used, and how often they were tried. Locked while somebody looks.
    refused: Mutex<HashMap<(String, u8), u32>>,
    /// Where addresses of this host were found to be. Never locked while the kernel is asked.
    places: Mutex<HashMap<IpAddr, Place>>,
}

/// Where an address of this host was found to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Place {
    /// The place of its device, or of the one that it was at last; `None`: it never was at any.
    of: Option<usize>,
    /// It was there when it was looked for last.
    is_there: bool,
}

/// What a look has found.
#[derive(Default)]
pub(crate) struct Found {
    /// Devices that are used from now on.
    pub(crate) devices: usize,
    /// Why others are not.
    pub(crate) reasons: Vec<String>,
}

impl Services {
    /// Of no device yet.
    pub(crate) fn new(
        calls: &Calls,
        sysfs: &Sysfs,
        regions: Arc<dyn RegionTable>,
        registry: Arc<Registry>,
        settings: Settings,
    ) -> Self {
        Self {
            calls: *calls,
            sysfs: sysfs.clone(),
            regions,
            registry,
            settings,
            shares: Arc::default(),
            open: RwLock::default(),
            refused: Mutex::default(),
            places: Mutex::default(),
        }
    }

    /// All of them, by their places.
    pub(crate) fn all(&self) -> Vec<Arc<Service>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.clone()
    }

    /// The one at this place, which has one.
    pub(crate) fn at(&self, place: usize) -> Arc<Service> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)[place].clone()
    }

    /// The device that an address of this host is of. Asks the kernel if it was at none so far, which may take a while.
    pub(crate) fn of(&self, address: IpAddr) -> Option<Arc<Service>> {
        let known = lock(&self.places).get(&address).copied();
        let place = known.filter(|place| place.is_there);
        let place = place.unwrap_or_else(|| self.look_for(address));
        let of = place.of.filter(|_| place.is_there)?;
        Some(self.at(of))
    }

    /// The one that it was at when somebody [asked](Self::of) last. The kernel is asked only of an address that nobody has asked
    /// after, and there is no rail to such a one: for those that others wait for.
    pub(crate) fn last_of(&self, address: IpAddr) -> Option<Arc<Service>> {
        let known = lock(&self.places).get(&address).copied();
        let place = known.unwrap_or_else(|| self.look_for(address));
        Some(self.at(place.of?))
    }

    /// Asks the kernel where an address is now.
    fn look_for(&self, address: IpAddr) -> Place {
        let has = |service: &Arc<Service>| service.site.device().has(address);
        let found = self.all().iter().position(has);
        let mut places = lock(&self.places);
        let place = places.entry(address).or_default();
        place.is_there = found.is_some();
        place.of = found.or(place.of);
        *place
    }

    /// Asks anew where all addresses are that somebody has asked after.
    fn look_for_all(&self) {
        let addresses: Vec<_> = lock(&self.places).keys().copied().collect();
        for address in addresses {
            self.look_for(address);
        }
    }

    /// The device that a rail starts from.
    pub(crate) fn between(
        &self,
        local: Option<IpAddr>,
        remote: SocketAddr,
    ) -> io::Result<Arc<Service>> {
        let local = local_address(local, remote)?;
        self.of(local.to_canonical()).ok_or_else(|| missing(local))
    }

    /// The one that it started from when somebody [asked](Self::between) last, for workers: they do not wait for the kernel.
    pub(crate) fn last_between(
        &self,
        local: Option<IpAddr>,
        remote: SocketAddr,
    ) -> io::Result<Arc<Service>> {
        let local = local_address(local, remote)?;
        let service = self.last_of(local.to_canonical());
        service.ok_or_else(|| missing(local))
    }

    /// Looks for devices that are not in use, and takes them; `again`: also those that could not be used, however often they were
    /// tried.
    pub(crate) fn look(&self, again: bool) -> Found {
        let mut refused = lock(&self.refused);
        let there = self.sysfs.port_numbers();
        refused.retain(|port, _| there.contains(port));
        let mut found = Found::default();
        for port in there {
            let is_it = |service: &Arc<Service>| {
                let device = service.site.device();
                (device.name.as_str(), device.port) == (port.0.as_str(), port.1)
            };
            let tries = refused.get(&port).copied().unwrap_or(0);
            let is_tired = tries >= TRIES_MAX && !again;
            if is_tired || self.all().iter().any(is_it) {
                continue;
            }
            match self.take(&port) {
                Ok(()) => {
                    found.devices += 1;
                    refused.remove(&port);
                }
                Err((level, why)) => {
                    if tries == 0 {
                        log::log!(level, "verbs: {why}; it is not used");
                    }
                    refused.insert(port, tries.saturating_add(1));
                    found.reasons.push(why);
                }
            }
        }
        found
    }

    /// Whether an address may have come to a device since this was asked last. Then addresses are looked for anew.
    pub(crate) fn take_changes(&self) -> bool {
        let changes = self
            .all()
            .into_iter()
            .map(|service| service.site.take_changes());
        let has_changed = changes.fold(false, |before, this| before | this);
        if has_changed {
            self.look_for_all();
        }
        has_changed
    }

    /// Takes a device. An error says which it is and why it cannot be used, and how much that is to be heeded.
    fn take(&self, (device, port): &(String, u8)) -> Result<(), (Level, String)> {
        let found = self.sysfs.port(device, *port);
        if let Some(why) = found.nameless() {
            return Err((Level::Info, format!("{device}: {why}")));
        }
        let others = self.all();
        let place = others.len();
        let open = || {
            let device = Device::open(&self.calls, &self.sysfs, &found, place, self.settings)?;
            if self.settings.gpu_memory && !device.context.registers_gpus() {
                let mut before = others.iter().map(|other| other.site.device());
                if place > 0 && before.all(|other| other.context.registers_gpus()) {
                    let text = "it does not register memory of GPUs, as the others do";
                    return Err(io::Error::new(io::ErrorKind::Unsupported, text));
                }
            }
            let site = Arc::new(Site::new(&self.calls, device));
            let (regions, registry) = (self.regions.clone(), self.registry.clone());
            Service::start(site, regions, registry, self.shares.clone())
        };
        let failed = |error| (Level::Warn, format!("{device} port {port}: {error}"));
        let service = open().map_err(failed)?;
        let opened = service.site.device();
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.push(Arc::new(service));
        drop(open);
        // An address may have been another device's.
        self.look_for_all();
        if place > 0 {
            log::info!("verbs: {device} port {port}: the device is used from now on");
            self.registry.renew(&opened);
        }
        Ok(())
    }
}

fn missing(local: IpAddr) -> io::Error {
    io::Error::other(format!("no usable RDMA device has the address {local}"))
}
