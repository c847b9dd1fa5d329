//! The tables that all workers share, and how an engine numbers its rails and devices.

use polyrail_core::rail::{Device, Rail, Shared, Waiting};
use polyrail_core::slice::SLICE_BYTES;

/// Rails that one engine can have.
pub(crate) const RAILS_MAX: usize = 256;
/// Local devices that one engine can have.
pub(crate) const DEVICES_MAX: usize = 64;
/// Peers that one engine can have.
pub(crate) const PEERS_MAX: usize = 64;

/// The memory behind [`Shared`].
pub(crate) struct Fabric {
    rails: Box<[Rail]>,
    devices: Box<[Device]>,
    waiting: Box<[Waiting]>,
}

impl Fabric {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            rails: (0..RAILS_MAX).map(|_| Rail::EMPTY).collect(),
            devices: (0..DEVICES_MAX).map(|_| Device::EMPTY).collect(),
            waiting: (0..workers).map(|_| Waiting::NO).collect(),
        }
    }

    pub(crate) fn shared(&self) -> Shared<'_> {
        Shared::new(&self.rails, &self.devices, &self.waiting, SLICE_BYTES)
    }
}
