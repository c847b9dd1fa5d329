//! Every invariant of an orchestrator, checked at once: for the simulator, tests and debug builds.

use core::fmt;

use super::attempt::{Marks, Stage};
use super::request::RequestRow;
use super::{Chooser, Orchestrator, lane::Phase};
use crate::units::RailId;
use crate::work::Op;

/// An invariant that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which, in words.
    pub what: &'static str,
    /// The row it was found in.
    pub row: u64,
    /// What was found.
    pub found: u64,
    /// What should have been.
    pub expected: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (row {}): {} instead of {}",
            self.what, self.row, self.found, self.expected
        )
    }
}

fn check(
    what: &'static str,
    row: impl Into<u64>,
    found: u64,
    expected: u64,
) -> Result<(), Violation> {
    if found == expected {
        Ok(())
    } else {
        Err(Violation {
            what,
            row: row.into(),
            found,
            expected,
        })
    }
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// Checks everything. Linear in the tables, quadratic nowhere that matters.
    ///
    /// Among all else: a request that has not been reported is in line, or has an attempt that is not given up; so something
    /// will end it.
    pub fn audit(&self) -> Result<(), Violation> {
        self.audit_attempts()?;
        self.audit_requests()?;
        self.audit_lanes()?;
        self.audit_lines()?;
        self.audit_peers()
    }

    fn audit_attempts(&self) -> Result<(), Violation> {
        let free = self.attempts.capacity() - self.attempts.len();
        let found = self.attempts.count_free() as u64;
        check("free rows for attempts", 0_u64, found, free as u64)?;
        let lost = |row: &super::Attempt| row.is(Marks::LOST) && row.request().is_some();
        let lost = self.attempts.iter().filter(|(_, row)| lost(row)).count();
        let found = self.lost_attempts.into();
        check("attempts that are given up", 0_u64, found, lost as u64)
    }

    fn audit_requests(&self) -> Result<(), Violation> {
        let (mut timed, mut urgent) = (0, 0);
        for (id, row) in self.requests.iter() {
            timed += u64::from(row.is_timed() && !row.is_reported());
            urgent += u64::from(row.is_in_line() && row.home.is_urgent());
            let (mut held, mut lost, mut waiting, mut unique) = (0, 0, 0, 0);
            for (index, attempt) in self.attempts.iter().filter(|(_, a)| a.is_of(id.index)) {
                held += 1;
                lost += u64::from(attempt.is(Marks::LOST));
                waiting += u64::from(attempt.stage() == Stage::Waiting);
                let counts = !attempt.is(Marks::DONE) && self.is_first_copy(index.index);
                unique += if counts { u64::from(attempt.length) } else { 0 };
            }
            if let Some(transfer) = self.transfer_of(row) {
                held += 1;
                lost += u64::from(
                    self.requests
                        .at(transfer)
                        .is_some_and(RequestRow::is_reported),
                );
                let has_name = self.has_name(transfer, id.index);
                check("names of a transfer", transfer, u64::from(has_name), 1)?;
            }
            check(
                "attempts held by a request",
                id.index,
                u64::from(row.held),
                held,
            )?;
            check(
                "attempts lost by a request",
                id.index,
                u64::from(row.lost),
                lost,
            )?;
            check(
                "slices waiting in a request",
                id.index,
                row.waiting.len() as u64,
                waiting,
            )?;
            if !row.is_reported() {
                let waits = row.is_in_line() || row.held > row.lost || row.handover.is_out();
                check(
                    "what an unreported request waits for, at least",
                    id.index,
                    waits.into(),
                    1,
                )?;
                let is_going = row.ending.is_some() || row.handover.is_any();
                let is_in_line = is_going && row.is_in_line();
                check(
                    "requests in line that are ending or handed over",
                    id.index,
                    is_in_line.into(),
                    0,
                )?;
            }
            if row.is_taken() && row.role.is_submitted() && !row.has_news() {
                let is_news = self.is_news(id).into();
                let what = "what is known of a reported request and was not told";
                check(what, id.index, is_news, 0)?;
            }
            if row.wants_bytes() && !row.is_name() {
                let accounted = row.acked_bytes + unique + (row.length - row.cursor);
                check("bytes of a request", id.index, accounted, row.length)?;
            }
            check(
                "bytes acknowledged at most once",
                id.index,
                row.acked_bytes.max(row.length),
                row.length,
            )?;
        }
        let found = self.timed_requests.into();
        check("requests with a time", 0_u64, found, timed)?;
        check("urgent requests in line", 0_u64, self.urgent.into(), urgent)
    }

    /// Whether an attempt stands for its slice among the copies of it.
    fn is_first_copy(&self, index: u32) -> bool {
        let mut at = index;
        while let Some(next) = self
            .attempts
            .at(at)
            .map(|row| row.sibling)
            .filter(|next| *next != index)
        {
            if next < index {
                return false;
            }
            at = next;
        }
        true
    }

    fn audit_lanes(&self) -> Result<(), Violation> {
        for (index, lane) in self.lanes.iter().enumerate() {
            let rail = RailId(index as u16);
            let (mut bytes, mut bound, mut posted, mut reads) = (0, 0, 0, 0);
            for (_, attempt) in self.attempts.iter().filter(|(_, a)| a.rail() == rail) {
                match attempt.stage() {
                    Stage::Waiting | Stage::Free => continue,
                    Stage::Bound => bound += 1,
                    Stage::Posted => posted += 1,
                }
                bytes += u64::from(attempt.length);
                reads += u64::from(attempt.op() == Op::Read);
            }
            check("reads bound to a lane", rail.0, lane.reads(), reads)?;
            check(
                "bytes in flight on a lane",
                rail.0,
                lane.inflight_bytes,
                bytes,
            )?;
            check(
                "attempts bound to a lane",
                rail.0,
                lane.flight.bound() as u64,
                bound,
            )?;
            check(
                "attempts posted on a lane",
                rail.0,
                lane.flight.posted() as u64,
                posted,
            )?;
            if lane.phase != Phase::Open {
                let what = "attempts bound to a lane that is not open";
                check(what, rail.0, bound, 0)?;
            }
            if matches!(lane.phase, Phase::Closed | Phase::Opening { .. }) {
                check(
                    "attempts on a lane that is not open",
                    rail.0,
                    bound + posted,
                    0,
                )?;
            }
            let assigned = self.config.policy.assigned_bytes(rail);
            let own = self.own_assigned_bytes(rail);
            check(
                "bytes assigned to a rail, at least",
                rail.0,
                assigned.max(own),
                assigned,
            )?;
            let shared = self.shared.inflight_bytes(rail);
            check(
                "bytes in flight on a rail, at least",
                rail.0,
                shared.max(bytes),
                shared,
            )?;
        }
        Ok(())
    }

    /// Each peer that has something to bind is in one of the two lines, and in the one that it says.
    fn audit_lines(&self) -> Result<(), Violation> {
        let (mut ready, mut waiting) = (0, 0);
        for peer in self.peers.iter().filter(|peer| peer.is_in_line()) {
            ready += u64::from(!peer.waits_for_room);
            waiting += u64::from(peer.waits_for_room);
        }
        let found = self.ready.len() as u64;
        check("peers that may find room", 0_u64, found, ready)?;
        let found = self.waiting.len() as u64;
        check("peers that wait for room", 0_u64, found, waiting)
    }

    fn audit_peers(&self) -> Result<(), Violation> {
        for (index, peer) in self.peers.iter().enumerate() {
            let mut unbound = 0;
            let mut pending = 0;
            for (id, row) in self
                .requests
                .iter()
                .filter(|(_, row)| row.peer.index() == index)
            {
                unbound += row.length - row.cursor;
                pending += u64::from(row.has_unbound());
                let waits = |a: &super::Attempt| a.is_of(id.index) && a.stage() == Stage::Waiting;
                unbound += self
                    .attempts
                    .iter()
                    .filter(|(_, a)| waits(a))
                    .map(|(_, a)| u64::from(a.length))
                    .sum::<u64>();
            }
            check(
                "bytes a peer has to bind",
                index as u64,
                peer.unbound_bytes,
                unbound,
            )?;
            // A request may wait in line for copies that have become needless; it leaves at its turn.
            let in_line = peer.pending.len() as u64;
            check(
                "requests a peer has to bind, at least",
                index as u64,
                in_line.max(pending),
                in_line,
            )?;
        }
        Ok(())
    }
}
