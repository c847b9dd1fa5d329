//! Transfers that are checked once and posted many times.

use std::sync::{Arc, Mutex};

use polyrail::{Op, PreparedTransfer, Request};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::{Moves, Terms};
use crate::batch::{Batch, Core};
use crate::engine::{Shared, lock};
use crate::errors::Raised;
use crate::submission::with_room;

/// A transfer that is ready to be posted.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Prepared {
    shared: Arc<Shared>,
    op: Op,
    names: [String; 2],
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
            op: moves.op,
            names: moves.names(),
            count: moves.count,
            transfer: Mutex::new(prepared.map_err(|why| moves.refused(py, why))?),
        })
    }
}

#[pymethods]
impl Prepared {
    /// Submits it as a batch.
    #[pyo3(signature = (*, priority="normal", deadline=None, notify=None, room=None))]
    fn post(
        &self,
        py: Python<'_>,
        priority: &str,
        deadline: Option<f64>,
        notify: Option<&Bound<'_, PyBytes>>,
        room: Option<f64>,
    ) -> PyResult<Py<Batch>> {
        let terms = Terms::new(priority, deadline, notify, room)?;
        self.shared.check_process(py)?;
        let batch = with_room(py, &self.shared, &terms, |terms| {
            lock(&self.transfer).post_with(terms)
        })?;
        let batch = batch.raised(py)?;
        let core = Core::named(self.op, self.names.clone(), self.count, batch);
        Batch::new(py, &self.shared, core)
    }

    fn __len__(&self) -> usize {
        self.count
    }

    fn __repr__(&self) -> String {
        let [local, remote] = &self.names;
        let (op, count) = (self.op, self.count);
        format!("<polyrail.Prepared {op:?} of {count} requests between {local:?} and {remote:?}>")
    }
}
