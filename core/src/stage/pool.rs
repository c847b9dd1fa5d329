//! Pools of slots: who has which, who waits for one, and which nobody may use any more.

use super::claim::{Claim, WAITING};
use super::route::{Direction, PoolConfig};
use crate::queue::{Link, Linked, Queue};
use crate::units::{PeerId, PoolId, StageId};
use crate::work::Place;

/// Pools of one engine.
pub const POOLS_MAX: usize = 16;

/// One slot. Rows are the caller's memory; their content is [`super::Staged`]'s business.
#[derive(Debug)]
pub struct Slot {
    free: Link,
    state: SlotState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    Free,
    Used,
    Quarantined(Suspect),
}

impl Slot {
    /// For the arrays that a caller hands in.
    pub const EMPTY: Self = Self {
        free: Link::NONE,
        state: SlotState::Free,
    };
}

/// What may still be touching a quarantined slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspect {
    /// An attempt of this engine, if it is known.
    pub stage: Option<StageId>,
    /// The peer at the other end of it: proof that its process is gone makes the slot usable again.
    pub peer: Option<PeerId>,
}

/// How a pool stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolView {
    /// Slots that nobody has.
    pub free: u32,
    /// Slots that a chunk of ours or a peer has.
    pub used: u32,
    /// Slots that are not used again, because something may still touch them.
    pub quarantined: u32,
}

/// Who of one party waits for slots of one pool. Rows are the caller's memory.
#[derive(Debug)]
pub struct Line {
    link: Link,
    waiting: Queue<WAITING>,
    held: u32,
}

impl Line {
    /// For the arrays that a caller hands in.
    pub const EMPTY: Self = Self {
        link: Link::NONE,
        waiting: Queue::EMPTY,
        held: 0,
    };
}

impl Linked<0> for Slot {
    fn link(&mut self) -> &mut Link {
        &mut self.free
    }
}

impl Linked<0> for Line {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

#[derive(Debug)]
struct Pool {
    config: PoolConfig,
    /// The row of its first slot.
    first: u32,
    free: Queue<0>,
    /// Parties that wait and may have more slots, in turn.
    lines: Queue<0>,
    quarantined: u32,
}

/// What a claim that waited gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Grant {
    /// This slot.
    Slot { claim: u32, slot: u32 },
    /// Nothing, ever: no slot can be used any more.
    Lost { claim: u32 },
}

/// All pools. A *party* is a peer's claims on our slots, or our own claims on behalf of one peer; parties get slots
/// in turn, and the claims of one party in their order.
#[derive(Debug)]
pub(super) struct Pools<'a> {
    pools: heapless::Vec<Pool, POOLS_MAX>,
    slots: &'a mut [Slot],
    lines: &'a mut [Line],
    parties: u32,
    party_slots_max: u32,
    /// One bit for each pool that has something to give and somebody to give it to, perhaps.
    stirred: u16,
}

impl<'a> Pools<'a> {
    /// `None`: the tables are too small, or a pool makes no sense.
    pub(super) fn new(
        configs: &[PoolConfig],
        slots: &'a mut [Slot],
        lines: &'a mut [Line],
        parties: u32,
        party_slots_max: u32,
    ) -> Option<Self> {
        let mut pools = heapless::Vec::new();
        let mut first = 0_u32;
        for config in configs.iter().filter(|config| config.is_valid()) {
            let mut free = Queue::EMPTY;
            let end = first.checked_add(config.slots)?;
            slots
                .get_mut(first as usize..end as usize)?
                .fill_with(|| Slot::EMPTY);
            for row in first..end {
                free.push_back(&mut *slots, row);
            }
            let pool = Pool {
                config: *config,
                first,
                free,
                lines: Queue::EMPTY,
                quarantined: 0,
            };
            pools.push(pool).ok()?;
            first = end;
        }
        lines.fill_with(|| Line::EMPTY);
        let fits = pools.len() == configs.len() && lines.len() >= pools.len() * parties as usize;
        fits.then_some(Self {
            pools,
            slots,
            lines,
            parties,
            party_slots_max: party_slots_max.max(1),
            stirred: 0,
        })
    }

    pub(super) fn config(&self, pool: PoolId) -> Option<&PoolConfig> {
        self.pools.get(pool.index()).map(|pool| &pool.config)
    }

    pub(super) fn direction(&self, pool: PoolId) -> Option<Direction> {
        self.config(pool).map(|config| config.direction)
    }

    pub(super) fn place(&self, pool: PoolId, slot: u32) -> Option<Place> {
        self.config(pool).map(|config| config.place(slot))
    }

