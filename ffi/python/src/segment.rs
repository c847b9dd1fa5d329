//! Segments: memory, files, and what peers have of them.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use polyrail::{Region, SegmentId};
use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::engine::Shared;
use crate::errors::Raised;
use crate::words;

/// What can be one end of a transfer.
#[pyclass(frozen, subclass, weakref, module = "polyrail")]
pub(crate) struct Segment {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: SegmentId,
    pub(crate) name: Arc<str>,
    pub(crate) bytes: u64,
    /// Nothing may be read into it.
    pub(crate) readonly: bool,
    closed: AtomicBool,
}

impl Segment {
    pub(crate) fn new(shared: &Arc<Shared>, id: SegmentId, name: String, readonly: bool) -> Self {
        Self {
            shared: shared.clone(),
            id,
            name: name.into(),
            bytes: shared.engine.segment_bytes(id).unwrap_or_default(),
            readonly,
            closed: AtomicBool::new(false),
        }
    }

    /// Takes it back, once.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.closed.load(Relaxed) {
            return Ok(());
        }
        self.shared.unregister(py, self.id)?;
        self.closed.store(true, Relaxed);
        Ok(())
    }

    fn text(&self, kind: &str) -> String {
        let Self { name, bytes, .. } = self;
        let end = if self.closed.load(Relaxed) {
            ", closed"
        } else {
            ""
        };
        format!("<polyrail.{kind} {name:?} of {bytes} bytes{end}>")
    }
}

#[pymethods]
impl Segment {
    /// What it is called.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Its size in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes
    }

    fn __len__(&self) -> usize {
        self.bytes as usize
    }
}

/// Memory of this process, or of a GPU.
#[pyclass(frozen, extends = Segment, module = "polyrail")]
pub(crate) struct Memory {
    region: Option<Arc<Region>>,
    /// The engine's own, which stays as long as somebody looks at it.
    is_allocated: bool,
}

impl Memory {
    pub(crate) fn new(py: Python<'_>, segment: Segment, is_allocated: bool) -> PyResult<Py<Self>> {
        let region = segment.shared.engine.region(segment.id);
        let memory = Self {
            region,
            is_allocated,
        };
        Py::new(py, PyClassInitializer::from(segment).add_subclass(memory))
    }
}

#[pymethods]
impl Memory {
    /// Where it begins.
    #[getter]
    fn address(&self) -> usize {
        self.region
            .as_ref()
            .map_or(0, |region| region.base().as_ptr() as usize)
    }

    /// `"cpu"` or `"cuda:N"`.
    #[getter]
    fn device(&self) -> String {
        let region = self.region.as_ref();
        match region.and_then(|region| Some(region.device()?.ordinal())) {
            Some(number) => format!("cuda:{number}"),
            None => "cpu".into(),
        }
    }

    /// Whether `close` has taken it back.
    #[getter]
    fn closed(this: PyRef<'_, Self>) -> bool {
        this.as_super().closed.load(Relaxed)
    }

    /// Takes it back: when this has returned, nothing of the engine touches it any more.
    fn close(this: PyRef<'_, Self>, py: Python<'_>) -> PyResult<()> {
        this.as_super().close(py)
    }

    /// Lets what is submitted from now on begin only when what is in a stream of its GPU now is over.
    fn order_after(this: PyRef<'_, Self>, py: Python<'_>, stream: u64) -> PyResult<()> {
        let Segment { shared, id, .. } = &**this.as_super();
        shared.engine.order_after(*id, stream).raised(py)
    }

