//! Section `health`: how failures are noticed, and how rails come back.

use std::time::Duration;

/// How an engine notices what does not work, and how long it waits for proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// How a rail that failed comes back.
    pub mode: HealthMode,
    /// Least time without a completion before a lane is suspected. Shorter notices sooner, and takes
    /// scheduling delays of a busy host for outages more often.
    pub progress_floor: Duration,
    /// How long a lane may take to open.
    pub open_timeout: Duration,
    /// How often a peer is asked for a sign of life; half as often while nothing is in flight with it.
    pub heartbeat: Duration,
    /// A peer that nothing is heard from for so long is silent; later while nothing goes to it. At least twice the peer's heartbeat.
    pub peer_silence: Duration,
    /// How long proof is waited for before a report says `Indeterminate`.
    pub fence_timeout: Duration,
    /// How long posted bytes of a cancelled request may go on before their lanes are fenced.
    pub cancel_grace: Duration,
}

/// How a rail that failed comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HealthMode {
    /// It pauses when it falls silent or a look after an error is bad, probes of scratch memory decide about its return, and
    /// the memory of outages decays.
    #[default]
    Decay,
    /// It pauses after several errors, and a success or the end of its cooldown re-admits it: the TENT failover
    /// document. The parameters are those of transport tcp.
    Reset,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            mode: HealthMode::default(),
            progress_floor: Duration::from_millis(30),
            open_timeout: Duration::from_secs(1),
            heartbeat: Duration::from_millis(500),
            peer_silence: Duration::from_millis(1_200),
            fence_timeout: Duration::from_secs(2),
            cancel_grace: Duration::from_millis(100),
        }
    }
}
