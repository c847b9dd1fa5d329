//! What slices do on their way.

use polyrail_core::time::Instant;
use polyrail_core::units::Epoch;
use polyrail_core::work::{Cause, Completion, Op, Outcome};

use super::agenda::{LaneIndex, What};
use super::fabric::Flight;
use super::luck::{Fate, Word};
use super::{Span, World};
use crate::setup::Cut;

impl World<'_> {
    /// A slice has passed all servers.
    pub(super) fn departs(&mut self, index: u32, travels_ns: u64) {
        let Some(lane) = self.fabric.flight(index).map(|flight| flight.lane) else {
            return;
        };
        let row = &mut self.lanes[lane as usize];
        row.arrives_at = row.arrives_at.max(self.now + travels_ns);
        self.agenda
            .enter(row.arrives_at, What::Arrives { flight: index });
    }

    pub(super) fn arrives(&mut self, index: u32) {
        let Some(flight) = self.fabric.flight(index) else {
            return;
        };
        let rail = self.fabric.rail_of(flight) as usize;
        if self.cuts[rail] != Cut::No {
            self.stuck[rail].push(index);
            return;
        }
        if flight.dropped {
            self.fabric.land(index);
            return;
        }
        let (lane, epoch) = (flight.lane, flight.epoch);
        let let_go = self.lanes[lane as usize].let_go >= epoch;
        let fate = match let_go {
            true => Fate::Well,
            false => self.luck.fate(self.now, rail),
        };
        match fate {
            Fate::Well => {}
            Fate::Fails(cause) => {
                self.fail_lane(lane, epoch, Some((index, cause)));
                self.fabric.land(index);
                return;
            }
            Fate::FailsThere(cause) => self.fail_lane(lane, epoch, Some((index, cause))),
            Fate::FailsBefore(cause, after) => {
                self.fail_lane(lane, epoch, Some((index, cause)));
                let at = self.now + after;
                self.agenda.enter(at, What::Arrives { flight: index });
                return;
            }
        }
        let Some(flight) = self.fabric.land(index) else {
            return;
        };
        let now = self.now;
        let offset = flight.offset.filter(|_| !let_go && flight.op == Op::Write);
        if let Some(offset) = offset {
            let length = u64::from(flight.length);
            self.ledger.read_source(now, offset, length);
        }
        let lands = self.far.lands(flight.lane, flight.epoch, flight.sequence)
            && !(flight.op == Op::Read && let_go);
        if !lands {
            return;
        }
        if let Some(offset) = flight.offset {
            self.lanes[lane as usize].opened.clear();
            self.ledger.arrived(now, offset, u64::from(flight.length));
        }
        if let_go || fate != Fate::Well {
            return;
        }
        if flight.offset.is_some() {
            self.history.slices += 1;
            let bucket = (now / self.setup.bucket_ns()) as usize;
            if self.history.buckets.len() <= bucket {
                self.history
                    .buckets
                    .resize(bucket + 1, vec![0; self.cuts.len()]);
            }
            self.history.buckets[bucket][rail] += u64::from(flight.length);
        }
        self.succeeded(flight);
    }

    /// A slice has landed. Where completions cover others they come in the order of posting, although reads and
    /// writes overtake each other, and only for what asked.
    fn succeeded(&mut self, flight: Flight) {
        let row = &mut self.lanes[flight.lane as usize];
        let device = self.setup.rails[row.rail as usize].from;
        if !self.setup.devices[device].covers {
            return self.completion(&flight, Outcome::Success);
        }
        if flight.epoch != row.epoch {
            return;
        }
        row.overtook.insert(flight.sequence, flight);
        loop {
            let row = &mut self.lanes[flight.lane as usize];
            let Some(next) = row.overtook.remove(&row.completed) else {
                return;
            };
            row.completed += 1;
            if next.signal {
                self.completion(&next, Outcome::Success);
            } else {
                self.trace(&next, Outcome::Success);
            }
        }
    }

    /// What becomes of a slice, for the trace.
    fn trace(&mut self, flight: &Flight, outcome: Outcome) {
        let span = Span {
            row: self.lanes[flight.lane as usize].worker,
            lane: flight.lane,
            began_at: flight.left_at,
            ended_at: self.now,
            bytes: u64::from(flight.length),
            good: outcome == Outcome::Success,
        };
        self.history.traced.slice(span, flight.offset.is_none());
    }

    fn completion(&mut self, flight: &Flight, outcome: Outcome) {
        self.trace(flight, outcome);
        let (worker, lane) = {
            let row = &self.lanes[flight.lane as usize];
            (row.worker, row.id)
        };
        let at = Instant::from_nanos(self.now);
        let completion = Completion {
            lane,
            epoch: Epoch(flight.epoch),
            cookie: flight.cookie,
            at,
            outcome,
        };
        let rail = self.lanes[flight.lane as usize].rail as usize;
        let word = self.luck.word(self.now, rail);
        if let Word::Late(after) | Word::Twice(after) = word {
            let what = What::Seen { worker, completion };
            self.agenda.enter(self.now + after, what);
        }
        if let Word::Kept | Word::Twice(_) = word {
            self.seen(worker, completion);
        }
    }

    /// A worker's transport has a completion for it.
    pub(super) fn seen(&mut self, worker: u32, completion: Completion) {
        self.workers[worker as usize]
            .inbox
            .completions
            .push(completion);
        self.wake(worker, self.now);
    }

    /// The near side's device gives up what it has posted on a lane of a rail that is cut.
    pub(super) fn errors(&mut self, lane: LaneIndex, epoch: u32) {
        self.fail_lane(lane, epoch, None);
    }

    /// All that is posted on a lane's epoch fails: this work for this cause, or the oldest, and the others
    /// with it.
    fn fail_lane(&mut self, lane: LaneIndex, epoch: u32, first: Option<(u32, Cause)>) {
        let row = &mut self.lanes[lane as usize];
        if row.let_go >= epoch {
            return;
        }
        let mut flights: Vec<Flight> = self.fabric.on_lane(lane, epoch).copied().collect();
        if flights.is_empty() {
            return;
        }
        row.let_go = epoch;
        let number = first.and_then(|(index, _)| Some(self.fabric.flight(index)?.number));
        let cause = first.map_or(Cause::RetryExceeded, |(_, cause)| cause);
        flights.sort_unstable_by_key(|flight| (Some(flight.number) != number, flight.number));
        for (index, flight) in flights.iter().enumerate() {
            let cause = if index == 0 { cause } else { Cause::Flushed };
            self.completion(flight, Outcome::Error(cause));
        }
    }

    /// The fabric changes.
    pub(super) fn change(&mut self, index: usize) {
        let interval = &self.setup.intervals[index];
        for (server, rate) in interval.bytes_per_sec.iter().enumerate() {
            self.fabric
                .set_rate(&mut self.agenda, self.now, server, *rate);
        }
        for rail in 0..interval.cuts.len() {
            let (before, cut) = (self.cuts[rail], interval.cuts[rail]);
            self.cuts[rail] = cut;
            if cut == Cut::Error && before != cut {
                self.fail_lanes_of(rail);
            }
            if cut == Cut::No && before != cut {
                let travels_ns = self.setup.delay_ns(rail);
                for flight in std::mem::take(&mut self.stuck[rail]) {
                    self.departs(flight, travels_ns);
                }
            }
        }
    }

    /// All lanes of a rail will see errors.
    fn fail_lanes_of(&mut self, rail: usize) {
        let at = self.now + self.setup.timing.error_us * 1_000;
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].rail as usize == rail {
                let epoch = self.lanes[lane].epoch;
                self.agenda.enter(
                    at,
                    What::Errors {
                        lane: lane as u32,
                        epoch,
                    },
                );
            }
        }
    }
}
