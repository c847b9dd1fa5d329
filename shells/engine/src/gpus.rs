//! Memory of this host's GPUs as segments. To core, each GPU is a peer that is always heard, like a disk, with a rail for
//! the transport that copies. Such a segment is the near end of some requests and the far end of others; what no transport
//! carries further passes through slots in the host's memory, which are pinned for GPUs once one meets them.

use std::sync::Arc;

use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::slice::SLICE_BYTES;
use polyrail_core::time::Duration;
use polyrail_core::topology::tier;
use polyrail_core::transport::MemoryKind;
use polyrail_core::units::Rate;
use polyrail_cuda::{CudaError, Distance, Gpu, Gpus, Sharing, Stream};
use polyrail_transport::RemoteRegion;
use polyrail_transport::memory::{Access, Region};

use crate::config::Config;
use crate::engine::Engine;
use crate::error::{RegisterError, SubmitError};
use crate::files::{Disk, Medium};
use crate::known::CUDA;
use crate::lock::lock;
use crate::machine::{self, Device, Machine, Whereabouts};
use crate::memory::check_segment;
use crate::post::Command;
use crate::request::Request;
use crate::segments::{LocalSegment, RemoteSegment, SegmentId};
use crate::staging::Route;
use crate::start::Hooks;
use crate::transports::is_wanted;

/// What is assumed of a GPU that has not been used yet: PCI Express of the fourth generation.
const GPU: EstimateConfig = EstimateConfig {
    rate_nominal: Rate::from_bytes_per_sec(25_000_000_000),
    delay_base: Duration::from_micros(10),
    tier: 0,
    // Each copy costs a launch.
    slice_span: Duration::from_millis(4),
    batch_span: Duration::ZERO,
};

/// What the machine has, as far as the engine uses it.
pub(crate) struct Hardware {
    pub(crate) machine: Arc<Machine>,
    /// Its GPUs, or why none is used. CUDA is started when a segment on one is made, or a peer's is opened.
    pub(crate) gpus: Result<Arc<Gpus>, CudaError>,
}

/// A GPU of this machine, and how far it is from what moves its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuInfo {
    /// What the driver says of it.
    pub gpu: Gpu,
    /// The NUMA node that it is attached to, if the machine says so.
    pub numa_node: Option<u16>,
    /// The network interfaces that are PCI devices, each with its distance.
    pub interfaces: Vec<(String, Distance)>,
}

impl GpuInfo {
    /// The tier of a device for this GPU's memory, 0 the nearest: by the way between them on the PCI bus, or, of a device
    /// that is not on it or says nothing, by their NUMA nodes.
    ///
    /// Example: [guide](crate::guide#gpus).
    pub fn tier(&self, device: &Device) -> u8 {
        let mut known = self.interfaces.iter();
        let known = known.find(|(name, _)| *name == device.name);
        known.map_or_else(
            || tier(self.numa_node, device.numa_node),
            |(_, distance)| distance.tier(),
        )
    }
}

/// The GPUs of this machine. An error says why there are none.
///
/// Example: [guide](crate::guide#gpus).
pub fn gpus() -> Result<Vec<GpuInfo>, CudaError> {
    describe(&*Gpus::load()?, &machine::devices())
}

fn describe(gpus: &Gpus, devices: &[Device]) -> Result<Vec<GpuInfo>, CudaError> {
    let info = |gpu: &Gpu| GpuInfo {
        gpu: gpu.clone(),
        numa_node: gpus.numa_node(gpu.ordinal),
        interfaces: devices
            .iter()
            .filter_map(|device| {
                let distance = machine::gpu_distance(&gpu.pci, &device.name)?;
                Some((device.name.clone(), distance))
            })
            .collect(),
    };
    Ok(gpus.gpus()?.iter().map(info).collect())
}

/// The GPUs of an engine.
pub(crate) fn find(config: &Config, hooks: &Hooks) -> Result<Arc<Gpus>, CudaError> {
    if !is_wanted(CUDA, config) {
        return Err(CudaError::SwitchedOff);
    }
    match &hooks.cuda {
        Some(driver) => Ok(Gpus::over(driver.clone())),
        None => Gpus::load(),
    }
}

