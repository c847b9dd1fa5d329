//! What is bounded, and who waits for it: room for submissions, completions, works that go as one.
//!
//! What no queue can hold is refused by a device long after somebody has promised it. So it is counted before. A lane's own
//! works are the [orchestrator](crate::orchestrator)'s: it binds a slice when a lane has room for it, and knows by its
//! attempts whose each work is until it has ended. What it has not begun waits in a table with rows for so many requests, and
//! that table is what [`credit::Credits`] are for: whoever submits takes them, and the report of a request gives them back.
//!
//! | module | what it decides |
//! |---|---|
//! | [`credit`] | who may submit now, and who waits |
//! | [`diagnostics`] | why there was no room |
//! | [`signal`] | which works of a lane ask for a completion |
//! | [`merge`] | which works a transport can make one of |
//! | [`config`] | the settings |
//!
//! [`credit::Credits`] is shared by all threads that submit to a worker, and lock-free. Nothing here blocks: who is refused gets a
//! revision, and its shell waits until that has changed.

pub mod config;
pub mod credit;
pub mod diagnostics;
mod grant;
mod line;
pub mod merge;
pub mod signal;
#[cfg(all(test, not(loom)))]
mod tests;
mod waiter;

pub use config::SendQueueConfig;
