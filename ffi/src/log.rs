//! What the library has to say beside its answers.

use std::ffi::{CString, c_char, c_void};
use std::sync::{PoisonError, RwLock};

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::failure::{Failure, guard, polyrail_error};
use crate::words::{POLYRAIL_ERROR_IN_USE, choose};

/// Nothing.
pub const POLYRAIL_LOG_OFF: u32 = 0;
/// What went wrong.
pub const POLYRAIL_LOG_ERROR: u32 = 1;
/// What may be wrong.
pub const POLYRAIL_LOG_WARN: u32 = 2;
/// What happened.
pub const POLYRAIL_LOG_INFO: u32 = 3;
/// Why it did.
pub const POLYRAIL_LOG_DEBUG: u32 = 4;

/// Takes a line of the log: its level, the module that says it, and the words. They are good during the call. From any
/// thread, and from several at once. It must not call the library, nor return by an exception or a jump.
pub type polyrail_log = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        level: u32,
        module: *const c_char,
        text: *const c_char,
    ),
>;

type Write = unsafe extern "C" fn(*mut c_void, u32, *const c_char, *const c_char);

/// Where lines go.
struct Sink(RwLock<Option<(Write, *mut c_void)>>);

// SAFETY: the program lets its function be called from any thread, with what it gave.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

static SINK: Sink = Sink(RwLock::new(None));

impl Log for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        // Held meanwhile: whoever takes the function away waits for calls of it to end.
        let sink = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some((write, context)) = *sink else {
            return;
        };
        let c_string = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default();
        let module = c_string(record.target().to_owned());
        let text = c_string(record.args().to_string());
        let level = match record.level() {
            Level::Error => POLYRAIL_LOG_ERROR,
            Level::Warn => POLYRAIL_LOG_WARN,
            Level::Info => POLYRAIL_LOG_INFO,
            Level::Debug | Level::Trace => POLYRAIL_LOG_DEBUG,
        };
        // SAFETY: the program's promise; both texts live during the call.
        unsafe { write(context, level, module.as_ptr(), text.as_ptr()) };
    }

    fn flush(&self) {}
}

/// Hands lines up to a level to `write`, in the place of whatever took them before; null: to nobody. When it has
/// returned, the function before is not called any more. `POLYRAIL_ERROR_IN_USE`: a program in Rust around this library
/// has a logger of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_log_to(
    write: polyrail_log,
    context: *mut c_void,
    level: u32,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let levels = [
            (POLYRAIL_LOG_OFF, LevelFilter::Off),
            (POLYRAIL_LOG_ERROR, LevelFilter::Error),
            (POLYRAIL_LOG_WARN, LevelFilter::Warn),
            (POLYRAIL_LOG_INFO, LevelFilter::Info),
            (POLYRAIL_LOG_DEBUG, LevelFilter::Debug),
        ];
        let level = choose("level", level, &levels)?;
        let ours = log::set_logger(&SINK).is_ok() || is_ours();
        if !ours {
            let text = "this process has a logger already";
            return Err(Failure::new(POLYRAIL_ERROR_IN_USE, text));
        }
        let sink = write.map(|write| (write, context));
        *SINK.0.write().unwrap_or_else(PoisonError::into_inner) = sink;
        log::set_max_level(level);
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Whether the process's logger is this one.
fn is_ours() -> bool {
    std::ptr::addr_eq(log::logger(), &raw const SINK)
}
