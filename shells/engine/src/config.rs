//! What an engine is started with.

use std::net::{IpAddr, SocketAddr};

use polyrail_core::rail::select::Policy;
use polyrail_core::topology::RailMap;

/// How an [`crate::Engine`] is to behave. [`Config::default`] is an initiator with one rail per address of
/// its peers.
#[derive(Clone, Debug)]
pub struct Config {
    /// The engine's name, for peers' logs and errors. At most 255 bytes.
    pub name: String,
    /// Where to listen; `None`: nobody can connect. Port 0 lets the kernel choose one, the same for all
    /// rails.
    pub listen: Option<SocketAddr>,
    /// Local rail addresses. An engine that listens listens there too, with the same port; an initiator
    /// binds its lanes there. Empty: one rail for each address of a peer, and the kernel chooses the
    /// local address.
    pub rails: Vec<IpAddr>,
    /// Which local rail address is joined with which remote one.
    pub rail_map: RailMap,
    /// How rails are chosen for slices.
    pub policy: Policy,
    /// Threads that move bytes; 0: one for every two cores, at least one. At most 64.
    pub workers: usize,
    /// Switches of transport that one request may cause; 0: none ever.
    pub max_failover_attempts: u8,
    /// Lets the engine listen beyond loopback although nothing keeps strangers out yet.
    pub insecure: bool,
}

impl Config {
    /// The default, with a name.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// How many workers that means on this machine.
    pub(crate) fn worker_count(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism()
                .map_or(1, |cores| cores.get() / 2)
                .max(1),
            count => count,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "polyrail".into(),
            listen: None,
            rails: Vec::new(),
            rail_map: RailMap::default(),
            policy: Policy::default(),
            workers: 0,
            max_failover_attempts: 3,
            insecure: false,
        }
    }
}
