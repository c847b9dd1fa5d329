//! What an engine has done, in dictionaries.

use polyrail::{DeviceTraffic, Engine, FailoverCount, RailStatus};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::words;

pub(crate) fn of(py: Python<'_>, engine: &Engine) -> PyResult<Py<PyDict>> {
    let (found, rails, transports) =
        py.detach(|| (engine.stats(), engine.rails(), engine.transports()));
    let stats = PyDict::new(py);
    let devices = found.devices.iter().map(|device| {
        let DeviceTraffic {
            device,
            bytes,
            share,
            inflight_bytes,
            bytes_per_sec,
        } = device;
        let row = PyDict::new(py);
        row.set_item("device", device)?;
        row.set_item("bytes", bytes)?;
        row.set_item("share", share)?;
        row.set_item("inflight_bytes", inflight_bytes)?;
        row.set_item("bytes_per_sec", bytes_per_sec)?;
        Ok(row)
    });
    stats.set_item("devices", list(py, devices)?)?;
    let rails = rails.iter().map(|rail| {
        let RailStatus {
            name,
            is_spare,
            state,
            bytes,
        } = rail;
        let row = PyDict::new(py);
        row.set_item("rail", name)?;
        row.set_item("state", words::rail_state(*state))?;
        row.set_item("is_spare", is_spare)?;
        row.set_item("bytes", bytes)?;
        Ok(row)
    });
    stats.set_item("rails", list(py, rails)?)?;
    let failovers = found.failovers.iter().map(|failover| {
        let FailoverCount { from, to, count } = failover;
        let row = PyDict::new(py);
        row.set_item("from", from)?;
        row.set_item("to", to)?;
        row.set_item("count", count)?;
        Ok(row)
    });
    stats.set_item("failovers", list(py, failovers)?)?;
    let transports = transports.iter().map(|transport| {
        let row = PyDict::new(py);
        row.set_item("transport", transport.name)?;
        row.set_item("missing", &transport.missing)?;
        Ok(row)
    });
    stats.set_item("transports", list(py, transports)?)?;
    Ok(stats.unbind())
}

fn list<'py>(
    py: Python<'py>,
    rows: impl Iterator<Item = PyResult<Bound<'py, PyDict>>>,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
}
