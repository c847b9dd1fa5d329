//! What programs tell each other.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use polyrail::{DeliveryError, DeliveryStatus, ReceiveError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::engine::Shared;
use crate::errors::{Raised, error};
use crate::patience::{self, seconds};
use crate::words;

/// What a peer's program told this one.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Notification(polyrail::Notification);

#[pymethods]
impl Notification {
    /// What the sender's engine calls itself: its own word.
    #[getter]
    fn sender(&self) -> &str {
        &self.0.from
    }

    /// Tells engines of one name apart.
    #[getter]
    fn incarnation(&self) -> u64 {
        self.0.incarnation
    }

    /// What it said.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.bytes)
    }

    fn __repr__(&self) -> String {
        let polyrail::Notification { from, bytes, .. } = &self.0;
        format!(
            "<polyrail.Notification of {} bytes from {from:?}>",
            bytes.len()
        )
    }
}

/// Notifications, in the order in which they came.
#[pyclass(frozen, weakref, module = "polyrail")]
pub(crate) struct Notifications {
    shared: Arc<Shared>,
    inbox: polyrail::Notifications,
}

impl Notifications {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: shared.clone(),
            inbox: shared.engine.notifications(),
        }
    }

    /// `Ok(None)`: there was none in time.
    fn take(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Option<Notification>> {
        let taken = receive(py, &self.shared, timeout, |slice| self.inbox.wait(slice))?;
        Ok(taken.map(Notification))
    }
}

/// Takes what `wait` gives; `Ok(None)`: it gives nothing in time.
pub(crate) fn receive<T: Send>(
    py: Python<'_>,
    shared: &Shared,
    timeout: Option<Duration>,
    wait: impl Fn(Duration) -> Result<T, ReceiveError> + Send + Sync,
) -> PyResult<Option<T>> {
    shared.check_process(py)?;
    let taken = patience::wait(py, timeout, |slice| match wait(slice) {
        Err(ReceiveError::TimedOut { .. }) => None,
        taken => Some(taken),
    })?;
    taken.transpose().map_err(|why| error(py, "Closed", why))
}

#[pymethods]
impl Notifications {
    /// Takes one; waits for it.
    #[pyo3(signature = (timeout=None))]
    fn get(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Notification> {
        let timeout = seconds("timeout", timeout)?;
        let none = || {
            let text = format!("no notification within {:?}", timeout.unwrap_or_default());
            error(py, "TimedOut", text)
        };
        self.take(py, timeout)?.ok_or_else(none)
    }

    /// Takes one if there is one.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<Notification>> {
        self.take(py, Some(Duration::ZERO))
    }

    /// Readable exactly while one waits. Only to be looked at.
    fn fileno(&self) -> RawFd {
        self.inbox.as_raw_fd()
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Notification>> {
        match self.take(py, None) {
            Err(_) if self.shared.is_closed() => Ok(None),
            taken => taken,
        }
    }

    fn __aiter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __anext__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let aio = this.py().import("polyrail._aio")?;
        aio.call_method1("next_notification", (this,))
    }

    fn __repr__(&self) -> String {
        format!("<polyrail.Notifications, descriptor {}>", self.fileno())
    }
}

/// What becomes of a notification.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Delivery {
    shared: Arc<Shared>,
    delivery: polyrail::Delivery,
}

impl Delivery {
    pub(crate) fn new(shared: &Arc<Shared>, delivery: polyrail::Delivery) -> Self {
        let shared = shared.clone();
        Self { shared, delivery }
    }
}

#[pymethods]
impl Delivery {
    /// How it stands.
    #[getter]
    fn status(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        words::delivery(py, self.delivery.status())
    }

    /// Waits until it is known.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.shared.check_process(py)?;
        let timeout = seconds("timeout", timeout)?;
        let known = patience::wait(py, timeout, |slice| match self.delivery.wait(slice) {
            Err(DeliveryError::TimedOut { .. }) => None,
            known => Some(known),
        })?;
        let after = timeout.unwrap_or_default();
        let known = known.unwrap_or(Err(DeliveryError::TimedOut { after }));
        words::delivery(py, known.raised(py)?)
    }

    fn __repr__(&self) -> String {
        let status: DeliveryStatus = self.delivery.status();
        format!("<polyrail.Delivery: {status:?}>")
    }
}
