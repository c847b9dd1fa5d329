//! What two engines tell each other.
//!
//! [`codec`] is the language: bytes in, frames out, no I/O, every length checked before it is believed.
//! [`connection`] is one conversation in it, a state machine without I/O or clock, which a simulator can
//! drive as well.
#![forbid(unsafe_code)]

pub mod codec;
pub mod connection;
