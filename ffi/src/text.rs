//! Texts and bytes that cross the edge.

use std::ffi::{CStr, c_char};
use std::ptr;
use std::slice;
use std::time::Duration;

use crate::failure::Failure;
use crate::words::{POLYRAIL_ERROR_ARGUMENT, POLYRAIL_ERROR_BUFFER, POLYRAIL_FOREVER};

/// As good as for ever, and nothing overflows when it is added to a time.
const AGES: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A text of the program's; `None`: the pointer is null.
///
/// # Safety
///
/// The contract of the crate.
pub(crate) unsafe fn optional<'a>(
    what: &str,
    text: *const c_char,
) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    let bad = |error: std::str::Utf8Error| {
        let at = error.valid_up_to();
        Failure::new(
            POLYRAIL_ERROR_ARGUMENT,
            format!("{what} is not UTF-8 from byte {at} on"),
        )
    };
    text.to_str().map(Some).map_err(bad)
}

/// The same for a text that has to be there.
///
/// # Safety
///
/// The contract of the crate.
pub(crate) unsafe fn required<'a>(what: &str, text: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    unsafe { optional(what, text) }?.ok_or_else(|| null(what))
}

/// Values of the program's, one after the other.
///
/// # Safety
///
/// The contract of the crate.
pub(crate) unsafe fn slice<'a, T>(
    what: &str,
    from: *const T,
    length: usize,
) -> Result<&'a [T], Failure> {
    match (from.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(what)),
        // SAFETY: the caller's promise.
        (false, _) => Ok(unsafe { slice::from_raw_parts(from, length) }),
    }
}

/// Where an answer goes.
///
/// # Safety
///
/// The contract of the crate.
pub(crate) unsafe fn out<'a, T>(what: &str, to: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { to.as_mut() }.ok_or_else(|| null(what))
}

pub(crate) fn null(what: &str) -> Failure {
    let text = format!("a null pointer to {what}");
    Failure::new(POLYRAIL_ERROR_ARGUMENT, text)
}

/// Copies bytes into a buffer of the program's, and says how many there are. Too many for it is an error, and then
/// nothing is copied.
///
/// # Safety
///
/// The contract of the crate.
pub(crate) unsafe fn fill(
    value: &[u8],
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> Result<(), Failure> {
    if !length.is_null() {
        // SAFETY: the caller's promise.
        unsafe { length.write(value.len()) };
    }
    if value.len() > capacity {
        let text = format!(
            "a buffer of {capacity} bytes is too short for {}",
            value.len()
        );
        return Err(Failure::new(POLYRAIL_ERROR_BUFFER, text));
    }
    if value.is_empty() {
        return Ok(());
    }
    if buffer.is_null() {
        return Err(null("a buffer"));
    }
    // SAFETY: the buffer has that capacity, and nobody else uses it.
    unsafe { ptr::copy_nonoverlapping(value.as_ptr(), buffer, value.len()) };
    Ok(())
}

/// A span as the engine takes it.
pub(crate) fn span(nanos: u64) -> Duration {
    match nanos {
        POLYRAIL_FOREVER => AGES,
        nanos => Duration::from_nanos(nanos).min(AGES),
    }
}
