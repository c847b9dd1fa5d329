//! The GPUs of this process: their memory as regions, host memory that is pinned for them, and whom copies wait for.
//!
//! # Safety
//!
//! Addresses of devices go from here to the driver and back; nothing follows them. A region of a device is made of a range
//! that the driver says is on it, and its allocation is freed with the region that owns it, so no sooner than the last
//! [`Pinned`](polyrail_transport::memory::Pinned) of it has gone.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use polyrail_transport::memory::{Access, DeviceMemory, DmaBuf, Loan, Region, RegionKey};

use crate::background::Background;
use crate::driver::{Answer, CudaError, Driver, End, Event, Gpu, Handle, Sharing, Stream};
use crate::pci;

/// All GPUs of this process, over one driver. It is started when they are first asked for, and not before: a process that
/// has started CUDA can have no children that use it, and sees the devices that it saw then.
pub struct Gpus {
    driver: Arc<dyn Driver>,
    known: OnceLock<Known>,
    /// For copies that a program's thread makes and waits for.
    streams: Mutex<HashMap<u32, Arc<Mutex<Option<Stream>>>>>,
    orders: Mutex<HashMap<u32, Orders>>,
    pins: Mutex<HashMap<RegionKey, Arc<Pin>>>,
    has_leftovers: AtomicBool,
    releases: Background,
    pinning: Background,
}

/// What the driver has said of the devices.
struct Known {
    gpus: Vec<Gpu>,
    nodes: Vec<Option<u16>>,
}

/// What copies of one device have to wait for.
struct Orders {
    /// How many there were.
    last: u64,
    /// It waits for all of them, and holds nothing else.
    stream: Stream,
    /// Behind the last one on that stream.
    joined: Event,
}

impl Orders {
    fn new(driver: &dyn Driver, ordinal: u32) -> Answer<Self> {
        let stream = driver.stream(ordinal)?;
        let joined = driver.event(ordinal);
        Ok(Self {
            last: 0,
            stream,
            joined: joined.inspect_err(|_| driver.end_stream(ordinal, stream))?,
        })
    }
}

impl Gpus {
    /// Loads CUDA's driver, and does not start it.
    #[cfg(feature = "driver")]
    pub fn load() -> Answer<Arc<Self>> {
        Ok(Self::over(Arc::new(crate::binding::Cuda::load()?)))
    }

    /// Says that this build has no driver.
    #[cfg(not(feature = "driver"))]
    pub fn load() -> Answer<Arc<Self>> {
        Err(CudaError::NotBuiltIn)
    }

