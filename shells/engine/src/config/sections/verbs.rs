//! Section `verbs`: queue pairs.

use std::time::Duration;

/// How queue pairs of transport verbs are made and connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// Works that one queue pair may hold; devices that can hold fewer have fewer.
    pub queue_depth: u16,
    /// Queue pairs that one worker may have on one device, before idle ones make room for others.
    pub queue_pairs: u16,
    /// For how long works may queue on a rail so that several share a doorbell and a completion.
    pub batch: Duration,
    /// How long a packet is waited for before it is sent again: 4.096 µs × 2^this.
    pub ack_timeout: u8,
    /// How often it is sent again before the queue pair gives up. Some devices take 7 for "for ever".
    pub retry_count: u8,
    /// The row of a port's table of GIDs; 256: the one whose GID is the rail's address.
    pub gid_row: u16,
    /// The key of the partition on InfiniBand; 0: the first that a port is a full member of.
    pub pkey: u16,
    /// The traffic class of packets, which switches choose their queue by.
    pub traffic_class: u8,
    /// The service level of packets.
    pub service_level: u8,
    /// Writes of up to so many bytes carry them themselves, which spares the device from reading memory.
    pub inline_bytes: u16,
    /// Moves bytes of GPUs' memory too, through its DMA-BUF.
    pub gpu_memory: bool,
    /// Lets devices write memory in another order than packets came in, where they can.
    pub relaxed_ordering: bool,
}

impl VerbsConfig {
    /// [`Self::gid_row`] of the rail's address.
    pub const GID_OF_RAIL: u16 = 256;

    #[cfg(feature = "verbs")]
    pub(crate) fn gid_index(&self) -> Option<u8> {
        u8::try_from(self.gid_row).ok()
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn partition(&self) -> Option<u16> {
        (self.pkey != 0).then_some(self.pkey)
    }
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            queue_depth: 128,
            queue_pairs: 1024,
            batch: Duration::from_micros(500),
            ack_timeout: 14,
            retry_count: 6,
            gid_row: Self::GID_OF_RAIL,
            pkey: 0,
            traffic_class: 0,
            service_level: 0,
            inline_bytes: 64,
            gpu_memory: false,
            relaxed_ordering: true,
        }
    }
}
