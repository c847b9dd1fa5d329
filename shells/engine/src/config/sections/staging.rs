//! Section `staging`: slots.

/// The memory that what no transport carries in one piece passes through: slots, of which each holds a chunk. There
/// is as much for what comes in as for what goes out, and none before it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingConfig {
    /// Slots for each direction, which chunks to and from all peers share; 32 of one peer at most are on their way.
    pub slots: u32,
    /// Bytes of a slot. Chunks are as long as the smaller slots of the two ends. Only of multiples of 4096 do whole
    /// chunks of a file pass the page cache by.
    pub slot_bytes: u32,
}

impl Default for StagingConfig {
    fn default() -> Self {
        // Large enough for a disk and a network, small enough that the first hop of a long transfer is over soon.
        Self {
            slots: 16,
            slot_bytes: 1 << 20,
        }
    }
}
