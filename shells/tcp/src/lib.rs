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
pub mod ktls;
mod lane;
mod opening;
mod place;
mod serve;
mod server;
mod sys;
mod tune;
mod wire;

pub use server::TcpTransport;

/// Works that may be posted on a lane and not completed.
pub const WORKS_MAX: u16 = 256;

/// What the transport is called. A lane that asks for no transport by name is of this one.
const NAME: &str = "tcp";

/// Bytes of the largest work.
pub const WORK_BYTES_MAX: u32 = 64 << 20;

/// Lanes that one session may have at a target, over its whole life.
pub const LANES_PER_SESSION_MAX: usize = 4096;

/// Bytes that a lane may move each way before it is the next one's turn.
const TURN_BYTES: usize = 512 << 10;

/// The same while both ends spin. Fewer, so that whoever has received them answers, or asks for more, while the rest
/// is still on its way; else a lane's whole window has been received before the first answer goes out, and the
/// other end stands still meanwhile. With both ends asleep on one core that would only be more wake-ups.
const TURN_BYTES_SPINNING: usize = 128 << 10;

/// Looks in a row at a socket that has nothing, while both ends spin: what is done between two turns takes as long as
/// a look.
const LOOKS_SPINNING: u32 = 4;

/// How many bytes that are.
const fn turn_bytes(spinning: bool) -> usize {
    if spinning {
        TURN_BYTES_SPINNING
    } else {
        TURN_BYTES
    }
}

#[cfg(test)]
mod tests;
