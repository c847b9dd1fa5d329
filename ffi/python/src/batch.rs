//! Batches: transfers that were submitted.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use polyrail::{BatchStatus, Local, Op, ReleaseError, Report, Status, WaitError};
use pyo3::prelude::*;

use crate::engine::Shared;
use crate::errors::{self, Raised, error};
use crate::notification::Delivery;
use crate::patience::{self, seconds};
use crate::report::{Reports, Summary};
use crate::words;

/// What a batch moves, in words.
#[derive(Clone)]
pub(crate) struct What {
    pub(crate) op: Op,
    /// Those of its first request's segments: the local one, then the remote one.
    pub(crate) names: [Arc<str>; 2],
    /// Other requests move something else.
    pub(crate) and_others: bool,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [local, remote] = &self.names;
        match self.op {
            Op::Write => write!(f, "write of \"{local}\" to \"{remote}\"")?,
            Op::Read => write!(f, "read of \"{remote}\" into \"{local}\"")?,
        }
        f.write_str(if self.and_others { " and others" } else { "" })
    }
}

/// What a batch is, whoever holds it.
pub(crate) struct Core {
    what: What,
    pub(crate) count: usize,
    pub(crate) batch: polyrail::Batch,
    /// It has been said that it holds memory.
    said: AtomicBool,
}

impl Core {
    pub(crate) fn new(what: What, count: usize, batch: polyrail::Batch) -> Self {
        Self {
            what,
            count,
            batch,
            said: AtomicBool::new(false),
        }
    }

    /// How it stands.
    pub(crate) fn status(&self) -> BatchStatus {
        self.batch.status()
    }

    /// How it has ended; `None`: it has not. To ask for the status of a batch that has not calls its worker's thread, which whoever
    /// waits for a single request does without: it drives that itself.
    fn ended(&self) -> Option<BatchStatus> {
        let is_pending = |report: &Report| report.status == Status::Pending;
        if self.count == 1 && self.report(0).as_ref().is_some_and(is_pending) {
            return None;
        }
        Some(self.status()).filter(|status| status.status != Status::Pending)
    }

    /// How one of its requests stands.
    pub(crate) fn report(&self, index: usize) -> Option<Report> {
        self.batch.report(index)
    }

    /// The first request that stands so.
    pub(crate) fn first(&self, status: Status) -> Option<(usize, Report)> {
        let reports = (0..self.count).filter_map(|index| Some((index, self.report(index)?)));
        let mut reports = reports.filter(|(_, report)| report.status == status);
        reports.next()
    }

