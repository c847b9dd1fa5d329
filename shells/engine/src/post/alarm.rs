//! Who sleeps at a worker, until when, and how they are woken.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::*, fence};

use rustix::event::{EventfdFlags, eventfd};

/// Somebody drives and is awake.
pub(crate) const NOBODY: u8 = 0;
/// The worker's thread sleeps, and the drive lock is free.
pub(crate) const THREAD: u8 = 1;
/// A waiter that drives sleeps.
pub(crate) const WAITER: u8 = 2;

/// Of one worker.
pub(crate) struct Alarm {
    /// Who sleeps and has to be woken if something comes: one of [`NOBODY`], [`THREAD`], [`WAITER`]. Written by
    /// whoever has the drive lock.
    pub(crate) asleep: AtomicU8,
    /// The thread sleeps, and looks again before long by itself.
    pub(crate) leased: AtomicBool,
    /// When the thread looks again by itself, in nanoseconds of the engine's clock.
    pub(crate) looks_at: AtomicU64,
    /// When there was something to do by itself, as the last waiter that drove knew.
    pub(crate) due_at: AtomicU64,
    /// Wakes the thread.
    pub(crate) wake: Arc<OwnedFd>,
    /// Wakes a waiter that drives.
    pub(crate) wake_waiter: OwnedFd,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            asleep: AtomicU8::new(NOBODY),
            leased: AtomicBool::new(false),
            looks_at: AtomicU64::new(u64::MAX),
            due_at: AtomicU64::new(u64::MAX),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into(),
            wake_waiter: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Wakes whoever is to look at what has come, if they sleep or are about to.
    pub(super) fn rouse(&self) {
        fence(SeqCst);
        let wake = match self.asleep.load(Relaxed) {
            NOBODY => return,
            WAITER => &self.wake_waiter,
            _ => &*self.wake,
        };
        call(wake);
    }

    /// Wakes the thread, whether it is known to sleep or not.
    pub(super) fn call_thread(&self) {
        call(&self.wake);
    }
}

/// Wakes whoever sleeps on a descriptor.
fn call(wake: &OwnedFd) {
    // Full means that it was called already.
    let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
}
