//! What two engines tell each other.
//!
//! [`codec`] is the language: bytes in, frames out, no I/O, every length checked before it is believed.
pub mod codec;
