//! What an engine has done, in dictionaries.

use std::time::Duration;

use polyrail::{DeviceTraffic, Engine, FailoverCount, LaneStatus, RailStatus, WorkerLoad};
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
    let workers = found.workers.iter().map(|load| worker(py, load));
    stats.set_item("workers", list(py, workers)?)?;
    let lanes = found.lanes.iter().map(|status| lane(py, status));
    stats.set_item("lanes", list(py, lanes)?)?;
    Ok(stats.unbind())
}

fn worker<'py>(py: Python<'py>, load: &WorkerLoad) -> PyResult<Bound<'py, PyDict>> {
    let WorkerLoad {
        worker,
        held,
        limit,
        held_high,
        waiting,
        full_for,
        looked,
        sleeps,
        completed,
        completions,
        admission_waits,
        admission_waited,
        admission_timeouts,
    } = *load;
    let row = PyDict::new(py);
    row.set_item("worker", worker)?;
    row.set_item("held", held)?;
    row.set_item("limit", limit)?;
    row.set_item("held_high", held_high)?;
    row.set_item("waiting", waiting)?;
    row.set_item("full_for", full_for.map(seconds))?;
    row.set_item("looked", looked.map(seconds))?;
    row.set_item("sleeps", sleeps)?;
    row.set_item("completed", completed.map(seconds))?;
    row.set_item("completions", completions)?;
    row.set_item("admission_waits", admission_waits)?;
    row.set_item("admission_waited", seconds(admission_waited))?;
    row.set_item("admission_timeouts", admission_timeouts)?;
    Ok(row)
}

fn lane<'py>(py: Python<'py>, status: &LaneStatus) -> PyResult<Bound<'py, PyDict>> {
    let LaneStatus {
        worker,
        rail,
        state,
        held,
        limit,
        held_bytes,
        held_high,
        completed,
        releases,
        released,
        full_for,
    } = status;
    let row = PyDict::new(py);
    row.set_item("worker", worker)?;
    row.set_item("rail", rail)?;
    row.set_item("state", state.name())?;
    row.set_item("held", held)?;
    row.set_item("limit", limit)?;
    row.set_item("held_bytes", held_bytes)?;
    row.set_item("held_high", held_high)?;
    row.set_item("completed", completed.map(seconds))?;
    row.set_item("releases", releases)?;
    row.set_item("released", released)?;
    row.set_item("full_for", full_for.map(seconds))?;
    Ok(row)
}

/// As Python counts time.
fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

fn list<'py>(
    py: Python<'py>,
    rows: impl Iterator<Item = PyResult<Bound<'py, PyDict>>>,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
}