    pub(super) fn view(&self, pool: PoolId) -> Option<PoolView> {
        let pool = self.pools.get(pool.index())?;
        let free = pool.free.len() as u32;
        debug_assert!(
            free <= pool.config.slots - pool.quarantined,
            "{free} slots are free of {}, and {} are quarantined",
            pool.config.slots,
            pool.quarantined
        );
        Some(PoolView {
            free,
            used: pool.config.slots - free - pool.quarantined,
            quarantined: pool.quarantined,
        })
    }

    /// Puts a claim into its party's line.
    pub(super) fn wait(&mut self, claims: &mut [Claim], pool: PoolId, party: u32, claim: u32) {
        let index = self.line_index(pool, party);
        if let Some(line) = self.lines.get_mut(index as usize) {
            let before = line.waiting.len();
            line.waiting.push_back(claims, claim);
            debug_assert!(
                line.waiting.len() > before,
                "claim {claim} waits for a slot already"
            );
            self.enlist(pool, index);
        }
    }

    /// Takes a claim out of its party's line.
    pub(super) fn leave(&mut self, claims: &mut [Claim], pool: PoolId, party: u32, claim: u32) {
        let index = self.line_index(pool, party);
        let Some(line) = self.lines.get_mut(index as usize) else {
            return;
        };
        line.waiting.remove(claims, claim);
        if let (true, Some(pool)) = (line.waiting.is_empty(), self.pools.get_mut(pool.index())) {
            pool.lines.remove(&mut *self.lines, index);
        }
    }

    /// A pool in which there may be something for [`Self::grant`] to do.
    pub(super) fn stirred(&self) -> Option<PoolId> {
        (self.stirred != 0).then(|| PoolId(self.stirred.trailing_zeros() as u8))
    }

    /// Serves the next one that waits. `None`: nobody can be served now.
    pub(super) fn grant(&mut self, claims: &mut [Claim], id: PoolId) -> Option<Grant> {
        let granted = self.next(claims, id);
        if granted.is_none() {
            self.stirred &= !(1 << id.0);
        }
        granted
    }

    fn next(&mut self, claims: &mut [Claim], id: PoolId) -> Option<Grant> {
        let pool = self.pools.get_mut(id.index())?;
        let is_lost = pool.quarantined == pool.config.slots;
        if pool.free.is_empty() && !is_lost {
            return None;
        }
        debug_assert!(
            !is_lost || pool.free.is_empty(),
            "{} slots are free of a pool that is lost",
            pool.free.len()
        );
        let index = pool.lines.pop_front(&mut *self.lines)?;
        let line = self.lines.get_mut(index as usize)?;
        debug_assert!(
            !line.waiting.is_empty() && line.held < self.party_slots_max,
            "a party is in line that has {} slots of {}, and {} wait",
            line.held,
            self.party_slots_max,
            line.waiting.len()
        );
        let claim = line.waiting.pop_front(claims)?;
        let grant = if is_lost {
            Grant::Lost { claim }
        } else {
            let row = pool.free.pop_front(&mut *self.slots)?;
            let slot = self.slots.get_mut(row as usize)?;
            debug_assert!(
                slot.state == SlotState::Free,
                "slot {row} is free, and {:?}",
                slot.state
            );
            slot.state = SlotState::Used;
            line.held += 1;
            Grant::Slot {
                claim,
                slot: row - pool.first,
            }
        };
        self.enlist(id, index);
        Some(grant)
    }

    /// Gives a slot back.
    pub(super) fn free(&mut self, pool: PoolId, party: u32, slot: u32) {
        let was_used = self.put_back(pool, slot, SlotState::Used);
        debug_assert!(was_used, "slot {slot} was nobody's");
        if was_used {
            self.let_go(pool, party);
        }
    }

    /// Takes a slot out of use, because something may still touch it.
    pub(super) fn quarantine(&mut self, pool: PoolId, party: u32, slot: u32, suspect: Suspect) {
        let Some(row) = self.pools.get_mut(pool.index()) else {
            return;
        };
        let slot = self.slots.get_mut((row.first + slot) as usize);
        let slot = slot.filter(|slot| slot.state == SlotState::Used);
        debug_assert!(slot.is_some(), "a slot was nobody's");
        if let Some(slot) = slot {
            slot.state = SlotState::Quarantined(suspect);
            row.quarantined += 1;
            debug_assert!(row.quarantined <= row.config.slots);
            self.let_go(pool, party);
        }
    }

