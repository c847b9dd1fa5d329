//! The deciding half of polyrail: see `docs/ARCHITECTURE.md`.
#![no_std]
#![forbid(unsafe_code)]

pub mod message;
pub mod ring;
pub mod time;
pub mod units;
pub mod work;
