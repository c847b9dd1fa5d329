//! A worker that has stood still: what was said to it meanwhile goes before its deadlines.

use std::sync::Arc;

use polyrail_core::time::{Duration, Instant};

use super::Loop;
use crate::post::Command;

/// A worker that is so late for what is due has stood still, as in a process that was stopped.
const LATE: Duration = Duration::from_millis(20);

/// How long the control thread may take to hand in what was said meanwhile: as long as this thread was late, which the other
/// is as likely to be where processors are short, and within these bounds.
const CATCH_UP: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));

impl Loop<'_> {
    /// Whether what is due may be done now, if the last look was at `before`. After a pause that has to wait until the
    /// control thread has handed in what peers have said in it, or they would count as silent.
    pub(super) fn may_time_out(&mut self, before: Instant, now: Instant) -> bool {
        if let Some(until) = self.catches_up_by {
            return until <= now && self.catches_up_by.take().is_some();
        }
        let due = self.core.poll_timeout();
        let late = due.map_or(Duration::ZERO, |(due, _)| now.since(due.max(before)));
        if late <= LATE {
            return true;
        }
        let is_own = |post: &&Arc<_>| std::ptr::eq(Arc::as_ptr(post), self.post);
        let Some(post) = self.around.posts.iter().find(is_own).cloned() else {
            return true;
        };
        self.catches_up_by = Some(now + late.max(CATCH_UP.0).min(CATCH_UP.1));
        let told = move || post.send(Command::CaughtUp);
        self.around.plane.hear(told);
        false
    }
}
