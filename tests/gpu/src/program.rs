//! What a program does with CUDA beside us: it captures graphs, and its kernels take long.
//!
//! # Safety
//!
//! `cudarc`'s functions are CUDA's, looked up in the library that the binding has loaded before. What they are handed is a
//! stream that CUDA gave, or a local of the type that its header wants.

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};

use cudarc::driver::sys;
use polyrail::cuda::Stream;

use crate::ends::Wrong;

fn said(call: &str, code: sys::CUresult) -> Result<(), Wrong> {
    match code {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(format!("{call}: {code:?}").into()),
    }
}

/// Whether somebody in this process has started CUDA.
pub(crate) fn is_begun() -> Result<bool, Wrong> {
    let mut count = 0;
    // SAFETY: see the module's.
    match unsafe { sys::cuDeviceGetCount(&mut count) } {
        sys::CUresult::CUDA_ERROR_NOT_INITIALIZED => Ok(false),
        code => said("cuDeviceGetCount", code).map(|()| true),
    }
}

/// Captures what comes into a stream, so that other threads may not do what could disturb that.
pub(crate) fn begin_capture(stream: Stream) -> Result<(), Wrong> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: see the module's.
    let code = unsafe { sys::cuStreamBeginCapture_v2(stream.0 as sys::CUstream, mode) };
    said("cuStreamBeginCapture", code)
}

/// Ends that. An error if it was disturbed.
pub(crate) fn end_capture(stream: Stream) -> Result<(), Wrong> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: see the module's.
    let code = unsafe { sys::cuStreamEndCapture(stream.0 as sys::CUstream, &mut graph) };
    said("cuStreamEndCapture", code)?;
    // SAFETY: what the call before gave, once.
    said("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) })
}

/// A stream stands still until this is dropped.
pub(crate) struct Held {
    _go_on: Sender<()>,
}

extern "C" fn wait(waits: *mut c_void) {
    // SAFETY: `hold` has leaked it for this call, which comes once.
    let waits = unsafe { Box::from_raw(waits.cast::<Receiver<()>>()) };
    // An error says that the other end was dropped, which is what it waits for.
    let _ = waits.recv();
}

/// Puts something into a stream that takes as long as the answer lives.
pub(crate) fn hold(stream: Stream) -> Result<Held, Wrong> {
    let (go_on, waits) = channel();
    let waits: Box<Receiver<()>> = Box::new(waits);
    let waits = Box::into_raw(waits).cast();
    // SAFETY: see the module's; `wait` takes what it is handed, once.
    let code = unsafe { sys::cuLaunchHostFunc(stream.0 as sys::CUstream, Some(wait), waits) };
    said("cuLaunchHostFunc", code)?;
    Ok(Held { _go_on: go_on })
}
