//! Slices that were cut for one lane and have to go over another that takes less at a time.

use super::attempt::{Attempt, Marks};
use super::bind::Next;
use super::{Chooser, Orchestrator};
use crate::units::RequestId;

impl Attempt {
    /// Takes in what goes on where this one ends, or ends where it begins. Whether it did.
    fn rejoin(&mut self, other: &Self) -> bool {
        let end = |row: &Self| row.offset + u64::from(row.length);
        let touches = end(self) == other.offset || end(other) == self.offset;
        let Some(length) = self.length.checked_add(other.length).filter(|_| touches) else {
            return false;
        };
        debug_assert!(
            self.load() == other.load() && self.op() == other.op(),
            "slices of {:?} and {:?}",
            self.load(),
            other.load()
        );
        self.offset = self.offset.min(other.offset);
        self.length = length;
        true
    }
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// Takes the first slice to be sent again out of its request's queue. Of one that is longer than what its lane
    /// takes only so much, and the rest stays the first in the queue. `None`: there is no row for a part.
    pub(super) fn take_again(&mut self, next: Next) -> Option<u32> {
        let index = self.requests.get(next.request)?.waiting.front()?;
        let row = self.attempts.at(index)?;
        if row.length <= next.length {
            return self.pop_waiting(next.request);
        }
        let (load, op, offset) = (row.load(), row.op(), row.offset);
        let part = self.last_attempt(Attempt::new(load, op, offset, next.length))?;
        self.leave_copies(index);
        let bytes = u64::from(next.length);
        if let Some(row) = self.attempts.at_mut(index) {
            debug_assert!(
                next.length < row.length && next.length > 0,
                "a part of {} bytes of {}",
                next.length,
                row.length
            );
            row.offset += bytes;
            row.length -= next.length;
        }
        let peer = self.requests.get(next.request).map(|row| row.peer);
        if let Some(row) = peer.and_then(|peer| self.peers.get_mut(peer.index())) {
            debug_assert!(
                row.unbound_bytes >= bytes,
                "{bytes} bytes of {} that wait",
                row.unbound_bytes
            );
            row.unbound_bytes -= bytes;
        }
        Some(part)
    }

    /// There is no row for a part of the first slice to be sent again: lets another one of the request go first.
    pub(super) fn pass_over(&mut self, request: RequestId) {
        if let Some(row) = self.requests.get_mut(request)
            && let Some(index) = row.waiting.pop_front(&mut self.attempts)
        {
            row.waiting.push_back(&mut self.attempts, index);
        }
    }

    /// In a table without a free row, a slice that has to be sent again goes back into the row of another one that
    /// waits beside it. Else what was cut in two would keep the row that is there for the next cut, or for a probe.
    /// Whether it did; its own row is free then.
    pub(super) fn rejoin(&mut self, request: u32, index: u32) -> bool {
        if !self.attempts.is_full() {
            return false;
        }
        let is_alone = |row: &Attempt, index| row.sibling == index && !row.is(Marks::DONE);
        let slice = self.attempts.at(index).copied();
        let (Some(slice), Some(row)) = (
            slice.filter(|row| is_alone(row, index)),
            self.requests.at_mut(request),
        ) else {
            return false;
        };
        let mut next = row.waiting.front();
        while let Some(other) = next {
            next = row.waiting.after(&mut self.attempts, other);
            let other = self
                .attempts
                .at_mut(other)
                .filter(|row| is_alone(row, other));
            if other.is_some_and(|other| other.rejoin(&slice)) {
                debug_assert!(row.held > 1, "two wait, and {} are held", row.held);
                row.held -= 1;
                let id = self.attempts.id_at(index);
                id.and_then(|id| self.attempts.remove(id));
                return true;
            }
        }
        false
    }
}
