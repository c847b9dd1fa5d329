//! Transfers that are checked once and posted many times.

use std::sync::{Arc, Mutex};

use polyrail::{Op, PreparedTransfer, Request};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::{Moves, Terms};
use crate::batch::{Batch, Core};
use crate::engine::{Shared, lock};
use crate::errors::{Raised, error};
use crate::submission::{WHOLE, in_parts, part_of};

/// A transfer that is ready to be posted.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Prepared {
    shared: Arc<Shared>,
    op: Op,
    names: [String; 2],
    count: usize,
    /// One for each part. Locked without the interpreter only.
    transfers: Mutex<Vec<PreparedTransfer>>,
}

impl Prepared {
    pub(crate) fn new(py: Python<'_>, shared: &Arc<Shared>, moves: Moves) -> PyResult<Self> {
        moves.check_owner(shared)?;
        shared.check_process(py)?;
        let count = moves.count;
        if count > WHOLE
            && let Some(fault) = py.detach(|| moves.fault())
        {
            return Err(error(py, "Invalid", fault));
        }
        let part = part_of(count);
        let prepare = |first: usize| {
            let requests: Vec<Request> = (first..count.min(first + part))
                .map(|index| moves.request(index))
                .collect();
            shared.engine.prepare_transfer(&requests)
        };
        let transfers: Result<Vec<_>, _> =
            py.detach(|| (0..count).step_by(part).map(prepare).collect());
        Ok(Self {
            shared: shared.clone(),
            op: moves.op,
            names: moves.names(),
            count,
            transfers: Mutex::new(transfers.raised(py)?),
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
        terms.check_size(py, self.count, WHOLE)?;
        let core = Core::new(self.op, self.names.clone(), self.count);
        in_parts(py, &self.shared, core, &terms, |part, terms| {
            lock(&self.transfers)[part].post_with(terms)
        })
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
