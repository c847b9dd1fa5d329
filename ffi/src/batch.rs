//! Batches: how they stand, and the ways to wait for them.

use std::ffi::c_void;

use polyrail::{Batch, BatchStatus, Local, ReleaseError, Remote, Report, WaitError};

use crate::failure::{Failure, guard, polyrail_error};
use crate::handle::{Kind, Table};
use crate::notification::{self, polyrail_delivery};
use crate::sized::{self, Structure};
use crate::text;
use crate::words::*;

/// Requests that were submitted together.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_batch {
    /// Its name; 0: none. Means nothing to programs.
    pub bits: u64,
}

/// A batch at a glance.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_status {
    /// `sizeof(polyrail_status)`.
    pub size: u32,
    /// One of `POLYRAIL_STATUS_…`: pending while it lasts; then completed if every request did, else how the first one
    /// ended that did not, but indeterminate if any did.
    pub status: u32,
    /// Requests in it.
    pub requests: u32,
    /// Requests that have ended.
    pub ended: u32,
    /// Requests that ended other than completed.
    pub failed: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes proven to have arrived, of the requests that have ended.
    pub delivered_bytes: u64,
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_status {
    const DEFAULT: Self = Self {
        size: 0,
        status: POLYRAIL_STATUS_PENDING,
        requests: 0,
        ended: 0,
        failed: 0,
        reserved: 0,
        delivered_bytes: 0,
    };
}

/// How one request ended, and what is known of the memory on both sides. `POLYRAIL_STATUS_INDETERMINATE` if and only if
/// `local` is held or `remote` is unknown.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_report {
    /// `sizeof(polyrail_report)`.
    pub size: u32,
    /// One of `POLYRAIL_STATUS_…`.
    pub status: u32,
    /// Why, if not well: see `polyrail_cause_text`.
    pub cause: u32,
    /// `POLYRAIL_LOCAL_RELEASED` or `_HELD`.
    pub local: u32,
    /// `POLYRAIL_REMOTE_SETTLED` or `_UNKNOWN`.
    pub remote: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes that are proven to have arrived: a lower bound.
    pub delivered_bytes: u64,
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_report {
    const DEFAULT: Self = Self {
        size: 0,
        status: POLYRAIL_STATUS_PENDING,
        cause: POLYRAIL_CAUSE_NONE,
        local: POLYRAIL_LOCAL_HELD,
        remote: POLYRAIL_REMOTE_UNKNOWN,
        reserved: 0,
        delivered_bytes: 0,
    };
}

/// Is told once how a batch ended. The status is good during the call. It must not block, nor return by an exception or
/// a jump.
pub type polyrail_done =
    Option<unsafe extern "C" fn(context: *mut c_void, status: *const polyrail_status)>;

pub(crate) static BATCHES: Table<Batch> = Table::new(Kind::Batch);

/// Gives a batch its handle. If there is none left, it goes on without one.
pub(crate) fn add(batch: Batch, to: &mut polyrail_batch) -> Result<(), Failure> {
    to.bits = BATCHES.add(batch)?;
    Ok(())
}

pub(crate) fn get(batch: polyrail_batch) -> Result<Batch, Failure> {
    BATCHES.get(batch.bits)
}

impl polyrail_status {
    pub(crate) fn of(report: BatchStatus) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            status: status(report.status),
            requests: report.requests,
            ended: report.ended,
            failed: report.failed,
            reserved: 0,
            delivered_bytes: report.delivered_bytes,
        }
    }
}

impl polyrail_report {
    fn of(report: Report) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            status: status(report.status),
            cause: cause(report.cause),
            local: match report.local {
                Local::Released => POLYRAIL_LOCAL_RELEASED,
                Local::Held => POLYRAIL_LOCAL_HELD,
            },
            remote: match report.remote {
                Remote::Settled => POLYRAIL_REMOTE_SETTLED,
                Remote::Unknown => POLYRAIL_REMOTE_UNKNOWN,
            },
            reserved: 0,
            delivered_bytes: report.delivered_bytes,
        }
    }
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Self {
        let code = match error {
            WaitError::Forked => POLYRAIL_ERROR_FORKED,
            _ => POLYRAIL_ERROR_TIMED_OUT,
        };
        Self::new(code, error.to_string())
    }
}

