//! The atomics of what threads or processes share: the real ones, or those of the model checker `loom`.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, fence};
