//! The way of a transfer to the engine.

use std::sync::Arc;

use polyrail::{Request, SubmitError};
use pyo3::prelude::*;

use crate::arguments::{Moves, Terms};
use crate::batch::{Batch, Core};
use crate::engine::Shared;
use crate::paged::Paged;
use crate::patience;

/// Submits a transfer.
pub(crate) fn submit(
    py: Python<'_>,
    shared: &Arc<Shared>,
    moves: Moves,
    terms: &Terms,
) -> PyResult<Py<Batch>> {
    moves.check_owner(shared)?;
    shared.check_process(py)?;
    let engine = &shared.engine;
    // Most have one.
    let batch = match moves.count {
        1 => {
            let request = [moves.request(0)];
            with_room(py, shared, terms, |terms| {
                engine.submit_with(&request, terms)
            })
        }
        _ => {
            let requests: Vec<Request> = py.detach(|| moves.requests().collect());
            with_room(py, shared, terms, |terms| {
                engine.submit_with(&requests, terms)
            })
        }
    }?;
    let batch = batch.map_err(|why| moves.refused(py, why))?;
    Batch::new(py, shared, Core::new(moves.what(), moves.count, batch))
}

/// Submits a transfer of blocks.
pub(crate) fn submit_paged(
    py: Python<'_>,
    shared: &Arc<Shared>,
    paged: &Paged,
    terms: &Terms,
) -> PyResult<Py<Batch>> {
    shared.check_process(py)?;
    let requests = paged.requests();
    let batch = with_room(py, shared, terms, |terms| {
        shared.engine.submit_paged(&requests, terms)
    })?;
    let batch = batch.map_err(|why| paged.refused(py, why))?;
    Batch::new(py, shared, Core::new(paged.what(), paged.count(), batch))
}

/// Posts a batch, and waits for room as long as the terms say.
pub(crate) fn with_room(
    py: Python<'_>,
    shared: &Arc<Shared>,
    terms: &Terms,
    mut post: impl FnMut(&polyrail::Terms<'_>) -> Result<polyrail::Batch, SubmitError> + Send,
) -> PyResult<Result<polyrail::Batch, SubmitError>> {
    let patience = terms.room.unwrap_or(shared.patience);
    let mut backlog = None;
    let posted = patience::wait(py, Some(patience), |slice| {
        let terms = polyrail::Terms {
            priority: terms.priority,
            deadline: terms.deadline,
            notification: terms.notification.as_deref(),
            arrival: terms.arrival,
            visible: terms.visible,
            room_within: Some(slice),
        };
        match post(&terms) {
            Err(SubmitError::Full(held)) => {
                backlog = held;
                None
            }
            posted => Some(posted),
        }
    })?;
    Ok(posted.unwrap_or(Err(SubmitError::Full(backlog))))
}
