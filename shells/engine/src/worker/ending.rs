//! The end of a worker.

use std::sync::atomic::Ordering::*;

use polyrail_core::time::Instant;

use super::Loop;
use crate::afterwards::Afterwards;
use crate::post::{NOBODY, WAITER};
use crate::refusal::Refusal;

/// How far its end has come.
#[derive(Default)]
pub(super) struct Ending {
    /// When it stops waiting for what is in flight. `None`: it is not told to end.
    pub(super) at: Option<Instant>,
    /// It has ended: it has no transports any more.
    is_closed: bool,
}

impl Loop<'_> {
    /// Whether it has ended. Nobody drives it any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.ending.is_closed
    }

    /// What the program is to be told now that somebody releases the drive lock.
    pub(crate) fn take_afterwards(&mut self) -> Afterwards {
        std::mem::take(&mut self.afterwards)
    }

    /// Drives a worker that was told to end until it has, on the thread of whoever ends the engine.
    pub(crate) fn end(&mut self) {
        self.post.alarm.asleep.store(NOBODY, Relaxed);
        let mut idle_since = None;
        loop {
            let (busy, now) = self.round(self.around.clock.now());
            if self.is_due_to_close(now) {
                return self.close();
            }
            let idle = self.idle(WAITER);
            if !self.spins(now, busy, idle, &mut idle_since) && self.may_sleep(WAITER) {
                let due = self.due().unwrap_or(Instant::MAX);
                self.sleep_here(due.since(now));
                self.post.alarm.asleep.store(NOBODY, Relaxed);
                idle_since = None;
            }
        }
    }

    /// Whether it was told to end, and nothing keeps it from that any more.
    pub(super) fn is_due_to_close(&self, now: Instant) -> bool {
        self.ending
            .at
            .is_some_and(|at| self.post.is_idle() || now >= at)
    }

    /// Lets go of all transports, and takes nothing any more. Batches that have not ended are left with the post box.
    pub(super) fn close(&mut self) {
        if std::mem::replace(&mut self.ending.is_closed, true) {
            return;
        }
        self.end_unseen(Instant::MAX);
        for ticket in self.unseen.drain(..) {
            ticket.go(&self.around.plane);
        }
        // First: whoever hears of the end of a batch has the memory to himself.
        self.endpoint = Box::new(Refusal::new(self.post.alarm.wake.clone()));
        self.post.close(|row| self.intake.begun(row));
        self.post.close_commands();
    }
}

impl Drop for Loop<'_> {
    /// It has panicked, if it is not closed: whoever still waits is told the truth about what is left.
    fn drop(&mut self) {
        let was_closed = self.is_closed();
        self.close();
        let mut afterwards = self.take_afterwards();
        if !was_closed {
            afterwards.append(
                self.post
                    .abandon(false, |ticket| ticket.go(&self.around.plane)),
            );
        }
        afterwards.carry_out();
    }
}