    /// Over some driver.
    pub fn over(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self {
            driver,
            known: OnceLock::new(),
            streams: Mutex::default(),
            orders: Mutex::default(),
            pins: Mutex::default(),
            has_leftovers: AtomicBool::new(false),
            releases: Background::new("polyrail-cuda-end"),
            pinning: Background::new("polyrail-cuda-pin"),
        })
    }

    /// Them, by number. Starts CUDA. An error if there is none.
    pub fn gpus(&self) -> Answer<&[Gpu]> {
        Ok(&self.known()?.gpus)
    }

    fn known(&self) -> Answer<&Known> {
        if let Some(known) = self.known.get() {
            return Ok(known);
        }
        let gpus = self.driver.gpus()?;
        if gpus.is_empty() {
            return Err(CudaError::NoDevice {
                ordinal: 0,
                devices: 0,
            });
        }
        let node = |gpu: &Gpu| pci::numa_node(Path::new("/sys"), &gpu.pci);
        let nodes = gpus.iter().map(node).collect();
        Ok(self.known.get_or_init(|| Known { gpus, nodes }))
    }

    /// Whether what this process puts into streams may go on when it has ended. Starts CUDA.
    pub(crate) fn are_served(&self) -> bool {
        let gpus = self.gpus().unwrap_or_default();
        gpus.iter().any(|gpu| gpu.is_served)
    }

    /// The NUMA node that one is attached to, if the machine says so.
    pub fn numa_node(&self, ordinal: u32) -> Option<u16> {
        let known = self.known.get()?;
        known.nodes.get(ordinal as usize).copied().flatten()
    }

    /// Gives something back to the driver, which may take as long as a device is busy: not on a thread that moves bytes.
    pub(crate) fn release(&self, release: impl FnOnce() + Send + 'static) {
        self.releases.add(release);
    }

    /// Pins something, which takes a second for some gigabytes: not on a thread that moves bytes either, nor before what is
    /// given back.
    pub(crate) fn pin_in_background(&self, pin: impl FnOnce() + Send + 'static) {
        self.pinning.add(pin);
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Takes the context of a device, which the program's other users of CUDA share.
    pub fn attach(&self, ordinal: u32) -> Answer<()> {
        let devices = self.gpus()?.len() as u32;
        if ordinal >= devices {
            return Err(CudaError::NoDevice { ordinal, devices });
        }
        self.driver.attach(ordinal)
    }

    /// The device that all of a range is on. Starts nothing: where nobody has started CUDA, nothing is on a device. The range may be put together from several allocations.
    pub fn locate(&self, address: u64, bytes: u64) -> Answer<u32> {
        let end = address
            .checked_add(bytes)
            .ok_or(CudaError::ForeignPointer { address })?;
        let mut at = address;
        let mut device = None;
        while at < end {
            let foreign = CudaError::ForeignPointer { address: at };
            let found = self.driver.locate(at)?.ok_or(foreign.clone())?;
            if found.is_managed {
                return Err(CudaError::Unsupported {
                    what: "take managed memory for a segment",
                });
            }
            if *device.get_or_insert(found.ordinal) != found.ordinal {
                return Err(foreign);
            }
            let next = found.base.saturating_add(found.bytes);
            // A driver that says nothing sensible is not asked for ever.
            at = if next > at { next } else { return Err(foreign) };
        }
        device.ok_or(CudaError::ForeignPointer { address })
    }

    /// A region of memory that the program has allocated on a device.
    ///
    /// # Safety
    ///
    /// The range stays allocated until the region is revoked or dropped, and the program accepts that transports read and
    /// write it meanwhile.
    pub unsafe fn register(
        self: &Arc<Self>,
        address: u64,
        bytes: u64,
        access: Access,
    ) -> Answer<Region> {
        let ordinal = self.locate(address, bytes)?;
        self.attach(ordinal)?;
        // SAFETY: on that device, and allocated as the caller promises.
        unsafe { self.region(ordinal, address, bytes, access, None) }
    }

    /// Allocates memory of a device, as a region that frees it. Other processes can open it as `sharing` says.
    pub fn allocate(
        self: &Arc<Self>,
        ordinal: u32,
        bytes: u64,
        access: Access,
        sharing: Sharing,
    ) -> Answer<Region> {
        self.attach(ordinal)?;
        let address = self.driver.allocate(ordinal, bytes, sharing)?;
        let owner = Allocation {
            gpus: self.clone(),
            ordinal,
            address,
        };
        // SAFETY: allocated just now, and freed with the region.
        unsafe { self.region(ordinal, address, bytes, access, Some(owner)) }
    }

    /// # Safety
    ///
    /// The range is on that device, and allocated as long as [`Region::of_device`] asks for.
    unsafe fn region(
        self: &Arc<Self>,
        ordinal: u32,
        address: u64,
        bytes: u64,
        access: Access,
        owner: Option<Allocation>,
    ) -> Answer<Region> {
        let foreign = CudaError::ForeignPointer { address };
        let base = NonNull::new(address as *mut u8).ok_or(foreign)?;
        let device = OnGpu {
            gpus: self.clone(),
            ordinal,
            address,
            bytes,
            is_shared: self.export(address, bytes).is_ok(),
            dma_buf: OnceLock::new(),
        };
        let owner = owner.map(|owner| Arc::new(owner) as _);
        // SAFETY: as the caller promises.
        let region = unsafe { Region::of_device(base, bytes, access, Arc::new(device), owner) };
        region.map_err(|_| CudaError::Unsupported {
            what: "draw a random key",
        })
    }

    /// What opens the allocation that a range of a device lies in to another process, where the range begins in it, and how
    /// large it is. An error if the range is not in one.
    pub(crate) fn export(&self, address: u64, bytes: u64) -> Answer<Export> {
        let foreign = CudaError::ForeignPointer { address };
        let found = self.driver.locate(address)?.ok_or(foreign)?;
        let offset = address - found.base;
        if offset
            .checked_add(bytes)
            .is_none_or(|end| end > found.bytes)
        {
            return Err(CudaError::Unsupported {
                what: "share several allocations as one",
            });
        }
        Ok(Export {
            ordinal: found.ordinal,
            handle: self.driver.export(found.ordinal, found.base)?,
            offset,
            bytes: found.bytes,
        })
    }

    /// Pins host memory, so that devices copy it by themselves. What cannot be pinned as a whole passes through slots, which is
    /// slower, and no less right; the log says so. Undone when the region is revoked. Waits for the driver, which needs a
    /// second for some gigabytes, and holds up nobody else meanwhile.
    pub fn pin(self: &Arc<Self>, ordinal: u32, region: &Arc<Region>) {
        if region.device().is_some() {
            return;
        }
        let pin = Arc::new(Pin {
            gpus: self.clone(),
            key: region.key(),
            place: Mutex::new(None),
            is_whole: AtomicBool::new(false),
        });
        // Held until it is pinned, so that nobody takes the memory back before.
        let mut place = lock(&pin.place);
        match lock(&self.pins).entry(region.key()) {
            Entry::Occupied(_) => return,
            Entry::Vacant(room) => drop(room.insert(pin.clone())),
        }
        let loan: Arc<dyn Loan> = pin.clone();
        if !region.lend(Arc::downgrade(&loan)) {
            lock(&self.pins).remove(&region.key());
            return;
        }
        let address = region.base().as_ptr() as u64;
        match self.driver.pin(ordinal, address, region.bytes()) {
            Ok(is_ours) => {
                *place = is_ours.then_some((ordinal, address));
                pin.is_whole.store(true, Release);
            }
            Err(error) => log::warn!(
                "copies of {region:?} to and from GPUs pass through slots: cannot pin it: {error}"
            ),
        }
    }

    /// A device whose context this process has, if CUDA was started for it here. Starts nothing.
    pub fn in_use(&self) -> Option<u32> {
        self.known.get()?;
        self.driver.contexts().ok()?.first().copied()
    }

    /// Whether all of a region of the host's memory is pinned.
    pub(crate) fn is_pinned(&self, region: &Region) -> bool {
        let pins = lock(&self.pins);
        let pin = pins.get(&region.key());
        pin.is_some_and(|pin| pin.is_whole.load(Acquire))
    }

    /// Lets all host memory go. Only when no lane copies any more; what a lane has left behind in the middle of a copy stays
    /// pinned.
    pub fn unpin_all(&self) {
        if self.has_leftovers.load(Relaxed) {
            return;
        }
        let pins = std::mem::take(&mut *lock(&self.pins));
        pins.values().for_each(|pin| pin.undo());
    }

    /// Notes that something is still being copied, by a lane that is no more.
    pub(crate) fn note_leftovers(&self) {
        self.has_leftovers.store(true, Relaxed);
    }

    /// Lets what copies of a device do from now on wait for what is in `stream` now. It is a `CUstream` of the program's
    /// (or a `cudaStream_t`), 0 for the default one, of that device. One that is being captured is refused.
    pub fn order_after(&self, ordinal: u32, stream: Stream) -> Answer<()> {
        self.attach(ordinal)?;
        if self.driver.is_capturing(ordinal, stream)? {
            return Err(CudaError::Capturing);
        }
        let event = self.driver.event(ordinal)?;
        let said = self
            .driver
            .record(ordinal, event, stream)
            .and_then(|()| self.add_order(ordinal, event));
        // Whoever waits for it goes on to.
        self.driver.end_event(ordinal, event);
        said
    }

    /// Lets all that is copied from now on wait for an event too.
    fn add_order(&self, ordinal: u32, event: Event) -> Answer<()> {
        let mut orders = lock(&self.orders);
        let orders = match orders.entry(ordinal) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(room) => room.insert(Orders::new(&*self.driver, ordinal)?),
        };
        self.driver.wait(ordinal, orders.stream, event)?;
        self.driver.record(ordinal, orders.joined, orders.stream)?;
        orders.last += 1;
        Ok(())
    }

    /// Lets a stream of ours wait for what [`Self::order_after`] was told since `seen`.
    pub(crate) fn take_orders(&self, ordinal: u32, stream: Stream, seen: &mut u64) -> Answer<()> {
        let orders = lock(&self.orders);
        let Some(orders) = orders.get(&ordinal).filter(|orders| orders.last > *seen) else {
            return Ok(());
        };
        self.driver.wait(ordinal, stream, orders.joined)?;
        *seen = orders.last;
        Ok(())
    }

    /// Copies between a device and memory of our own, and waits for it. What is handed in comes back, unless the driver
    /// failed before it said that the copy is over: then it stays where it is, because the device may still use it.
    fn copy_now(
        &self,
        ordinal: u32,
        mut here: Vec<u8>,
        address: u64,
        into: bool,
    ) -> Answer<Vec<u8>> {
        let of_device = lock(&self.streams).entry(ordinal).or_default().clone();
        // Held all the time: whoever comes next to this device would wait behind it in the stream anyway.
        let mut of_device = lock(&of_device);
        let stream = match *of_device {
            Some(stream) => stream,
            None => *of_device.insert(self.driver.stream(ordinal)?),
        };
        let near = End {
            address: here.as_mut_ptr() as u64,
            ordinal: None,
        };
        let far = End {
            address,
            ordinal: Some(ordinal),
        };
        let (to, from) = if into { (far, near) } else { (near, far) };
        // SAFETY: the host's end is a vector that is let go of only when the copy is over.
        let copied = unsafe {
            self.driver
                .copy(ordinal, stream, to, from, here.len() as u64)
        };
        match copied.and_then(|()| self.driver.finish(ordinal, stream)) {
            Ok(()) => Ok(here),
            Err(error) => {
                std::mem::forget(here);
                Err(error)
            }
        }
    }
}

