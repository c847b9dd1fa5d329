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
    "fig10-rail-fails",
    "steady-uniform",
    "steady-half-speed-numa",
    "slowed-rail",
    "slowed-rail-4mib",
    "slowed-rail-256kib",
    "silent-rail",
    "small-requests",
    "sixty-four-rails",
    "incast",
    "fig6-gpu-tiers",
    "background-bursts",
    "heavy-delay-jitter",
    "polling-50us",
    "collapsed-rate",
    "collapsed-fabric",
    "flapping-rail",
    "several-processes",
    "shallow-queues",
];

/// The scenario of this name.
pub fn find(name: &str) -> Option<Scenario> {
    Scenario::parse(text(name)?).ok()
}
