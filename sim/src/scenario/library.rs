//! The scenarios that come with the program.

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
    "read-credits",
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
    "islands-vanilla",
    "islands-advanced",
    "islands-small-stay",
    "islands-hint-shifts",
    "islands-hint-yields",
    "islands-hint-strict",
    "islands-agent-dies",
    "islands-agent-flaps",
    "islands-secondary-dies",
    "islands-secondary-silent",
    "islands-one-supplementary",
    "islands-no-way-around",
    "islands-relay-only",
    "islands-views-differ",
    "islands-peer-restarts",
    "sq-burst-1024",
    "sq-burst-2048",
    "sq-burst-4096",
    "sq-depth-spread",
    "sq-signal-interval",
    "sq-slow-rank",
    "sq-queue-pair-fails",
    "staged-gpu",
    "staged-gpu-faults",
    "staged-gpu-lost",
];
