//! Lines of the log that anybody who can connect can cause: so many of them, and no more.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Lines at once, after a while without.
const BURST: u32 = 32;

/// One more after each of these.
const INTERVAL: Duration = Duration::from_millis(250);

/// How many lines may be written now.
#[derive(Debug)]
struct Allowance {
    lines: u32,
    /// When `lines` was last raised.
    since: Option<Instant>,
    left_out: u64,
}

impl Allowance {
    const FULL: Self = Self {
        lines: BURST,
        since: None,
        left_out: 0,
    };

    fn take(&mut self, now: Instant) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let passed = now.saturating_duration_since(since).as_nanos() / INTERVAL.as_nanos();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed > 0 {
            self.lines = self.lines.saturating_add(passed).min(BURST);
            self.since = Some(now);
        }
        match self.lines.checked_sub(1) {
            Some(left) => {
                self.lines = left;
                Some(std::mem::take(&mut self.left_out))
            }
            None => {
                self.left_out += 1;
                None
            }
        }
    }
}

/// The lines of somebody: as many, whatever others write.
#[derive(Debug)]
pub struct Lines(Mutex<Allowance>);

impl Lines {
    const fn new() -> Self {
        Self(Mutex::new(Allowance::FULL))
    }

    /// Whether one more may be written now, and how many were left out since the last. For
    /// [`complain!`](crate::complain).
    pub fn take(&self) -> Option<u64> {
        let mut allowance = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        allowance.take(Instant::now())
    }
}

impl Default for Lines {
    fn default() -> Self {
        Self::new()
    }
}

static COMPLAINTS: Lines = Lines::new();
static REMARKS: Lines = Lines::new();

/// Whether one more line may be written now, of all in this process, and how many were left out since the last. For
/// [`complain!`](crate::complain).
pub fn may_complain() -> Option<u64> {
    COMPLAINTS.take()
}

/// The same for [`remark!`](crate::remark).
pub fn may_remark() -> Option<u64> {
    REMARKS.take()
}

/// Warns of something that anybody who can connect can bring about: four times a second at most, and 32 times at once.
/// Takes what [`log::warn!`] takes. `by LINES;` before it: of [`Lines`](crate::complaint::Lines) of its own, which others do
/// not use up.
#[macro_export]
macro_rules! complain {
    (by $lines:expr; $($arg:tt)+) => {
        $crate::complain!(@ $lines.take(), $($arg)+)
    };
    (@ $taken:expr, $($arg:tt)+) => {
        if log::log_enabled!(log::Level::Warn)
            && let Some(left_out) = $taken
        {
            if left_out > 0 {
                log::warn!("{left_out} lines like the next were left out");
            }
            log::warn!($($arg)+);
        }
    };
    ($($arg:tt)+) => {
        $crate::complain!(@ $crate::complaint::may_complain(), $($arg)+)
    };
}

/// Informs of what happens again and again, under the same limit, apart from that of [`complain!`](crate::complain).
/// Takes what [`log::info!`] takes.
#[macro_export]
macro_rules! remark {
    ($($arg:tt)+) => {
        if log::log_enabled!(log::Level::Info)
            && let Some(left_out) = $crate::complaint::may_remark()
        {
            if left_out > 0 {
                log::info!("{left_out} lines like the next were left out");
            }
            log::info!($($arg)+);
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_complaints_is_a_few_lines_and_then_some_each_second() {
        let mut allowance = Allowance::FULL;
        let start = Instant::now();
        let mut told = Vec::new();
        for millis in 0..10_000 {
            for _ in 0..10 {
                told.extend(allowance.take(start + Duration::from_millis(millis)));
            }
        }
        assert_eq!(told.len(), 32 + 39);
        assert_eq!(told[..32], [0; 32]);
        assert_eq!(told[32], 250 * 10 - 32);
        let left_out: u64 = told.iter().sum::<u64>() + allowance.left_out;
        assert_eq!(left_out + told.len() as u64, 100_000);
    }

    #[test]
    fn who_uses_lines_up_leaves_others_theirs() {
        let (strangers, rails) = (Lines::default(), Lines::default());
        let flood = (0..1_000).filter_map(|_| strangers.take()).count();
        assert!(flood < 1_000, "{flood}");
        assert_eq!(rails.take(), Some(0));
    }
}
