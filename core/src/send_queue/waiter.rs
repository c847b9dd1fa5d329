//! Who wants credits and can wait for them, and who is posting.

use core::sync::atomic::Ordering::SeqCst;

use super::credit::{Credits, Refused};
use super::grant::{Amount, Grant};
use super::line::Place;
use crate::time::Instant;

/// Somebody who wants credits and can wait.
///
/// Ask with [`Self::poll`]; when refused as [`Refused::Full`] or [`Refused::Degraded`], wait until the lane's
/// revision differs from the one in the refusal or the deadline is there, and ask again. Served in turn.
/// Dropping it gives the turn to the next.
#[derive(Debug)]
pub struct Waiter<'a> {
    pub(super) credits: &'a Credits,
    pub(super) amount: Amount,
    pub(super) deadline: Instant,
    /// It has once not fit.
    pub(super) pressed: bool,
    pub(super) place: Option<Place<'a>>,
}

impl Waiter<'_> {
    /// Asks. The first time needs what it asks for, later ones the watermark too.
    pub fn poll(&mut self, now: Instant) -> Result<Grant, Refused> {
        let watermark = self.credits.limits.resume_watermark_works;
        let required_works = if self.pressed {
            let most = self.credits.limits.max.works;
            self.amount.works.max(watermark.min(most))
        } else {
            self.amount.works
        };
        let answer = self
            .credits
            .attempt(self.amount, required_works, self.place.as_ref());
        match answer {
            Err(Refused::Full { required_works, at }) if now >= self.deadline => {
                self.leave();
                Err(Refused::TimedOut { required_works, at })
            }
            Err(Refused::Full { .. }) => {
                self.pressed = true;
                if self.place.is_none() {
                    self.place = self.credits.line.join(&self.credits.revision);
                }
                answer
            }
            Err(Refused::Degraded(_)) if now < self.deadline => answer,
            _ => {
                self.leave();
                answer
            }
        }
    }

    /// When it gives up.
    pub const fn poll_timeout(&self) -> Instant {
        self.deadline
    }

    fn leave(&mut self) {
        self.place = None;
        self.pressed = false;
    }
}

/// Somebody is posting. Ends when dropped.
#[derive(Debug)]
#[must_use = "posting ends when this is dropped"]
pub struct Posting<'a> {
    pub(super) credits: &'a Credits,
}

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        self.credits.posters.fetch_sub(1, SeqCst);
        self.credits.changed();
    }
}
