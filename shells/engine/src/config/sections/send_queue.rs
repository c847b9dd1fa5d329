//! Section `send_queue`: what happens when there is no room.

use std::time::Duration;

use polyrail_core::send_queue::SendQueueConfig as CoreSendQueueConfig;

/// What happens to submissions that find no room, and which works ask for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendQueueConfig {
    /// A submission that its worker has no room for waits in line. Else it is refused at once.
    pub admission: bool,
    /// How long it waits.
    pub admission_timeout: Duration,
    /// Who has once not fit goes on when there is room for so many requests. 0: when it fits.
    pub admission_resume_watermark_works: u16,
    /// So many works at most go without a completion of their own, where one covers others. 0: as many as room allows.
    pub signal_interval_works: u16,
}

impl SendQueueConfig {
    /// The profile `mori`: what the MORI-IO flow-control rework has by default.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn mori() -> Self {
        Self::of(&CoreSendQueueConfig::MORI)
    }

    fn of(core: &CoreSendQueueConfig) -> Self {
        Self {
            admission: core.admission,
            admission_timeout: core.admission_timeout.into(),
            admission_resume_watermark_works: core.admission_resume_watermark_works,
            signal_interval_works: core.signal_interval_works,
        }
    }
}

impl Default for SendQueueConfig {
    fn default() -> Self {
        Self::of(&CoreSendQueueConfig::DEFAULT)
    }
}
