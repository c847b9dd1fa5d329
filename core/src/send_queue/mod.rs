//! Send queues: how many works may be posted on a lane, who may post them, and how a lane ends.
//!
//! A send queue is bounded, and a work that does not fit is refused by the device long after somebody has
//! promised it. So works are counted before: a *credit* is the right to post one, *admission* the promise of
//! a credit to come, and the *ledger* knows whose the posted ones are until they have completed.
//!
//! | module | what it decides |
//! |---|---|
//! | [`credit`] | who may post now, and who waits |
//! | [`admission`] | what may be handed to a worker |
//! | [`dispatch`] | how the requests of one call get through admission |
//! | [`inbox`] | what a worker that stops does with what was handed to it |
//! | [`ledger`] | which works a completion covers |
//! | [`signal`] | which works ask for a completion |
//! | [`split`], [`merge`] | which lane takes how many requests, and how many works they make |
//! | [`failure`] | how a lane ends |
//! | [`promise`] | what a caller is told, and when |
//! | [`session`] | which lanes belong together, and when new ones are built |
//! | [`diagnostics`] | why a queue was full |
//! | [`config`] | the settings |
//!
//! [`credit::Credits`] is shared by all threads that have to do with a lane, and lock-free. Everything else
//! belongs to one worker or to one caller. Nothing here blocks: who is refused gets a revision, and its
//! shell waits until that has changed.
//!
//! # One post
//!
//! 1. [`credit::Credits::reserve`], or [`admission::Token::reserve`] for what was admitted: a grant.
//! 2. [`credit::Credits::begin_post`]: the last look; a lane that was closed meanwhile takes its credits back.
//! 3. [`ledger::Ledger::insert`], with the grant, one record for each run of works up to a signalled one; the
//!    signals come from [`signal::Cadence::next`].
//! 4. The post itself, then [`ledger::Ledger::settle_post`] with the transport's answer. Keep the grants of what
//!    comes back for the next try, or release them; unless all went out, tell the cadence what is uncovered. Then
//!    drop the posting.
//! 5. On each completion [`ledger::Ledger::complete`]; release the grants that come out, and tell the owners.
//!
//! When any of these fails, [`failure::Recovery`].

pub mod admission;
pub mod config;
pub mod credit;
pub mod diagnostics;
pub mod dispatch;
pub mod failure;
mod grant;
pub mod inbox;
pub mod ledger;
mod levels;
mod line;
pub mod merge;
pub mod promise;
mod record;
pub mod session;
pub mod signal;
pub mod split;
mod step;
#[cfg(test)]
mod tests;
mod waiter;

pub use config::SendQueueConfig;
