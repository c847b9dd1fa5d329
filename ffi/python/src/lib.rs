//! polyrail for Python: the extension module `polyrail._native`.
//!
//! The package around it is in `python/polyrail`. What is there in Python is what is written more plainly there: exceptions,
//! names of statuses, waiting in an event loop, the log.
//!
//! # How the interpreter is treated
//!
//! - It is let go of in every call that can block ([`patience`]), and asked every 25 ms meanwhile whether a signal has come.
//! - Threads of the engine never ask for it. What they have to say waits in a queue ([`log`]) that a thread of Python's empties.
//! - Locks of this crate are held for moments: either with the interpreter and without running any code of Python's, or without it.
//!   So no thread that waits for the interpreter holds one, and none is held by another thread while a process is forked.
//!
//! # How memory is kept
//!
//! The engine knows addresses. Whoever they belong to is kept by [`keep::Keep`] until the engine has said that nothing touches
//! them any more, and for ever if it cannot say so.

mod arguments;
mod batch;
mod config;
mod dlpack;
mod engine;
mod errors;
mod keep;
mod log;
mod notification;
mod paged;
mod patience;
mod peer;
mod prepared;
mod program;
mod queue;
mod ranges;
mod regions;
mod report;
mod segment;
mod stats;
mod submission;
mod words;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// The engine; see the package `polyrail`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    refuse_subinterpreters()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("NOTIFICATION_BYTES_MAX", polyrail::NOTIFICATION_BYTES_MAX)?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<segment::Segment>()?;
    module.add_class::<segment::Memory>()?;
    module.add_class::<segment::File>()?;
    module.add_class::<segment::Remote>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<report::Summary>()?;
    module.add_class::<report::Report>()?;
    module.add_class::<report::Reports>()?;
    module.add_class::<paged::Blocks>()?;
    module.add_class::<paged::PagedRequest>()?;
    module.add_class::<prepared::Prepared>()?;
    module.add_class::<notification::Notification>()?;
    module.add_class::<notification::Notifications>()?;
    module.add_class::<notification::Delivery>()?;
    module.add_class::<peer::PeerEvent>()?;
    module.add_class::<peer::PeerEvents>()?;
    module.add_class::<queue::CompletionQueue>()?;
    module.add_class::<regions::Regions>()?;
    module.add_function(wrap_pyfunction!(regions::submit_at, module)?)?;
    module.add_class::<queue::ArrivalWatch>()?;
    module.add_function(wrap_pyfunction!(engine::close_all, module)?)?;
    module.add_function(wrap_pyfunction!(log::log_to_queue, module)?)?;
    module.add_function(wrap_pyfunction!(log::next_record, module)?)?;
    module.add_function(wrap_pyfunction!(log::end_log, module)?)?;
    module.add_function(wrap_pyfunction!(log::forget_log, module)?)?;
    module.add_function(wrap_pyfunction!(program::run_program, module)?)
}

/// Threads, locks and the logger are of the process: a second interpreter would have to share them.
fn refuse_subinterpreters() -> PyResult<()> {
    // SAFETY: the thread is attached to an interpreter, as whoever initialises a module is.
    let number =
        unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) };
    match number {
        0 => Ok(()),
        _ => Err(PyImportError::new_err(
            "polyrail works in the main interpreter only, and this is a sub-interpreter: import it in the main one, or start a process",
        )),
    }
}
