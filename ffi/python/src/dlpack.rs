//! Tensors of other libraries, by DLPack's capsules.
//!
//! # Safety
//!
//! A capsule named `dltensor` holds a `DLManagedTensor`, one named `dltensor_versioned` a `DLManagedTensorVersioned`, as DLPack 1.0 lays
//! them out. Whoever renames it to `used_…` owns the tensor, and calls its deleter once.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::slice;

use pyo3::buffer::ElementType;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const READ_ONLY: u64 = 1;
const SIGNED: u8 = 0;
const UNSIGNED: u8 = 1;

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Shape {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    data_type: DataType,
    sizes: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Shape,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Shape,
}

/// Somebody's tensor, until it is dropped.
pub(crate) struct Tensor(Layout);

enum Layout {
    Plain(NonNull<Managed>),
    Versioned(NonNull<ManagedVersioned>),
}

// SAFETY: the tensor is ours alone; its owner is told of its end by a function that may be called from any thread.
unsafe impl Send for Tensor {}
// SAFETY: what is read of it does not change.
unsafe impl Sync for Tensor {}

/// Where its bytes are.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) address: usize,
    pub(crate) bytes: u64,
    pub(crate) readonly: bool,
    pub(crate) on_gpu: bool,
}

/// What its items are.
pub(crate) struct Items {
    pub(crate) count: usize,
    pub(crate) dimensions: usize,
    pub(crate) kind: ElementType,
}

impl Tensor {
    /// What `object.__dlpack__` gives. A library that does not know of versions is asked without.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let named = PyDict::new(py);
        named.set_item("max_version", (1, 0))?;
        let capsule = match object.call_method("__dlpack__", (), Some(&named)) {
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                object.call_method0("__dlpack__")?
            }
            answer => answer?,
        };
        let versioned = take(&capsule, c"dltensor_versioned", c"used_dltensor_versioned")?;
        let layout = match versioned {
            Some(tensor) => Layout::Versioned(tensor.cast()),
            None => match take(&capsule, c"dltensor", c"used_dltensor")? {
                Some(tensor) => Layout::Plain(tensor.cast()),
                None => {
                    let text = "__dlpack__ gave no capsule with a tensor that is still to be had";
                    return Err(PyTypeError::new_err(text));
                }
            },
        };
        let tensor = Self(layout);
        tensor.check_version()?;
        Ok(tensor)
    }

    fn check_version(&self) -> PyResult<()> {
        let Layout::Versioned(tensor) = &self.0 else {
            return Ok(());
        };
        // SAFETY: ours; the version comes first in all versions.
        let [major, minor] = unsafe { tensor.as_ref() }.version;
        match major {
            1 => Ok(()),
            _ => Err(PyBufferError::new_err(format!(
                "a tensor of DLPack {major}.{minor}: versions 0 and 1 are known"
            ))),
        }
    }

    /// Where its bytes are, if they lie one behind the other where an engine can reach them, and what they are.
    pub(crate) fn place(&self) -> PyResult<(Place, Items)> {
        // SAFETY: the capsule's contract; it is ours until we are dropped.
        let (shape, flags) = unsafe {
            match &self.0 {
                Layout::Plain(tensor) => (&tensor.as_ref().tensor, 0),
                Layout::Versioned(tensor) => (&tensor.as_ref().tensor, tensor.as_ref().flags),
            }
        };
        let on_gpu = match shape.device.kind {
            CPU | CUDA_HOST => false,
            CUDA => true,
            kind => {
                let text = format!(
                    "a tensor on DLPack's device type {kind}: memory of the host (1, 3) and of CUDA (2) can be registered"
                );
                return Err(PyBufferError::new_err(text));
            }
        };
        let count = usize::try_from(shape.dimensions).unwrap_or_default();
        let numbers = |start: *const i64| match start.is_null() || count == 0 {
            true => &[][..],
            // SAFETY: the capsule's contract: as many as there are dimensions.
            false => unsafe { slice::from_raw_parts(start, count) },
        };
        let sizes = numbers(shape.sizes);
        check_contiguous(sizes, numbers(shape.strides))?;
        let items: i64 = sizes.iter().product();
        let DataType { code, bits, lanes } = shape.data_type;
        let item_bits = u64::from(bits) * u64::from(lanes);
        let place = Place {
            address: shape.data as usize + shape.byte_offset as usize,
            bytes: (items.unsigned_abs() * item_bits).div_ceil(8),
            readonly: flags & READ_ONLY != 0,
            on_gpu,
        };
        let bytes = usize::from(bits) / 8;
        let kind = match (code, lanes) {
            (SIGNED, 1) => ElementType::SignedInteger { bytes },
            (UNSIGNED, 1) => ElementType::UnsignedInteger { bytes },
            _ => ElementType::Unknown,
        };
        let items = Items {
            count: items.unsigned_abs() as usize,
            dimensions: count,
            kind,
        };
        Ok((place, items))
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the tensor is ours, and this is the one time.
        unsafe {
            match &self.0 {
                Layout::Plain(tensor) => {
                    if let Some(deleter) = tensor.as_ref().deleter {
                        deleter(tensor.as_ptr());
                    }
                }
                Layout::Versioned(tensor) => {
                    if let Some(deleter) = tensor.as_ref().deleter {
                        deleter(tensor.as_ptr());
                    }
                }
            }
        }
    }
}

/// The pointer of a capsule of this name, which gets the other one.
fn take(
    capsule: &Bound<'_, PyAny>,
    name: &CStr,
    used: &'static CStr,
) -> PyResult<Option<NonNull<c_void>>> {
    // SAFETY: any object may be asked whether it is such a capsule; only then is it changed. Its name lives for ever.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 0 {
            return Ok(None);
        }
        let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr());
        if ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        Ok(NonNull::new(pointer))
    }
}

/// Whether items lie one behind the other, the last dimension first. Strides count items; none: they do.
pub(crate) fn check_contiguous(sizes: &[i64], strides: &[i64]) -> PyResult<()> {
    let mut next = 1;
    for (size, stride) in sizes.iter().zip(strides).rev() {
        if *size != 1 && *stride != next {
            return Err(PyBufferError::new_err(format!(
                "its items do not lie one behind the other (shape {sizes:?}, strides {strides:?}): register a contiguous tensor"
            )));
        }
        next *= size;
    }
    Ok(())
}
