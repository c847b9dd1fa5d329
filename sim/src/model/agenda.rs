//! What happens when: events in order of time, and of entry where times are equal.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use polyrail_core::units::RequestId;
use polyrail_core::work::{Completion, LaneFact};

/// A lane as the simulator numbers it: all workers' lanes in one row.
pub(crate) type LaneIndex = u32;

/// Something that will happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// A server has carried out what it was at, if it still is that.
    Served { server: u32, generation: u32 },
    /// A slice reaches the far end of its rail.
    Arrives { flight: u32 },
    /// A lane that was asked for opens, or is refused.
    Opens { lane: LaneIndex, epoch: u32 },
    /// The near side has let go of a lane.
    LetGo { lane: LaneIndex, epoch: u32 },
    /// The near side notices that a rail is cut.
    Errors { lane: LaneIndex, epoch: u32 },
    /// Bytes of the control plane reach the peer.
    LetterFar { letter: u32 },
    /// The peer answers.
    Answer { letter: u32 },
    /// Bytes of the control plane reach the engine.
    LetterNear { letter: u32 },
    /// A peer says that it lives.
    Heartbeat { engine: u32, peer: u32 },
    /// The fabric changes.
    Change { interval: u32 },
    /// A submitter starts.
    Starts { submitter: u32 },
    /// A worker's timer.
    Timer { worker: u32 },
    /// A worker goes on with its work.
    Step { worker: u32 },
    /// A completion is seen.
    Seen { worker: u32, completion: Completion },
    /// Something about a lane is seen.
    Fact {
        lane: LaneIndex,
        epoch: u32,
        fact: LaneFact,
    },
    /// A submitter's pause is over.
    Submits { submitter: u32 },
    /// A submitter that waits for room looks for it.
    Looks { submitter: u32 },
    /// A program cancels a request.
    Cancels { worker: u32, request: RequestId },
    /// Something happens to a host.
    Happens { incident: u32 },
    /// An engine has proof of what became of a peer.
    Proved { engine: u32, peer: u16, number: u32 },
    /// And makes new plans for the process that came after.
    Replans { engine: u32, peer: u16 },
    /// An engine asks a peer how it sees their connection, if that has not been answered.
    AsksPath {
        engine: u32,
        peer: u16,
        question: u64,
    },
    /// A host's agent says what is to be said now.
    Says { host: u32 },
    /// It gives a sign of life, if it still is that one.
    Beats { host: u32, life: u32 },
    /// An agent is started, if there is none.
    AgentStarts { host: u32 },
}

/// Compared by its place in time alone, which no other entry has.
struct Entry<W> {
    at: u64,
    order: u64,
    what: W,
}

impl<W> Ord for Entry<W> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest first.
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<W> PartialOrd for Entry<W> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<W> PartialEq for Entry<W> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<W> Eq for Entry<W> {}

/// The events to come.
pub(crate) struct Agenda<W = What> {
    heap: BinaryHeap<Entry<W>>,
    counter: u64,
}

impl<W> Default for Agenda<W> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            counter: 0,
        }
    }
}

/// Where a lottery ticket goes in an entry's order: above its number.
const TICKET_SHIFT: u32 = 56;

impl<W> Agenda<W> {
    /// Enters an event. Among those of one time, first come, first served.
    pub(crate) fn enter(&mut self, at: u64, what: W) {
        self.enter_by_lot(at, what, 0);
    }

    /// Enters an event whose place among those of its time is drawn; behind all that are not.
    pub(crate) fn enter_by_lot(&mut self, at: u64, what: W, ticket: u8) {
        self.counter += 1;
        let order = u64::from(ticket) << TICKET_SHIFT | self.counter;
        self.heap.push(Entry { at, order, what });
    }

    /// The next event and its time.
    pub(crate) fn next(&mut self) -> Option<(u64, W)> {
        self.heap.pop().map(|entry| (entry.at, entry.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_then_lot_then_entry() {
        let mut agenda = Agenda::default();
        let step = |worker| What::Step { worker };
        agenda.enter_by_lot(5, step(1), 9);
        agenda.enter_by_lot(5, step(2), 3);
        agenda.enter(5, step(3));
        agenda.enter(5, step(4));
        agenda.enter(1, step(5));
        let order: Vec<_> = std::iter::from_fn(|| agenda.next()).collect();
        assert_eq!(
            order,
            [
                (1, step(5)),
                (5, step(3)),
                (5, step(4)),
                (5, step(2)),
                (5, step(1))
            ]
        );
    }
}
