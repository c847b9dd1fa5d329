//! Every invariant of staging, checked at once: for the simulator, tests and debug builds.

use super::Staged;
use super::claim::{Claim, Role};
use crate::orchestrator::Violation;
use crate::units::{PeerId, PoolId};

fn check(what: &'static str, row: u32, found: u32, expected: u32) -> Result<(), Violation> {
    if found == expected {
        return Ok(());
    }
    Err(Violation {
        what,
        row: row.into(),
        found: found.into(),
        expected: expected.into(),
    })
}

impl Staged<'_> {
    /// Checks everything. Linear in the tables, but for slots, each of which is looked for among the rows.
    pub fn audit(&self) -> Result<(), Violation> {
        let count = |has: &dyn Fn(&Claim) -> bool| {
            self.claims.iter().filter(|claim| has(claim)).count() as u32
        };
        for (id, request) in self.requests.iter() {
            let chunks = count(
                &|claim| matches!(claim.role, Role::Chunk(chunk) if chunk.request == Some(id)),
            );
            check("chunks of a request", id.index, chunks, request.chunks)?;
        }
        for (index, peer) in (0..).zip(&*self.peers) {
            let requests = self.requests.iter();
            let its = requests.filter(|(_, request)| request.route.peer == PeerId(index));
            let row = u32::from(index);
            check("requests of a peer", row, its.count() as u32, peer.requests)?;
            let out = u32::from(peer.held_off && self.has_hops_out(PeerId(index)));
            check("a peer held off", row, out, peer.held_off.into())?;
        }
        for (counted, found) in self.proofs.counts() {
            check("attempts without proof", 0, found, counted)?;
        }
        for (pool, view) in (0..).map_while(|pool| Some((PoolId(pool), self.pool(PoolId(pool))?))) {
            let slots = self.pools.config(pool).map_or(0, |config| config.slots);
            let row = u32::from(pool.0);
            let used = count(&|claim| claim.slot.is_some_and(|(of, _)| of == pool));
            check("slots that rows have", row, used, view.used)?;
            let quarantined = self.quarantined(pool).count() as u32;
            check("quarantined slots", row, quarantined, view.quarantined)?;
            for slot in 0..slots {
                let holders = count(&|claim| claim.slot == Some((pool, slot)));
                check("rows of one slot", slot, holders.max(1), 1)?;
            }
            for party in 0..2 * self.peers.len() as u32 {
                let rows = (0..).zip(&*self.claims).filter(|(row, claim)| {
                    self.party(*row) == party && claim.slot.is_some_and(|(of, _)| of == pool)
                });
                let held = self.pools.held(pool, party);
                check("slots of a party", party, rows.count() as u32, held)?;
            }
        }
        Ok(())
    }
}
