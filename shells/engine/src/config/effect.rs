//! Keys that steer nothing beside the other values: what each needs, and which was said in vain.

use polyrail_core::rail::select::Policy;

use super::key_path::transport_path;
use super::{Config, HealthMode, IsolationMode};
use crate::known;

/// What keys need in order to steer anything.
struct Need {
    paths: &'static [&'static str],
    holds: fn(&Config) -> bool,
    /// What would be right.
    text: &'static str,
}

/// The same for keys of a transport, which is named.
struct TransportNeed {
    paths: &'static [&'static str],
    holds: fn(&Config, &str) -> bool,
    text: &'static str,
}

const ENGINE: &[Need] = &[
    Need {
        paths: &[
            "path/island_prefix_ipv4",
            "path/island_prefix_ipv6",
            "path/supplementary",
        ],
        holds: |config| config.path.mode != IsolationMode::Off,
        text: "path/mode is off",
    },
    Need {
        paths: &[
            "path/small_bytes_max",
            "path/hint_file",
            "path/hint_strict",
            "path/hint_age_max_ms",
        ],
        holds: |config| config.path.mode == IsolationMode::Advanced,
        text: "path/mode is not advanced",
    },
    Need {
        paths: &[
            "send_queue/admission_timeout_us",
            "send_queue/admission_resume_watermark_works",
        ],
        holds: |config| config.send_queue.admission,
        text: "send_queue/admission is false",
    },
    Need {
        paths: &["spray/diffusion_weight", "spray/idle_look_us"],
        holds: |config| some_is(config, |policy| policy == Policy::Spray),
        text: "no transport's policy is spray",
    },
    Need {
        paths: &["spray/diffusion_stale_ms"],
        holds: |config| config.spray.diffusion_weight > 0.0,
        text: "spray/diffusion_weight is 0",
    },
    Need {
        paths: &["recording/folder"],
        holds: |config| config.recording.ring_mb > 0,
        text: "recording/ring_mb is 0",
    },
    Need {
        paths: &["spray/merge_requests"],
        holds: |config| some_is(config, |policy| policy != Policy::Documented),
        text: "every transport's policy is documented",
    },
    Need {
        paths: &[
            "verbs/queue_depth",
            "verbs/queue_pairs",
            "verbs/batch_us",
            "verbs/ack_timeout",
            "verbs/retry_count",
            "verbs/gid_row",
            "verbs/pkey",
            "verbs/traffic_class",
            "verbs/service_level",
            "verbs/inline_bytes",
            "verbs/gpu_memory",
            "verbs/relaxed_ordering",
        ],
        holds: |config| known::is_built_in(known::VERBS) && config.transport(known::VERBS).enable,
        text: "transport verbs is not built into this program, or is off",
    },
];

const TRANSPORT: &[TransportNeed] = &[
    TransportNeed {
        paths: &[
            "rail_error_threshold",
            "rail_error_window_secs",
            "rail_cooldown_secs",
        ],
        holds: |config, _| config.health.mode == HealthMode::Reset,
        text: "health/mode is not reset",
    },
    TransportNeed {
        paths: &["enable_smart_scheduling"],
        holds: |config, _| config.policy != Policy::RoundRobin,
        text: "policy is round-robin",
    },
    TransportNeed {
        paths: &[
            "numa_penalties",
            "bandwidth_learning_rate",
            "ewma_min_bandwidth_multiplier",
            "ewma_max_bandwidth_multiplier",
            "score_jitter_range",
            "score_epsilon",
            "default_bandwidth_gbps",
            "min_bandwidth_gbps",
            "max_bandwidth_gbps",
            "max_slice_count",
        ],
        holds: |config, name| config.policy_of(name) == Policy::Documented,
        text: "the transport's policy is not documented",
    },
];

/// Whether the policy of any transport, named or not, is of a kind.
fn some_is(config: &Config, is: fn(Policy) -> bool) -> bool {
    let mut named = config.transports.keys();
    is(config.policy) || named.any(|name| is(config.policy_of(name)))
}

/// The keys that steer nothing in a configuration, each with why. Not those of transports that are off or not there: of
/// these that is said as a whole.
pub(super) fn idle(config: &Config) -> Vec<(String, &'static str)> {
    let engine = ENGINE.iter().filter(|need| !(need.holds)(config));
    let keys = |need: &'static Need| {
        need.paths
            .iter()
            .map(|path| ((*path).to_owned(), need.text))
    };
    let mut idle: Vec<_> = engine.flat_map(keys).collect();
    for (name, transport) in &config.transports {
        let is_there = known::is_built_in(name) || !transport.library.is_empty();
        let needs = TRANSPORT.iter().filter(|_| is_there && transport.enable);
        for need in needs.filter(|need| !(need.holds)(config, name)) {
            let path = |path: &&str| (transport_path(name, path), need.text);
            idle.extend(need.paths.iter().map(path));
        }
    }
    idle
}

#[cfg(test)]
mod tests {
    use super::super::keys;
    use super::*;

    #[test]
    fn what_needs_something_is_a_key_and_is_listed_once() {
        let engine = ENGINE.iter().flat_map(|need| need.paths);
        let transport = TRANSPORT.iter().flat_map(|need| need.paths);
        let mut seen = Vec::new();
        for path in engine {
            assert!(keys::ENGINE.iter().any(|key| key.path == *path), "{path}");
            seen.push(path);
        }
        for path in transport {
            let mut all = keys::TRANSPORT.iter();
            assert!(all.any(|key| key.path == *path), "{path}");
            seen.push(path);
        }
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
        let verbs = keys::ENGINE
            .iter()
            .filter(|key| key.path.starts_with("verbs/"));
        assert!(
            verbs.count() == ENGINE.last().unwrap().paths.len(),
            "one of verbs is missing"
        );
    }
}
