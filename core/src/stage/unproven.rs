//! What may still touch the memory of requests, though nothing of them goes on: until there is proof, a request that was
//! reported as [`Status::Indeterminate`] is remembered by that alone.
//!
//! [`Status::Indeterminate`]: crate::report::Status::Indeterminate

use super::Staged;
use crate::report::{Local, Remote, Report};
use crate::units::{PeerId, StageId, StagedId};

/// One attempt that ended without proof. Rows are the caller's memory; their content is [`super::Staged`]'s business.
#[derive(Debug)]
pub struct Unproven(Option<Open>);

impl Unproven {
    /// For the arrays that a caller hands in.
    pub const EMPTY: Self = Self(None);
}

#[derive(Clone, Copy, Debug)]
struct Open {
    request: StagedId,
    peer: PeerId,
    by: By,
    /// What it may still touch.
    near: bool,
    far: bool,
    /// Less than the program has been told.
    news: bool,
}

/// Whose attempt it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// A hop that was handed out: a later report of it has the proof.
    Hop(StageId),
    /// The peer's copy for the chunk in this row: the peer has been asked to end it, and has not answered.
    Copy(u32),
    /// The peer's, and it will say nothing more: only the end of its process is proof.
    Peer,
    /// Of a peer that nothing will be known of.
    Nobody,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Proofs<'a> {
    rows: &'a mut [Unproven],
    /// Rows in use, and those that there is something to tell of.
    open: u32,
    news: u32,
}

impl<'a> Proofs<'a> {
    pub(super) fn new(rows: &'a mut [Unproven]) -> Self {
        rows.fill_with(|| Unproven::EMPTY);
        Self {
            rows,
            open: 0,
            news: 0,
        }
    }

    /// `false`: there is no row for it.
    fn add(&mut self, open: Open) -> bool {
        debug_assert!(open.near || open.far, "nothing is open");
        let Some(row) = self.rows.iter_mut().find(|row| row.0.is_none()) else {
            return false;
        };
        row.0 = Some(open);
        self.open += 1;
        true
    }

    /// What may still touch a request's memory: its near end, and its far end.
    fn of(&self, request: StagedId) -> (bool, bool) {
        let open = self.rows.iter().filter_map(|row| row.0);
        let open = open.filter(|open| open.request == request);
        open.fold((false, false), |(near, far), open| {
            (near | open.near, far | open.far)
        })
    }

    /// Nothing is told of a request.
    fn forget(&mut self, request: StagedId) {
        for row in self.rows.iter_mut() {
            if let Some(open) = row.0.filter(|open| open.request == request) {
                self.open -= 1;
                self.news -= u32::from(open.news);
                row.0 = None;
            }
        }
    }

    /// Something has become known of what `is_it` says; `next` is what is left. `true`: there was such.
    fn change(
        &mut self,
        is_it: impl Fn(&Open) -> bool,
        next: impl Fn(Open) -> Open,
        is_reported: impl Fn(StagedId) -> bool,
    ) -> bool {
        if self.open == 0 {
            return false;
        }
        let mut found = false;
        for row in self.rows.iter_mut() {
            let Some(open) = row.0.as_mut().filter(|open| is_it(open)) else {
                continue;
            };
            found = true;
            let before = *open;
            *open = next(before);
            let changed = (open.near, open.far) != (before.near, before.far);
            if changed && is_reported(open.request) {
                open.news = true;
                self.news += u32::from(!before.news);
            }
            if !open.near && !open.far && !open.news {
                row.0 = None;
                self.open -= 1;
            }
        }
        found
    }

    /// A request of which more is known than was told, and what is open of it.
    fn tell(&mut self) -> Option<(StagedId, Local, Remote)> {
        if self.news == 0 {
            return None;
        }
        let mut open = self.rows.iter().filter_map(|row| row.0);
        let open = open.find(|open| open.news);
        debug_assert!(open.is_some(), "{} have news, and none does", self.news);
        let request = open?.request;
        let (near, far) = self.of(request);
        for row in self.rows.iter_mut() {
            let Some(open) = row.0.as_mut().filter(|open| open.request == request) else {
                continue;
            };
            self.news -= u32::from(core::mem::take(&mut open.news));
            if !open.near && !open.far {
                row.0 = None;
                self.open -= 1;
            }
        }
        self.forget_final(request);
        let local = if near { Local::Held } else { Local::Released };
        let remote = if far {
            Remote::Unknown
        } else {
            Remote::Settled
        };
        Some((request, local, remote))
    }

