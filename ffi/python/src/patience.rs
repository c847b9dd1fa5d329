//! Waiting without the interpreter, and with an ear for signals.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A signal is heeded within this time.
const SLICE: Duration = Duration::from_millis(25);

/// Calls `step` with how long it may block, without the interpreter, until it gives something or the time is over. `Ok(None)`: it is
/// over. `Err`: a signal's handler has raised.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut step: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    let start = Instant::now();
    loop {
        let left = timeout.map_or(SLICE, |timeout| timeout.saturating_sub(start.elapsed()));
        let slice = left.min(SLICE);
        if let Some(found) = py.detach(|| step(slice)) {
            return Ok(Some(found));
        }
        py.check_signals()?;
        if timeout.is_some() && left == slice {
            return Ok(None);
        }
    }
}

/// Seconds as a program gives them; `None`, and infinity: for ever.
pub(crate) fn seconds(name: &str, value: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(value) = value.filter(|value| *value != f64::INFINITY) else {
        return Ok(None);
    };
    Duration::try_from_secs_f64(value).map(Some).map_err(|_| {
        let text = format!("{name} is {value}: seconds from 0 on, or None for ever, expected");
        PyValueError::new_err(text)
    })
}
