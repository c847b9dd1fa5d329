//! The transports of an engine in the dark experiment.

use std::sync::Arc;

use polyrail::{Hooks, Plugin};
use polyrail_tcp::TcpTransport;

use crate::case::Transports;
use crate::clinging::Clinging;

/// What the better one is called, where there are two.
const BETTER: &str = "better";

/// What an engine with these is started with.
pub(crate) fn hooks(transports: Transports) -> Hooks {
    let plugin = match transports {
        Transports::One => None,
        Transports::Two => Some(Plugin {
            make: |regions| Arc::new(TcpTransport::named(BETTER, regions)),
            faults: None,
        }),
        Transports::Clinging => Some(Plugin {
            make: |regions| Arc::new(Clinging::new(BETTER, regions)),
            faults: None,
        }),
    };
    Hooks {
        transports: plugin.into_iter().collect(),
        ..Hooks::default()
    }
}
