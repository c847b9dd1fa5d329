//! What two engines tell each other.
//!
//! [`codec`] is the language: bytes in, frames out, no I/O, every length checked before it is believed.
//! [`connection`] is one conversation in it, a state machine without I/O or clock, which a simulator can
//! drive as well. [`plane`] owns the sockets: one thread that listens, connects, keeps one connection per
//! rail to every peer, and sees to it that the loss of any of them loses no control message. [`process`] is how
//! the end of a peer on the same host is seen. [`security`] is the cluster's key, and TLS around connections.
#![forbid(unsafe_code)]

pub mod codec;
pub mod connection;
pub mod plane;
pub mod process;
pub mod security;
