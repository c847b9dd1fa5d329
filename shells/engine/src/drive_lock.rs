//! Who drives a worker: its own thread, or a thread of the program that waits for one of its batches.
//!
//! A thread that waits has nothing better to do, and if it drives the worker itself, nobody has to be woken
//! for it twice. So whoever waits takes the drive lock if it is free, and the worker's thread gives it up to them.
//!
//! # Safety
//!
//! The loop lives on its thread's stack, with what it borrows. [`Published`] puts its address into the drive lock
//! and takes it out again before any of that goes; both take the lock, and whoever uses the loop holds the
//! lock meanwhile. So there is one user at a time, and none after [`Published`] was dropped. That thread
//! touches the loop only through the drive lock as well, while it is published.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::lanes::Driving;
use crate::sync::{Mutex, PoisonError, TryLockError};
use crate::worker::Loop;

/// Where the one who drives sits.
#[derive(Default)]
pub(crate) struct DriveLock {
    published: Mutex<Option<Address>>,
}

/// Of a loop whose lifetime is not known here.
struct Address(NonNull<Loop<'static>>);

// SAFETY: it is only used under its lock, by one thread at a time, and `Loop` may be sent.
unsafe impl Send for Address {}

const fn may_be_sent<T: Send>() {}
const _: () = may_be_sent::<Loop<'static>>();

/// A loop that can be driven by others until this is dropped.
pub(crate) struct Published<'s, 'l> {
    drive_lock: &'s DriveLock,
    /// It is borrowed exclusively meanwhile.
    _loop: PhantomData<&'l mut ()>,
}

/// Why a loop cannot be driven now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotDriven {
    /// Somebody else drives it.
    Taken,
    /// There is none, it has been closed, or it was left in the middle by a panic.
    Gone,
}

impl DriveLock {
    /// Lets others drive a loop.
    pub(crate) fn publish<'s, 'l>(&'s self, driven: &'l mut Loop<'_>) -> Published<'s, 'l> {
        let address = Address(NonNull::from(driven).cast());
        *self
            .published
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(address);
        Published {
            drive_lock: self,
            _loop: PhantomData,
        }
    }

    /// Drives the loop, if nobody else does.
    pub(crate) fn drive<R>(&self, drive: impl FnOnce(&mut Loop<'_>) -> R) -> Result<R, NotDriven> {
        let mut published = match self.published.try_lock() {
            Ok(published) => published,
            Err(TryLockError::WouldBlock) => return Err(NotDriven::Taken),
            Err(TryLockError::Poisoned(_)) => return Err(NotDriven::Gone),
        };
        let Some(Address(driven)) = &*published else {
            return Err(NotDriven::Gone);
        };
        let mut driven = *driven;
        let _driving = Driving::begin();
        // SAFETY: see the module's contract: it is published, and the lock is held until after the last use.
        let driven = unsafe { driven.as_mut() };
        let answer = drive(driven);
        if driven.is_closed() {
            *published = None;
        }
        Ok(answer)
    }
}

impl Drop for Published<'_, '_> {
    fn drop(&mut self) {
        let published = self.drive_lock.published.lock();
        *published.unwrap_or_else(PoisonError::into_inner) = None;
    }
}
