//! Transfers that are prepared once and posted many times.

use std::sync::{Arc, Mutex, PoisonError};

use polyrail::{Posted, PreparedTransfer, Terms};

use crate::batch::{self, polyrail_batch, polyrail_status};
use crate::engine::{self, polyrail_engine};
use crate::failure::{Failure, guard, polyrail_error};
use crate::handle::{Kind, Table};
use crate::sized::{self, Structure};
use crate::text;
use crate::transfer::{polyrail_request, polyrail_terms, requests, terms};

/// Requests that are ready to be posted, as often as one likes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_prepared {
    /// Its name; 0: none. Means nothing to programs.
    pub bits: u64,
}

pub(crate) static PREPARED: Table<Arc<Mutex<PreparedTransfer>>> = Table::new(Kind::Prepared);

/// Checks requests like `polyrail_submit` and keeps them: what that does for each request is done once. The array may go
/// then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_prepare(
    engine: polyrail_engine,
    first: *const polyrail_request,
    count: usize,
    prepared: *mut polyrail_prepared,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let owner = engine::get(engine)?;
        // SAFETY: the contract of the crate.
        let prepared = unsafe { text::out("prepared", prepared) }?;
        // SAFETY: the contract of the crate.
        let requests = unsafe { requests(engine, first, count) }?;
        let transfer = owner.prepare_transfer(&requests)?;
        prepared.bits = PREPARED.add(Arc::new(Mutex::new(transfer)))?;
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Posts a transfer by `post`, which nobody else does meanwhile.
///
/// # Safety
///
/// The contract of the crate.
unsafe fn with_transfer(
    prepared: polyrail_prepared,
    terms_of_batch: *const polyrail_terms,
    batch: *mut polyrail_batch,
    post: impl FnOnce(&mut PreparedTransfer, &Terms<'_>, &mut polyrail_batch) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let transfer = PREPARED.get(prepared.bits)?;
    // SAFETY: the caller's promise.
    let batch = unsafe { text::out("batch", batch) }?;
    // SAFETY: the caller's promise.
    let terms = unsafe { terms(terms_of_batch) }?;
    let mut transfer = transfer.lock().unwrap_or_else(PoisonError::into_inner);
    post(&mut transfer, &terms, batch)
}

/// Submits the requests as one batch, all or nothing. `terms` may be null. Allocates nothing, as long as the batches of
/// earlier posts have been freed and the terms carry no notification. Posts may overlap; wait for one before the next if
/// they move the same bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_prepared_post(
    prepared: polyrail_prepared,
    terms_of_batch: *const polyrail_terms,
    batch: *mut polyrail_batch,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let post =
            |transfer: &mut PreparedTransfer, terms: &Terms<'_>, batch: &mut polyrail_batch| {
                batch::add(transfer.post_with(terms)?, batch)
            };
        // SAFETY: the contract of the crate.
        unsafe { with_transfer(prepared, terms_of_batch, batch, post) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// The same, but makes no batch of what this thread has carried out by itself before this returns: up to `at_once_bytes` between
/// memories of processes on this host, if nothing else is under way. `batch` is null then (its bits are 0) and needs not be freed.
/// `status` says how it stands, as `polyrail_batch_status` would.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_prepared_post_or_finish(
    prepared: polyrail_prepared,
    terms_of_batch: *const polyrail_terms,
    batch: *mut polyrail_batch,
    status: *mut polyrail_status,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let post =
            |transfer: &mut PreparedTransfer, terms: &Terms<'_>, batch: &mut polyrail_batch| {
                // What cannot be told is not begun.
                // SAFETY: the contract of the crate.
                unsafe { sized::write(status, polyrail_status::DEFAULT) }?;
                let report = match transfer.post_or_finish(terms)? {
                    Posted::Finished(report) => {
                        batch.bits = 0;
                        report
                    }
                    Posted::Going(going) => {
                        let report = going.status();
                        batch::add(going, batch)?;
                        report
                    }
                };
                // SAFETY: the contract of the crate.
                unsafe { sized::write(status, polyrail_status::of(report)) }
            };
        // SAFETY: the contract of the crate.
        unsafe { with_transfer(prepared, terms_of_batch, batch, post) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Frees a prepared transfer. What was posted goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_prepared_free(
    prepared: polyrail_prepared,
    error: *mut polyrail_error,
) -> i32 {
    let body = || PREPARED.take(prepared.bits).map(drop);
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}
