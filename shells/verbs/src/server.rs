//! The transport: all devices of this machine that can be used.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

use polyrail_core::transport::{Capabilities, MemoryKind};
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::RegionTable;
use polyrail_transport::{
    Endpoint, FenceAnswer, InboundLane, Prior, RetireAnswer, SessionId, Transport,
};

use crate::device::{Device, Site, local_address};
use crate::discover::Sysfs;
use crate::endpoint::VerbsEndpoint;
use crate::ffi::raw::Calls;
use crate::registry::Registry;
use crate::service::{Desk, Order, Service};
use crate::{NAME, Settings};

/// RDMA as a transport. Dropping it ends all inbound lanes and waits for the devices' threads.
pub struct VerbsTransport {
    common: Arc<Common>,
}

/// What endpoints share with the transport.
pub(crate) struct Common {
    services: Vec<Service>,
    pub(crate) sites: Vec<Arc<Site>>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) settings: Settings,
    /// Where addresses of this host were found to be.
    places: Mutex<HashMap<IpAddr, usize>>,
}

impl Common {
    /// The device that an address of this host is of.
    pub(crate) fn device_at(&self, address: IpAddr) -> Option<&Service> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = match places.get(&address) {
            Some(place) => *place,
            None => {
                let has = |service: &Service| service.site.device().has(address);
                let place = self.services.iter().position(has)?;
                places.insert(address, place);
                place
            }
        };
        self.services.get(place)
    }

    /// The device that a rail starts from.
    pub(crate) fn service_between(
        &self,
        local: Option<IpAddr>,
        remote: SocketAddr,
    ) -> io::Result<&Service> {
        let local = local_address(local, remote)?;
        let missing = || io::Error::other(format!("no usable RDMA device has the address {local}"));
        self.device_at(local.to_canonical()).ok_or_else(missing)
    }

    pub(crate) fn desk(&self, device: usize) -> &Desk {
        &self.services[device].desk
    }
}

impl VerbsTransport {
    /// A transport over all devices of this machine that can be opened, which gives peers what `regions` names.
    ///
    /// # Errors
    ///
    /// If libibverbs is not there, or no device is, or none can be opened: with the reason of each.
    pub fn new(regions: Arc<dyn RegionTable>, settings: Settings) -> io::Result<Self> {
        Self::over(&crate::ffi::load()?, &Sysfs::new("/sys"), regions, settings)
    }

    pub(crate) fn over(
        calls: &Calls,
        sysfs: &Sysfs,
        regions: Arc<dyn RegionTable>,
        settings: Settings,
    ) -> io::Result<Self> {
        crate::ffi::survive_forks(calls);
        if settings.gpu_memory {
            log::warn!(
                "verbs: verbs/gpu_memory is on, which was never tried on hardware: nothing flushes a GPU, so what peers write may be \
                 seen late there, and no stream is waited for"
            );
        }
        let registry = Arc::new(Registry::default());
        let mut services = Vec::new();
        let mut reasons = Vec::new();
        for port in sysfs.ports() {
            if let Some(why) = port.nameless() {
                log::info!("verbs: {}: {why}; it is not used", port.device);
                reasons.push(format!("{}: {why}", port.device));
                continue;
            }
            let opened =
                Device::open(calls, sysfs, &port, services.len(), settings).and_then(|device| {
                    let site = Arc::new(Site::new(calls, device));
                    Service::start(site, regions.clone(), registry.clone())
                });
            match opened {
                Ok(service) => services.push(service),
                Err(error) => {
                    let reason = format!("{} port {}: {error}", port.device, port.port);
                    log::warn!("verbs: {reason}; it is not used");
                    reasons.push(reason);
                }
            }
        }
        if services.is_empty() {
            let why = match reasons.is_empty() {
                true => "this machine has no RDMA device".to_owned(),
                false => reasons.join("; "),
            };
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        let common = Common {
            sites: services
                .iter()
                .map(|service| service.site.clone())
                .collect(),
            services,
            registry,
            settings,
            places: Mutex::default(),
        };
        Ok(Self {
            common: Arc::new(common),
        })
    }

    /// Asks all devices' threads the same, and does something when the last has answered.
    fn ask_all(
        &self,
        order: impl Fn(Box<dyn FnOnce() + Send>) -> Order,
        then: impl FnOnce() + Send + 'static,
    ) {
        let left = Arc::new(AtomicUsize::new(self.common.services.len()));
        let then = Arc::new(Mutex::new(Some(then)));
        for service in &self.common.services {
            let (left, then) = (left.clone(), then.clone());
            let done = move || {
                if left.fetch_sub(1, AcqRel) == 1 {
                    let then = then.lock().ok().and_then(|mut then| then.take());
                    then.into_iter().for_each(|then| then());
                }
            };
            service.desk.order(order(Box::new(done)));
        }
    }
}

impl fmt::Debug for VerbsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VerbsTransport")
    }
}

