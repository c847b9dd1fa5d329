//! Requests whose bytes lie in blocks: pages by a table, or rows.

use std::ptr::null;
use std::sync::{Arc, Mutex};

use polyrail::{Blocks, Op, PagedRequest, Places};

use crate::batch::{self, polyrail_batch};
use crate::engine::{self, polyrail_engine};
use crate::failure::{Failure, guard, polyrail_error};
use crate::prepared::{PREPARED, polyrail_prepared};
use crate::segment::{self, polyrail_segment};
use crate::sized::Structure;
use crate::text;
use crate::transfer::{REQUESTS_MAX, each, polyrail_terms, terms};
use crate::words::*;

/// One read or write of many blocks of equal length between two segments: the n-th block of one end goes to the n-th of the
/// other. At either end the blocks are pages by a table, as those of a KV cache, or rows at equal distances.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_paged_request {
    /// `sizeof(polyrail_paged_request)`, the same in each element of an array.
    pub size: u32,
    /// `POLYRAIL_WRITE` or `POLYRAIL_READ`.
    pub op: u32,
    /// Memory of this engine, or a file of it if the other one is a peer's.
    pub local: polyrail_segment,
    /// The first byte of page or row 0 in it.
    pub local_base: u64,
    /// Bytes from the beginning of a page or row to that of the next.
    pub local_stride: u64,
    /// The numbers of the pages, `count` of them, in this order; null: the rows from 0 on. The program's during the call.
    pub local_pages: *const u32,
    /// A segment of a peer, or a file of this host.
    pub remote: polyrail_segment,
    /// As `local_base`.
    pub remote_base: u64,
    /// As `local_stride`.
    pub remote_stride: u64,
    /// As `local_pages`.
    pub remote_pages: *const u32,
    /// Bytes of each block, at least 1.
    pub length: u64,
    /// Blocks at either end, at least 1; 1,000,000 in all requests of a batch.
    pub count: usize,
}

// SAFETY: `repr(C)`, begins with its size, numbers and pointers.
unsafe impl Structure for polyrail_paged_request {
    const DEFAULT: Self = Self {
        size: 0,
        op: POLYRAIL_WRITE,
        local: polyrail_segment { bits: 0 },
        local_base: 0,
        local_stride: 0,
        local_pages: null(),
        remote: polyrail_segment { bits: 0 },
        remote_base: 0,
        remote_stride: 0,
        remote_pages: null(),
        length: 0,
        count: 0,
    };
}

/// Which pages or rows.
///
/// # Safety
///
/// `pages` is null or leads to `count` numbers, which nobody changes during the call.
unsafe fn places<'a>(pages: *const u32, count: usize) -> Places<'a> {
    match pages.is_null() {
        true => Places::Rows(count),
        // SAFETY: the caller's promise.
        false => Places::Pages(unsafe { std::slice::from_raw_parts(pages, count) }),
    }
}

/// The requests of a program, as the engine takes them.
///
/// # Safety
///
/// The contract of the crate. What they refer to is the program's during the call.
unsafe fn requests<'a>(
    engine: polyrail_engine,
    first: *const polyrail_paged_request,
    count: usize,
) -> Result<Vec<PagedRequest<'a>>, Failure> {
    let request = |said: polyrail_paged_request| {
        if said.count > REQUESTS_MAX {
            let text = format!("{} blocks: 1 to {REQUESTS_MAX} are possible", said.count);
            return Err(Failure::new(POLYRAIL_ERROR_ARGUMENT, text));
        }
        for pages in [said.local_pages, said.remote_pages] {
            if !pages.is_aligned() {
                let text = "a table of pages that is not aligned to 4 bytes".to_owned();
                return Err(Failure::new(POLYRAIL_ERROR_ARGUMENT, text));
            }
        }
        let ops = [(POLYRAIL_WRITE, Op::Write), (POLYRAIL_READ, Op::Read)];
        Ok(PagedRequest {
            op: choose("op", said.op, &ops)?,
            local: Blocks {
                segment: segment::get_of(engine, "local", said.local)?,
                base: said.local_base,
                stride: said.local_stride,
                // SAFETY: the caller's tables have as many numbers.
                places: unsafe { places(said.local_pages, said.count) },
            },
            remote: Blocks {
                segment: segment::get_of(engine, "remote", said.remote)?,
                base: said.remote_base,
                stride: said.remote_stride,
                // SAFETY: as above.
                places: unsafe { places(said.remote_pages, said.count) },
            },
            length: said.length,
        })
    };
    // SAFETY: the caller's promise.
    unsafe { each(first, count, request) }
}

/// Submits requests for blocks as one batch, all or nothing, like `polyrail_submit`. They cost less than the same blocks as
/// requests of their own, and blocks that lie one behind the other at both ends go as one. Each request is reported once, as
/// all of its blocks. `terms` may be null. `error->index` says which request is at fault, `error->message` which block and
/// page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_submit_paged(
    engine: polyrail_engine,
    first: *const polyrail_paged_request,
    count: usize,
    terms_of_batch: *const polyrail_terms,
    batch: *mut polyrail_batch,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let owner = engine::get(engine)?;
        // SAFETY: the contract of the crate.
        let batch = unsafe { text::out("batch", batch) }?;
        // SAFETY: the contract of the crate.
        let requests = unsafe { requests(engine, first, count) }?;
        // SAFETY: the contract of the crate.
        let terms = unsafe { terms(terms_of_batch) }?;
        let submitted = owner.submit_paged(&requests, &terms)?;
        batch::add(submitted, batch)
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Checks requests for blocks like `polyrail_submit_paged` and keeps them, to be posted with `polyrail_prepared_post`. The
/// array and the tables may go then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_prepare_paged(
    engine: polyrail_engine,
    first: *const polyrail_paged_request,
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
        let transfer = owner.prepare_paged(&requests)?;
        prepared.bits = PREPARED.add(Arc::new(Mutex::new(transfer)))?;
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}
