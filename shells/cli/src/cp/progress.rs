//! How far a copy is: a bar on a terminal, and a line now and then elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::sizes::show_size;

/// Time between lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Goes to standard error; standard output is for the result.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    bytes: u64,
    total: u64,
    said_at: Instant,
}

impl Progress {
    /// Of `total` bytes.
    pub(super) fn start(what: &str, total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| bar(total));
        let progress = Self {
            bar,
            bytes: 0,
            total,
            said_at: Instant::now(),
        };
        if progress.bar.is_none() {
            say(&format!("copying {} from {what}", show_size(total)));
        }
        progress
    }

    /// So many bytes more are there.
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        match &self.bar {
            Some(bar) => bar.inc(bytes),
            None if self.said_at.elapsed() >= LINE_EVERY => {
                self.said_at = Instant::now();
                let percent = u128::from(self.bytes) * 100 / u128::from(self.total.max(1));
                say(&format!(
                    "{} of {} bytes, {percent} %",
                    self.bytes, self.total
                ));
            }
            None => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(total: u64) -> ProgressBar {
    const LOOK: &str = "{percent:>3} % [{wide_bar}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    let bar = ProgressBar::new(total);
    match ProgressStyle::with_template(LOOK) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn say(line: &str) {
    // Nobody is left to be told if standard error is gone.
    let _ = writeln!(std::io::stderr(), "{line}");
}
