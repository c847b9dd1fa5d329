//! What an engine is started with, from what Python gives.

use polyrail::{Config, Loaded, Sources};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::errors::Raised;

/// A file or a dictionary, over it the environment, and over both the keywords.
pub(crate) fn load(
    config: Option<&Bound<'_, PyAny>>,
    keys: Option<&Bound<'_, PyDict>>,
    py: Python<'_>,
) -> PyResult<Config> {
    let mut sources = Sources::new();
    if let Some(config) = config {
        sources = add(sources, config)?;
    }
    sources = sources.environment();
    if let Some(keys) = keys {
        sources = sources.json("a keyword", &json(keys)?);
    }
    let Loaded { config, notes, .. } = sources.load().raised(py)?;
    for note in notes {
        log::warn!("{note}");
    }
    Ok(config)
}

fn add(sources: Sources, config: &Bound<'_, PyAny>) -> PyResult<Sources> {
    if let Ok(keys) = config.cast::<PyDict>() {
        return Ok(sources.json("config", &json(keys)?));
    }
    let path = config.py().import("os")?.call_method1("fspath", (config,));
    let path = path.ok().filter(|path| path.is_instance_of::<PyString>());
    match path {
        Some(path) => Ok(sources.file(path.extract::<String>()?)),
        None => Err(PyTypeError::new_err(format!(
            "config is a {}: a dictionary or the path of a file in JSON expected",
            config.get_type()
        ))),
    }
}

/// What is `None` is left out: its default holds.
fn json(keys: &Bound<'_, PyDict>) -> PyResult<String> {
    let py = keys.py();
    let said = PyDict::new(py);
    for (key, value) in keys {
        if !value.is_none() {
            said.set_item(key, value)?;
        }
    }
    py.import("json")?.call_method1("dumps", (said,))?.extract()
}
