//! How a batch stands, and each request in it.

use std::task::Waker;
use std::time::Duration;

use polyrail_core::batch::{Batch as Counters, BatchReport};
use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::send_queue::credit::Grant;
use smallvec::SmallVec;

use super::pieces::Pieces;
use crate::delivery::Outgoing;
use crate::error::ReleaseError;
use crate::followers::Followers;
use crate::overlap::Claim;
use crate::post::Order;
use crate::request::Request;
use crate::visible::Sight;
use crate::wakers::Wakers;

/// Most batches have one request.
pub(crate) type Reports = SmallVec<[Report; 1]>;

pub(super) struct State {
    /// Of the batch, once it has ended.
    pub(super) status: Status,
    /// What its requests that have not ended take of the worker's room.
    pub(super) room: Grant,
    /// What it asks for, until whoever carries it out has taken that.
    pub(super) order: Order,
    pub(super) counters: Counters,
    pub(super) reports: Reports,
    /// Of paged requests, which are moved as several pieces each.
    pub(super) pieces: Option<Box<Pieces>>,
    /// Pieces that have been reported.
    pub(super) reported: usize,
    /// Requests whose memory is held or whose peer's side is not settled, those not ended included.
    pub(super) open: u32,
    /// Nothing more will be told: what is open now stays so.
    pub(super) closed: bool,
    pub(super) followers: Followers,
    /// Who has to see what it has written before it ends.
    pub(super) sight: Option<Box<Sight>>,
    /// Sent when it has ended well.
    pub(super) notification: Option<Outgoing>,
    /// What it writes, until it is over.
    pub(super) claim: Option<Claim>,
    /// Threads that sleep until it has ended.
    pub(super) sleepers: u32,
    /// Tasks that wait until nothing of it is open. They can be woken anywhere.
    pub(super) releases: Wakers,
}

impl State {
    /// Of a batch without requests, which has not ended.
    pub(super) fn new() -> Self {
        Self {
            status: Status::Pending,
            room: Grant::default(),
            order: Order::default(),
            counters: Counters::new(0),
            reports: Reports::new(),
            pieces: None,
            reported: 0,
            open: 0,
            closed: false,
            followers: Followers::default(),
            sight: None,
            notification: None,
            claim: None,
            sleepers: 0,
            releases: Wakers::default(),
        }
    }

    /// Of one whose requests have all ended, with nothing of them open.
    pub(super) fn ended(reports: Reports) -> Self {
        let counters = counters(&reports);
        Self {
            status: counters.report().status,
            counters,
            reports,
            ..Self::new()
        }
    }

    /// A piece has ended so: mostly that is a request. The pieces of it whose memory is free by that: memory that somebody may
    /// still touch stays registered until that is known to be over.
    pub(super) fn record(&mut self, piece: usize, mut report: Report) -> u32 {
        let index = self.request(piece);
        let Some(row) = self.reports.get_mut(index) else {
            return 0;
        };
        self.reported += 1;
        let was_open = is_open(row);
        let freed = match &mut self.pieces {
            None => {
                *row = report;
                u32::from(report.local == Local::Released)
            }
            Some(pieces) => {
                let Some(freed) = pieces.record(index, piece, &report, row) else {
                    return 0;
                };
                report = *row;
                freed
            }
        };
        self.counters.end(&report);
        self.close_one(was_open && !is_open(&report));
        freed
    }

    /// The tasks that wait until nothing of it is open, if that is so, or never will be.
    pub(super) fn take_releases(&mut self) -> Vec<Waker> {
        match self.is_over() || self.closed {
            true => self.releases.take_all(),
            false => Vec::new(),
        }
    }

    /// More is known of a piece that was reported. Whether its memory is free by that.
    pub(super) fn settle(&mut self, piece: usize, local: Local, remote: Remote) -> bool {
        let index = self.request(piece);
        let Some(row) = self.reports.get_mut(index) else {
            return false;
        };
        let was_open = is_open(row);
        let freed = match &mut self.pieces {
            Some(pieces) => pieces.settle(piece, local, remote, row),
            None => {
                let was_held = row.local == Local::Held;
                (row.local, row.remote) = (local, remote);
                was_held && local == Local::Released
            }
        };
        // What it has written on other lanes may not be seen yet.
        if let Some(sight) = &mut self.sight
            && sight.is_doubted
            && sight.writes.get(index) == Some(&true)
            && row.remote == Remote::Settled
        {
            row.remote = Remote::Unknown;
            sight.doubted.push(index);
        }
        let closed = was_open && !is_open(row);
        self.close_one(closed);
        freed
    }

