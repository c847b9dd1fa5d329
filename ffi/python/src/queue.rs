//! Ends of batches, and arrivals, for an event loop.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use polyrail::CompletionQueue as Queue;
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::engine::Engine;
use crate::ranges::whole;

/// Ended batches, with a descriptor that is readable exactly while there are some.
#[pyclass(frozen, module = "polyrail._native")]
pub(crate) struct CompletionQueue(Queue);

#[pymethods]
impl CompletionQueue {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(Queue::new()?))
    }

    /// Only to be looked at.
    fn fileno(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// From when the batch ends on, its tag is in here.
    fn add(&self, batch: &Bound<'_, Batch>, tag: u64) {
        self.0.add(&batch.get().core().batch, tag);
    }

    /// Takes all that are in here.
    fn take(&self) -> Vec<u64> {
        let polled = std::iter::from_fn(|| self.0.poll());
        polled.map(|completion| completion.tag).collect()
    }
}

/// A descriptor that is readable once so many batches have arrived with a tag, or none will come any more.
#[pyclass(frozen, module = "polyrail._native")]
pub(crate) struct ArrivalWatch(polyrail::ArrivalWatch);

#[pymethods]
impl ArrivalWatch {
    #[new]
    fn new(py: Python<'_>, engine: &Bound<'_, Engine>, tag: i128, count: i128) -> PyResult<Self> {
        let shared = engine.get().shared();
        shared.check_process(py)?;
        let (tag, count) = (whole("tag", tag)?, whole("count", count)?);
        Ok(Self(shared.engine.watch_arrivals(tag, count)?))
    }

    /// Only to be looked at.
    fn fileno(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}
