//! Requests that are moved as several pieces each: which these are. How they stand together is core's.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use polyrail_core::pieces::Pieces as OfOne;
use polyrail_core::report::{Local, Remote, Report};

use super::state::is_open;
use crate::paged::request_of;

/// Of the requests of one batch.
pub(super) struct Pieces {
    /// The first piece of each request.
    firsts: Arc<[u32]>,
    /// All of them.
    count: usize,
    of_each: Vec<OfOne>,
    /// Pieces that were reported with something open: how they stand now.
    open: HashMap<usize, (Local, Remote)>,
}

impl Pieces {
    pub(super) fn new(firsts: Arc<[u32]>, count: usize) -> Self {
        let mut pieces = Self {
            of_each: Vec::with_capacity(firsts.len()),
            firsts,
            count,
            open: HashMap::new(),
        };
        pieces.begin_again();
        pieces
    }

    /// None of them has been reported.
    pub(super) fn begin_again(&mut self) {
        self.open.clear();
        self.of_each.clear();
        for request in 0..self.firsts.len() {
            self.of_each.push(OfOne::new(self.of(request).len() as u32));
        }
    }

    pub(super) fn requests(&self) -> usize {
        self.firsts.len()
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The pieces of a request.
    pub(super) fn of(&self, request: usize) -> Range<usize> {
        let first = |request| self.firsts.get(request).map(|first| *first as usize);
        first(request).unwrap_or(self.count)..first(request + 1).unwrap_or(self.count)
    }

    /// The request that a piece belongs to.
    pub(super) fn request(&self, piece: usize) -> usize {
        request_of(&self.firsts, piece)
    }

    /// A piece of a request has ended so; `report` is the request's. If that has ended by it: the pieces of it whose memory is free,
    /// which stays in use until then.
    pub(super) fn record(
        &mut self,
        request: usize,
        piece: usize,
        ended: &Report,
        report: &mut Report,
    ) -> Option<u32> {
        let of_one = self.of_each.get_mut(request);
        let of_one = of_one.filter(|of_one| !of_one.has_ended())?;
        of_one.record(ended);
        if is_open(ended) {
            self.open.insert(piece, (ended.local, ended.remote));
        }
        *report = of_one.report();
        of_one.has_ended().then(|| of_one.free())
    }

    /// More is known of a piece that was reported. Whether its memory is free by that.
    pub(super) fn settle(
        &mut self,
        piece: usize,
        local: Local,
        remote: Remote,
        report: &mut Report,
    ) -> bool {
        let Some(before) = self.open.get_mut(&piece) else {
            return false;
        };
        let was = std::mem::replace(before, (local, remote));
        if (local, remote) == (Local::Released, Remote::Settled) {
            self.open.remove(&piece);
        }
        let request = self.request(piece);
        let Some(of_one) = self.of_each.get_mut(request) else {
            return false;
        };
        let free = of_one.free();
        of_one.settle(was, (local, remote));
        if of_one.has_ended() {
            let now = of_one.report();
            (report.local, report.remote) = (now.local, now.remote);
        }
        of_one.free() > free
    }

    /// Nothing more will be told of a request of which the pieces before `begun` have begun. `is_kept` says whether memory of
    /// something that has begun may still be touched. The pieces whose memory is free by that: so many.
    pub(super) fn abandon(
        &mut self,
        request: usize,
        begun: impl Fn(usize) -> bool,
        is_kept: bool,
        report: &mut Report,
    ) -> u32 {
        let pieces = self.of(request);
        let begun = pieces.clone().filter(|piece| begun(*piece)).count();
        let Some(of_one) = self.of_each.get_mut(request) else {
            return 0;
        };
        let (free, had_ended) = (of_one.free(), of_one.has_ended());
        of_one.abandon(begun as u32, is_kept);
        if !is_kept {
            for piece in pieces {
                if let Some((local, _)) = self.open.get_mut(&piece) {
                    *local = Local::Released;
                }
            }
        }
        let now = of_one.report();
        match had_ended {
            true => (report.local, report.remote) = (now.local, now.remote),
            false => *report = now,
        }
        of_one.free() - free
    }
}

#[cfg(test)]
mod tests {
    use quickcheck::quickcheck;

    use polyrail_core::report::Status;
    use polyrail_core::work::Cause;

    use super::*;

