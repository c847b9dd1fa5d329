//! What a lane has written, and whether the peer's program can see it.
//!
//! A write has completed when the peer's device has it, which may be before its memory does. An immediate behind it is
//! told to the peer when all before it can be seen; the peer says so, and only then a notification goes out. Of a lane that ends
//! before that, the end of the peer's queue pair is the proof: the peer is asked for it as for a fence.

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId};

/// The cookie of an immediate. Core has none like it.
pub(crate) const IMMEDIATE: u64 = u64::MAX;

/// How often a peer is asked to end a lane, while something waits for that.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// Of one lane.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    /// Something was written since the last immediate was posted.
    pub(crate) wrote: bool,
    /// The immediate that is on its way. One at a time: the peer has room for few.
    out: Option<Immediate>,
    /// Who waits for the one after it.
    next: Vec<u64>,
}

#[derive(Debug)]
struct Immediate {
    number: u32,
    /// Until when the peer may take to answer.
    by: Instant,
    /// Who waits for it.
    tickets: Vec<u64>,
}

/// What is to be done for a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// Nothing: all can be seen.
    Nothing,
    /// Nothing more than is on its way.
    Waits,
    /// Post an immediate.
    Post,
}

impl Sight {
    /// Somebody wants all that was written to be seen.
    pub(crate) fn want(&mut self, ticket: u64) -> Wanted {
        match (&mut self.out, self.wrote) {
            (None, false) => Wanted::Nothing,
            (None, true) => {
                self.next.push(ticket);
                Wanted::Post
            }
            (Some(out), false) => {
                out.tickets.push(ticket);
                Wanted::Waits
            }
            (Some(_), true) => {
                self.next.push(ticket);
                Wanted::Waits
            }
        }
    }

    /// An immediate of this number has been posted, which may be answered until then.
    pub(crate) fn posted(&mut self, number: u32, by: Instant) {
        let tickets = std::mem::take(&mut self.next);
        self.out = Some(Immediate {
            number,
            by,
            tickets,
        });
        self.wrote = false;
    }

    /// The peer has seen an immediate. Who waited for it.
    pub(crate) fn seen(&mut self, number: u32) -> Vec<u64> {
        let out = self.out.take_if(|out| out.number == number);
        out.map_or_else(Vec::new, |out| out.tickets)
    }

    /// Whether another one is to be posted.
    pub(crate) fn wants_another(&self) -> bool {
        self.out.is_none() && !self.next.is_empty()
    }

    /// Until when the peer may take to answer. `None`: nothing is to be answered.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.out.as_ref().map(|out| out.by)
    }

    /// The peer has had its time. Who waits for it goes on waiting, for the lane's end.
    pub(crate) fn overdue(&mut self) {
        if let Some(out) = &mut self.out {
            out.by = Instant::MAX;
        }
    }

    /// The lane has ended in this epoch. Who waits, if anybody may have to: something was written that nobody has seen.
    pub(crate) fn end(&mut self, lane: LaneId, epoch: Epoch) -> Option<Unseen> {
        let out = self.out.take();
        let is_unseen = out.is_some() || std::mem::take(&mut self.wrote);
        let mut tickets = out.map_or_else(Vec::new, |out| out.tickets);
        tickets.append(&mut self.next);
        is_unseen.then_some(Unseen {
            lane,
            epoch,
            tickets,
            ask_at: Instant::ZERO,
        })
    }
}

/// A lane that is over, and what it has written may not be seen by the peer's program yet.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Unseen {
    pub(crate) lane: LaneId,
    /// Its last one that has written something.
    pub(crate) epoch: Epoch,
    /// Who waits for its end.
    pub(crate) tickets: Vec<u64>,
    ask_at: Instant,
}

impl Unseen {
    /// The lane has ended again, in a later epoch.
    pub(crate) fn join(&mut self, later: Self) {
        self.epoch = later.epoch;
        self.tickets.extend(later.tickets);
        self.ask_at = Instant::ZERO;
    }

    /// When the peer is to be asked (again) to end it. `None`: nobody waits.
    pub(crate) fn ask_at(&self) -> Option<Instant> {
        (!self.tickets.is_empty()).then_some(self.ask_at)
    }

    /// Whether the peer is to be asked now. Then it is not again for a while.
    pub(crate) fn asks(&mut self, now: Instant) -> bool {
        let asks = self.ask_at().is_some_and(|at| at <= now);
        if asks {
            self.ask_at = now + ASK_INTERVAL;
        }
        asks
    }
}

#[cfg(test)]
mod tests {
    use polyrail_core::units::RailId;

    use super::*;

    #[test]
    fn one_immediate_answers_all_that_was_written_before_it() {
        let by = Instant::from_nanos(7);
        let mut sight = Sight::default();
        assert_eq!(sight.want(1), Wanted::Nothing);
        sight.wrote = true;
        assert_eq!(sight.want(2), Wanted::Post);
        sight.posted(10, by);
        assert_eq!((sight.want(3), sight.due()), (Wanted::Waits, Some(by)));
        sight.wrote = true;
        assert_eq!(sight.want(4), Wanted::Waits);
        assert_eq!(sight.seen(9), []);
        assert!(!sight.wants_another());
        assert_eq!(sight.seen(10), [2, 3]);
        assert!(sight.wants_another());
        sight.posted(11, by);
        assert!(!sight.wants_another() && !sight.wrote);
        sight.overdue();
        assert_eq!(sight.due(), Some(Instant::MAX));
        let lane = LaneId::new(0, RailId(3));
        let end = |sight: &mut Sight, epoch| sight.end(lane, Epoch(epoch));
        let mut unseen = end(&mut sight, 1).unwrap();
        assert_eq!((&unseen.tickets[..], sight.due()), (&[4][..], None));
        assert_eq!(end(&mut sight, 1), None, "nothing was written since");
        // The peer is asked now and then, as long as somebody waits.
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        assert_eq!(unseen.ask_at(), Some(Instant::ZERO));
        assert_eq!(
            [0, 99, 100].map(|now| unseen.asks(at(now))),
            [true, false, true]
        );
        sight.wrote = true;
        let later = end(&mut sight, 2).unwrap();
        assert_eq!(later.ask_at(), None, "nobody waits for that alone");
        unseen.join(later);
        assert_eq!((unseen.epoch, unseen.asks(at(101))), (Epoch(2), true));
    }
}