impl Transport for VerbsTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        let mut sites = self.common.sites.iter();
        let registers = sites.all(|site| site.device().context.registers_dma_bufs());
        match self.common.settings.gpu_memory && registers {
            true => Capabilities::HOST
                .with_local(MemoryKind::Device)
                .with_remote(MemoryKind::Device),
            false => Capabilities::HOST,
        }
    }

    fn runs_at(&self, local: Option<IpAddr>, remote: SocketAddr) -> bool {
        self.common.service_between(local, remote).is_ok()
    }

    /// A bit for each, the lowest of the first byte for the first.
    fn places(&self, rails: &[IpAddr]) -> Vec<u8> {
        let mut places = vec![0; rails.len().div_ceil(8)];
        for (position, rail) in rails.iter().enumerate() {
            let has = self.common.device_at(rail.to_canonical()).is_some();
            places[position / 8] |= u8::from(has) << (position % 8);
        }
        places
    }

    fn serves(&self, places: &[u8], rail: usize) -> bool {
        let byte = places.get(rail / 8);
        byte.is_none_or(|byte| byte & 1 << (rail % 8) != 0)
    }

    fn prior(&self, local: Option<IpAddr>, remote: SocketAddr) -> Prior {
        let service = self.common.service_between(local, remote).ok();
        Prior {
            bits_per_sec: service.and_then(|service| service.site.device().speed_bits_per_sec()),
            carries_itself: true,
            batch_span: self.common.settings.batch_span,
        }
    }

    fn endpoint(&self, _worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        Ok(Box::new(VerbsEndpoint::new(clock, self.common.clone())?))
    }

    /// To the thread of the device at the address that was dialled.
    fn admit(&self, lane: InboundLane) {
        let (number, session) = (lane.lane, lane.session);
        let local = lane.stream.local_addr();
        let address = local.map(|local| local.ip().to_canonical());
        let service = address
            .as_ref()
            .ok()
            .and_then(|address| self.common.device_at(*address));
        match service {
            Some(service) => service.desk.order(Order::Admit(Box::new(lane))),
            None => log::debug!(
                "verbs: {number:?} of {session:?} came to {address:?}, where no device is"
            ),
        }
    }

    /// Whichever device it was admitted on.
    fn fence_inbound(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        // The lane is at one device; the others do not know of it.
        let reached = Arc::new(AtomicU32::new(0));
        let fence = |done: Box<dyn FnOnce() + Send>| {
            let reached = reached.clone();
            let told = move |word| {
                reached.fetch_max(word, AcqRel);
                done();
            };
            Order::Fence(session, lane, epoch, Box::new(told))
        };
        let told = reached.clone();
        self.ask_all(fence, move || answer(told.load(Acquire)));
    }

    fn retire_session(&self, session: SessionId, answer: RetireAnswer) {
        self.ask_all(|done| Order::Retire(session, done), answer);
    }
}
