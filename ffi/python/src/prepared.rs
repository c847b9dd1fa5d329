//! Transfers that are checked once and posted many times.

use std::sync::{Arc, Mutex};

use polyrail::{PreparedTransfer, Request};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::{Moves, Terms};
use crate::batch::{Batch, Core, What};
use crate::engine::{Shared, lock};
use crate::errors::Raised;
use crate::paged::Paged;
use crate::submission::with_room;

/// A transfer that is ready to be posted.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Prepared {
    shared: Arc<Shared>,
    what: What,
    count: usize,
    /// Locked without the interpreter only.
    transfer: Mutex<PreparedTransfer>,
}

impl Prepared {
    pub(crate) fn new(py: Python<'_>, shared: &Arc<Shared>, moves: Moves) -> PyResult<Self> {
        moves.check_owner(shared)?;
        shared.check_process(py)?;
        let prepared = py.detach(|| {
            let requests: Vec<Request> = moves.requests().collect();
            shared.engine.prepare_transfer(&requests)
        });
        Ok(Self {
            shared: shared.clone(),
            what: moves.what(),
            count: moves.count,
            transfer: Mutex::new(prepared.map_err(|why| moves.refused(py, why))?),
        })
    }

    pub(crate) fn of_blocks(py: Python<'_>, shared: &Arc<Shared>, paged: &Paged) -> PyResult<Self> {
        shared.check_process(py)?;
        let requests = paged.requests();
        let prepared = py.detach(|| shared.engine.prepare_paged(&requests));
        Ok(Self {
            shared: shared.clone(),
            what: paged.what(),
            count: paged.count(),
            transfer: Mutex::new(prepared.map_err(|why| paged.refused(py, why))?),
        })
    }
}

#[pymethods]
impl Prepared {
    /// Submits it as a batch.
    #[pyo3(signature = (*, priority="normal", deadline=None, notify=None, arrival=None, visible=false, room=None))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn post(
        &self,
        py: Python<'_>,
        priority: &str,
        deadline: Option<f64>,
        notify: Option<&Bound<'_, PyBytes>>,
        arrival: Option<i128>,
        visible: bool,
        room: Option<f64>,
    ) -> PyResult<Py<Batch>> {
        let terms = Terms::new(priority, deadline, notify, arrival, room)?.seen(visible);
        self.shared.check_process(py)?;
        let batch = with_room(py, &self.shared, &terms, |terms| {
            lock(&self.transfer).post_with(terms)
        })?;
        let batch = batch.raised(py)?;
        let core = Core::new(self.what.clone(), self.count, batch);
        Batch::new(py, &self.shared, core)
    }

    fn __len__(&self) -> usize {
        self.count
    }

    fn __repr__(&self) -> String {
        let (what, count) = (&self.what, self.count);
        format!("<polyrail.Prepared {what}, {count} requests>")
    }
}
