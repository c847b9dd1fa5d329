//! Section `spray`: what is assumed of rails, and whose load is seen.

use std::time::Duration;

/// What [`crate::Policy::Spray`] goes by besides what it learns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SprayConfig {
    /// Nominal rate in Gbit/s.
    pub nominal_bandwidth_gbps: f64,
    /// Base delay.
    pub base_delay: Duration,
    /// A request that has waited so long behind others of higher priority moves up by one step, for a turn.
    pub priority_promotion: Duration,
    /// A rail that has stood idle for so long while there was work is looked at, to see how fast it is now.
    pub idle_look: Duration,
    /// Whether small requests that lie together on both sides go as one.
    pub merge_requests: bool,
    /// What bytes of other processes of this host count that are in flight on a device: 0, nothing, and this engine's
    /// own are not told either; 1, as much as our own.
    pub diffusion_weight: f64,
    /// A process that has not been heard of for so long has nothing in flight.
    pub diffusion_stale: Duration,
}

impl Default for SprayConfig {
    fn default() -> Self {
        Self {
            nominal_bandwidth_gbps: 10.0,
            base_delay: Duration::from_micros(50),
            diffusion_weight: 0.0,
            diffusion_stale: Duration::from_millis(20),
            priority_promotion: Duration::from_millis(10),
            idle_look: Duration::from_millis(5),
            merge_requests: true,
        }
    }
}
