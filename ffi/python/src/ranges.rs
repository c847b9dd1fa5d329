//! Numbers of a transfer: one for all of its requests, or an array with one for each.

use std::ffi::c_void;

use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::dlpack::Tensor;

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
    _owner: Owner,
}

/// Whose memory it is.
enum Owner {
    Buffer { _buffer: PyUntypedBuffer },
    Tensor { _tensor: Tensor },
}

/// A number that no page can have.
pub(crate) struct NoPage {
    pub(crate) index: usize,
    pub(crate) number: i128,
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
        // Nearly all are, and to look for others takes longer.
        if let Ok(number) = value.extract::<u64>() {
            return Ok(Some(Self::One(number)));
        }
        if let Ok(number) = value.extract::<i128>() {
            return whole(name, number).map(Self::One).map(Some);
        }
        Array::of(name, value).map(Self::Many).map(Some)
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

/// What `name` is given as, if it can be.
pub(crate) fn whole(name: &str, number: i128) -> PyResult<u64> {
    u64::try_from(number).map_err(|_| {
        let text = format!("{name} is {number}: a whole number from 0 to 2^64 - 1 expected");
        PyValueError::new_err(text)
    })
}

impl Kind {
    fn of(items: ElementType) -> Option<Self> {
        use ElementType::{SignedInteger, UnsignedInteger};
        match items {
            SignedInteger { bytes: 4 } => Some(Self::I32),
            UnsignedInteger { bytes: 4 } => Some(Self::U32),
            SignedInteger { bytes: 8 } => Some(Self::I64),
            UnsignedInteger { bytes: 8 } => Some(Self::U64),
            _ => None,
        }
    }
}

impl Array {
    /// What has the buffer protocol, or is a tensor on the host.
    pub(crate) fn of(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(buffer) = PyUntypedBuffer::get(value) {
            return Self::in_buffer(name, buffer);
        }
        if value.hasattr("__dlpack__")? {
            return Self::in_tensor(name, Tensor::of(value)?);
        }
        let text = format!(
            "{name} is a {}: a whole number, or an array of them such as numpy's of int64, expected",
            value.get_type()
        );
        Err(PyTypeError::new_err(text))
    }

    fn in_tensor(name: &str, tensor: Tensor) -> PyResult<Self> {
        let (place, items) = tensor.place()?;
        let refuse = |what: &str| {
            let text = format!(
                "{name} is a tensor {what}: one dimension of whole numbers of 4 or 8 bytes on the host expected"
            );
            Err(PyTypeError::new_err(text))
        };
        let Some(kind) = Kind::of(items.kind) else {
            return refuse("of other items");
        };
        if place.on_gpu {
            return refuse("on a GPU");
        }
        if items.dimensions != 1 {
            return refuse(&format!("of {} dimensions", items.dimensions));
        }
        Ok(Self {
            start: Start(place.address as *const c_void),
            count: items.count,
            kind,
            _owner: Owner::Tensor { _tensor: tensor },
        })
    }

    fn in_buffer(name: &str, buffer: PyUntypedBuffer) -> PyResult<Self> {
        let Some(kind) = Kind::of(ElementType::from_format(buffer.format())) else {
            let text = format!(
                "{name} is an array of format {:?}: whole numbers of 4 or 8 bytes expected, such as numpy's int64",
                buffer.format().to_string_lossy()
            );
            return Err(PyTypeError::new_err(text));
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
            _owner: Owner::Buffer { _buffer: buffer },
        })
    }

    /// All of them as numbers of pages. `Err`: the first one that is none.
    pub(crate) fn pages(&self) -> Result<Vec<u32>, NoPage> {
        let page = |index| {
            let number = self.at(index);
            u32::try_from(number).map_err(|_| NoPage {
                index,
                number: match self.kind {
                    Kind::I32 | Kind::I64 => number.cast_signed().into(),
                    Kind::U32 | Kind::U64 => number.into(),
                },
            })
        };
        (0..self.count).map(page).collect()
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
