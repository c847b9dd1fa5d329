//! Threads that panic on demand: for tests of what programs see of it. Builds without debug assertions have none.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

/// Whether some thread is to panic; looked at before its name is.
static IS_ARMED: AtomicBool = AtomicBool::new(false);
static NAME: Mutex<String> = Mutex::new(String::new());

/// Lets the next thread of this process that has this name panic when it has something to do. Whether this build can.
pub fn arm(thread: &str) -> bool {
    if let Ok(mut name) = NAME.lock() {
        thread.clone_into(&mut name);
    }
    IS_ARMED.store(cfg!(debug_assertions), SeqCst);
    cfg!(debug_assertions)
}

/// Whether the thread that was meant has panicked.
pub fn has_happened() -> bool {
    !IS_ARMED.load(SeqCst)
}

/// Panics if it is this thread's turn.
#[inline]
pub fn check() {
    if cfg!(debug_assertions) && IS_ARMED.load(SeqCst) {
        let is_meant = NAME
            .lock()
            .is_ok_and(|name| thread::current().name() == Some(&name));
        let is_first = is_meant && IS_ARMED.swap(false, SeqCst);
        assert!(!is_first, "on purpose");
    }
}
