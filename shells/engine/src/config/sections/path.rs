//! Section `path`: which class of rails bytes take.

use std::net::IpAddr;
use std::time::Duration;

use polyrail_core::path::config::PathConfig as CorePathConfig;
use polyrail_core::path::island::IslandPrefix;

use crate::hints::AUTO;

/// Which of two fabrics bytes take: a primary one that is routed everywhere, and a supplementary one that joins the
/// hosts of an island. Both ends of a connection need the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// Who says which class carries what.
    pub mode: IsolationMode,
    /// What makes the addresses of a primary rail's two ends one island.
    pub island_prefix: IslandPrefix,
    /// Those of [`crate::Config::rails`] that are of the supplementary fabric. All others are primary.
    pub supplementary: Vec<IpAddr>,
    /// Mode `Advanced`: transfers to another island of up to so many bytes stay on primary rails.
    pub small_bytes_max: u64,
    /// Mode `Advanced`: the file of `polyrail agent`; `auto`: where that puts it by itself.
    pub hint_file: String,
    /// Mode `Advanced`: whether a class that a hint names is waited for while it has no room.
    pub hint_strict: bool,
    /// Mode `Advanced`: how long an agent may be silent before its hint counts for nothing.
    pub hint_age_max: Duration,
}

/// Who says which class of rails carries what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IsolationMode {
    /// Nobody: all rails are alike.
    #[default]
    Off,
    /// The topology: supplementary rails inside an island, primary ones between islands.
    Vanilla,
    /// An agent.
    Advanced,
}

impl Default for PathConfig {
    fn default() -> Self {
        let core = CorePathConfig::DEFAULT;
        Self {
            mode: IsolationMode::Off,
            island_prefix: core.island_prefix,
            supplementary: Vec::new(),
            small_bytes_max: core.small_bytes_max,
            hint_file: AUTO.into(),
            hint_strict: core.hint_strict,
            hint_age_max: core.hint_age_max.into(),
        }
    }
}
