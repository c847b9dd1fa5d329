//! Requests and batches, in and out.

use polyrail_core::orchestrator::{Cancelled, Request, SubmitError};
use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::time::Instant;
use polyrail_core::units::{BatchId, PlanId, RequestId};
use polyrail_core::work::{Cause, Op, Priority};

use crate::memory::{
    ARGUMENT, Code, POLYRAIL_CORE_ERROR_FULL, POLYRAIL_CORE_ERROR_PENDING,
    POLYRAIL_CORE_ERROR_RANGE, STALE, change, code, look,
};
use crate::worker::polyrail_core_worker;

/// From the local segment to the remote one.
pub const POLYRAIL_CORE_WRITE: u8 = 0;
/// From the remote segment to the local one.
pub const POLYRAIL_CORE_READ: u8 = 1;
/// It never ends by itself.
pub const POLYRAIL_CORE_NO_DEADLINE: u64 = u64::MAX;

/// What a program asks for.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_request {
    /// The caller's word for it.
    pub tag: u64,
    /// Which segments, which peer, which rails.
    pub plan: u64,
    /// The batch it belongs to, open.
    pub batch: u64,
    /// First byte in the local segment.
    pub local_offset: u64,
    /// First byte in the remote segment.
    pub remote_offset: u64,
    /// Bytes, at least 1.
    pub length: u64,
    /// It ends then at the latest; or `POLYRAIL_CORE_NO_DEADLINE`.
    pub deadline: u64,
    /// `POLYRAIL_CORE_WRITE` or `_READ`.
    pub op: u8,
    /// 0: the usual; 1: before all others to the same peer; 2: after them.
    pub priority: u8,
}

/// How a request ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_report {
    /// As `POLYRAIL_STATUS_…` of polyrail.h numbers them: 1 is completed, 6 indeterminate.
    pub status: u32,
    /// Why, if not well, as `polyrail_cause_text` of polyrail.h numbers them; 0: nothing.
    pub cause: u32,
    /// 1: somebody may still touch the memory on this side; 0: nobody does.
    pub held: u8,
    /// 1: a write may still reach the peer's memory; 0: none can.
    pub unsettled: u8,
    /// Bytes that are proven to have arrived.
    pub delivered_bytes: u64,
}

/// How a batch ended, or stands.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_batch_report {
    /// As in a request's report; 0: it has not ended.
    pub status: u32,
    /// Requests in it.
    pub requests: u32,
    /// Requests that have ended.
    pub ended: u32,
    /// Requests that ended other than completed.
    pub failed: u32,
    /// Bytes proven to have arrived.
    pub delivered_bytes: u64,
}

const PENDING: Code = Code(POLYRAIL_CORE_ERROR_PENDING);

pub(crate) fn op(number: u8) -> Result<Op, Code> {
    match number {
        POLYRAIL_CORE_WRITE => Ok(Op::Write),
        POLYRAIL_CORE_READ => Ok(Op::Read),
        _ => Err(ARGUMENT),
    }
}

fn request(said: &polyrail_core_request) -> Result<Request, Code> {
    Ok(Request {
        tag: said.tag,
        plan: PlanId::from_bits(said.plan),
        batch: BatchId::from_bits(said.batch),
        local_offset: said.local_offset,
        remote_offset: said.remote_offset,
        length: said.length,
        deadline: Instant::from_nanos(said.deadline),
        op: op(said.op)?,
        priority: match said.priority {
            0 => Priority::Normal,
            1 => Priority::High,
            2 => Priority::Low,
            _ => return Err(ARGUMENT),
        },
    })
}

impl From<Report> for polyrail_core_report {
    fn from(report: Report) -> Self {
        Self {
            status: report.status as u32,
            cause: report.cause.map_or(0, Cause::number),
            held: u8::from(report.local == Local::Held),
            unsettled: u8::from(report.remote == Remote::Unknown),
            delivered_bytes: report.delivered_bytes,
        }
    }
}

