//! Who wants credits and can wait for them.

use super::credit::{Credits, Refused};
use super::grant::Grant;
use super::line::Place;
use crate::time::{Duration, Instant};

/// Somebody who wants credits and can wait.
///
/// Ask with [`Self::poll`]; when refused as [`Refused::Full`], wait until the revision differs from the one in the refusal or the
/// deadline is there, and ask again. Served in turn. Dropping it gives the turn to the next.
#[derive(Debug)]
pub struct Waiter<'a> {
    pub(super) credits: &'a Credits,
    pub(super) works: u16,
    pub(super) deadline: Instant,
    /// When it first did not fit.
    pub(super) since: Option<Instant>,
    pub(super) place: Option<Place<'a>>,
}

impl Waiter<'_> {
    /// Asks. The first time needs what it asks for, later ones the watermark too.
    pub fn poll(&mut self, now: Instant) -> Result<Grant, Refused> {
        let limits = &self.credits.limits;
        let watermark = limits.resume_watermark_works.min(limits.max_works);
        let required_works = match self.since {
            Some(_) => self.works.max(watermark),
            None => self.works,
        };
        let place = self.place.as_ref();
        let answer = self.credits.attempt(self.works, required_works, place);
        let counters = self.credits.counters();
        match answer {
            Err(Refused::Full { required_works, at }) if now >= self.deadline => {
                let waited = self.leave(now);
                counters.handle_timeout();
                Err(Refused::TimedOut {
                    required_works,
                    waited,
                    at,
                })
            }
            Err(Refused::Full { .. }) => {
                if self.since.is_none() {
                    self.since = Some(now);
                    counters.handle_wait();
                }
                if self.place.is_none() {
                    self.place = self.credits.line.join(&self.credits.revision);
                }
                answer
            }
            _ => {
                self.leave(now);
                answer
            }
        }
    }

    /// When it gives up.
    pub const fn poll_timeout(&self) -> Instant {
        self.deadline
    }

    /// It waits no more. How long it has.
    fn leave(&mut self, now: Instant) -> Duration {
        self.place = None;
        let waited = self
            .since
            .take()
            .map_or(Duration::ZERO, |since| now.since(since));
        self.credits.counters().handle_wait_end(waited);
        waited
    }
}