impl fmt::Debug for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known.get() {
            Some(known) => f.debug_list().entries(&known.gpus).finish(),
            None => f.write_str("[not asked for yet]"),
        }
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        for (ordinal, stream) in lock(&self.streams).drain() {
            if let Some(stream) = *lock(&stream) {
                self.driver.end_stream(ordinal, stream);
            }
        }
        for (ordinal, orders) in lock(&self.orders).drain() {
            self.driver.end_event(ordinal, orders.joined);
            self.driver.end_stream(ordinal, orders.stream);
        }
    }
}

/// What opens memory to another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Export {
    pub(crate) ordinal: u32,
    pub(crate) handle: Handle,
    /// Where the range begins in the allocation.
    pub(crate) offset: u64,
    /// The size of the allocation.
    pub(crate) bytes: u64,
}

/// Memory that was allocated here.
struct Allocation {
    gpus: Arc<Gpus>,
    ordinal: u32,
    address: u64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let (driver, ordinal, address) = (self.gpus.driver.clone(), self.ordinal, self.address);
        self.gpus.release(move || {
            if let Err(error) = driver.free(ordinal, address) {
                log::warn!("memory of cuda:{ordinal} is not freed: {error}");
            }
        });
    }
}

/// Host memory that is pinned, or is about to be.
struct Pin {
    gpus: Arc<Gpus>,
    key: RegionKey,
    /// `None`: it could not be, or somebody else has done it.
    place: Mutex<Option<(u32, u64)>>,
    /// All of it is pinned.
    is_whole: AtomicBool,
}

