//! Threads that wait: for the revision of a queue pair's credits to differ, for a time, or to be called.

use polyrail_core::send_queue::credit::Revision;
use polyrail_core::time::Instant;

use super::{What, World};

/// A virtual thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Thread {
    Caller(usize),
    Worker(usize),
}

/// A thread that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked {
    thread: Thread,
    /// Which wait it is: an event for an earlier one says nothing to it.
    turn: u64,
    /// The queue pair, and what was seen of it.
    change: Option<(usize, Revision)>,
    /// [`World::call_up`] ends it.
    callable: bool,
}

impl World<'_> {
    fn turn(&mut self, thread: Thread, change: Option<(usize, Revision)>) -> u64 {
        self.turns += 1;
        self.blocked.push(Blocked {
            thread,
            turn: self.turns,
            change,
            callable: false,
        });
        self.turns
    }

    /// The thread goes on then, and not before.
    pub(super) fn wake_at(&mut self, at: u64, thread: Thread) {
        let turn = self.turn(thread, None);
        self.agenda.enter(at, What::Goes { thread, turn });
    }

    /// The thread goes on when the revision differs, or then.
    pub(super) fn wait_for_change(
        &mut self,
        thread: Thread,
        pair: usize,
        seen: Revision,
        until: Instant,
    ) {
        let turn = self.turn(thread, Some((pair, seen)));
        if until != Instant::MAX {
            let at = until.as_nanos().max(self.now);
            self.agenda.enter(at, What::Goes { thread, turn });
        }
    }

    /// The thread goes on when [`Self::call_up`] says so.
    pub(super) fn wait_for_call(&mut self, thread: Thread) {
        self.turn(thread, None);
        if let Some(row) = self.blocked.last_mut() {
            row.callable = true;
        }
    }

    /// Ends a [`Self::wait_for_call`].
    pub(super) fn call_up(&mut self, thread: Thread) {
        if let Some(row) = self
            .blocked
            .iter()
            .find(|row| row.thread == thread && row.callable)
        {
            let (at, turn) = (self.now + self.setup.engine.wake_ns, row.turn);
            self.agenda.enter(at, What::Goes { thread, turn });
        }
    }

    /// Whether the thread waits for this; from now on it does not.
    pub(super) fn unblock(&mut self, thread: Thread, turn: u64) -> bool {
        let place = (self.blocked.iter()).position(|row| (row.thread, row.turn) == (thread, turn));
        place.map(|place| self.blocked.swap_remove(place)).is_some()
    }

    /// Those whose revision differs are woken.
    pub(super) fn wake(&mut self) {
        let at = self.now + self.setup.engine.wake_ns;
        for row in &mut self.blocked {
            let Some((pair, seen)) = row.change else {
                continue;
            };
            if self.credits[pair].revision() != seen {
                row.change = None;
                let Blocked { thread, turn, .. } = *row;
                self.agenda.enter(at, What::Goes { thread, turn });
            }
        }
    }
}
