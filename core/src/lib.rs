//! The deciding half of polyrail.
//!
//! Everything that chooses, counts, times out or recovers is here, as a plain state machine: no I/O, no clock,
//! no allocator, no threads. A shell owns those; it hands in facts with the time and drains what is to be
//! done. [`orchestrator::Orchestrator`] is the way in, and its documentation states the order of calls.
//!
//! The words: a *device* is a network interface; a *rail* one (local device, remote device) pair of one
//! transport; a *lane* one connection of one worker on one rail, whose *epoch* changes when it is fenced or
//! rebuilt; an *attempt* one posting of one slice of a request on one lane. An attempt ends by a completion or
//! by a *fence*, and a request is reported when all of its attempts have ended.
//!
//! | module | what it decides |
//! |---|---|
//! | [`mod@slice`] | how a request is cut |
//! | [`topology`] | which devices make rails, and how far they are from memory |
//! | [`rail`] | how fast a rail is, whether it may be used, which one takes the next slice |
//! | [`path`] | which class of rails a transfer takes: islands, shares, hints |
//! | [`transport`] | which transports join two memories, best first |
//! | [`stage`] | how bytes reach memory that no transport reaches: through buffers on the way |
//! | [`failover`] | when a request leaves one transport for another |
//! | [`send_queue`] | who may submit and who waits, why there was no room, which works ask for a completion |
//! | [`batch`] | when requests that belong together have ended |
//! | [`orchestrator`] | all of it together, for one worker |
//! | [`contract`] | nothing: it looks whether a runtime keeps the order of calls, and is for tests |
//!
//! The feature `serde` lets what is sent and recorded be serialised.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(loom)]
extern crate std;

pub mod batch;
pub mod contract;
pub mod failover;
pub mod message;
pub mod orchestrator;
pub mod path;
pub mod pieces;
pub mod plan;
mod queue;
pub mod rail;
pub mod random;
pub mod report;
pub mod ring;
pub mod send_queue;
pub mod slice;
#[cfg(feature = "serde")]
mod snapshot;
pub mod stage;
mod sync;
pub mod table;
pub mod time;
pub mod topology;
pub mod transport;
pub mod units;
pub mod work;