impl Loan for Pin {
    /// No request uses the region any more, so no copy does.
    fn end(&self, _deadline: Instant) -> bool {
        if lock(&self.gpus.pins).remove(&self.key).is_some() {
            self.undo();
        }
        true
    }
}

impl Pin {
    fn undo(&self) {
        let place = lock(&self.place).take();
        if let Some((ordinal, address)) = place
            && let Err(error) = self.gpus.driver.unpin(ordinal, address)
        {
            log::debug!("cuda: {error}");
        }
    }
}

/// What a region knows of its device.
struct OnGpu {
    gpus: Arc<Gpus>,
    ordinal: u32,
    address: u64,
    bytes: u64,
    is_shared: bool,
    dma_buf: OnceLock<Option<(OwnedFd, u64)>>,
}

impl DeviceMemory for OnGpu {
    fn ordinal(&self) -> u32 {
        self.ordinal
    }

    fn numa_node(&self) -> Option<u16> {
        self.gpus.numa_node(self.ordinal)
    }

    fn load(&self, from: u64, to: &mut [u8]) -> io::Result<()> {
        let copied = self
            .gpus
            .copy_now(self.ordinal, vec![0; to.len()], from, false)?;
        to.copy_from_slice(&copied);
        Ok(())
    }

    fn store(&self, from: &[u8], to: u64) -> io::Result<()> {
        let copied = self.gpus.copy_now(self.ordinal, from.to_vec(), to, true)?;
        drop(copied);
        Ok(())
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn dma_buf(&self) -> Option<DmaBuf<'_>> {
        let made = self.dma_buf.get_or_init(|| {
            let made = self.make_dma_buf();
            made.inspect_err(|error| {
                log::debug!(
                    "cuda: no DMA-BUF of {} bytes at {:#x} of cuda:{}: {error}",
                    self.bytes,
                    self.address,
                    self.ordinal
                );
            })
            .ok()
        });
        let (fd, offset) = made.as_ref()?;
        Some(DmaBuf {
            fd: fd.as_fd(),
            offset: *offset,
            len: self.bytes,
        })
    }
}

