//! Section `control`: how many peers may have how much of the control plane.

use polyrail_control::plane::{CONNECTIONS_MAX, HANDSHAKES_MAX, SESSIONS_MAX};

/// What peers may have of an engine that listens. Nothing of it is allocated before it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlConfig {
    /// Sessions of peers. One address may have half of them.
    pub sessions_max: usize,
    /// Control connections of peers: one of each rail of each.
    pub connections_max: usize,
    /// Connections that may wait for a handshake. One address may have half of them.
    pub handshakes_max: usize,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            sessions_max: SESSIONS_MAX,
            connections_max: CONNECTIONS_MAX,
            handshakes_max: HANDSHAKES_MAX,
        }
    }
}