impl Engine {
    /// Allocates memory of a GPU, `cuda:0` being number 0, and registers it as a segment.
    ///
    /// Example: [guide](crate::guide#gpus).
    pub fn allocate_on_gpu(
        &self,
        name: &str,
        ordinal: u32,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        if !self.inner.is_ours() {
            return Err(RegisterError::Forked);
        }
        check_segment(name, bytes)?;
        let region = self
            .gpus()?
            .allocate(ordinal, bytes, access, Sharing::Process)?;
        self.register_region(name, region)
    }

    /// Lets what is submitted from now on to or from memory of a GPU begin only when what is in a stream of the program's
    /// now is over: a `CUstream` (or `cudaStream_t`) of the device that `segment` is on, 0 for the default one. Returns
    /// at once.
    ///
    /// It holds for all copies of that device, those of other segments too. Where a transport lets a network device read GPUs by
    /// itself, nothing would wait, and it is refused ([`CudaError::Unordered`]): synchronise the stream instead.
    ///
    /// Example: [guide](crate::guide#gpus).
    pub fn order_after(&self, segment: SegmentId, stream: u64) -> Result<(), RegisterError> {
        if !self.inner.is_ours() {
            return Err(RegisterError::Forked);
        }
        let stale = RegisterError::Stale { segment };
        let local = self.inner.segments.local(segment).ok_or(stale)?;
        let foreign = CudaError::ForeignPointer {
            address: local.region.base().as_ptr() as u64,
        };
        let device = local.region.device().ok_or(foreign)?;
        if let Some(transport) = self.inner.transports.unordered() {
            return Err(CudaError::Unordered { transport }.into());
        }
        self.gpus()?.order_after(device.ordinal(), Stream(stream))?;
        Ok(())
    }

    fn gpus(&self) -> Result<&Arc<Gpus>, RegisterError> {
        let gpus = self.inner.hardware.gpus.as_ref();
        gpus.map_err(|error| RegisterError::Gpu(error.clone()))
    }