    /// A peer's number is another's from now on: there will be no proof of what the old one still does.
    pub(super) fn disown(&mut self, peer: PeerId) {
        for row in 0..self.rows.len() {
            let Some(Unproven(Some(open))) = self.rows.get_mut(row) else {
                continue;
            };
            if open.peer == peer && !matches!(open.by, By::Hop(_)) {
                open.by = By::Nobody;
                let request = open.request;
                self.forget_final(request);
            }
        }
    }

    /// A request of which nothing will be known any more is not remembered.
    fn forget_final(&mut self, request: StagedId) {
        let mut open = self.rows.iter().filter_map(|row| row.0);
        let is_final =
            open.all(|open| open.request != request || (open.by == By::Nobody && !open.news));
        if is_final {
            self.forget(request);
        }
    }

    /// Rows in use, and those with news, as they are counted and as they are.
    pub(super) fn counts(&self) -> [(u32, u32); 2] {
        let open = self.rows.iter().filter_map(|row| row.0);
        let (open, news) = open.fold((0, 0), |(all, news), open| {
            (all + 1, news + u32::from(open.news))
        });
        [(self.open, open), (self.news, news)]
    }
}

impl Staged<'_> {
    /// Something may still touch the request's own memory: its near end, or what it writes to at the far end.
    pub(super) fn taint(&mut self, id: Option<StagedId>, near: bool, far: bool, by: By) {
        let Some((id, request)) = id.and_then(|id| Some((id, self.requests.get_mut(id)?))) else {
            return;
        };
        let far = far && request.route.op == crate::work::Op::Write;
        if !near && !far {
            return;
        }
        request.held |= near;
        request.unknown |= far;
        let open = Open {
            request: id,
            peer: request.route.peer,
            by,
            near,
            far,
            news: false,
        };
        request.untold |= !self.proofs.add(open);
    }

    /// A later report of a hop that had ended without proof. `true`: it was waited for.
    pub(super) fn handle_proof(&mut self, id: StageId, report: &Report) -> bool {
        let held = report.local == Local::Held;
        let unknown = report.remote == Remote::Unknown;
        let restored = self.pools.restore_stage(id, !held, !unknown);
        let waited = self.prove(
            |open| open.by == By::Hop(id),
            |open| Open {
                near: open.near && held,
                far: open.far && unknown,
                ..open
            },
        );
        restored || waited
    }

    /// The peer's copy for the chunk in this row is over; `proof`: it moves nothing any more.
    pub(super) fn prove_copy(&mut self, row: u32, proof: bool) {
        self.prove(
            |open| open.by == By::Copy(row),
            |open| Open {
                by: By::Peer,
                far: open.far && !proof,
                ..open
            },
        );
    }

    /// The peer says nothing more of its copies; `proof`: nor does any of them move anything.
    pub(super) fn prove_peer(&mut self, peer: PeerId, proof: bool) {
        self.prove(
            |open| open.peer == peer && matches!(open.by, By::Copy(_) | By::Peer),
            |open| Open {
                by: By::Peer,
                far: open.far && !proof,
                ..open
            },
        );
    }

    fn prove(&mut self, is_it: impl Fn(&Open) -> bool, next: impl Fn(Open) -> Open) -> bool {
        let Self {
            proofs, requests, ..
        } = self;
        let is_reported = |id| requests.get(id).is_none_or(|row| row.report.is_some());
        let found = proofs.change(is_it, next, is_reported);
        if found {
            // What has not been reported yet is reported as it is known by then.
            for row in 0..requests.capacity() as u32 {
                if let Some((id, request)) = requests.entry_mut(row)
                    && (request.held || request.unknown)
                    && !request.untold
                    && request.report.is_none()
                {
                    (request.held, request.unknown) = proofs.of(id);
                }
            }
        }
        found
    }

    /// A request is reported: nothing will be told of one that is not remembered whole.
    pub(super) fn note_report(&mut self, id: StagedId) {
        if self.requests.get(id).is_some_and(|request| request.untold) {
            self.proofs.forget(id);
        }
    }

    /// A request of which more is known than was reported.
    pub(super) fn next_proof(&mut self) -> Option<(StagedId, Local, Remote)> {
        self.proofs.tell()
    }
}
