//! Requests that are moved as several pieces each, and how these stand together.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use polyrail_core::batch::outweighs;
use polyrail_core::report::{Local, Remote, Report, Status, left_behind};
use polyrail_core::work::Cause;

use super::state::is_open;
use crate::paged::request_of;

/// Of the requests of one batch.
pub(super) struct Pieces {
    /// The first piece of each request.
    firsts: Arc<[u32]>,
    /// All of them.
    count: usize,
    parts: Vec<Part>,
    /// Pieces that were reported with something open: how they stand now.
    open: HashMap<usize, (Local, Remote)>,
}

/// One request.
#[derive(Clone, Copy)]
struct Part {
    /// Pieces that have not been reported.
    left: u32,
    /// Reported ones whose memory is held, and whose far side is unknown.
    held: u32,
    unknown: u32,
    /// How it ends, as far as is known.
    status: Status,
    cause: Option<Cause>,
}

impl Pieces {
    pub(super) fn new(firsts: Arc<[u32]>, count: usize) -> Self {
        let mut pieces = Self {
            parts: Vec::with_capacity(firsts.len()),
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
        self.parts.clear();
        for request in 0..self.firsts.len() {
            self.parts.push(Part {
                left: self.of(request).len() as u32,
                held: 0,
                unknown: 0,
                status: Status::Completed,
                cause: None,
            });
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
        let part = self.parts.get_mut(request).filter(|part| part.left > 0)?;
        part.left -= 1;
        report.delivered_bytes += ended.delivered_bytes;
        if ended.status != Status::Completed {
            part.fail(ended.status, ended.cause);
        }
        if is_open(ended) {
            part.held += u32::from(ended.local == Local::Held);
            part.unknown += u32::from(ended.remote == Remote::Unknown);
            self.open.insert(piece, (ended.local, ended.remote));
        }
        if part.left > 0 {
            return None;
        }
        (report.status, report.cause) = (part.status, part.cause);
        (report.local, report.remote) = part.sides();
        let held = part.held;
        Some(self.of(request).len() as u32 - held)
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
        let (was_local, was_remote) = std::mem::replace(before, (local, remote));
        if (local, remote) == (Local::Released, Remote::Settled) {
            self.open.remove(&piece);
        }
        let request = self.request(piece);
        let Some(part) = self.parts.get_mut(request) else {
            return false;
        };
        let freed = was_local == Local::Held && local == Local::Released;
        part.held -= u32::from(freed);
        part.unknown -= u32::from(was_remote == Remote::Unknown && remote == Remote::Settled);
        if part.left == 0 {
            (report.local, report.remote) = part.sides();
        }
        freed && part.left == 0
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
        let Some(part) = self.parts.get_mut(request) else {
            return 0;
        };
        // Those that were reported had begun, or were the rest.
        let reported = pieces.len() - part.left as usize;
        let under_way = begun.saturating_sub(reported) as u32;
        let used = match part.left {
            0 => part.held,
            _ => pieces.len() as u32,
        };
        match is_kept {
            true => part.held += under_way,
            false => {
                part.held = 0;
                for piece in pieces {
                    if let Some((local, _)) = self.open.get_mut(&piece) {
                        *local = Local::Released;
                    }
                }
            }
        }
        part.unknown += under_way;
        if part.left > 0 {
            let (status, cause, _) = left_behind(under_way > 0);
            part.fail(status, Some(cause));
            part.left = 0;
            (report.status, report.cause) = (part.status, part.cause);
        }
        (report.local, report.remote) = part.sides();
        used - part.held
    }
}

impl Part {
    /// A piece has failed.
    fn fail(&mut self, status: Status, cause: Option<Cause>) {
        if outweighs(status, self.status) {
            (self.status, self.cause) = (status, cause);
        }
    }

    fn sides(&self) -> (Local, Remote) {
        let local = match self.held {
            0 => Local::Released,
            _ => Local::Held,
        };
        let remote = match self.unknown {
            0 => Remote::Settled,
            _ => Remote::Unknown,
        };
        (local, remote)
    }
}

#[cfg(test)]
mod tests {
    use quickcheck::quickcheck;

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
