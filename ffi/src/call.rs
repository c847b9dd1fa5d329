//! Calls: what programs ask of each other, over the control plane.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
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

/// The peer whose program calls. What it leads to lasts until `answer` returns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_caller {
    /// As far as this library knows it.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// What its engine calls itself: its own word, not proof of who it is.
    pub peer: *const c_char,
    /// Whom its certificate names; null: it has shown none.
    pub member: *const c_char,
    /// Where its session came from first, with the port.
    pub address: *const c_char,
    /// The name of its trust domain; null: the common one, which has all segments of programs in C.
    pub domain: *const c_char,
}

/// Carries out a peer's call, which may be of any trust domain: reads `length` bytes of `body`, writes up to
/// `POLYRAIL_ANSWER_BYTES` of `answer` and how many to `answer_length`. Good is 0; anything else is told to the caller,
/// with as many bytes as words. One at a time; may block. It must not return by an exception or a jump.
pub type polyrail_answer = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        caller: *const polyrail_caller,
        method: u16,
        body: *const u8,
        length: usize,
        answer: *mut u8,
        answer_length: *mut usize,
    ) -> i32,
>;

type Answer = unsafe extern "C" fn(
    *mut c_void,
    *const polyrail_caller,
    u16,
    *const u8,
    usize,
    *mut u8,
    *mut usize,
) -> i32;

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

/// A text for C. A zero in it would hide what is behind.
fn text_of(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

impl Calls for Answerer {
    fn call(
        &self,
        _: &Engine,
        caller: &Caller,
        method: u16,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let (peer, address) = (text_of(&caller.peer), text_of(&caller.address));
        let member = caller.member.as_deref().map(text_of);
        let domain = caller.domain.as_deref().map(text_of);
        let lead = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let caller = polyrail_caller {
            size: size_of::<polyrail_caller>() as u32,
            reserved: 0,
            peer: peer.as_ptr(),
            member: lead(&member),
            address: address.as_ptr(),
            domain: lead(&domain),
        };
        let mut buffer = self.buffer.lock().unwrap_or_else(|e| e.into_inner());
        let mut length = 0;
        let (from, to) = (body.as_ptr(), buffer.as_mut_ptr());
        let (context, size) = (self.context, body.len());
        // SAFETY: the program's promise; both ranges are as long as it is told, and what it is told of the caller
        // lasts.
        let code = unsafe { (self.answer)(context, &caller, method, from, size, to, &mut length) };
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
        let body = unsafe { text::slice("body", body, body_length) }?;
        let answer = engine.call(remote, method, body, text::span(timeout_ns))?;
        // SAFETY: the contract of the crate.
        unsafe { text::fill(&answer, buffer, capacity, length) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, run) }
}
