//! How batches and their requests ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use polyrail::{BatchStatus, Status};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;

use crate::batch::Core;
use crate::words;

/// A batch in numbers.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Summary(pub(crate) BatchStatus);

#[pymethods]
impl Summary {
    /// How it stands.
    #[getter]
    fn status(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        words::status(py, self.0.status)
    }

    /// Requests in it.
    #[getter]
    fn requests(&self) -> u32 {
        self.0.requests
    }

    /// Requests that have ended.
    #[getter]
    fn ended(&self) -> u32 {
        self.0.ended
    }

    /// Requests that ended other than completed.
    #[getter]
    fn failed(&self) -> u32 {
        self.0.failed
    }

    /// Bytes proven to have arrived, of the requests that have ended.
    #[getter]
    fn delivered_bytes(&self) -> u64 {
        self.0.delivered_bytes
    }

    fn __repr__(&self) -> String {
        let BatchStatus {
            status,
            requests,
            ended,
            failed,
            delivered_bytes,
        } = self.0;
        let status = status.name();
        format!(
            "Summary(status={status}, requests={requests}, ended={ended}, failed={failed}, delivered_bytes={delivered_bytes})"
        )
    }
}

/// How one request stands.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Report {
    index: usize,
    report: polyrail::Report,
}

impl Report {
    pub(crate) fn new(index: usize, report: polyrail::Report) -> Self {
        Self { index, report }
    }
}

#[pymethods]
impl Report {
    /// Which request of its batch.
    #[getter]
    fn index(&self) -> usize {
        self.index
    }

    /// How it stands.
    #[getter]
    fn status(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        words::status(py, self.report.status)
    }

    /// Bytes proven to have arrived: a lower bound.
    #[getter]
    fn delivered_bytes(&self) -> u64 {
        self.report.delivered_bytes
    }

    /// Why, if not well.
    #[getter]
    fn cause(&self) -> Option<String> {
        self.report.cause.map(|cause| format!("{cause:?}"))
    }

    /// `"Released"`: nobody touches the memory here any more; `"Held"`: somebody might.
    #[getter]
    fn local(&self) -> &'static str {
        words::local(self.report.local)
    }

    /// `"Settled"`: nothing more can reach the peer's memory; `"Unknown"`: something might.
    #[getter]
    fn remote(&self) -> &'static str {
        words::remote(self.report.remote)
    }

    fn __repr__(&self) -> String {
        let polyrail::Report {
            status,
            delivered_bytes,
            ..
        } = self.report;
        let status = status.name();
        let cause = self
            .cause()
            .map_or("None".into(), |cause| format!("'{cause}'"));
        let (index, local, remote) = (self.index, self.local(), self.remote());
        format!(
            "Report(index={index}, status={status}, delivered_bytes={delivered_bytes}, cause={cause}, local='{local}', remote='{remote}')"
        )
    }
}

/// The reports of a batch, each made when it is looked at.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Reports(pub(crate) Arc<Core>);

#[pymethods]
impl Reports {
    fn __len__(&self) -> usize {
        self.0.count
    }

    fn __getitem__(&self, index: isize) -> PyResult<Report> {
        let count = self.0.count;
        let place = match index < 0 {
            true => count.checked_add_signed(index),
            false => Some(index as usize),
        };
        let found = place.and_then(|place| Some(Report::new(place, self.0.report(place)?)));
        found.ok_or_else(|| PyIndexError::new_err(format!("report {index} of {count}")))
    }

    fn __iter__(&self) -> Each {
        Each {
            reports: Self(self.0.clone()),
            next: AtomicUsize::new(0),
        }
    }

    /// Those of requests that have ended other than completed.
    fn failed(&self, py: Python<'_>) -> Vec<Report> {
        let failed = |index| {
            let report = self.0.report(index)?;
            let is_bad = !matches!(report.status, Status::Completed | Status::Pending);
            is_bad.then_some(Report::new(index, report))
        };
        py.detach(|| (0..self.0.count).filter_map(failed).collect())
    }

    fn __repr__(&self) -> String {
        format!("<polyrail.Reports of {} requests>", self.0.count)
    }
}

/// One report after the other.
#[pyclass(frozen)]
struct Each {
    reports: Reports,
    next: AtomicUsize,
}

#[pymethods]
impl Each {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self) -> Option<Report> {
        let index = self.next.fetch_add(1, Relaxed);
        Some(Report::new(index, self.reports.0.report(index)?))
    }
}