    /// Puts a quarantined slot back into use. `false`: it is not quarantined.
    pub(super) fn restore(&mut self, pool: PoolId, slot: u32) -> bool {
        let Some(suspect) = self.suspect(pool, slot) else {
            return false;
        };
        let restored = self.put_back(pool, slot, SlotState::Quarantined(suspect));
        if let Some(row) = self.pools.get_mut(pool.index()) {
            debug_assert!(
                !restored || row.quarantined > 0,
                "slot {slot} was quarantined, and none is"
            );
            row.quarantined -= u32::from(restored);
        }
        restored
    }

    /// All slots are usable again whose only suspect was this peer.
    pub(super) fn restore_all(&mut self, peer: PeerId) {
        for pool in (0..self.pools.len()).map(|pool| PoolId(pool as u8)) {
            for slot in 0..self.config(pool).map_or(0, |config| config.slots) {
                if self
                    .suspect(pool, slot)
                    .is_some_and(|suspect| suspect.peer == Some(peer))
                {
                    self.restore(pool, slot);
                }
            }
        }
    }

    /// More is known of an attempt that slots were quarantined for: whether this side's memory is released, and the far
    /// end settled. A copy has both ends here. `true`: it had a slot.
    pub(super) fn restore_stage(&mut self, id: StageId, released: bool, settled: bool) -> bool {
        let mut found = false;
        for pool in (0..self.pools.len()).map(|pool| PoolId(pool as u8)) {
            let mut of_stage = self
                .quarantined(pool)
                .filter(|(_, of)| of.stage == Some(id));
            let first = of_stage.next();
            drop(of_stage);
            if let Some((slot, suspect)) = first {
                found = true;
                if released && (settled || suspect.peer.is_some()) {
                    self.restore(pool, slot);
                }
            }
        }
        found
    }

    /// A peer's number is another's from now on.
    pub(super) fn disown(&mut self, peer: PeerId) {
        for slot in self.slots.iter_mut() {
            if let SlotState::Quarantined(suspect) = &mut slot.state
                && suspect.peer == Some(peer)
            {
                suspect.peer = None;
            }
        }
    }

    /// The quarantined slots of a pool.
    pub(super) fn quarantined(&self, pool: PoolId) -> impl Iterator<Item = (u32, Suspect)> + '_ {
        let slots = self.config(pool).map_or(0, |config| config.slots);
        (0..slots).filter_map(move |slot| Some((slot, self.suspect(pool, slot)?)))
    }

    fn suspect(&self, pool: PoolId, slot: u32) -> Option<Suspect> {
        let pool = self.pools.get(pool.index())?;
        let row = (slot < pool.config.slots).then_some(pool.first + slot)?;
        match self.slots.get(row as usize)?.state {
            SlotState::Quarantined(suspect) => Some(suspect),
            SlotState::Free | SlotState::Used => None,
        }
    }

    /// Slots of a pool that a party has.
    pub(super) fn held(&self, pool: PoolId, party: u32) -> u32 {
        let line = self.lines.get(self.line_index(pool, party) as usize);
        line.map_or(0, |line| line.held)
    }

    fn put_back(&mut self, id: PoolId, slot: u32, from: SlotState) -> bool {
        let Some(pool) = self.pools.get_mut(id.index()) else {
            return false;
        };
        debug_assert!(
            slot < pool.config.slots,
            "slot {slot} of {}",
            pool.config.slots
        );
        let row = pool.first + slot;
        let slot = self.slots.get_mut(row as usize);
        let Some(slot) = slot.filter(|slot| slot.state == from) else {
            return false;
        };
        slot.state = SlotState::Free;
        pool.free.push_back(&mut *self.slots, row);
        self.stirred |= 1 << id.0;
        true
    }

    /// A party has one slot less.
    fn let_go(&mut self, pool: PoolId, party: u32) {
        let index = self.line_index(pool, party);
        if let Some(line) = self.lines.get_mut(index as usize) {
            debug_assert!(line.held > 0, "a party without slots gives one back");
            line.held = line.held.saturating_sub(1);
        }
        self.enlist(pool, index);
    }

    /// Puts a party in line if it waits and may have more.
    fn enlist(&mut self, id: PoolId, index: u32) {
        let line = self.lines.get(index as usize);
        let may =
            line.is_some_and(|line| !line.waiting.is_empty() && line.held < self.party_slots_max);
        if let (true, Some(pool)) = (may, self.pools.get_mut(id.index())) {
            pool.lines.push_back(&mut *self.lines, index);
        }
        self.stirred |= 1 << id.0;
    }

    fn line_index(&self, pool: PoolId, party: u32) -> u32 {
        debug_assert!(party < self.parties, "party {party} of {}", self.parties);
        u32::from(pool.0) * self.parties + party
    }
}
