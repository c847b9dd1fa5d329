//! Merged requests: neighbours of one kind that a slice has room for become one *transfer* with several *names*.
//!
//! A transfer is a request like any other, only that nobody submitted it and nobody is told of its end. Its names
//! are the requests that were; they bind nothing and wait for it. Cancelling one marks that name, the bytes go on
//! while another lives, and its report waits for the attempts that they share. A transfer that fails where one of its
//! names may be to blame is taken apart: each goes on alone, and still waits for what the transfer has under way.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), for merging neighbours; it merges within one call, and
//! names with ends of their own are ours.

use super::open_rails::Way;
use super::request::{Ending, RequestRow, Told};
use super::{Chooser, Orchestrator};
use crate::failover::Failover;
use crate::queue::Link;
use crate::rail::chooser::Binding;
use crate::report::Status;
use crate::table::NIL;
use crate::time::Instant;
use crate::units::RequestId;

/// What a row of the requests' table stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Role {
    /// A request that moves its bytes itself.
    Lone,
    /// A name of the transfer in row `of`. The name behind it is in row `next`, if there is one.
    Name { of: u32, next: u32 },
    /// One that was a name, moves its bytes itself by now, and waits for what the transfer has left under way.
    Apart { of: u32, next: u32 },
    /// A transfer, and its first and last name.
    Transfer { first: u32, last: u32 },
}

impl Role {
    /// Whether it is a request that somebody submitted.
    pub(super) const fn is_submitted(self) -> bool {
        !matches!(self, Self::Transfer { .. })
    }
}

impl RequestRow {
    /// Whether `behind` goes on where this one ends, on both sides, and is of the same kind.
    fn is_continued_by(&self, behind: &Self) -> bool {
        // Most are no neighbours.
        if !self.ends_at(behind) {
            return false;
        }
        let same_kind = self.plan == behind.plan
            && self.op == behind.op
            && self.home == behind.home
            && self.class == self.home
            && { self.due } == { behind.due };
        same_kind && self.is_untouched()
    }

    /// Whether the first byte of `behind` is the one after its last, on both sides.
    fn ends_at(&self, behind: &Self) -> bool {
        let (local, remote) = self.places();
        (local.plus(self.length), remote.plus(self.length)) == behind.places()
    }

    /// How long a transfer is, which was made to be one slice; 0 of what was submitted.
    pub(super) fn made_bytes(&self) -> u32 {
        match self.role {
            Role::Transfer { .. } => u32::try_from(self.length).unwrap_or(u32::MAX),
            _ => 0,
        }
    }

    /// Whether it waits for a transfer.
    pub(super) fn is_tied(&self) -> bool {
        matches!(self.role, Role::Name { .. } | Role::Apart { .. })
    }

    /// It waits for no transfer any more.
    fn untie(&mut self) {
        debug_assert!(self.is_tied() && self.held > 0, "{:?} is untied", self.role);
        self.held -= 1;
        self.role = Role::Lone;
    }

    fn become_name(&mut self, of: u32) {
        debug_assert!(
            self.role == Role::Lone && self.is_untouched(),
            "{:?} becomes a name, with {} bytes bound",
            self.role,
            { self.cursor }
        );
        self.role = Role::Name { of, next: NIL };
        self.held = 1;
        // Its bytes are the transfer's to bind.
        self.cursor = self.length;
    }

    /// Whether it is one of several names of a transfer.
    pub(super) fn is_name(&self) -> bool {
        matches!(self.role, Role::Name { .. })
    }

    /// Whether no byte of it has ever been bound, and all of them are to be.
    fn is_untouched(&self) -> bool {
        self.cursor == 0 && self.held == 0 && self.waiting.is_empty() && self.wants_bytes()
    }

    /// What a name is told when its transfer ends so, whole or not.
    fn told_as_name(&self, mut told: Told, whole: bool) -> Told {
        if let Some(own) = self.ending.filter(|_| told.status != Status::Completed) {
            told.cause = Some(own.cause);
            if !whole && told.status != Status::Indeterminate {
                told.status = own.status;
            }
        }
        told
    }
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// Makes a request that was just submitted a name of the transfer of the one last in its line, if it goes on where
    /// that ends.
    pub(super) fn merge(&mut self, id: RequestId) -> bool {
        let slice_bytes = self.shared.slice_bytes();
        let may_merge = self.config.merge_requests && self.binding_for(id.index) != Binding::Shares;
        let Some(row) = self.requests.get(id).filter(|_| may_merge) else {
            return false;
        };
        let pending = self.peers.get(row.peer.index()).map(|row| &row.pending);
        let place = self.route_of(id.index).zip(pending);
        let Some(last) = place.and_then(|(route, pending)| pending.last(route, row.class)) else {
            return false;
        };
        let Some(before) = self.requests.at(last) else {
            return false;
        };
        let bytes = before.length.saturating_add(row.length);
        let makes_one = || bytes <= u64::from(slice_bytes) || bytes <= self.longest_slice(before);
        if !before.is_continued_by(row) || !makes_one() {
            return false;
        }
        let transfer = match before.role {
            Role::Transfer { .. } => Some(last),
            Role::Lone => self.make_transfer(last),
            // Names are in no line; and what was taken apart stays so.
            Role::Name { .. } | Role::Apart { .. } => None,
        };
        transfer.is_some_and(|transfer| self.add_name(transfer, id.index))
    }

