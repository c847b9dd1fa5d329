//! Room with workers, as engines have it, and settings that are compared.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

/// Room with each worker: what a submission has to take before it is handed over.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Room {
    /// Requests that a worker has room for, from submission to report; 0: nobody asks for room.
    pub requests: u16,
    /// Who finds none waits. Else it is refused at once.
    pub admission: bool,
    /// How long it waits, the batch as a whole.
    pub admission_timeout_us: u64,
    /// Who has once not fit goes on when so many requests would fit, or all that the room holds.
    pub admission_resume_watermark_works: u16,
    /// From a change to a waiter that runs again.
    pub wake_ns: u64,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            requests: 0,
            admission: true,
            admission_timeout_us: 1_000_000,
            admission_resume_watermark_works: 2_048,
            wake_ns: 2_000,
        }
    }
}

/// One way to run a scenario: what is not given is as the file says it otherwise.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// What `--policy` calls it.
    pub name: String,
    /// How rails are chosen: a policy of core, or a split policy. Without it `spray`.
    #[serde(default)]
    pub policy: Option<Spanned<String>>,
    /// See [`Room`].
    #[serde(default)]
    pub admission: Option<bool>,
    /// See [`Room`].
    #[serde(default)]
    pub admission_timeout_us: Option<u64>,
    /// See [`Room`].
    #[serde(default)]
    pub admission_resume_watermark_works: Option<u16>,
    /// See [`Limits`](super::Limits).
    #[serde(default)]
    pub signal_interval_works: Option<u16>,
    /// What must come of it.
    #[serde(default)]
    pub expect: SettingExpect,
}

/// Bounds on what comes of a scenario under a setting. Violations are always expected to be none, and so is everything that has
/// two numbers unless it says otherwise.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SettingExpect {
    /// Least efficiency.
    pub efficiency_min: Option<f64>,
    /// Least and most times that somebody was told that there is no room.
    pub queue_full_errors: [u64; 2],
    /// Least and most requests that fail, those that were refused among them.
    pub failed_requests: [u64; 2],
    /// Least number of times that a submitter waits for room.
    pub admission_waits_min: u64,
    /// Least and most lanes that end.
    pub ended_queue_pairs: [u64; 2],
    /// Least throughput, as a multiple of another setting's.
    pub gbytes_per_sec_min_ratio_to: BTreeMap<String, f64>,
    /// Most spread of depths, as a multiple of another setting's.
    pub depth_spread_max_ratio_to: BTreeMap<String, f64>,
    /// Most completions, as a multiple of another setting's.
    pub completions_max_ratio_to: BTreeMap<String, f64>,
}
