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
    /// `None`: nobody knows.
    total: Option<u64>,
    said_at: Instant,
    quiet: bool,
}

impl Progress {
    /// Of `total` bytes, if that is known. `quiet`: nobody is told.
    pub(super) fn start(what: &str, total: Option<u64>, quiet: bool) -> Self {
        let is_terminal = !quiet && std::io::stderr().is_terminal();
        let progress = Self {
            bar: is_terminal.then(|| bar(total)),
            bytes: 0,
            total,
            said_at: Instant::now(),
            quiet,
        };
        if progress.bar.is_none() && !quiet {
            match total {
                Some(total) => say(&format!("copying {} from {what}", shown(total))),
                None => say(&format!("copying from {what}")),
            }
        }
        progress
    }

    /// So many bytes more are there.
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        if let Some(bar) = &self.bar {
            return bar.inc(bytes);
        }
        if self.quiet || self.said_at.elapsed() < LINE_EVERY {
            return;
        }
        self.said_at = Instant::now();
        let bytes = self.bytes;
        match self.total {
            Some(total) => {
                let percent = u128::from(bytes) * 100 / u128::from(total.max(1));
                say(&format!("{bytes} of {total} bytes, {percent} %"));
            }
            None => say(&format!("{bytes} bytes")),
        }
    }
}

/// With its unit, whatever that is.
fn shown(bytes: u64) -> String {
    let size = show_size(bytes);
    match size.ends_with('B') {
        true => size,
        false => format!("{size} bytes"),
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(total: Option<u64>) -> ProgressBar {
    const LOOK: &str = "{percent:>3} % [{wide_bar}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    const UNKNOWN: &str = "{spinner} {binary_bytes} {binary_bytes_per_sec}";
    let (bar, look) = match total {
        Some(total) => (ProgressBar::new(total), LOOK),
        None => (ProgressBar::new_spinner(), UNKNOWN),
    };
    match ProgressStyle::with_template(look) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn say(line: &str) {
    // Nobody is left to be told if standard error is gone.
    let _ = writeln!(std::io::stderr(), "{line}");
}
