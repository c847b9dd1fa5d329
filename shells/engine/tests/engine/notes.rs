//! What this process has logged. All tests of it log to one place, so each looks for names of its own.

use std::sync::{Mutex, Once};

struct Notes(Mutex<Vec<String>>);

static NOTES: Notes = Notes(Mutex::new(Vec::new()));

impl log::Log for Notes {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Notes what is logged, from the first call on.
pub(crate) fn listen() {
    static LOGGER: Once = Once::new();
    LOGGER.call_once(|| {
        log::set_logger(&NOTES).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
    });
}

/// Whether a line with this text was logged.
pub(crate) fn logged(text: &str) -> bool {
    logged_with(text, "")
}

/// Whether a line with both of these was.
pub(crate) fn logged_with(text: &str, other: &str) -> bool {
    let notes = NOTES.0.lock().unwrap();
    notes
        .iter()
        .any(|line| line.contains(text) && line.contains(other))
}
