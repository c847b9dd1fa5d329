//! The deciding half of polyrail: see `docs/ARCHITECTURE.md`.
#![no_std]
#![forbid(unsafe_code)]

pub mod batch;
pub mod message;
pub mod orchestrator;
pub mod plan;
mod queue;
pub mod rail;
pub mod random;
pub mod report;
pub mod ring;
pub mod slice;
pub mod table;
pub mod time;
pub mod topology;
pub mod units;
pub mod work;
