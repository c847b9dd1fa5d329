//! Memory of the program, and whoever it belongs to.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView, PyTuple};

use crate::dlpack::{Place, Tensor, check_contiguous};

/// Keeps memory where it is. Dropping it may run code of Python's: hold no lock.
pub(crate) enum Keep {
    /// The exporter of a buffer, which does not resize it meanwhile.
    Buffer { _buffer: PyUntypedBuffer },
    /// A tensor by DLPack.
    Tensor { _tensor: Tensor },
    /// An object with `__cuda_array_interface__`, which asks no more than to be kept.
    Object { _object: Py<PyAny> },
    /// The program has named an address, and answers for it.
    Nobody,
}

/// Memory that a program offers.
pub(crate) struct Lent {
    pub(crate) place: Place,
    pub(crate) keep: Keep,
}

impl Lent {
    /// What can be registered of an object.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(pair) = object.cast::<PyTuple>() {
            return by_address(pair);
        }
        if let Some(interface) = object.getattr_opt("__cuda_array_interface__")? {
            let place = on_cuda(&interface)?;
            let keep = Keep::Object {
                _object: object.clone().unbind(),
            };
            return Ok(Self { place, keep });
        }
        // Exporters need not say everything of the layout; a view of theirs does.
        match PyMemoryView::from(object).and_then(|view| PyUntypedBuffer::get(&view)) {
            Ok(buffer) => by_buffer(buffer),
            Err(error) if object.getattr_opt("__dlpack__")?.is_none() => {
                if error.is_instance_of::<PyTypeError>(object.py()) {
                    let text = format!(
                        "{} is no memory: an object with the buffer protocol, __dlpack__ or __cuda_array_interface__, or (address, \
                         length) expected",
                        object.get_type()
                    );
                    return Err(PyTypeError::new_err(text));
                }
                Err(error)
            }
            Err(_) => {
                let tensor = Tensor::of(object)?;
                let (place, _) = tensor.place()?;
                let keep = Keep::Tensor { _tensor: tensor };
                Ok(Self { place, keep })
            }
        }
    }
}

fn by_address(pair: &Bound<'_, PyTuple>) -> PyResult<Lent> {
    let numbers: Result<(usize, u64), _> = pair.extract();
    let (address, bytes) = numbers.map_err(|_| {
        let text = format!("{pair} is no memory: (address, length) has two whole numbers");
        PyTypeError::new_err(text)
    })?;
    let place = Place {
        address,
        bytes,
        readonly: false,
        on_gpu: false,
    };
    Ok(Lent {
        place,
        keep: Keep::Nobody,
    })
}

fn by_buffer(buffer: PyUntypedBuffer) -> PyResult<Lent> {
    if !buffer.is_c_contiguous() {
        let text = format!(
            "its items do not lie one behind the other (shape {:?}, strides {:?}): register a contiguous buffer",
            buffer.shape(),
            buffer.strides()
        );
        return Err(PyBufferError::new_err(text));
    }
    let place = Place {
        address: buffer.buf_ptr() as usize,
        bytes: buffer.len_bytes() as u64,
        readonly: buffer.readonly(),
        on_gpu: false,
    };
    Ok(Lent {
        place,
        keep: Keep::Buffer { _buffer: buffer },
    })
}

/// What a `__cuda_array_interface__` says.
fn on_cuda(interface: &Bound<'_, PyAny>) -> PyResult<Place> {
    let interface = interface.cast::<PyDict>()?;
    let get = |key: &str| {
        let missing =
            || PyValueError::new_err(format!("__cuda_array_interface__ has no \"{key}\""));
        interface.get_item(key)?.ok_or_else(missing)
    };
    let sizes: Vec<i64> = get("shape")?.extract()?;
    let (address, readonly): (usize, bool) = get("data")?.extract()?;
    let kind: String = get("typestr")?.extract()?;
    let item_bytes: i64 = kind
        .get(2..)
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| {
            PyValueError::new_err(format!(
                "__cuda_array_interface__ has \"typestr\" {kind:?}: one such as \"<f4\" expected"
            ))
        })?;
    let strides: Option<Vec<i64>> = match interface.get_item("strides")? {
        Some(strides) => strides.extract()?,
        None => None,
    };
    if let Some(strides) = strides {
        let items: Vec<i64> = strides
            .iter()
            .map(|bytes| bytes / item_bytes.max(1))
            .collect();
        check_contiguous(&sizes, &items)?;
    }
    Ok(Place {
        address,
        bytes: (sizes.iter().product::<i64>() * item_bytes).unsigned_abs(),
        readonly,
        on_gpu: true,
    })
}