impl OnGpu {
    /// A DMA-BUF of the host's pages that the region is on, and where it begins in them. The driver refuses one where these are
    /// not all of the allocation's: the larger pages are, the more small allocations cannot be had so.
    fn make_dma_buf(&self) -> Answer<(OwnedFd, u64)> {
        let page = self.gpus.driver.page_bytes();
        let first = self.address / page * page;
        let end = (self.address + self.bytes).next_multiple_of(page);
        let fd = self.gpus.driver.dma_buf(self.ordinal, first, end - first)?;
        Ok((fd, self.address - first))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::stub::{Machine, Stub};

    fn gpus(machine: Machine) -> (Arc<Stub>, Arc<Gpus>) {
        let stub = Arc::new(Stub::new(machine));
        let gpus = Gpus::over(stub.clone());
        (stub, gpus)
    }

    #[test]
    fn a_range_is_on_a_device_if_all_of_it_is() {
        let (stub, gpus) = gpus(Machine::default());
        let pieces = stub.allocate_mapped(1, 4096, 4).unwrap();
        let other = stub.allocate(0, 10, Sharing::Process).unwrap();
        let here = [0_u8; 8];
        let here = here.as_ptr() as u64;
        let foreign = |address| Err(CudaError::ForeignPointer { address });
        // (name, address, bytes, device)
        let cases = [
            ("one piece", pieces, 4096, Ok(1)),
            ("several pieces", pieces + 1, 4 * 4096 - 1, Ok(1)),
            ("a byte more", pieces, 4 * 4096 + 1, foreign(pieces + 16384)),
            ("a whole allocation", other, 10, Ok(0)),
            ("past it", other + 9, 2, foreign(other + 10)),
            ("of the host", here, 8, foreign(here)),
            ("no bytes", other, 0, foreign(other)),
            ("over the end", u64::MAX, 2, foreign(u64::MAX)),
        ];
        for (name, address, bytes, device) in cases {
            assert_eq!(gpus.locate(address, bytes), device, "{name}");
        }
    }

    #[test]
    fn what_is_allocated_is_freed_with_its_region() {
        let (stub, gpus) = gpus(Machine::default());
        let region = gpus.allocate(1, 100, Access::default(), Sharing::Process);
        let region = Arc::new(region.unwrap());
        assert_eq!(region.device().unwrap().ordinal(), 1);
        region.store(b"some bytes", 90).unwrap();
        let mut bytes = [0; 5];
        region.load(95, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
        let pinned = region.pin_any(0, 100).unwrap();
        drop(region);
        assert_eq!(stub.counts().allocations, 1, "somebody still uses it");
        drop(pinned);
        assert_eq!(stub.counts().allocations, 0);
        let error = gpus.allocate(2, 1, Access::default(), Sharing::Process);
        let none = CudaError::NoDevice {
            ordinal: 2,
            devices: 2,
        };
        assert_eq!(error.err(), Some(none));
    }

    #[test]
    fn host_memory_is_pinned_once_until_it_is_revoked() {
        let (stub, gpus) = gpus(Machine::default());
        let region = Arc::new(Region::allocate(8192, Access::Local).unwrap());
        gpus.pin(0, &region);
        gpus.pin(1, &region);
        assert_eq!(stub.counts().pinned, 1);
        region.revoke();
        assert_eq!(stub.counts().pinned, 0);
        gpus.pin(0, &region);
        assert_eq!(stub.counts().pinned, 0, "it may go any moment");
        // What cannot be pinned is no error.
        let other = Arc::new(Region::allocate(8192, Access::Local).unwrap());
        stub.set_full(true);
        gpus.pin(0, &other);
        other.revoke();
        stub.set_full(false);
        // All at once, and then no more.
        let last = Arc::new(Region::allocate(8192, Access::Local).unwrap());
        gpus.pin(0, &last);
        assert_eq!(stub.counts().pinned, 1);
        gpus.unpin_all();
        assert_eq!(stub.counts().pinned, 0);
        last.revoke();
    }

    #[test]
    fn a_dma_buf_has_whole_pages_and_says_where_the_region_begins() {
        const KIB: u64 = 1024;
        // (the host's pages, the allocation, where the region begins in it and how long it is, where in the DMA-BUF)
        let cases = [
            (4 * KIB, 12 * KIB, (100, 5000), Some(100)),
            (4 * KIB, 12 * KIB, (8 * KIB + 5, 10), Some(5)),
            (64 * KIB, 192 * KIB, (100, 5000), Some(100)),
            (64 * KIB, 192 * KIB, (4 * KIB, 70 * KIB), Some(4 * KIB)),
            (64 * KIB, 192 * KIB, (130 * KIB, 62 * KIB), Some(2 * KIB)),
            // Its last page is not all of this allocation.
            (64 * KIB, 100 * KIB, (0, 100 * KIB), None),
            (64 * KIB, 100 * KIB, (0, 64 * KIB), Some(0)),
        ];
        for (page_bytes, allocated, (begins, bytes), offset) in cases {
            let (stub, gpus) = gpus(Machine {
                dma_buf: true,
                page_bytes,
                ..Machine::default()
            });
            let address = stub.allocate(0, allocated, Sharing::Process).unwrap();
            // SAFETY: allocated until the driver ends.
            let region = unsafe { gpus.register(address + begins, bytes, Access::default()) };
            let region = region.unwrap();
            let shared = region.dma_buf().map(|shared| (shared.offset, shared.len));
            let name = format!("{bytes} bytes at {begins} of {allocated} on pages of {page_bytes}");
            assert_eq!(shared, offset.map(|offset| (offset, bytes)), "{name}");
        }
        let (_stub, without) = self::gpus(Machine::default());
        let region = without.allocate(0, 1, Access::default(), Sharing::Process);
        assert!(region.unwrap().dma_buf().is_none());
    }

    #[test]
    fn a_machine_without_gpus_is_an_error() {
        let none = Machine {
            gpus: 0,
            ..Machine::default()
        };
        let error = Gpus::over(Arc::new(Stub::new(none))).gpus().unwrap_err();
        assert!(error.to_string().contains("no GPU"), "{error}");
    }

    #[test]
    fn an_order_holds_up_nobody_however_many_there_are() {
        // Whoever gave the 1,025th waited for the first, with the lock that workers take.
        let (stub, gpus) = gpus(Machine::default());
        let stream = stub.stream(0).unwrap();
        stub.hold();
        for _ in 0..3000 {
            gpus.order_after(0, stream).unwrap();
        }
        assert!(stub.counts().events <= 1, "{:?}", stub.counts());
        stub.go_on();
        stub.finish(0, stream).unwrap();
    }

    #[test]
    fn a_stream_that_is_captured_is_left_alone() {
        let (stub, gpus) = gpus(Machine::default());
        let stream = stub.stream(0).unwrap();
        let events = stub.counts().events;
        stub.begin_capture(stream);
        assert_eq!(gpus.order_after(0, stream), Err(CudaError::Capturing));
        // So is one that the default stream waits for.
        assert_eq!(gpus.order_after(0, Stream(0)), Err(CudaError::Capturing));
        assert!(stub.end_capture(stream), "the capture was spoilt");
        gpus.order_after(0, stream).unwrap();
        assert_eq!(stub.counts().events, events + 1);
    }
}
