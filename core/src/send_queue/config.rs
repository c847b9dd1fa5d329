//! Settings of queues and of those who wait.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), "New env vars", for the settings and for the
//! profile [`SendQueueConfig::MORI`].

use crate::time::Duration;

/// Settings of send queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
pub struct SendQueueConfig {
    /// A work is signalled when so many have gone without. 0: only where it must be.
    pub signal_interval_works: u16,
    /// Whether who finds no room waits, so that programs need not try again and again.
    pub admission: bool,
    /// How long a whole batch may wait.
    pub admission_timeout: Duration,
    /// Who once did not fit waits until there is room for so many. 0: only until it fits.
    pub admission_resume_watermark_works: u16,
    /// Longest wait for a change without another look. Above 0, or who waits spins.
    pub admission_wait_slice: Duration,
}

impl SendQueueConfig {
    /// Ours: who finds no room waits, every 32nd work is signalled.
    pub const DEFAULT: Self = Self {
        signal_interval_works: 32,
        admission: true,
        ..Self::MORI
    };

    /// The profile `mori`: the defaults of the flow-control rework.
    pub const MORI: Self = Self {
        signal_interval_works: 0,
        admission: false,
        admission_timeout: Duration::from_micros(1_000_000),
        admission_resume_watermark_works: 2048,
        admission_wait_slice: Duration::from_micros(100),
    };
}

impl Default for SendQueueConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}