    /// The request that a piece belongs to.
    fn request(&self, piece: usize) -> usize {
        let pieces = self.pieces.as_ref();
        pieces.map_or(piece, |pieces| pieces.request(piece))
    }

    /// How many pieces there are.
    pub(super) fn pieces(&self) -> usize {
        let pieces = self.pieces.as_ref();
        pieces.map_or(self.reports.len(), |pieces| pieces.count())
    }

    /// The room beyond what those that have not ended can take: the last of it stays until all is over.
    pub(super) fn spare_room(&mut self) -> Grant {
        let left = self.pieces().saturating_sub(self.reported);
        self.room.split_off(left.clamp(1, u16::MAX.into()) as u16)
    }

    pub(super) fn close_one(&mut self, closed: bool) {
        self.open -= u32::from(closed);
    }

    /// Whether it has ended and nothing of it is open any more.
    pub(super) fn is_over(&self) -> bool {
        self.status != Status::Pending && self.open == 0
    }

    /// Nobody has proved in time that what its writes have moved can be seen: some of it may still be on its way into memory.
    pub(super) fn doubt(&mut self) {
        let Some(sight) = &mut self.sight else { return };
        sight.is_doubted = true;
        let writes = sight.writes.iter().zip(&mut self.reports).enumerate();
        for (index, (_, report)) in writes.filter(|(_, (writes, _))| **writes) {
            if report.doubt() {
                sight.doubted.push(index);
            }
        }
        self.count_open();
        self.counters = counters(&self.reports);
    }

    /// It has been proved after all.
    pub(super) fn believe(&mut self) {
        let Some(sight) = &mut self.sight else { return };
        sight.is_doubted = false;
        for index in sight.doubted.drain(..) {
            self.reports[index].remote = Remote::Settled;
        }
        self.count_open();
    }

    fn count_open(&mut self) {
        self.open = self.reports.iter().filter(|report| is_open(report)).count() as u32;
    }

    /// What keeps it from being over.
    pub(super) fn openness(&self, after: Duration) -> ReleaseError {
        let held = self.reports.iter().filter(|r| r.local == Local::Held);
        let held = held.count();
        match self.closed {
            true => ReleaseError::Unprovable {
                requests: self.open as usize,
            },
            false => ReleaseError::TimedOut {
                after,
                held,
                unsettled: self.open as usize,
            },
        }
    }

    /// The batch at a glance. It counts as ended only once its worker has said so.
    pub(super) fn report(&self) -> BatchReport {
        BatchReport {
            status: self.status,
            ..self.counters.report()
        }
    }
}

/// Counts requests of which some may have ended.
pub(super) fn counters(reports: &[Report]) -> Counters {
    let mut counters = Counters::new(0);
    for _ in reports {
        counters.add();
    }
    counters.seal();
    for report in reports
        .iter()
        .filter(|report| report.status != Status::Pending)
    {
        counters.end(report);
    }
    counters
}

/// How requests ended that were carried out whole, in place of what was reported before. With `firsts`, each is moved as those
/// pieces that begin there.
pub(super) fn moved(mut reports: Reports, pieces: &[Request], firsts: Option<&[u32]>) -> Reports {
    reports.clear();
    reports.reserve(firsts.map_or(pieces.len(), <[u32]>::len));
    let mut firsts = firsts.map(|firsts| firsts.iter().copied().peekable());
    for (index, piece) in (0..).zip(pieces) {
        let is_first = match &mut firsts {
            Some(firsts) => firsts.next_if_eq(&index).is_some(),
            None => true,
        };
        match reports.last_mut().filter(|_| !is_first) {
            Some(report) => report.delivered_bytes += piece.length,
            None => reports.push(Report::moved(piece.length)),
        }
    }
    reports
}

/// Whether something of the request can still move, or nobody knows.
pub(super) fn is_open(report: &Report) -> bool {
    (report.local, report.remote) != (Local::Released, Remote::Settled)
}