/// Opens a batch. `tag` is the caller's word for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_open_batch(
    core: *mut polyrail_core_worker,
    tag: u64,
    batch: *mut u64,
) -> i32 {
    let open = || {
        // SAFETY: the contract of the crate.
        let (core, batch) = unsafe { (change(core)?, change(batch)?) };
        let opened = core.core.open_batch(tag);
        *batch = opened.ok_or(Code(POLYRAIL_CORE_ERROR_FULL))?.to_bits();
        Ok(())
    };
    code(open())
}

/// Submits a request. O(1) in its length. Its number is what `polyrail_core_take` and `_cancel` ask for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_submit(
    core: *mut polyrail_core_worker,
    now: u64,
    said: *const polyrail_core_request,
    number: *mut u64,
) -> i32 {
    let submit = || {
        // SAFETY: the contract of the crate.
        let (core, said, number) = unsafe { (change(core)?, look(said)?, change(number)?) };
        let submitted = core.core.submit(Instant::from_nanos(now), &request(said)?);
        let submitted = submitted.map_err(|error| match error {
            SubmitError::PlanMissing | SubmitError::BatchMissing => STALE,
            SubmitError::Full => Code(POLYRAIL_CORE_ERROR_FULL),
            // Empty, or past the largest offset.
            _ => Code(POLYRAIL_CORE_ERROR_RANGE),
        })?;
        *number = submitted.to_bits();
        Ok(())
    };
    code(submit())
}

/// Says that no more requests will come for a batch. It may end by that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_seal_batch(
    core: *mut polyrail_core_worker,
    batch: u64,
) -> i32 {
    // SAFETY: the contract of the crate.
    let core = unsafe { change(core) };
    code(core.map(|core| core.core.seal_batch(BatchId::from_bits(batch))))
}

/// Stops binding a request; what is posted may end. Good also if it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_cancel(
    core: *mut polyrail_core_worker,
    now: u64,
    number: u64,
) -> i32 {
    let cancel = || {
        // SAFETY: the contract of the crate.
        let core = unsafe { change(core) }?;
        let number = RequestId::from_bits(number);
        match core.core.cancel(Instant::from_nanos(now), number) {
            Cancelled::Marked | Cancelled::AlreadyEnded => Ok(()),
            Cancelled::Stale => Err(STALE),
        }
    };
    code(cancel())
}

/// Takes the report of a request that has ended, and frees its row. `POLYRAIL_CORE_ERROR_STALE`: not ended, or taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_take(
    core: *mut polyrail_core_worker,
    number: u64,
    report: *mut polyrail_core_report,
) -> i32 {
    let take = || {
        // SAFETY: the contract of the crate.
        let (core, to) = unsafe { (change(core)?, change(report)?) };
        let report = core.core.take(RequestId::from_bits(number));
        *to = report.ok_or(STALE)?.into();
        Ok(())
    };
    code(take())
}

/// Takes the report of a batch that has ended, and frees its row. `POLYRAIL_CORE_ERROR_PENDING`: it has not; the report
/// says how it stands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_take_batch(
    core: *mut polyrail_core_worker,
    batch: u64,
    report: *mut polyrail_core_batch_report,
) -> i32 {
    let take = || {
        // SAFETY: the contract of the crate.
        let (core, to) = unsafe { (change(core)?, change(report)?) };
        let id = BatchId::from_bits(batch);
        let report = core.core.batch(id).ok_or(STALE)?;
        *to = polyrail_core_batch_report {
            status: report.status as u32,
            requests: report.requests,
            ended: report.ended,
            failed: report.failed,
            delivered_bytes: report.delivered_bytes,
        };
        match report.status {
            Status::Pending => Err(PENDING),
            _ => {
                core.core.take_batch(id);
                Ok(())
            }
        }
    };
    code(take())
}
