//! The end of sessions with peers: what of it is called back, and when the next one may begin.

use super::Staged;
use super::claim::{Role, Run, Step};
use crate::orchestrator::Proof;
use crate::time::Instant;
use crate::units::{PeerId, StageId};
use crate::work::Cause;

impl Staged<'_> {
    /// The peer's session is over. With proof, all its hops and ours have ended with it: slots that it has are free, and
    /// quarantined without. Copies that it makes for us have ended only with its process. Requests to it end, and hops to
    /// and from it that are out are called back: see [`Self::is_held_off`]. Called again when proof comes, it frees what is
    /// quarantined, unless the number has been used since: then it is another's.
    pub fn handle_peer_gone(&mut self, now: Instant, peer: PeerId, proof: Option<Proof>) {
        let Some(row) = self.peers.get_mut(peer.index()) else {
            return;
        };
        row.gone = proof.is_none();
        for row in self.chunk_rows(peer) {
            self.forget_remote(now, row, proof);
        }
        self.prove_peer(peer, proof == Some(Proof::ProcessGone));
        self.end_all(now, Some(peer), Cause::PeerGone);
        for row in self.lease_rows(peer) {
            self.forget_lease(row, proof.is_some());
        }
        if proof.is_some() {
            self.pools.restore_all(peer);
        }
        let held_off = self.has_hops_out(peer);
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.held_off = held_off;
        }
        self.settle(now);
    }

    /// The next hop to call back: nobody needs it any more, or what it names may be another's soon. It is to be cancelled,
    /// and answered by [`Self::handle_stage`] like all others.
    pub fn poll_revoke(&mut self) -> Option<StageId> {
        loop {
            let row = self.revoked.pop_front(&mut *self.claims)?;
            let claim = self.claim(row).filter(|claim| claim.run == Run::Out);
            if let Some(claim) = claim {
                return Some(StageId {
                    index: row,
                    generation: claim.attempt,
                });
            }
        }
    }

    /// Whether hops of sessions with this peer that are over have not ended. They name slots that the peer has given to
    /// others since: no new session may carry anything before, and no chunk for the peer begins.
    pub fn is_held_off(&self, peer: PeerId) -> bool {
        let peer = self.peers.get(peer.index());
        peer.is_some_and(|peer| peer.held_off)
    }

    /// Has a hop that is out called back.
    pub(super) fn revoke(&mut self, row: u32) {
        self.revoked.push_back(&mut *self.claims, row);
    }

    /// Whether hops to or from this peer are out.
    pub(super) fn has_hops_out(&self, peer: PeerId) -> bool {
        self.chunk_rows(peer).any(|row| {
            self.claim(row).is_some_and(|claim| {
                let is_network =
                    matches!(claim.role, Role::Chunk(chunk) if chunk.step == Step::Network);
                is_network && claim.run == Run::Out
            })
        })
    }

    /// Chunks for a peer begin again once no hop of an old session is out.
    pub(super) fn let_in(&mut self, peer: PeerId) {
        if self.is_held_off(peer)
            && !self.has_hops_out(peer)
            && let Some(row) = self.peers.get_mut(peer.index())
        {
            row.held_off = false;
            self.calling.push_back(&mut *self.peers, peer.0.into());
        }
    }

    /// Whoever is named by this number now is not who went without proof.
    pub(super) fn meet(&mut self, peer: PeerId) {
        let row = self.peers.get_mut(peer.index());
        if row.is_some_and(|row| core::mem::take(&mut row.gone)) {
            self.pools.disown(peer);
            self.proofs.disown(peer);
        }
    }
}
