//! What this process has logged. All tests of it log to one place, so each looks for names of its own.

use std::sync::{Mutex, Once};

struct Notes(Mutex<Vec<String>>);

static NOTES: Notes = Notes(Mutex::new(Vec::new()));

impl log::Log for Notes {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Info
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
        log::set_max_level(log::LevelFilter::Info);
    });
}

/// Whether a line with this text was logged.
pub(crate) fn logged(text: &str) -> bool {
    logged_with(text, "")
}

/// Whether a line with both of these was.
pub(crate) fn logged_with(text: &str, other: &str) -> bool {
    times_logged(text, other) > 0
}

/// How many lines with both of these there were.
pub(crate) fn times_logged(text: &str, other: &str) -> usize {
    let notes = NOTES.0.lock().unwrap();
    let both = |line: &&String| line.contains(text) && line.contains(other);
    notes.iter().filter(both).count()
}
