//! Why something did not happen, as the exceptions of `polyrail._errors`.

use polyrail::{
    CloseError, ConfigError, DeliveryError, EngineError, FileError, NotifyError, OpenError,
    RegisterError, ReleaseError, Status, SubmitError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::batch::Batch;
use crate::report::Report;

/// An exception of this name.
pub(crate) fn error(py: Python<'_>, class: &str, text: impl ToString) -> PyErr {
    raise(py, class, text.to_string(), None)
}

/// How a batch has ended: an exception with the report of the first request that ended so.
pub(crate) fn ended(py: Python<'_>, batch: &Bound<'_, Batch>, status: Status) -> PyErr {
    let class = match status {
        Status::Completed | Status::Pending | Status::Failed => "Failed",
        Status::Cancelled => "Cancelled",
        Status::DeadlineExceeded => "DeadlineExceeded",
        Status::PeerLost => "PeerLost",
        Status::Indeterminate => "Indeterminate",
        Status::ShutDown => "Closed",
    };
    let core = batch.get().core();
    let found = py.detach(|| core.first(status));
    let text = core.words(status, found);
    let report = found.map(|(index, report)| Report::new(index, report));
    raise(py, class, text, Some((batch, report)))
}

fn raise(
    py: Python<'_>,
    class: &str,
    text: String,
    about: Option<(&Bound<'_, Batch>, Option<Report>)>,
) -> PyErr {
    let make = || {
        let class = module(py)?.getattr(class)?;
        let named = PyDict::new(py);
        if let Some((batch, report)) = about {
            named.set_item("batch", batch)?;
            named.set_item("report", report)?;
        }
        class.call((text,), Some(&named))
    };
    make().map_or_else(|error| error, PyErr::from_value)
}

fn module(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("polyrail._errors")?.unbind())
    })?;
    Ok(module.bind(py))
}

/// An answer of the engine that Python hears of as an exception.
pub(crate) trait Raise {
    /// The name of its class.
    fn class(&self) -> &'static str;
}

/// Turns errors of the engine into exceptions.
pub(crate) trait Raised<T> {
    fn raised(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Raise + ToString> Raised<T> for Result<T, E> {
    fn raised(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|why| error(py, why.class(), why))
    }
}

impl Raise for ConfigError {
    fn class(&self) -> &'static str {
        "Invalid"
    }
}

impl Raise for EngineError {
    fn class(&self) -> &'static str {
        if self.is_usage() {
            "Invalid"
        } else {
            "Unavailable"
        }
    }
}

impl Raise for RegisterError {
    fn class(&self) -> &'static str {
        match self {
            Self::Stale { .. } => "Closed",
            Self::InUse { .. } => "InUse",
            Self::Unprovable { .. } => "Indeterminate",
            Self::Forked => "Forked",
            Self::Full { .. } | Self::System { .. } | Self::Gpu(_) => "Unavailable",
            _ => "Invalid",
        }
    }
}

impl Raise for CloseError {
    fn class(&self) -> &'static str {
        match self {
            Self::Stale { .. } => "Closed",
            Self::InUse { .. } => "InUse",
            Self::Forked => "Forked",
            _ => "Invalid",
        }
    }
}

impl Raise for OpenError {
    fn class(&self) -> &'static str {
        match self {
            Self::PeerLost { .. } => "PeerLost",
            Self::ShutDown => "Closed",
            Self::Forked => "Forked",
            Self::Full { .. } => "Unavailable",
            error if error.is_usage() => "Invalid",
            _ => "Unreachable",
        }
    }
}

impl Raise for FileError {
    fn class(&self) -> &'static str {
        match self {
            Self::Name(error) => error.class(),
            Self::Stale { .. } | Self::ShutDown => "Closed",
            Self::Forked => "Forked",
            Self::Open { .. } | Self::Full { .. } | Self::System { .. } => "Unavailable",
            _ => "Invalid",
        }
    }
}

impl Raise for SubmitError {
    fn class(&self) -> &'static str {
        match self {
            Self::Full(_) => "Full",
            Self::PeerLost { .. } => "PeerLost",
            Self::Stale { .. } | Self::ShutDown => "Closed",
            Self::Forked => "Forked",
            Self::Staging | Self::Plans { .. } | Self::NotificationUnsupported => "Unavailable",
            _ => "Invalid",
        }
    }
}

impl Raise for ReleaseError {
    fn class(&self) -> &'static str {
        match self {
            Self::Forked => "Forked",
            Self::Unprovable { .. } => "Indeterminate",
            _ => "TimedOut",
        }
    }
}

impl Raise for NotifyError {
    fn class(&self) -> &'static str {
        match self {
            Self::Full => "Full",
            Self::PeerLost { .. } => "PeerLost",
            Self::Stale { .. } | Self::ShutDown => "Closed",
            Self::Forked => "Forked",
            Self::Unsupported => "Unavailable",
            _ => "Invalid",
        }
    }
}

impl Raise for DeliveryError {
    fn class(&self) -> &'static str {
        match self {
            Self::Forked => "Forked",
            _ => "TimedOut",
        }
    }
}
