//! A request that is moved as several pieces, and reported as one.
//!
//! **Invariant:** `held` and `unknown` count pieces that have begun, and have been reported or left behind.

use crate::batch::outweighs;
use crate::report::{Local, Remote, Report, Status, left_behind};

/// How the pieces of one request stand together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pieces {
    count: u32,
    /// Those that have not been reported.
    left: u32,
    /// Those whose memory is held, and those whose far side is unknown.
    held: u32,
    unknown: u32,
    /// How the request ends, as far as is known.
    verdict: Report,
}

impl Pieces {
    /// So many pieces, of which none has been reported.
    pub const fn new(count: u32) -> Self {
        Self {
            count,
            left: count,
            held: 0,
            unknown: 0,
            verdict: Report::moved(0),
        }
    }

    /// How the request stands: `Pending`, with what has arrived, until its last piece is reported. It ends as its first piece did
    /// that has not completed, but `Indeterminate` if any is.
    pub const fn report(&self) -> Report {
        match self.left {
            0 => self.verdict,
            _ => Report {
                delivered_bytes: self.verdict.delivered_bytes,
                ..Report::PENDING
            },
        }
    }

    /// Whether every piece has been reported, or left behind.
    pub const fn has_ended(&self) -> bool {
        self.left == 0
    }

    /// Pieces whose memory is free: none before the request has ended.
    pub const fn free(&self) -> u32 {
        match self.left {
            0 => self.count - self.held,
            _ => 0,
        }
    }

    /// A piece has ended so. No effect if all have.
    pub fn record(&mut self, ended: &Report) {
        debug_assert!(ended.status != Status::Pending, "it has not ended");
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let delivered = &mut self.verdict.delivered_bytes;
        *delivered = delivered.saturating_add(ended.delivered_bytes);
        self.fail(ended);
        self.held += u32::from(ended.local == Local::Held);
        self.unknown += u32::from(ended.remote == Remote::Unknown);
        self.join_sides();
    }

    /// More is known of a piece that was reported with something open: how it stood, and how it stands.
    pub fn settle(&mut self, before: (Local, Remote), now: (Local, Remote)) {
        if before.0 == Local::Held && now.0 == Local::Released {
            self.held = self.held.saturating_sub(1);
        }
        if before.1 == Remote::Unknown && now.1 == Remote::Settled {
            self.unknown = self.unknown.saturating_sub(1);
        }
        self.join_sides();
    }

    /// Nothing more will be told of it, of which so many pieces have begun, reported ones among them. `is_kept` says whether memory
    /// of something that has begun may still be touched.
    pub fn abandon(&mut self, begun: u32, is_kept: bool) {
        debug_assert!(begun <= self.count, "{begun} have begun of {}", self.count);
        // Those that were reported had begun, or were the rest.
        let under_way = begun.saturating_sub(self.count - self.left);
        match is_kept {
            true => self.held += under_way,
            false => self.held = 0,
        }
        self.unknown += under_way;
        if self.left > 0 {
            let (status, cause, _) = left_behind(under_way > 0);
            self.fail(&Report {
                status,
                cause: Some(cause),
                ..self.verdict
            });
            self.left = 0;
        }
        self.join_sides();
    }

    fn fail(&mut self, piece: &Report) {
        if piece.status != Status::Completed && outweighs(piece.status, self.verdict.status) {
            (self.verdict.status, self.verdict.cause) = (piece.status, piece.cause);
        }
    }

    fn join_sides(&mut self) {
        debug_assert!(self.held <= self.count && self.unknown <= self.count);
        self.verdict.local = match self.held {
            0 => Local::Released,
            _ => Local::Held,
        };
        self.verdict.remote = match self.unknown {
            0 => Remote::Settled,
            _ => Remote::Unknown,
        };
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use quickcheck::quickcheck;

    use super::*;
    use crate::work::Cause;

    fn ended(kind: u8) -> Report {
        let (status, local, remote) = match kind % 6 {
            0 => (Status::Failed, Local::Released, Remote::Settled),
            1 => (Status::Indeterminate, Local::Held, Remote::Unknown),
            2 => (Status::Indeterminate, Local::Released, Remote::Unknown),
            3 => (Status::Cancelled, Local::Released, Remote::Settled),
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
        /// A report is `Indeterminate` exactly if something is open when the request ends, and nothing is free before that.
        fn a_request_says_of_itself_what_its_pieces_say(kinds: Vec<u8>, reported: u8, begun: u8, is_kept: bool) -> bool {
            let count = kinds.len() as u32;
            let reported = u32::from(reported).min(count);
            let begun = u32::from(begun).clamp(reported, count);
            let mut pieces = Pieces::new(count);
            for kind in kinds.iter().take(reported as usize) {
                if pieces.has_ended() || pieces.free() > 0 || pieces.report().status != Status::Pending {
                    return false;
                }
                pieces.record(&ended(*kind));
            }
            let is_whole = reported == count;
            if !is_whole {
                pieces.abandon(begun, is_kept);
            }
            let report = pieces.report();
            let told = kinds.iter().take(reported as usize).map(|kind| ended(*kind));
            let is_open = told.clone().any(|piece| piece.remote == Remote::Unknown) || begun > reported;
            let bad = told.clone().any(|piece| piece.status != Status::Completed) || !is_whole;
            let held = told.clone().filter(|piece| piece.local == Local::Held).count() as u32;
            let held = match (is_whole, is_kept) {
                (true, _) => held,
                (false, true) => held + begun - reported,
                (false, false) => 0,
            };
            pieces.has_ended()
                && report.delivered_bytes == told.map(|piece| piece.delivered_bytes).sum::<u64>()
                && (report.status == Status::Indeterminate) == is_open
                && (report.remote == Remote::Unknown) == is_open
                && (report.status == Status::Completed) != bad
                && report.cause.is_some() == bad
                && pieces.free() == count - held
        }
    }
}
