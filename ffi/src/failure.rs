//! What went wrong in a call: a code for programs, words for people.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sized::{self, Structure};
use crate::words::{POLYRAIL_ERROR_PANIC, POLYRAIL_OK};

/// Bytes of an error's words, the zero at their end included.
pub const POLYRAIL_MESSAGE_BYTES: usize = 488;

/// What came of one call. It belongs to the caller, and to no thread.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_error {
    /// `sizeof(polyrail_error)`, set by the caller.
    pub size: u32,
    /// What the function returned.
    pub code: i32,
    /// Which element of an array is at fault; -1: none, or it is not about one.
    pub index: i64,
    /// What happened, with the values that are at fault and what would be right. Ends with a zero; empty if all is well.
    pub message: [c_char; POLYRAIL_MESSAGE_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, and every pattern of bits is one.
unsafe impl Structure for polyrail_error {
    const DEFAULT: Self = Self {
        size: 0,
        code: POLYRAIL_OK,
        index: -1,
        message: [0; POLYRAIL_MESSAGE_BYTES],
    };
}

/// A failure on its way out.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) index: Option<usize>,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Self {
        Self {
            code,
            index: None,
            text: text.into(),
        }
    }

    pub(crate) fn at(self, index: usize) -> Self {
        let index = Some(index);
        Self { index, ..self }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The words of the last failure of a call on this thread; never null. They stay until the next one fails here. A
/// program with several threads, or with callbacks, had better give each call an error of its own.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_last_message() -> *const c_char {
    const NOTHING: &std::ffi::CStr = c"";
    let last = LAST.try_with(|last| {
        last.try_borrow()
            .map_or(NOTHING.as_ptr(), |last| last.as_ptr())
    });
    last.unwrap_or(NOTHING.as_ptr())
}

/// Runs the body of a function that C calls. What it answers, and panics too, become a code; the words go to `error`,
/// unless that is null, and to the thread.
///
/// # Safety
///
/// `error` is null or leads to a [`polyrail_error`] whose size is right, for this call only.
pub(crate) unsafe fn guard(
    error: *mut polyrail_error,
    body: impl FnOnce() -> Result<(), Failure>,
) -> i32 {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure),
        Err(payload) => Some(Failure::new(POLYRAIL_ERROR_PANIC, said(payload))),
    };
    let code = failure.as_ref().map_or(POLYRAIL_OK, |failure| failure.code);
    if !error.is_null() {
        let mut told = polyrail_error::DEFAULT;
        if let Some(failure) = &failure {
            told.code = code;
            told.index = failure.index.map_or(-1, |index| index as i64);
            write(&mut told.message, &failure.text);
        }
        // SAFETY: the caller's promise. One whose size is impossible is left as it is.
        let _ = unsafe { sized::write(error, told) };
    }
    if let Some(failure) = failure {
        let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
        let _ = LAST.try_with(|last| last.replace(text));
    }
    code
}

/// What a panic said. Its payload is not dropped: that could panic again.
fn said(payload: Box<dyn Any + Send>) -> String {
    let text = match (
        payload.downcast_ref::<&str>(),
        payload.downcast_ref::<String>(),
    ) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "?".to_owned(),
    };
    std::mem::forget(payload);
    format!("a defect of polyrail, please report it: {text}")
}

/// Copies as much of a text as fits, whole characters only, and ends it with a zero.
pub(crate) fn write(to: &mut [c_char], text: &str) {
    let room = to.len().saturating_sub(1);
    let mut end = text.len().min(room);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = text.as_bytes().iter().take(end);
    for (to, byte) in to.iter_mut().zip(bytes) {
        // A zero inside would hide the rest.
        *to = if *byte == 0 { b' ' } else { *byte } as c_char;
    }
    if let Some(to) = to.get_mut(end) {
        *to = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::ffi::CStr;

    fn words(error: &polyrail_error) -> &str {
        // SAFETY: `write` ends it with a zero.
        unsafe { CStr::from_ptr(error.message.as_ptr()) }
            .to_str()
            .unwrap()
    }

    fn fresh() -> polyrail_error {
        polyrail_error {
            size: size_of::<polyrail_error>() as u32,
            ..polyrail_error::DEFAULT
        }
    }

    #[test]
    fn a_panic_becomes_a_code_and_the_next_call_is_well() {
        extern "C" fn called_by_c(error: *mut polyrail_error) -> i32 {
            // SAFETY: the test's own.
            unsafe { guard(error, || panic!("forced: {}", 7)) }
        }
        let mut error = fresh();
        assert_eq!(called_by_c(&mut error), POLYRAIL_ERROR_PANIC);
        assert_eq!(error.code, POLYRAIL_ERROR_PANIC);
        assert!(words(&error).ends_with("forced: 7"), "{}", words(&error));
        // SAFETY: ends with a zero, and no other call fails on this thread meanwhile.
        let last = unsafe { CStr::from_ptr(polyrail_last_message()) };
        assert_eq!(last.to_str().unwrap(), words(&error));
        // SAFETY: the test's own.
        let code = unsafe { guard(&mut error, || Ok(())) };
        assert_eq!(
            (code, error.code, error.index, words(&error)),
            (0, 0, -1, "")
        );
    }

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_does_no_harm() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let body = || std::panic::resume_unwind(Box::new(Bomb));
        // SAFETY: null is nothing to write to.
        let code = unsafe { guard(std::ptr::null_mut(), body) };
        assert_eq!(code, POLYRAIL_ERROR_PANIC);
    }

    #[test]
    fn words_are_cut_between_characters() {
        let mut room = [1; 5];
        write(&mut room, "abcé");
        assert_eq!(room.map(|byte| byte as u8), *b"abc\0\x01");
        write(&mut room, "a\0b");
        assert_eq!(room.map(|byte| byte as u8), *b"a b\0\x01");
    }
}
