//! Section `transports`: what is said of each.

use std::time::Duration;

use polyrail_core::rail::documented::DocumentedConfig;

/// Parameters of one transport, under the names of the TENT documents.
#[derive(Clone, Debug, PartialEq)]
pub struct TransportConfig {
    /// Whether it is used, where both ends have it.
    pub enable: bool,
    /// The shared library that it is loaded from; empty: it is built in. See [`crate::Engine::new`].
    pub library: String,
    /// Failures within [`Self::rail_error_window`] that pause a rail. Of health mode `reset` only.
    pub rail_error_threshold: u32,
    /// An older failure does not count any more. Of health mode `reset` only.
    pub rail_error_window: Duration,
    /// First pause; doubles with every further one. Of health mode `reset` only.
    pub rail_cooldown: Duration,
    /// Parameters of [`crate::Policy::Documented`]; without smart scheduling the transport's policy is
    /// [`crate::Policy::RoundRobin`].
    pub documented: DocumentedConfig,
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            enable: true,
            library: String::new(),
            rail_error_threshold: 3,
            rail_error_window: Duration::from_secs(10),
            rail_cooldown: Duration::from_secs(30),
            documented: DocumentedConfig::DEFAULT,
        }
    }
}
