//! Memory that polyrail's processes of one user on one host share: [`load`], what each of them has in flight.
//!
//! Core decides what is written there and what is believed of it; here are the file, the mapping, the clock and the
//! kernel's word about who is alive. All `unsafe` is in [`mapping`].

pub mod load;
pub mod mapping;
