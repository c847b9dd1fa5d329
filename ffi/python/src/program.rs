//! The program `polyrail`, run by Python.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs it with these arguments, and gives its exit code. `program` starts it once more.
#[pyfunction]
pub(crate) fn run_program(py: Python<'_>, arguments: Vec<OsString>, program: Vec<OsString>) -> u8 {
    py.detach(|| polyrail_cli::run(arguments, program))
}
