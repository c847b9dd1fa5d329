//! polyrail over RDMA: a lane is a reliable connected queue pair, and bytes move without either processor.
//!
//! libibverbs is loaded when it is first asked for, so a program with this shell starts where it is absent, and says
//! that it is. A rail joins two ports, each known by an IP address of its host: on Ethernet that is the port's GID.
//!
//! A lane is asked for over a TCP connection on the same rail, to the peer's control port. Over it the two ends tell
//! each other their queue pairs, and later what opens a region; while it lives both know that the other does. One
//! thread for each device, `polyrail-verbs-NAME`, makes and destroys queue pairs, so workers never wait for a device:
//! they post lists of works and take completions.
//!
//! Memory is registered twice where peers may use it, in two protection domains of each device: that of the queue
//! pairs which carry this engine's works, and that of those which works of peers of its trust domain come in on. So a
//! peer's key, made up or not, never opens memory that is not a segment for peers of its own trust domain.
//!
//! **Invariant:** after a fence's local fact the queue pair has been destroyed; after its remote fact the peer's has. A
//! call that failed proves neither, nor does one that succeeded on a device that has failed.
//!
//! **Invariant:** a device touches memory of a region only while that is pinned, and `revoke` deregisters it, or says that
//! it could not.
//!
//! **Invariant:** a completion queue has room for everything that its queue pairs can flush.

mod cause;
mod completion;
mod device;
mod discover;
mod endpoint;
mod examine;
mod ffi;
mod gid;
mod inbound;
mod lane;
mod limit;
mod list;
mod lock;
mod mailbox;
mod outbound;
mod packets;
mod registry;
#[cfg(any(test, feature = "stub"))]
mod replay;
mod server;
mod service;
mod services;
mod settings;
mod sight;
#[cfg(any(test, feature = "stub"))]
pub mod stub;
mod talk;
mod wire;

pub use discover::{GidRow, LinkLayer, Port, ports};
pub use examine::{Examined, examine};
pub use gid::Gid;
#[cfg(any(test, feature = "stub"))]
pub use replay::replay;
pub use server::VerbsTransport;
pub use settings::Settings;

/// What the transport is called.
pub const NAME: &str = "verbs";

/// Lanes that one session may have at a target, over its whole life.
pub const LANES_PER_SESSION_MAX: usize = 4096;

/// Queue pairs of one worker that share a completion queue.
const LANES_PER_QUEUE: u32 = 16;

#[cfg(test)]
mod tests;
