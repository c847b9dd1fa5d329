//! Whose turn it is to begin a chunk: by priority, and within one in turn.

use super::request::{Request, TURN};
use crate::queue::Queue;
use crate::table::Table;
use crate::time::{Duration, Instant};
use crate::units::StagedId;
use crate::work::Priority;

/// A priority that has waited for so long, and for so many turns of others, gets one before those above it.
const PATIENCE: Duration = Duration::from_millis(10);
const TURNS: u32 = 8;

type Requests<'a> = Table<'a, Request, StagedId>;

/// Requests of one priority.
#[derive(Debug)]
struct Line {
    waiting: Queue<TURN>,
    /// Since when it has somebody and had no turn, and how many others had since.
    since: Instant,
    passed: u32,
}

/// Requests to one peer with bytes that no chunk has yet.
#[derive(Debug)]
pub(super) struct Turns([Line; Priority::ALL.len()]);

impl Turns {
    pub(super) const NONE: Self = Self(
        [const {
            Line {
                waiting: Queue::EMPTY,
                since: Instant::ZERO,
                passed: 0,
            }
        }; Priority::ALL.len()],
    );

    /// Puts a request at the end of its line.
    pub(super) fn push(
        &mut self,
        requests: &mut Requests<'_>,
        now: Instant,
        priority: Priority,
        row: u32,
    ) {
        if let Some(line) = self.0.get_mut(priority as usize) {
            if line.waiting.is_empty() {
                (line.since, line.passed) = (now, 0);
            }
            line.waiting.push_back(requests, row);
        }
    }

    /// The next one, which leaves its line.
    pub(super) fn pop(&mut self, requests: &mut Requests<'_>, now: Instant) -> Option<u32> {
        let mut next: Option<&mut Line> = None;
        let lines = self.0.iter_mut();
        for line in lines.filter(|line| !line.waiting.is_empty()) {
            let is_late = line.passed >= TURNS && now.since(line.since) >= PATIENCE;
            line.passed = line.passed.saturating_add(1);
            // The lowest that is late, or else the highest.
            if next.is_none() || is_late {
                next = Some(line);
            }
        }
        let line = next?;
        (line.since, line.passed) = (now, 0);
        line.waiting.pop_front(requests)
    }

    /// Takes a request out of its line.
    pub(super) fn remove(&mut self, requests: &mut Requests<'_>, priority: Priority, row: u32) {
        if let Some(line) = self.0.get_mut(priority as usize) {
            line.waiting.remove(requests, row);
        }
    }
}
