//! Atomics that threads or processes share: the machine's, or loom's where loom tries every order of what they do.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::AtomicU64;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64;
