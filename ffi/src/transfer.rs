//! Requests, and submitting them.

use std::time::Duration;

use polyrail::{Op, Priority, Request, SubmitError, Terms};

use crate::batch::{self, polyrail_batch};
use crate::engine::{self, polyrail_engine};
use crate::failure::{Failure, guard, polyrail_error};
use crate::segment::{self, polyrail_segment};
use crate::sized::{self, Structure};
use crate::text;
use crate::words::*;

/// Requests that one call can take; the engine says the same of a batch.
pub(crate) const REQUESTS_MAX: usize = 1_000_000;

/// One read or write between two segments.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_request {
    /// `sizeof(polyrail_request)`, the same in each element of an array.
    pub size: u32,
    /// `POLYRAIL_WRITE` or `POLYRAIL_READ`.
    pub op: u32,
    /// Memory of this engine, or a file of it if the other one is a peer's.
    pub local: polyrail_segment,
    /// First byte in it.
    pub local_offset: u64,
    /// A segment of a peer, or a file of this host.
    pub remote: polyrail_segment,
    /// First byte in it.
    pub remote_offset: u64,
    /// Bytes, at least 1.
    pub length: u64,
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_request {
    const DEFAULT: Self = Self {
        size: 0,
        op: POLYRAIL_WRITE,
        local: polyrail_segment { bits: 0 },
        local_offset: 0,
        remote: polyrail_segment { bits: 0 },
        remote_offset: 0,
        length: 0,
    };
}

/// How a batch is treated, beyond what it moves.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_terms {
    /// `sizeof(polyrail_terms)`.
    pub size: u32,
    /// `POLYRAIL_PRIORITY_NORMAL`, `_HIGH` or `_LOW`.
    pub priority: u32,
    /// From now on, in nanoseconds; 0: the requests may take for ever.
    pub deadline_ns: u64,
    /// How long to wait for room if there is none, in nanoseconds, before `POLYRAIL_ERROR_FULL`.
    pub room_within_ns: u64,
    /// 0: `room_within_ns` is not looked at, and the wait is as configured. 1: it counts, also if it is 0.
    pub has_room_within: u32,
    /// 1: `arrival` counts. 0: it is not looked at.
    pub has_arrival: u32,
    /// What the peer's program is told once the batch has completed; null: nothing.
    pub notification: *const u8,
    /// Its bytes.
    pub notification_length: usize,
    /// Counted by the peer's engine under this number once the batch has completed: see `polyrail_arrivals_wait`.
    pub arrival: u64,
    /// 1: the batch has not ended before all that it has written can be seen by whatever looks there. 0: `POLYRAIL_COMPLETED` says that the
    /// peer has it, and its device may put it into memory microseconds later.
    pub visible: u32,
}

// SAFETY: `repr(C)`, begins with its size, numbers and a pointer.
unsafe impl Structure for polyrail_terms {
    const DEFAULT: Self = Self {
        size: 0,
        priority: POLYRAIL_PRIORITY_NORMAL,
        deadline_ns: 0,
        room_within_ns: 0,
        has_room_within: 0,
        has_arrival: 0,
        notification: std::ptr::null(),
        notification_length: 0,
        arrival: 0,
        visible: 0,
    };
}

impl From<SubmitError> for Failure {
    fn from(error: SubmitError) -> Self {
        let (code, index) = match error {
            SubmitError::Full(_) => (POLYRAIL_ERROR_FULL, None),
            SubmitError::Stale { index, .. } => (POLYRAIL_ERROR_HANDLE, Some(index)),
            SubmitError::PeerLost { index, .. } => (POLYRAIL_ERROR_PEER_LOST, Some(index)),
            SubmitError::Empty { index }
            | SubmitError::OutOfRange { index, .. }
            | SubmitError::BlockOutOfRange { index, .. } => (POLYRAIL_ERROR_RANGE, Some(index)),
            SubmitError::Forbidden { index, .. } => (POLYRAIL_ERROR_FORBIDDEN, Some(index)),
            SubmitError::TwoFiles { index, .. }
            | SubmitError::BlockCounts { index, .. }
            | SubmitError::Overlap { index, .. }
            | SubmitError::NotificationPeers { index } => (POLYRAIL_ERROR_ARGUMENT, Some(index)),
            SubmitError::BatchSize { .. } | SubmitError::NotificationSize { .. } => {
                (POLYRAIL_ERROR_ARGUMENT, None)
            }
            SubmitError::NotificationUnsupported => (POLYRAIL_ERROR_INCOMPATIBLE, None),
            SubmitError::Plans { .. } => (POLYRAIL_ERROR_FULL, None),
            SubmitError::ShutDown => (POLYRAIL_ERROR_SHUT_DOWN, None),
            SubmitError::Forked => (POLYRAIL_ERROR_FORKED, None),
            _ => (POLYRAIL_ERROR_SYSTEM, None),
        };
        Self {
            code,
            index,
            text: error.to_string(),
        }
    }
}