    fn ended(kind: u8) -> Report {
        let (status, local, remote) = match kind % 5 {
            0 => (Status::Failed, Local::Released, Remote::Settled),
            1 => (Status::Indeterminate, Local::Held, Remote::Unknown),
            2 => (Status::Indeterminate, Local::Released, Remote::Unknown),
            _ => (Status::Completed, Local::Released, Remote::Settled),
        };
        Report {
            status,
            delivered_bytes: u64::from(kind),
            cause: (status != Status::Completed).then_some(Cause::Cancelled),
            local,
            remote,
        }
    }

    quickcheck! {
        /// Beside a plain list of all reports: a request ends with its last piece, as the first bad one or one that is not known,
        /// is open as long as one of its pieces is, and adds up what has arrived.
        fn a_request_stands_as_its_pieces_do(requests: Vec<Vec<u8>>, order: Vec<u16>) -> bool {
            let requests: Vec<Vec<u8>> = requests.into_iter().filter(|kinds| !kinds.is_empty()).collect();
            let mut firsts = Vec::new();
            let mut all: Vec<(usize, Report)> = Vec::new();
            for (request, kinds) in requests.iter().enumerate() {
                firsts.push(all.len() as u32);
                all.extend(kinds.iter().map(|kind| (request, ended(*kind))));
            }
            let mut pieces = Pieces::new(firsts.into(), all.len());
            let mut reports = vec![Report::PENDING; requests.len()];
            // In some order of each request's pieces.
            let mut turns: Vec<usize> = (0..all.len()).collect();
            for (at, swap) in order.iter().enumerate().take(all.len()) {
                turns.swap(at, usize::from(*swap) % all.len());
            }
            let mut freed = 0;
            let mut told: Vec<Vec<Report>> = vec![Vec::new(); requests.len()];
            for piece in &turns {
                let (request, report) = all[*piece];
                assert_eq!(pieces.request(*piece), request);
                told[request].push(report);
                let free = pieces.record(request, *piece, &report, &mut reports[request]);
                let is_last = told[request].len() == requests[request].len();
                assert_eq!(free.is_some(), is_last);
                assert_eq!(reports[request].status == Status::Pending, !is_last);
                freed += free.unwrap_or_default() as usize;
            }
            let right = reports.iter().zip(&told).all(|(report, told)| {
                let bad = told.iter().find(|report| report.status != Status::Completed);
                let unknown = told.iter().any(|report| report.status == Status::Indeterminate);
                let status = if unknown { Status::Indeterminate } else { bad.map_or(Status::Completed, |bad| bad.status) };
                report.status == status
                    && report.delivered_bytes == told.iter().map(|report| report.delivered_bytes).sum::<u64>()
                    && (report.local == Local::Held) == told.iter().any(|report| report.local == Local::Held)
                    && (report.remote == Remote::Unknown) == told.iter().any(|report| report.remote == Remote::Unknown)
                    && report.cause.is_some() == bad.is_some()
            });
            // Proof comes for all: in the end each piece of memory has been freed once.
            for piece in turns.iter().chain(&turns) {
                let request = pieces.request(*piece);
                freed += usize::from(pieces.settle(*piece, Local::Released, Remote::Settled, &mut reports[request]));
            }
            right && freed == all.len() && reports.iter().all(|report| !is_open(report))
        }
    }

    #[test]
    fn what_is_abandoned_is_unknown_only_where_it_has_begun() {
        // (pieces reported, begun before, kept; status, local, remote, freed) of a request with four pieces from 2 on
        let cases = [
            (
                0,
                0,
                true,
                Status::ShutDown,
                Local::Released,
                Remote::Settled,
                4,
            ),
            (
                0,
                3,
                true,
                Status::Indeterminate,
                Local::Held,
                Remote::Unknown,
                3,
            ),
            (
                0,
                3,
                false,
                Status::Indeterminate,
                Local::Released,
                Remote::Unknown,
                4,
            ),
            (
                2,
                4,
                true,
                Status::ShutDown,
                Local::Released,
                Remote::Settled,
                4,
            ),
            (
                4,
                6,
                true,
                Status::Completed,
                Local::Released,
                Remote::Settled,
                0,
            ),
        ];
        for (reported, before, kept, status, local, remote, freed) in cases {
            let mut pieces = Pieces::new([0, 2].into(), 6);
            let mut report = Report::PENDING;
            for piece in 2..2 + reported {
                pieces.record(1, piece, &ended(3), &mut report);
            }
            let got = pieces.abandon(1, |piece| piece < before, kept, &mut report);
            let seen = (report.status, report.local, report.remote, got);
            assert_eq!(
                seen,
                (status, local, remote, freed),
                "{reported} {before} {kept}"
            );
        }
    }
}
