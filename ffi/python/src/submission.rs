//! The way of a transfer to the engine, in as many batches as it takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail::{Cause, Local, Remote, Report, Request, Status, SubmitError};
use pyo3::prelude::*;

use crate::arguments::{Moves, Terms};
use crate::batch::{Batch, Core};
use crate::engine::Shared;
use crate::errors::{Raised, error};
use crate::patience;

/// Requests that one batch of the engine can have.
pub(crate) const WHOLE: usize = 16_384;
/// Of each part of what is more: while some are under way, room is made for the next.
const PIECE: usize = 4096;

/// How many requests each part has of a transfer with so many.
pub(crate) fn part_of(count: usize) -> usize {
    match count > WHOLE {
        true => PIECE,
        false => count,
    }
}

/// Submits a transfer. With more requests than a batch of the engine can have, it returns when the last of them have found room.
pub(crate) fn submit(
    py: Python<'_>,
    shared: &Arc<Shared>,
    moves: Moves,
    terms: &Terms,
) -> PyResult<Py<Batch>> {
    moves.check_owner(shared)?;
    shared.check_process(py)?;
    terms.check_size(py, moves.count, WHOLE)?;
    if moves.count > WHOLE
        && let Some(fault) = py.detach(|| moves.fault())
    {
        return Err(error(py, "Invalid", fault));
    }
    let each = part_of(moves.count);
    let post = |part: usize, terms: &polyrail::Terms<'_>| {
        let first = part * each;
        let last = moves.count.min(first + each);
        // Most have one.
        if last - first == 1 {
            return shared.engine.submit_with(&[moves.request(first)], terms);
        }
        let requests: Vec<Request> = (first..last).map(|index| moves.request(index)).collect();
        shared.engine.submit_with(&requests, terms)
    };
    let core = Core::new(moves.op, moves.names(), moves.count);
    in_parts(py, shared, core, terms, post)
}

/// Posts one part after the other, and waits for room in between. Once the first has been taken the batch exists: what cannot be posted
/// any more is then reported, like everything else.
pub(crate) fn in_parts(
    py: Python<'_>,
    shared: &Arc<Shared>,
    mut core: Core,
    terms: &Terms,
    mut post: impl FnMut(usize, &polyrail::Terms<'_>) -> Result<polyrail::Batch, SubmitError> + Send,
) -> PyResult<Py<Batch>> {
    let start = Instant::now();
    for part in 0..core.count.div_ceil(core.part) {
        let patience = match part {
            0 => Some(terms.room.unwrap_or(shared.patience)),
            _ => terms
                .deadline
                .map(|deadline| deadline.saturating_sub(start.elapsed())),
        };
        let mut backlog = None;
        let posted = patience::wait(py, patience, |slice| {
            let before = core
                .parts
                .iter()
                .find(|part| part.status().status == Status::Pending);
            let terms = polyrail::Terms {
                priority: terms.priority,
                deadline: terms
                    .deadline
                    .map(|deadline| deadline.saturating_sub(start.elapsed())),
                notification: terms.notification.as_deref(),
                room_within: Some(before.map_or(slice, |_| Duration::ZERO)),
            };
            match post(part, &terms) {
                Err(SubmitError::Full(held)) => {
                    backlog = held;
                    // Whoever waits for a batch moves it meanwhile; whoever waits for room only waits.
                    if let Some(before) = before {
                        let _ = before.wait(slice);
                    }
                    None
                }
                posted => Some(posted),
            }
        });
        match posted {
            Ok(Some(Ok(batch))) => core.parts.push(batch),
            Ok(refused) if part == 0 => {
                let refused = refused.unwrap_or(Err(SubmitError::Full(backlog)));
                return Err(refused.map(drop).raised(py).unwrap_err());
            }
            Ok(refused) => {
                let (status, cause) = unsent(refused.and_then(Result::err));
                core.unsent = Some((core.count - part * core.part, report(status, cause)));
                break;
            }
            // A signal: what was taken is cancelled, and nobody will wait for it.
            Err(raised) => {
                core.cancel();
                shared.park(Arc::new(core));
                return Err(raised);
            }
        }
    }
    Batch::new(py, shared, core)
}

/// How requests end that were not taken after others had been. `None`: there was no room before the deadline.
fn unsent(why: Option<SubmitError>) -> (Status, Cause) {
    match why {
        None | Some(SubmitError::Full(_)) => (Status::DeadlineExceeded, Cause::DeadlineExceeded),
        Some(SubmitError::PeerLost { .. }) => (Status::PeerLost, Cause::PeerGone),
        Some(SubmitError::ShutDown) => (Status::ShutDown, Cause::ShutDown),
        // The segment was closed, or the machine has no more to give.
        Some(_) => (Status::Failed, Cause::LocalOperation),
    }
}

fn report(status: Status, cause: Cause) -> Report {
    Report {
        status,
        delivered_bytes: 0,
        cause: Some(cause),
        local: Local::Released,
        remote: Remote::Settled,
    }
}