/// The requests of a program, as the engine takes them.
///
/// # Safety
///
/// The contract of the crate.
pub(crate) unsafe fn requests(
    engine: polyrail_engine,
    first: *const polyrail_request,
    count: usize,
) -> Result<Vec<Request>, Failure> {
    let request = |said: polyrail_request| {
        let ops = [(POLYRAIL_WRITE, Op::Write), (POLYRAIL_READ, Op::Read)];
        Ok(Request {
            op: choose("op", said.op, &ops)?,
            local: segment::get_of(engine, "local", said.local)?,
            local_offset: said.local_offset,
            remote: segment::get_of(engine, "remote", said.remote)?,
            remote_offset: said.remote_offset,
            length: said.length,
        })
    };
    // SAFETY: the caller's promise.
    unsafe { each(first, count, request) }
}

/// What `make` makes of each request of an array; which one it refuses is said.
///
/// # Safety
///
/// The contract of the crate.
pub(crate) unsafe fn each<S: Structure, T>(
    first: *const S,
    count: usize,
    make: impl Fn(S) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    if count == 0 || count > REQUESTS_MAX {
        let text = format!("a batch of {count} requests: 1 to {REQUESTS_MAX} are possible");
        return Err(Failure::new(POLYRAIL_ERROR_ARGUMENT, text));
    }
    // SAFETY: the caller's promise.
    let stride = unsafe { sized::stride(first) }?;
    let numbered = |index| {
        // SAFETY: the caller's array has `count` of them.
        let said = unsafe { sized::read_row(first, index, stride) };
        said.and_then(&make).map_err(|failure| failure.at(index))
    };
    (0..count).map(numbered).collect()
}

/// The terms of a program; null is the usual ones.
///
/// # Safety
///
/// The contract of the crate. What they refer to is the program's during the call.
pub(crate) unsafe fn terms<'a>(from: *const polyrail_terms) -> Result<Terms<'a>, Failure> {
    if from.is_null() {
        return Ok(Terms::default());
    }
    // SAFETY: the caller's promise.
    let said = unsafe { sized::read(from) }?;
    let priorities = [
        (POLYRAIL_PRIORITY_NORMAL, Priority::Normal),
        (POLYRAIL_PRIORITY_HIGH, Priority::High),
        (POLYRAIL_PRIORITY_LOW, Priority::Low),
    ];
    let has_room = choose(
        "has_room_within",
        said.has_room_within,
        &[(0, false), (1, true)],
    )?;
    let has_arrival = choose("has_arrival", said.has_arrival, &[(0, false), (1, true)])?;
    let (from, length) = (said.notification, said.notification_length);
    // SAFETY: the caller's promise.
    let notification = unsafe { text::slice("the notification", from, length) }?;
    Ok(Terms {
        priority: choose("priority", said.priority, &priorities)?,
        deadline: (said.deadline_ns > 0).then_some(Duration::from_nanos(said.deadline_ns)),
        notification: (!from.is_null()).then_some(notification),
        room_within: has_room.then(|| text::span(said.room_within_ns)),
        arrival: has_arrival.then_some(said.arrival),
        visible: choose("visible", said.visible, &[(0, false), (1, true)])?,
    })
}

/// Submits requests as one batch, all or nothing. O(1) in their lengths, but for what this thread can copy by itself: up to
/// `at_once_bytes` of the configuration are moved before it returns. `terms` may be null. `error->index` says which request
/// is at fault.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_submit(
    engine: polyrail_engine,
    first: *const polyrail_request,
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
        let submitted = owner.submit_with(&requests, &terms)?;
        batch::add(submitted, batch)
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}
