//! The transport: all devices of this machine that can be used.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};

use polyrail_core::transport::{Capabilities, MemoryKind};
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::RegionTable;
use polyrail_transport::{
    Endpoint, FenceAnswer, InboundLane, Prior, RetireAnswer, SessionId, Transport,
};

use crate::discover::Sysfs;
use crate::endpoint::VerbsEndpoint;
use crate::ffi::raw::Calls;
use crate::registry::Registry;
use crate::service::Order;
use crate::services::Services;
use crate::{NAME, Settings};

/// RDMA as a transport. Dropping it ends all inbound lanes and waits for the devices' threads.
pub struct VerbsTransport {
    pub(crate) common: Arc<Common>,
}

/// What endpoints share with the transport.
pub(crate) struct Common {
    pub(crate) services: Services,
    pub(crate) registry: Arc<Registry>,
    pub(crate) settings: Settings,
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
        let services = Services::new(calls, sysfs, regions, registry.clone(), settings);
        let found = services.look(false);
        if found.devices == 0 {
            let why = match found.reasons.is_empty() {
                true => "this machine has no RDMA device".to_owned(),
                false => found.reasons.join("; "),
            };
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        let common = Common {
            services,
            registry,
            settings,
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
        let services = self.common.services.all();
        let left = Arc::new(AtomicUsize::new(services.len()));
        let then = Arc::new(Mutex::new(Some(then)));
        for service in services {
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
        let services = self.common.services.all();
        let mut devices = services.iter().map(|service| service.site.device());
        let registers = devices.all(|device| device.context.registers_gpus());
        match self.common.settings.gpu_memory && registers {
            true => Capabilities::HOST
                .with_local(MemoryKind::Device)
                .with_remote(MemoryKind::Device),
            false => Capabilities::HOST,
        }
    }

    fn runs_at(&self, local: Option<IpAddr>, remote: SocketAddr) -> bool {
        self.common.services.between(local, remote).is_ok()
    }

    fn has_devices(&self) -> bool {
        true
    }

    fn look_for_devices(&self, again: bool) -> bool {
        let has_changed = self.common.services.take_changes();
        self.common.services.look(again).devices > 0 || has_changed
    }

    /// A bit for each, the lowest of the first byte for the first.
    fn places(&self, rails: &[IpAddr]) -> Vec<u8> {
        let mut places = vec![0; rails.len().div_ceil(8)];
        for (position, rail) in rails.iter().enumerate() {
            let has = self.common.services.of(rail.to_canonical()).is_some();
            places[position / 8] |= u8::from(has) << (position % 8);
        }
        places
    }

    fn serves(&self, places: &[u8], rail: usize) -> bool {
        let byte = places.get(rail / 8);
        byte.is_none_or(|byte| byte & 1 << (rail % 8) != 0)
    }

    fn prior(&self, local: Option<IpAddr>, remote: SocketAddr) -> Prior {
        let service = self.common.services.between(local, remote).ok();
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
            .and_then(|address| self.common.services.last_of(*address));
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
