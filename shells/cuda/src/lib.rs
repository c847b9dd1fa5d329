//! polyrail and memory of GPUs: a lane is a queue of copies of one device.
//!
//! CUDA's driver is loaded when it is first asked for, so a program with this shell starts where it is absent, and says
//! that it is; built without feature `driver`, it says that too. Every call goes through one narrow interface, [`driver::Driver`]; `stub` is a driver in this process,
//! for tests.
//!
//! [`Gpus`] makes regions of device memory: what the program has allocated, found by the driver's attributes of its
//! address, or what is allocated here. Such a region's addresses mean something to the driver only, and the other
//! transports never get them. [`CudaTransport`] copies between such regions and host memory of this process, and what
//! is to go further is staged by the engine. [`CudaIpcTransport`] copies between this process and device memory of others on
//! the same host.
//!
//! Works that follow each other at both ends are one copy, because each costs a launch. Copies into a device, out of it
//! and within it have a stream each, for every worker.
//!
//! **Fences.** A work has ended when the event behind it on its stream is over, and then both facts hold: nobody reads
//! the source, nobody writes the destination. A lost context says nothing about what was on its way: such a lane can
//! never be fenced, and what its works name stays where it is until the process ends.
//!
//! **No copy waits.** None that a worker makes waits for what is in a stream. Host memory that is not pinned as a whole would make one
//! wait, so it takes a detour through `slots`.
//!
//! The parts: `driver` is the interface, `binding` CUDA itself, `gpus` memory, `far` and `endpoint` the lanes, `ipc`
//! other processes, `pci` where devices are.

mod background;
#[cfg(feature = "driver")]
pub mod binding;
pub mod driver;
mod endpoint;
mod far;
mod gpus;
pub mod ipc;
pub mod pci;
mod slots;
#[cfg(any(test, feature = "stub"))]
pub mod stub;

use std::fmt;
use std::io;
use std::sync::Arc;

use polyrail_core::transport::{Capabilities, MemoryKind};
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::RegionTable;
use polyrail_transport::{Endpoint, FenceAnswer, InboundLane, RetireAnswer, SessionId, Transport};

use crate::endpoint::CudaEndpoint;
use crate::far::Own;

pub use driver::{Answer, CudaError, Driver, Gpu, Sharing, Stream};
pub use gpus::Gpus;
pub use ipc::CudaIpcTransport;
pub use pci::Distance;

/// What the transport is called.
pub const NAME: &str = "cuda";

/// Works that may be posted on a lane and not completed.
pub const WORKS_MAX: u16 = 64;

/// Bytes of the largest work.
pub const WORK_BYTES_MAX: u32 = 64 << 20;

/// How long a device may stand still before that is held against it: copies may wait for a program's kernels, and no
/// other way leads to its memory.
const PATIENCE_MS: u16 = 60_000;

/// How long whoever ends a worker waits for what devices still do for it.
const END_MAX: std::time::Duration = std::time::Duration::from_secs(2);

/// Copies between memory of this process and memory of its devices. It has only an initiator's half.
pub struct CudaTransport {
    gpus: Arc<Gpus>,
    regions: Arc<dyn RegionTable>,
}

impl CudaTransport {
    /// Over these GPUs and this memory.
    pub fn new(gpus: Arc<Gpus>, regions: Arc<dyn RegionTable>) -> Self {
        Self { gpus, regions }
    }
}

impl fmt::Debug for CudaTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaTransport({:?})", self.gpus)
    }
}

impl Transport for CudaTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_within_host(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
            .with_local(MemoryKind::Host)
            .with_local(MemoryKind::Shared)
            .with_local(MemoryKind::Device)
            .with_remote(MemoryKind::Device)
    }

    fn endpoint(&self, _: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        let far = Own::new(self.regions.clone());
        let endpoint = CudaEndpoint::new(self.gpus.clone(), Box::new(far), clock)?;
        Ok(Box::new(endpoint))
    }

    /// No peer has lanes here.
    fn admit(&self, _lane: InboundLane) {}

    fn fence_inbound(&self, _: SessionId, _: LaneId, _: Epoch, answer: FenceAnswer) {
        answer(0);
    }

    fn retire_session(&self, _: SessionId, answer: RetireAnswer) {
        answer();
    }
}

#[cfg(test)]
mod tests;