    #[getter]
    fn __cuda_array_interface__(this: PyRef<'_, Self>, py: Python<'_>) -> PyResult<Py<PyDict>> {
        if this.device() == "cpu" {
            return Err(PyAttributeError::new_err(
                "it is not on a GPU: look at it by the buffer protocol",
            ));
        }
        let interface = PyDict::new(py);
        interface.set_item("shape", (this.as_super().bytes,))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (this.address(), false))?;
        interface.set_item("version", 3)?;
        Ok(interface.unbind())
    }

    /// Only of memory that the engine has allocated: what a program has registered it has already.
    ///
    /// # Safety
    ///
    /// `view` is for us to fill.
    unsafe fn __getbuffer__(
        this: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let Self {
            region,
            is_allocated,
        } = this.get();
        let Some(region) = region.as_ref().filter(|_| *is_allocated) else {
            let text = "it is memory of the program's, or of a GPU: look at what was registered";
            return Err(PyBufferError::new_err(text));
        };
        let (base, bytes) = (region.base().as_ptr().cast(), region.bytes() as isize);
        // SAFETY: `view` is for us to fill. The region, and with it its memory, stays as long as the object that the view keeps.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, this.as_ptr(), base, bytes, 0, flags) };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(this.py())),
        }
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_why))]
    fn __exit__(this: PyRef<'_, Self>, py: Python<'_>, _why: &Bound<'_, PyTuple>) -> PyResult<()> {
        this.as_super().close(py)
    }

    fn __repr__(this: PyRef<'_, Self>) -> String {
        this.as_super().text("Memory")
    }
}

/// Bytes of a file or block device of this host.
#[pyclass(frozen, extends = Segment, module = "polyrail")]
pub(crate) struct File;

impl File {
    pub(crate) fn new(py: Python<'_>, segment: Segment) -> PyResult<Py<Self>> {
        Py::new(py, PyClassInitializer::from(segment).add_subclass(Self))
    }
}

#[pymethods]
impl File {
    /// Whether `close` has closed it.
    #[getter]
    fn closed(this: PyRef<'_, Self>) -> bool {
        this.as_super().closed.load(Relaxed)
    }

    /// Closes it.
    fn close(this: PyRef<'_, Self>, py: Python<'_>) -> PyResult<()> {
        this.as_super().close(py)
    }

    /// Waits until what completed requests wrote to it is on the disk.
    fn sync(this: PyRef<'_, Self>, py: Python<'_>) -> PyResult<()> {
        let Segment { shared, id, .. } = &**this.as_super();
        py.detach(|| shared.engine.sync_file(*id)).raised(py)
    }

    /// Lets peers open it under a name.
    #[pyo3(signature = (name, access="read-write"))]
    fn offer(this: PyRef<'_, Self>, py: Python<'_>, name: &str, access: &str) -> PyResult<()> {
        let access = words::access(access)?;
        let Segment { shared, id, .. } = &**this.as_super();
        py.detach(|| shared.engine.offer_file(*id, name, access))
            .raised(py)
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_why))]
    fn __exit__(this: PyRef<'_, Self>, py: Python<'_>, _why: &Bound<'_, PyTuple>) -> PyResult<()> {
        this.as_super().close(py)
    }

    fn __repr__(this: PyRef<'_, Self>) -> String {
        this.as_super().text("File")
    }
}

/// A segment of a peer's.
#[pyclass(frozen, extends = Segment, module = "polyrail")]
pub(crate) struct Remote;

impl Remote {
    pub(crate) fn new(py: Python<'_>, segment: Segment) -> PyResult<Py<Self>> {
        Py::new(py, PyClassInitializer::from(segment).add_subclass(Self))
    }
}

#[pymethods]
impl Remote {
    /// Whether `close` has closed it.
    #[getter]
    fn closed(this: PyRef<'_, Self>) -> bool {
        this.as_super().closed.load(Relaxed)
    }

    /// Closes it: what is mapped of it here is unmapped. Its owner keeps its memory.
    fn close(this: PyRef<'_, Self>, py: Python<'_>) -> PyResult<()> {
        let segment = this.as_super();
        if segment.closed.load(Relaxed) {
            return Ok(());
        }
        segment.shared.close_remote(py, segment.id)?;
        segment.closed.store(true, Relaxed);
        Ok(())
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_why))]
    fn __exit__(this: PyRef<'_, Self>, py: Python<'_>, _why: &Bound<'_, PyTuple>) -> PyResult<()> {
        Self::close(this, py)
    }

    fn __repr__(this: PyRef<'_, Self>) -> String {
        this.as_super().text("Remote")
    }
}