    /// A region of a range that the program has allocated, if it is on a GPU. Without a driver nothing is.
    ///
    /// # Safety
    ///
    /// As for [`Engine::register`].
    pub(crate) unsafe fn region_on_gpu(
        &self,
        address: u64,
        bytes: u64,
        access: Access,
    ) -> Result<Option<Region>, RegisterError> {
        let Ok(gpus) = &self.inner.hardware.gpus else {
            return Ok(None);
        };
        match gpus.locate(address, bytes) {
            Ok(_) => {}
            // All of it is somewhere else.
            Err(CudaError::ForeignPointer { address: first }) if first == address => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
        // SAFETY: the caller promises that the range stays allocated, and accepts that it is read and written.
        let region = unsafe { gpus.register(address, bytes, access) }?;
        Ok(Some(region))
    }

    /// Makes memory of a GPU a segment.
    pub(crate) fn add_device_memory(
        &self,
        name: &str,
        region: Region,
        ordinal: u32,
    ) -> Result<SegmentId, RegisterError> {
        let gpu = self.gpu(ordinal)?;
        if region.access().allows_remote_read() {
            // Peers that cannot reach it are staged to it.
            let bytes = region.bytes();
            self.stager()
                .map_err(|source| RegisterError::System { bytes, source })?;
        }
        self.add_device_segment(name, region, &gpu)
    }

    fn add_device_segment(
        &self,
        name: &str,
        region: Region,
        gpu: &Disk,
    ) -> Result<SegmentId, RegisterError> {
        let far = RemoteRegion {
            key: region.key(),
            bytes: region.bytes(),
        };
        let id = self.inner.segments.add_device(name, region, gpu.peer)?;
        self.attach_local(id);
        self.inner
            .workers
            .tell(|| Command::AttachRemote(id.segment_ref(), far.clone()));
        Ok(id)
    }

    /// A GPU as core knows it, made known if it is not.
    fn gpu(&self, ordinal: u32) -> Result<Disk, RegisterError> {
        let inner = &self.inner;
        let gpus = self.gpus()?;
        let ways = inner.transports.of_gpus();
        if ways.is_empty() {
            return Err(CudaError::SwitchedOff.into());
        }
        let _adding = lock(&inner.files.adding);
        let medium = Medium::Gpu(ordinal);
        if let Some(known) = inner.files.disk(|disk| disk.medium == medium) {
            return Ok(known);
        }
        let bytes = u64::from(SLICE_BYTES);
        let scratch = gpus.allocate(ordinal, bytes, Access::Local, Sharing::Process)?;
        // Probes are copied from and to it.
        if let Some(region) = self.region(inner.plans.scratch) {
            gpus.pin(ordinal, &region);
        }
        let name = format!("gpu{ordinal}");
        self.add_disk((medium, &name, GPU), &ways, |peer| {
            let far = RemoteRegion {
                key: scratch.key(),
                bytes,
            };
            // No program can name it: it has a control character.
            let name = format!("\u{1}scratch-gpu{ordinal}");
            let id = inner.segments.add_device(&name, scratch, peer)?;
            self.inner
                .workers
                .tell(|| Command::AttachRemote(id.segment_ref(), far.clone()));
            Ok(id)
        })
    }

    /// Where registered memory is. Asks the kernel.
    pub(crate) fn whereabouts(&self, region: &Region) -> Whereabouts {
        let gpu = |ordinal: u32| {
            let gpus = self.inner.hardware.gpus.as_ref().ok()?;
            Some(&*gpus.gpus().ok()?.get(ordinal as usize)?.pci)
        };
        let gpu = region.device().and_then(|device| gpu(device.ordinal()));
        self.inner.hardware.machine.whereabouts(region, gpu)
    }

    /// Pins what is copied to or from a GPU, of this process or another one of this host.
    pub(crate) fn pin_for_gpu(&self, local: &LocalSegment, remote: &RemoteSegment) {
        let Ok(gpus) = &self.inner.hardware.gpus else {
            return;
        };
        let disk = self.inner.files.disk(|disk| disk.peer == remote.peer);
        let is_opened = || {
            remote.descriptor.memory == MemoryKind::DeviceShared
                && self.joins(local.region.memory(), remote)
        };
        let ordinal = match disk.map(|disk| disk.medium) {
            Some(Medium::Gpu(ordinal)) => Some(ordinal),
            // Whichever copies it.
            None if is_opened() => gpus.in_use(),
            _ => None,
        };
        if let Some(ordinal) = ordinal {
            gpus.pin(ordinal, &local.region);
        }
    }

    /// How a request goes whose segments no plan joins, or one that is to go through slots wherever it can.
    pub(crate) fn route(
        &self,
        index: usize,
        request: &Request,
        through_slots: bool,
    ) -> Result<Route, SubmitError> {
        let joins = |kind: MemoryKind, far: &RemoteSegment| !through_slots && self.joins(kind, far);
        self.inner.segments.route(index, request, &joins)
    }

    /// The same, and that it may.
    pub(crate) fn check_route(
        &self,
        index: usize,
        request: &Request,
        through_slots: bool,
    ) -> Result<Route, SubmitError> {
        let joins = |kind: MemoryKind, far: &RemoteSegment| !through_slots && self.joins(kind, far);
        self.inner.segments.check_route(index, request, &joins)
    }

    /// Whether a transport carries bytes between memory of a kind here and a segment elsewhere.
    fn joins(&self, kind: MemoryKind, far: &RemoteSegment) -> bool {
        match lock(&self.inner.sessions.peers).get(far.peer) {
            Some(peer) => {
                let here = (kind, &Whereabouts::default());
                let there = (far.descriptor.memory, None);
                let transports = &self.inner.transports;
                let ways = peer.plan_transports(transports, here, there);
                ways.iter()
                    .any(|way| !way.rails.is_empty() && !transports.stages(way.transport))
            }
            // A GPU of this host; or a peer that is lost, as whoever asks will see.
            None => true,
        }
    }
}
