//! Which row is whose: for each peer the claims on our slots, then for each peer our own chunks.

use core::ops::Range;

use super::claim::{Chunk, Claim, Role};
use super::{Refusal, Staged};
use crate::units::{PeerId, Ticket};

impl Staged<'_> {
    pub(super) fn claim(&self, row: u32) -> Option<&Claim> {
        self.claims.get(row as usize)
    }

    pub(super) fn claim_mut(&mut self, row: u32) -> Option<&mut Claim> {
        self.claims.get_mut(row as usize)
    }

    pub(super) fn chunk(&self, row: u32) -> Option<Chunk> {
        match self.claim(row)?.role {
            Role::Chunk(chunk) => Some(chunk),
            Role::Idle | Role::Lease(_) => None,
        }
    }

    pub(super) fn chunk_mut(&mut self, row: u32) -> Option<&mut Chunk> {
        match &mut self.claim_mut(row)?.role {
            Role::Chunk(chunk) => Some(chunk),
            Role::Idle | Role::Lease(_) => None,
        }
    }

    /// The rows of a peer's claims on our slots.
    pub(super) fn lease_rows(&self, peer: PeerId) -> Range<u32> {
        let first = u32::from(peer.0) * self.tickets;
        first..first + self.tickets
    }

    /// The rows of our chunks for a peer.
    pub(super) fn chunk_rows(&self, peer: PeerId) -> Range<u32> {
        let first = (self.peers.len() as u32 + u32::from(peer.0)) * self.tickets;
        first..first + self.tickets
    }

    /// The row of a ticket among those of its party.
    pub(super) fn row_of(&self, rows: Range<u32>, ticket: Ticket) -> Result<u32, Refusal> {
        if ticket.index < self.tickets {
            Ok(rows.start + ticket.index)
        } else {
            Err(Refusal::UnknownTicket)
        }
    }

    pub(super) fn ticket(&self, row: u32) -> Ticket {
        Ticket {
            index: row.checked_rem(self.tickets).unwrap_or(0),
            generation: self.claim(row).map_or(0, |claim| claim.generation),
        }
    }

    pub(super) fn party(&self, row: u32) -> u32 {
        row.checked_div(self.tickets).unwrap_or(0)
    }

    pub(super) fn peer(&self, row: u32) -> PeerId {
        let peers = self.peers.len() as u32;
        PeerId(self.party(row).checked_rem(peers).unwrap_or(0) as u16)
    }
}