impl From<ReleaseError> for Failure {
    fn from(error: ReleaseError) -> Self {
        let code = match error {
            ReleaseError::Unprovable { .. } => POLYRAIL_ERROR_UNPROVABLE,
            ReleaseError::Forked => POLYRAIL_ERROR_FORKED,
            _ => POLYRAIL_ERROR_TIMED_OUT,
        };
        Self::new(code, error.to_string())
    }
}

/// Fills a caller's status, unless that is null.
///
/// # Safety
///
/// The contract of the crate.
unsafe fn tell(report: BatchStatus, to: *mut polyrail_status) -> Result<(), Failure> {
    match to.is_null() {
        true => Ok(()),
        // SAFETY: the caller's promise.
        false => unsafe { sized::write(to, polyrail_status::of(report)) },
    }
}

/// How a batch stands. O(1), whatever its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_batch_status(
    batch: polyrail_batch,
    status: *mut polyrail_status,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let report = get(batch)?.status();
        // SAFETY: the contract of the crate.
        unsafe { sized::write(status, polyrail_status::of(report)) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Waits until all requests have ended, however they did. Meanwhile this thread does the engine's work, if nobody else
/// does. `status` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_batch_wait(
    batch: polyrail_batch,
    timeout_ns: u64,
    status: *mut polyrail_status,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let waited = get(batch)?.wait(text::span(timeout_ns));
        let report = match waited {
            Ok(report) | Err(WaitError::TimedOut { status: report, .. }) => report,
            Err(error) => return Err(error.into()),
        };
        // SAFETY: the contract of the crate.
        unsafe { tell(report, status) }?;
        waited.map(drop).map_err(Failure::from)
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Waits until all requests have ended, all memory on this side is released and everything is settled on the peer's. For
/// a batch without an indeterminate request that is when it ends. `status` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_batch_wait_released(
    batch: polyrail_batch,
    timeout_ns: u64,
    status: *mut polyrail_status,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let report = get(batch)?.wait_released(text::span(timeout_ns))?;
        // SAFETY: the contract of the crate.
        unsafe { tell(report, status) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Calls `done` once: at once, on this thread, if the batch has ended; else when it does, on a thread of the library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_batch_on_done(
    batch: polyrail_batch,
    done: polyrail_done,
    context: *mut c_void,
    error: *mut polyrail_error,
) -> i32 {
    /// What the program is called with, from whichever thread.
    struct Context(*mut c_void);
    // SAFETY: the program lets its function be called from any thread, with what it gave.
    unsafe impl Send for Context {}
    let body = || {
        let batch = get(batch)?;
        let done = done.ok_or_else(|| text::null("done"))?;
        let context = Context(context);
        batch.on_done(move |report| {
            let Context(context) = { context };
            // SAFETY: the program's promise; the status lives during the call.
            unsafe { done(context, &polyrail_status::of(report)) }
        });
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// How the `index`-th request stands. An indeterminate one is brought up to date when proof comes later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_batch_report(
    batch: polyrail_batch,
    index: usize,
    report: *mut polyrail_report,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let batch = get(batch)?;
        let Some(value) = batch.report(index) else {
            let text = format!("request {index} of a batch of {}", batch.status().requests);
            return Err(Failure::new(POLYRAIL_ERROR_RANGE, text).at(index));
        };
        // SAFETY: the contract of the crate.
        unsafe { sized::write(report, polyrail_report::of(value)) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Stops sending what has not been sent. Requests that have not ended end soon, as cancelled, or as completed if all
/// their bytes were on the way.
/// A small request that goes as one with its neighbours, of other batches perhaps, is sent with them all the same, and ends
/// when they do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_batch_cancel(
    batch: polyrail_batch,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        get(batch)?.cancel();
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// What becomes of the notification that a batch carries. `POLYRAIL_ERROR_NOT_FOUND`: it carries none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_batch_delivery(
    batch: polyrail_batch,
    delivery: *mut polyrail_delivery,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        // SAFETY: the contract of the crate.
        let to = unsafe { text::out("delivery", delivery) }?;
        let Some(delivery) = get(batch)?.delivery() else {
            let text = "the batch carries no notification";
            return Err(Failure::new(POLYRAIL_ERROR_NOT_FOUND, text));
        };
        notification::add(delivery, to)
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Frees a batch's handle. Its requests go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_batch_free(
    batch: polyrail_batch,
    error: *mut polyrail_error,
) -> i32 {
    let body = || BATCHES.take(batch.bits).map(drop);
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}
