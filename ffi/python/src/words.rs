//! Words of Python for what the engine names by its types.

use polyrail::{Access, DeliveryStatus, Local, Op, Priority, Remote, Status};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The value that a word stands for.
fn choose<T: Copy>(what: &str, word: &str, known: &[(&str, T)]) -> PyResult<T> {
    if let Some((_, value)) = known.iter().find(|(name, _)| *name == word) {
        return Ok(*value);
    }
    let names: Vec<_> = known
        .iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    let text = format!(
        "{what} is \"{}\": {} expected",
        word.escape_debug(),
        names.join(", ")
    );
    Err(PyValueError::new_err(text))
}

pub(crate) fn access(word: &str) -> PyResult<Access> {
    let known = [
        ("local", Access::Local),
        ("read", Access::RemoteRead),
        ("read-write", Access::RemoteReadWrite),
    ];
    choose("access", word, &known)
}

pub(crate) fn priority(word: &str) -> PyResult<Priority> {
    let known = Priority::ALL.map(|priority| (priority.name(), priority));
    choose("priority", word, &known)
}

pub(crate) fn op(word: &str) -> PyResult<Op> {
    choose("op", word, &[("write", Op::Write), ("read", Op::Read)])
}

/// The member of `polyrail.Status`.
pub(crate) fn status(py: Python<'_>, status: Status) -> PyResult<Py<PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    member(py, &CLASS, "Status", status.name())
}

/// The member of `polyrail.DeliveryStatus`.
pub(crate) fn delivery(py: Python<'_>, status: DeliveryStatus) -> PyResult<Py<PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    member(py, &CLASS, "DeliveryStatus", &format!("{status:?}"))
}

fn member(
    py: Python<'_>,
    class: &'static PyOnceLock<Py<PyAny>>,
    name: &str,
    value: &str,
) -> PyResult<Py<PyAny>> {
    let class = class.get_or_try_init(py, || {
        PyResult::Ok(py.import("polyrail._words")?.getattr(name)?.unbind())
    })?;
    class.call1(py, (value,))
}

pub(crate) fn local(local: Local) -> &'static str {
    match local {
        Local::Released => "Released",
        Local::Held => "Held",
    }
}

pub(crate) fn remote(remote: Remote) -> &'static str {
    match remote {
        Remote::Settled => "Settled",
        Remote::Unknown => "Unknown",
    }
}
