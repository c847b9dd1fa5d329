//! Numbers of a transfer: one for all of its requests, or an array with one for each.

use std::ffi::c_void;

use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// One number, or many.
pub(crate) enum Numbers {
    One(u64),
    Many(Array),
}

/// An array of whole numbers of 4 or 8 bytes, in the memory of whoever exports it.
pub(crate) struct Array {
    start: Start,
    count: usize,
    kind: Kind,
    /// Keeps the memory where it is.
    _buffer: PyUntypedBuffer,
}

struct Start(*const c_void);

// SAFETY: it is only read, while the buffer is kept; what somebody writes there meanwhile is read as it comes, and checked.
unsafe impl Send for Start {}
// SAFETY: as above.
unsafe impl Sync for Start {}

#[derive(Clone, Copy)]
enum Kind {
    I32,
    U32,
    I64,
    U64,
}

impl Numbers {
    /// What `name` is given as. `None`: nothing is.
    pub(crate) fn of(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Self>> {
        let Some(value) = value else { return Ok(None) };
        if let Ok(number) = value.extract::<i128>() {
            let number = u64::try_from(number).map_err(|_| {
                let text =
                    format!("{name} is {number}: a whole number of bytes from 0 on expected");
                PyValueError::new_err(text)
            })?;
            return Ok(Some(Self::One(number)));
        }
        let buffer = PyUntypedBuffer::get(value).map_err(|_| {
            let text = format!(
                "{name} is a {}: a whole number, or an array of them such as numpy's of int64, expected",
                value.get_type()
            );
            PyTypeError::new_err(text)
        })?;
        Array::new(name, buffer).map(Self::Many).map(Some)
    }

    /// How many there are, if it is an array.
    pub(crate) fn count(&self) -> Option<usize> {
        match self {
            Self::One(_) => None,
            Self::Many(array) => Some(array.count),
        }
    }

    /// That of the request at `index`, which is one of them. Negative ones are more than anything can be.
    pub(crate) fn at(&self, index: usize) -> u64 {
        match self {
            Self::One(number) => *number,
            Self::Many(array) => array.at(index),
        }
    }
}

impl Array {
    fn new(name: &str, buffer: PyUntypedBuffer) -> PyResult<Self> {
        use ElementType::{SignedInteger, UnsignedInteger};
        let kind = match ElementType::from_format(buffer.format()) {
            SignedInteger { bytes: 4 } => Kind::I32,
            UnsignedInteger { bytes: 4 } => Kind::U32,
            SignedInteger { bytes: 8 } => Kind::I64,
            UnsignedInteger { bytes: 8 } => Kind::U64,
            _ => {
                let text = format!(
                    "{name} is an array of format {:?}: whole numbers of 4 or 8 bytes expected, such as numpy's int64",
                    buffer.format().to_string_lossy()
                );
                return Err(PyTypeError::new_err(text));
            }
        };
        if buffer.dimensions() != 1 || !buffer.is_c_contiguous() {
            let text = format!(
                "{name} is an array of shape {:?} and strides {:?}: one dimension without gaps expected",
                buffer.shape(),
                buffer.strides()
            );
            return Err(PyValueError::new_err(text));
        }
        Ok(Self {
            start: Start(buffer.buf_ptr()),
            count: buffer.item_count(),
            kind,
            _buffer: buffer,
        })
    }

    fn at(&self, index: usize) -> u64 {
        assert!(index < self.count);
        let Start(start) = self.start;
        // SAFETY: the exporter keeps so many items of this kind there; they need not be aligned.
        unsafe {
            match self.kind {
                Kind::I32 => start.cast::<i32>().add(index).read_unaligned() as u64,
                Kind::U32 => start.cast::<u32>().add(index).read_unaligned().into(),
                Kind::I64 => start.cast::<i64>().add(index).read_unaligned() as u64,
                Kind::U64 => start.cast::<u64>().add(index).read_unaligned(),
            }
        }
    }
}
