//! Waiting for a condition, with a bound.

use std::thread;
use std::time::{Duration, Instant};

/// Looks again and again until `look` finds something.
#[track_caller]
pub(crate) fn until<T>(what: &str, bound: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + bound;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < give_up, "not within {bound:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
