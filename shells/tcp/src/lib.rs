//! polyrail over TCP: a lane is a connection.
//!
//! [`TcpTransport`] is both halves. The initiator's ([`Transport::endpoint`]) opens lanes and posts works on
//! them; it has no thread of its own. The target's carries the peers' works out on one thread,
//! `polyrail-tcp`, which starts with the first lane. Bytes go straight between sockets and registered memory,
//! at absolute offsets; only `sys` touches it.
//!
//! **Invariant:** every connection into memory is served by that one thread. So when it has dropped a
//! connection and then answers a fence, the last receive on its behalf has returned.
//!
//! **Invariant:** lengths from a peer are limits before they are sizes. No peer makes this crate allocate
//! more than [`WORKS_MAX`] answers and eight kilobytes of received bytes per lane.
//!
//! [`Transport::endpoint`]: polyrail_transport::Transport::endpoint

mod endpoint;
mod inbox;
mod lane;
mod numbered;
mod opening;
mod serve;
mod server;
mod sys;
mod wire;

pub use server::TcpTransport;

/// Works that may be posted on a lane and not completed.
pub const WORKS_MAX: u16 = 256;

/// Bytes of the largest work.
pub const WORK_BYTES_MAX: u32 = 64 << 20;

/// Lanes that one session may have at a target, over its whole life.
pub const LANES_PER_SESSION_MAX: usize = 4096;

/// Bytes that a lane may move each way before it is the next one's turn.
const TURN_BYTES: usize = 512 << 10;

#[cfg(test)]
mod tests;
