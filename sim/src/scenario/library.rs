//! The scenarios that come with the program.

use super::Scenario;

macro_rules! library {
    ($($name:literal,)*) => {
        /// Their names, in order.
        pub const NAMES: &[&str] = &[$($name),*];

        /// The file of the scenario of this name.
        pub fn text(name: &str) -> Option<&'static str> {
            match name {
                $($name => Some(include_str!(concat!("../../scenarios/", $name, ".toml"))),)*
                _ => None,
            }
        }
    };
}

library![
    "fig2-four-submitters",
    "fig5-host-to-host",
    "fig6-gpu-tiers",
    "fig6-gpu-tiers-small",
    "fig7-submitters",
    "fig9-batch-1",
    "fig9-batch-16",
    "fig9-batch-128",
    "fig9-penalty-1",
    "fig9-penalty-100",
    "fig10-rail-fails",
    "fig10-rail-fails-reset",
    "steady-uniform",
    "steady-half-speed-numa",
    "slowed-rail",
    "slowed-rail-4mib",
    "slowed-rail-256kib",
    "silent-rail",
    "small-requests",
    "sixty-four-rails",
    "incast",
    "background-bursts",
    "heavy-delay-jitter",
    "polling-50us",
    "collapsed-rate",
    "collapsed-fabric",
    "flapping-rail",
    "several-processes",
    "shallow-queues",
    "failover-to-secondary",
    "failover-both-fail",
    "failover-mixed-faults",
    "failover-none-allowed",
    "failover-one-allowed",
    "failover-own-budgets",
    "kv-cache",
    "checkpoint-push",
    "thousand-peers",
    "partition",
    "peer-restarts",
    "peer-resets",
    "frames-lost",
    "worker-stalls",
    "day-at-low-rate",
];

/// The scenario of this name.
pub fn find(name: &str) -> Option<Scenario> {
    Scenario::parse(text(name)?).ok()
}
