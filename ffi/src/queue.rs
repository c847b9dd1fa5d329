//! Completion queues: the ends of many batches in one place, with a descriptor for the program's own event loop.

use std::ffi::c_int;
use std::os::fd::AsRawFd;

use polyrail::CompletionQueue;

use crate::batch::{self, polyrail_batch};
use crate::failure::{Failure, guard, polyrail_error};
use crate::handle::{Kind, Table};
use crate::sized::{self, Structure};
use crate::text;
use crate::words::*;

/// A queue of batches that have ended, in the order in which they did. It can serve several engines.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_queue {
    /// Its name; 0: none. Means nothing to programs.
    pub bits: u64,
}

/// A batch has ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_completion {
    /// `sizeof(polyrail_completion)`.
    pub size: u32,
    /// How, one of `POLYRAIL_STATUS_…`.
    pub status: u32,
    /// What the program called it when it added it.
    pub tag: u64,
    /// Requests in it.
    pub requests: u32,
    /// Requests that ended other than completed.
    pub failed: u32,
    /// Bytes proven to have arrived.
    pub delivered_bytes: u64,
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_completion {
    const DEFAULT: Self = Self {
        size: 0,
        status: POLYRAIL_STATUS_PENDING,
        tag: 0,
        requests: 0,
        failed: 0,
        delivered_bytes: 0,
    };
}

pub(crate) static QUEUES: Table<CompletionQueue> = Table::new(Kind::Queue);

/// Makes an empty queue. Takes one descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_queue_create(
    queue: *mut polyrail_queue,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        // SAFETY: the contract of the crate.
        let queue = unsafe { text::out("queue", queue) }?;
        let fresh = CompletionQueue::new().map_err(|error| {
            Failure::new(
                POLYRAIL_ERROR_SYSTEM,
                format!("cannot create a queue: {error}"),
            )
        })?;
        queue.bits = QUEUES.add(fresh)?;
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// From when the batch has ended, which may be now, a completion with this tag waits in the queue. The batch's handle
/// can be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_queue_add(
    queue: polyrail_queue,
    batch: polyrail_batch,
    tag: u64,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        QUEUES.get(queue.bits)?.add(&batch::get(batch)?, tag);
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Takes a completion, and waits so long for one; 0: it only looks. `POLYRAIL_ERROR_EMPTY`: none came.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_queue_take(
    queue: polyrail_queue,
    timeout_ns: u64,
    completion: *mut polyrail_completion,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let queue = QUEUES.get(queue.bits)?;
        // Before one is taken that could not be told.
        // SAFETY: the contract of the crate.
        unsafe { sized::read(completion.cast_const()) }?;
        let taken = match timeout_ns {
            0 => queue.poll(),
            nanos => queue.wait(text::span(nanos)),
        };
        let Some(taken) = taken else {
            return Err(Failure::new(POLYRAIL_ERROR_EMPTY, "no batch has ended"));
        };
        let value = polyrail_completion {
            size: 0,
            status: status(taken.status.status),
            tag: taken.tag,
            requests: taken.status.requests,
            failed: taken.status.failed,
            delivered_bytes: taken.status.delivered_bytes,
        };
        // SAFETY: the contract of the crate.
        unsafe { sized::write(completion, value) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// A descriptor that polls readable exactly while a completion waits. Only to be looked at, and only until the queue is
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_queue_descriptor(
    queue: polyrail_queue,
    descriptor: *mut c_int,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        // SAFETY: the contract of the crate.
        let descriptor = unsafe { text::out("descriptor", descriptor) }?;
        *descriptor = QUEUES.get(queue.bits)?.as_raw_fd();
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Frees a queue. Batches that were added go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_queue_free(
    queue: polyrail_queue,
    error: *mut polyrail_error,
) -> i32 {
    let body = || QUEUES.take(queue.bits).map(drop);
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}
