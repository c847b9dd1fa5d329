//! What an engine has done, in dictionaries: as the engine serializes it, for there is one list of what there is.

use polyrail::Engine;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

pub(crate) fn of<'py>(py: Python<'py>, engine: &Engine) -> PyResult<Bound<'py, PyAny>> {
    let text = py.detach(|| serde_json::to_string(&engine.stats()));
    let text = text.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}