    /// How long slices of a request are on a rail that it may take: longer than usual where lanes take few works.
    fn longest_slice(&self, row: &RequestRow) -> u64 {
        let way = Way {
            peer: row.peer,
            plan: row.plan,
            rank: row.failover.rank(),
            op: row.op,
        };
        let usual = self.shared.slice_bytes();
        let view = self.view();
        let spots = view
            .rails_in_use(way)
            .filter_map(|rail| view.spot(*rail, way.op));
        let lengths = spots.map(|spot| match spot.part_bytes < usual {
            true => spot.slice_bytes,
            false => usual,
        });
        lengths.max().unwrap_or(usual).into()
    }

    /// Puts a transfer in a request's place in line, with that as its only name. `None`: there is no row for it.
    fn make_transfer(&mut self, first: u32) -> Option<u32> {
        let row = self.requests.at(first)?;
        let mut transfer = *row;
        transfer.batch = NIL;
        transfer.role = Role::Transfer { first, last: first };
        transfer.links = [Link::NONE; 4];
        let is_timed = transfer.is_timed();
        let transfer = self.requests.insert(transfer).ok()?.index;
        self.timed_requests += u32::from(is_timed);
        let peer = self.requests.at(first)?.peer;
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.pending.replace(&mut self.requests, first, transfer);
        }
        self.unbound.replace(&mut self.requests, first, transfer);
        self.requests.at_mut(first)?.become_name(transfer);
        Some(transfer)
    }

    fn add_name(&mut self, transfer: u32, name: u32) -> bool {
        let Some(row) = self.requests.at_mut(name) else {
            return false;
        };
        row.become_name(transfer);
        let length = row.length;
        let Some(row) = self.requests.at_mut(transfer) else {
            return false;
        };
        debug_assert!(
            row.is_untouched(),
            "a name is added to a transfer of which {} bytes are bound",
            { row.cursor }
        );
        row.length += length;
        let Role::Transfer { last, .. } = &mut row.role else {
            return false;
        };
        let before = core::mem::replace(last, name);
        if let Some(row) = self.requests.at_mut(before)
            && let Role::Name { next, .. } = &mut row.role
        {
            debug_assert!(*next == NIL, "row {next} is behind the last name");
            *next = name;
        }
        true
    }

    fn first_name(&self, transfer: u32) -> Option<u32> {
        match self.requests.at(transfer)?.role {
            Role::Transfer { first, .. } => Some(first),
            Role::Lone | Role::Name { .. } | Role::Apart { .. } => None,
        }
    }

    fn name_after(&self, name: u32) -> Option<u32> {
        match self.requests.at(name)?.role {
            Role::Name { next, .. } | Role::Apart { next, .. } if next != NIL => Some(next),
            _ => None,
        }
    }

    /// The row of the transfer that a request waits for.
    pub(super) fn transfer_of(&self, row: &RequestRow) -> Option<u32> {
        match row.role {
            Role::Name { of, .. } | Role::Apart { of, .. } => Some(of),
            Role::Lone | Role::Transfer { .. } => None,
        }
    }

    /// Fails a transfer for what one of its names may be to blame for. `false`: it is none, or is ending already.
    pub(super) fn take_apart(&mut self, now: Instant, transfer: RequestId, ending: Ending) -> bool {
        let wants_bytes = |row: &RequestRow| row.wants_bytes();
        let mut next = self.first_name(transfer.index);
        if next.is_none() || !self.requests.get(transfer).is_some_and(wants_bytes) {
            return false;
        }
        while let Some(name) = next {
            next = self.name_after(name);
            let Some(row) = self.requests.at_mut(name).filter(|row| row.wants_bytes()) else {
                continue;
            };
            row.role = Role::Apart {
                of: transfer.index,
                next: next.unwrap_or(NIL),
            };
            debug_assert!(
                row.cursor == row.length && row.acked_bytes == 0,
                "{} bytes of a name are not its transfer's, and {} have arrived",
                row.length - row.cursor,
                { row.acked_bytes }
            );
            row.cursor = 0;
            let (peer, plan, length) = (row.peer, row.plan, row.length);
            let rank = self.best_rank(plan);
            if let Some(row) = self.requests.at_mut(name) {
                row.failover = Failover::new(rank);
            }
            if let Some(row) = self.peers.get_mut(peer.index()) {
                row.unbound_bytes += length;
            }
            let id = self.requests.id_at(name);
            if !id.is_some_and(|id| self.leaves(now, id)) {
                self.want_to_bind(peer, name, false);
            }
        }
        self.end_request(now, transfer, ending);
        true
    }

    /// Whether a transfer's bytes are as many as its names', one of which is this.
    pub(super) fn has_name(&self, transfer: u32, name: u32) -> bool {
        let (mut bytes, mut found) = (0, false);
        let mut next = self.first_name(transfer);
        while let Some(index) = next {
            found |= index == name;
            bytes += self.requests.at(index).map_or(0, |row| row.length);
            next = self.name_after(index);
        }
        let row = self.requests.at(transfer);
        found && row.is_some_and(|row| row.length == bytes)
    }

    /// A name of a transfer is going to end. So is the transfer if no other name wants its bytes.
    pub(super) fn end_transfer_of(&mut self, now: Instant, name: Role, ending: Ending) {
        let Role::Name { of, .. } = name else {
            return;
        };
        let mut next = self.first_name(of);
        while let Some(name) = next {
            if self.requests.at(name).is_some_and(RequestRow::wants_bytes) {
                return;
            }
            next = self.name_after(name);
        }
        if let Some(transfer) = self.requests.id_at(of) {
            self.end_request(now, transfer, ending);
        }
    }

    /// Tells the names of a transfer that has been reported, and frees its row unless a late event may still come.
    pub(super) fn tell_names(&mut self, transfer: RequestId, told: Told) {
        let Some(row) = self.requests.get(transfer) else {
            return;
        };
        let (whole, over) = (row.acked_bytes == row.length, row.held == 0);
        let mut next = self.first_name(transfer.index);
        while let Some(name) = next {
            next = self.name_after(name);
            let Some((id, row)) = self.requests.entry_mut(name) else {
                continue;
            };
            let is_apart = matches!(row.role, Role::Apart { .. });
            if over {
                row.untie();
            } else {
                row.lost += 1;
                debug_assert!(row.lost <= row.held, "{} lost of {}", row.lost, row.held);
            }
            if is_apart {
                self.settle_request(id);
                continue;
            }
            row.acked_bytes = if whole { row.length } else { 0 };
            let told = row.told_as_name(told, whole);
            self.tell(id, told);
        }
        if over {
            self.requests.remove(transfer);
        }
    }

    /// The last attempt of a transfer that was reported has ended, or is waited for no more: its names do not wait
    /// either.
    pub(super) fn end_names(&mut self, transfer: RequestId, forget: bool) {
        debug_assert!(
            (self.requests.get(transfer)).is_some_and(|row| row.held == 0 && row.is_reported()),
            "the names of transfer {} end before it",
            transfer.index
        );
        let mut next = self.first_name(transfer.index);
        while let Some(name) = next {
            next = self.name_after(name);
            let Some((id, row)) = self.requests.entry_mut(name) else {
                continue;
            };
            debug_assert!(
                row.lost > 0,
                "row {name} waits for a transfer that has been given up"
            );
            row.lost -= 1;
            row.untie();
            if forget {
                self.forget_if_over(id);
            } else {
                self.settle_request(id);
            }
        }
        self.requests.remove(transfer);
    }

    /// Tells what is known by now of a request whose report was taken, or of all names of a transfer.
    pub(super) fn tell_more(&mut self, request: u32) {
        let name = self.first_name(request);
        let mut next = name.or(Some(request));
        while let Some(index) = next {
            next = name.and_then(|_| self.name_after(index));
            let row = self.requests.at(index);
            let is_told = row.is_some_and(|row| row.is_taken() && row.role.is_submitted());
            let id = self.requests.id_at(index);
            if is_told && id.is_some_and(|id| self.is_news(id)) {
                self.ended.push_back(&mut self.requests, index);
            }
        }
    }

    /// Whether something of a request, or of a name of a transfer, is to be told.
    pub(super) fn has_news(&self, request: u32) -> bool {
        let name = self.first_name(request);
        let after = |index: &u32| name.and_then(|_| self.name_after(*index));
        let mut told = core::iter::successors(name.or(Some(request)), after);
        told.any(|index| self.requests.at(index).is_some_and(RequestRow::has_news))
    }
}
