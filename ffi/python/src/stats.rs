//! What an engine has done, in dictionaries: as the engine serializes it, for there is one list of what there is.

use polyrail::Engine;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

pub(crate) fn of<'py>(py: Python<'py>, engine: &Engine) -> PyResult<Bound<'py, PyAny>> {
    dictionaries(py, || serde_json::to_string(&engine.stats()))
}

/// What the engine knows of its peers.
pub(crate) fn peers<'py>(py: Python<'py>, engine: &Engine) -> PyResult<Bound<'py, PyAny>> {
    dictionaries(py, || serde_json::to_string(&engine.peers()))
}

fn dictionaries<'py>(
    py: Python<'py>,
    text: impl FnOnce() -> serde_json::Result<String> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let text = py.detach(text);
    let text = text.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}
