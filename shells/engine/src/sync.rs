//! What threads meet at, for the files that a model of them takes in: there it is loom's.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, PoisonError, TryLockError};
