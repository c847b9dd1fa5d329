//! What an operator may set.

use polyrail_core::time::Duration;

/// How queue pairs are made and connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Works that one queue pair may hold. Devices that can hold fewer have fewer.
    pub queue_depth: u16,
    /// Queue pairs that one worker may have on one device, before the one that has been idle for longest makes room for
    /// another.
    pub lanes_max: u16,
    /// For how long works may queue on a rail so that several share a doorbell and a completion.
    pub batch_span: Duration,
    /// Reads of one queue pair that may be on their way. Devices that can do fewer do fewer.
    pub reads_max: u8,
    /// How long a packet is waited for before it is sent again: 4.096 µs × 2^this, 1 to 31.
    pub ack_timeout: u8,
    /// How often it is sent again before the queue pair gives up, 0 to 7. Some devices take 7 for "for ever".
    pub retry_count: u8,
    /// The row of the table of GIDs; `None`: the one whose GID is the rail's address, RoCE v2 before v1.
    pub gid_index: Option<u8>,
    /// The partition that queue pairs are in, by its key, of which 15 bits count; `None`: the first that the port is a full member
    /// of. Ethernet has one.
    pub pkey: Option<u16>,
    /// The traffic class of packets; switches choose their queue by it.
    pub traffic_class: u8,
    /// The service level of packets, 0 to 15.
    pub service_level: u8,
    /// Writes of up to so many bytes carry them themselves, which spares the device from reading memory. Devices that can
    /// do less do less; 0: none does.
    pub inline_bytes: u16,
    /// Moves bytes of GPUs' memory too, registered through its DMA-BUF or by nvidia-peermem. Not tried on hardware yet.
    pub gpu_memory: bool,
    /// Lets devices write memory in another order than packets came in, where they can.
    pub relaxed_ordering: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue_depth: 128,
            lanes_max: 1024,
            batch_span: Duration::from_micros(500),
            reads_max: 48,
            // 0.5 s in all.
            ack_timeout: 14,
            retry_count: 6,
            gid_index: None,
            pkey: None,
            traffic_class: 0,
            service_level: 0,
            inline_bytes: 64,
            gpu_memory: false,
            relaxed_ordering: true,
        }
    }
}