    /// Waits until it has ended; `None`: it has not, in time.
    fn wait(&self, timeout: Duration) -> Option<Result<(), WaitError>> {
        match self.batch.wait(timeout) {
            Ok(_) => Some(Ok(())),
            Err(WaitError::TimedOut { .. }) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Waits until nothing of it is open.
    fn wait_released(&self, timeout: Duration) -> Result<(), ReleaseError> {
        self.batch.wait_released(timeout).map(drop)
    }

    fn cancel(&self) {
        self.batch.cancel();
    }

    /// Whether memory on this side may still be touched on its behalf, now or later: also because it has not ended.
    pub(crate) fn may_hold(&self) -> bool {
        let status = self.status().status;
        if !matches!(status, Status::Pending | Status::Indeterminate) {
            return false;
        }
        let open = self.wait_released(Duration::ZERO);
        matches!(open, Err(ReleaseError::TimedOut { held, .. }) if held > 0)
    }

    /// Whether it has ended and memory on this side may still be touched on its behalf.
    pub(crate) fn is_held(&self) -> bool {
        self.status().status == Status::Indeterminate && self.held() > 0
    }

    /// Requests whose memory on this side may still be touched.
    fn held(&self) -> usize {
        let reports = (0..self.count).filter_map(|index| self.report(index));
        reports.filter(|report| report.local == Local::Held).count()
    }

    /// How it ended, in words.
    pub(crate) fn words(&self, status: Status, found: Option<(usize, Report)>) -> String {
        let mut text = format!("{}: {}", self.what, status.name());
        let Some((index, report)) = found else {
            return text;
        };
        // Nothing to write to a text fails.
        if self.count > 1 {
            let BatchStatus {
                failed, requests, ..
            } = self.status();
            let _ = write!(
                text,
                "; {failed} of {requests} requests failed, the first one so is {index}"
            );
        }
        if let Some(cause) = report.cause {
            let _ = write!(text, "; {cause}");
        }
        let delivered = report.delivered_bytes;
        let (local, remote) = (words::local(report.local), words::remote(report.remote));
        let _ = write!(
            text,
            "; {delivered} bytes of it have arrived; memory here is {local}, there {remote}"
        );
        text
    }
}

/// A transfer that was submitted.
#[pyclass(frozen, weakref, module = "polyrail")]
pub(crate) struct Batch {
    shared: Arc<Shared>,
    core: Arc<Core>,
}

impl Batch {
    pub(crate) fn new(py: Python<'_>, shared: &Arc<Shared>, core: Core) -> PyResult<Py<Self>> {
        let shared = shared.clone();
        let core = Arc::new(core);
        Py::new(py, Self { shared, core })
    }

    pub(crate) fn of(py: Python<'_>, shared: &Arc<Shared>, core: Arc<Core>) -> PyResult<Py<Self>> {
        let shared = shared.clone();
        Py::new(py, Self { shared, core })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

/// What is known when it has ended: a summary, or an exception.
fn verdict(batch: &Bound<'_, Batch>, status: BatchStatus) -> PyResult<Summary> {
    match status.status {
        Status::Completed => Ok(Summary(status)),
        status => Err(errors::ended(batch.py(), batch, status)),
    }
}

#[pymethods]
impl Batch {
    /// How it stands.
    #[getter]
    fn status(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        words::status(py, self.core.status().status)
    }

    /// The same in numbers.
    #[getter]
    fn summary(&self) -> Summary {
        Summary(self.core.status())
    }

    /// Whether it has ended, however.
    #[getter]
    fn done(&self) -> bool {
        self.core.status().status != Status::Pending
    }

    /// How each of its requests stands.
    #[getter]
    fn reports(&self) -> Reports {
        Reports(self.core.clone())
    }

    /// What becomes of the notification that it carries.
    #[getter]
    fn delivery(&self) -> Option<Delivery> {
        Some(Delivery::new(&self.shared, self.core.batch.delivery()?))
    }

    /// Waits until it has ended, and raises if it has not ended well.
    #[pyo3(signature = (timeout=None))]
    fn wait(this: &Bound<'_, Self>, timeout: Option<f64>) -> PyResult<Summary> {
        let py = this.py();
        let timeout = seconds("timeout", timeout)?;
        let Self { shared, core } = this.get();
        shared.check_process(py)?;
        if let Some(status) = core.ended() {
            return verdict(this, status);
        }
        match patience::wait(py, timeout, |slice| core.wait(slice))? {
            Some(waited) => {
                waited.map_err(|why| error(py, "Forked", why))?;
                verdict(this, core.status())
            }
            None => {
                let BatchStatus {
                    ended, requests, ..
                } = core.status();
                let after = timeout.unwrap_or_default();
                let text = format!(
                    "{}: not ended after {after:?}: {ended} of {requests} requests have",
                    core.what
                );
                Err(error(py, "TimedOut", text))
            }
        }
    }

    /// Waits until it has ended and nothing of it can move any more, on either side.
    #[pyo3(signature = (timeout=None))]
    fn wait_released(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Summary> {
        let timeout = seconds("timeout", timeout)?;
        let Self { shared, core } = self;
        shared.check_process(py)?;
        let mut last = Ok(());
        let released = patience::wait(py, timeout, |slice| {
            last = core.wait_released(slice);
            match &last {
                Err(ReleaseError::TimedOut { .. }) => None,
                known => Some(*known),
            }
        })?;
        released.unwrap_or(last).raised(py)?;
        Ok(Summary(core.status()))
    }

    /// Stops sending what has not been sent.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.core.cancel());
    }

    fn __await__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let aio = this.py().import("polyrail._aio")?;
        aio.call_method1("ended", (this,))?
            .call_method0("__await__")
    }

    fn __len__(&self) -> usize {
        self.core.count
    }

    fn __repr__(&self) -> String {
        let BatchStatus {
            status,
            requests,
            ended,
            ..
        } = self.core.status();
        let (what, status) = (&self.core.what, status.name());
        match requests {
            1 => format!("<polyrail.Batch {what}: {status}>"),
            _ => format!(
                "<polyrail.Batch {what}: {status}, {ended} of {requests} requests have ended>"
            ),
        }
    }
}

impl Drop for Batch {
    /// What is open goes on, and is listed until it is not.
    fn drop(&mut self) {
        let Self { shared, core } = self;
        if !core.may_hold() || shared.is_closed() {
            return;
        }
        if core.is_held() && !core.said.swap(true, Relaxed) {
            log::warn!(
                "the last reference to a batch has gone, of which {} requests may still touch memory here ({}): it stays, see Engine.held()",
                core.held(),
                core.what
            );
        }
        shared.park(core.clone());
    }
}
