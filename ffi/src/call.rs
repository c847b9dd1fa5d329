//! Calls: what programs ask of each other, over the control plane.

use std::ffi::c_void;
use std::sync::Mutex;

use polyrail::{CallError, Caller, Calls, Engine};

use crate::failure::{Failure, guard, polyrail_error};
use crate::segment::{self, polyrail_segment};
use crate::text;
use crate::words::{
    POLYRAIL_ERROR_FORKED, POLYRAIL_ERROR_HANDLE, POLYRAIL_ERROR_PEER, POLYRAIL_ERROR_PEER_LOST,
};

/// Bytes that an answer can have.
pub const POLYRAIL_ANSWER_BYTES: usize = 60 * 1024;

/// Carries out a peer's call: reads `length` bytes of `body`, writes up to `POLYRAIL_ANSWER_BYTES` of `answer` and how
/// many to `answer_length`. Good is 0; anything else is told to the caller, with as many bytes as words. One at a time;
/// may block. It must not return by an exception or a jump.
pub type polyrail_answer = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        method: u16,
        body: *const u8,
        length: usize,
        answer: *mut u8,
        answer_length: *mut usize,
    ) -> i32,
>;

type Answer = unsafe extern "C" fn(*mut c_void, u16, *const u8, usize, *mut u8, *mut usize) -> i32;

/// The program's own function, with what it is called with.
pub(crate) struct Answerer {
    answer: Answer,
    context: *mut c_void,
    /// Where answers are written.
    buffer: Mutex<Vec<u8>>,
}

// SAFETY: the program lets its function be called from any thread, with what it gave.
unsafe impl Send for Answerer {}
// SAFETY: as above; the buffer is locked.
unsafe impl Sync for Answerer {}

impl Answerer {
    pub(crate) fn new(answer: Answer, context: *mut c_void) -> Self {
        Self {
            answer,
            context,
            buffer: Mutex::new(vec![0; POLYRAIL_ANSWER_BYTES]),
        }
    }
}

impl Calls for Answerer {
    fn call(&self, _: &Engine, _: &Caller, method: u16, body: &[u8]) -> Result<Vec<u8>, String> {
        let mut buffer = self.buffer.lock().unwrap_or_else(|e| e.into_inner());
        let mut length = 0;
        let (from, to) = (body.as_ptr(), buffer.as_mut_ptr());
        // SAFETY: the program's promise; both ranges are as long as it is told.
        let code =
            unsafe { (self.answer)(self.context, method, from, body.len(), to, &mut length) };
        let Some(answer) = buffer.get(..length) else {
            return Err(format!(
                "the program answered {length} bytes: {POLYRAIL_ANSWER_BYTES} are possible"
            ));
        };
        match code {
            0 => Ok(answer.to_vec()),
            code if answer.is_empty() => Err(format!("code {code}")),
            _ => Err(String::from_utf8_lossy(answer).into_owned()),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let code = match &error {
            CallError::Stale { .. } => POLYRAIL_ERROR_HANDLE,
            CallError::PeerLost { .. } => POLYRAIL_ERROR_PEER_LOST,
            CallError::Forked => POLYRAIL_ERROR_FORKED,
            _ => POLYRAIL_ERROR_PEER,
        };
        Self::new(code, error.to_string())
    }
}

/// Asks the program of the peer that owns `remote` to do something, and waits for its answer. `length` takes the bytes
/// of the answer, whether or not the buffer has room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_call(
    remote: polyrail_segment,
    method: u16,
    body: *const u8,
    body_length: usize,
    timeout_ns: u64,
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let run = || {
        let (engine, remote) = segment::get(remote)?;
        // SAFETY: the contract of the crate.
        let body = unsafe { text::bytes("body", body, body_length) }?;
        let answer = engine.call(remote, method, body, text::span(timeout_ns))?;
        // SAFETY: the contract of the crate.
        unsafe { text::fill(&answer, buffer, capacity, length) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, run) }
}
