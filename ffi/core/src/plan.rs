//! Plans: how one segment's bytes reach another.

use polyrail_core::path::class::RailClass;
use polyrail_core::plan::{Plan, PlanRail, PlanTransport};
use polyrail_core::time::Instant;
use polyrail_core::units::{PeerId, PlanId, RailId, SegmentRef, TransportId};
use polyrail_core::work::Place;

use crate::memory::{ARGUMENT, Code, LIMIT, change, code, look, several};
use crate::worker::polyrail_core_worker;

/// A byte of a segment, as the caller numbers segments.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_place {
    /// Which segment.
    pub segment: u32,
    /// Bytes from its start.
    pub offset: u64,
}

/// A rail of a plan.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_plan_rail {
    /// Its number in the fabric.
    pub rail: u16,
    /// The transport that it belongs to. Transports come in the order in which they occur first, the best one first.
    pub transport: u8,
    /// How far it is from this memory: 0, 1 or 2.
    pub tier: u8,
}

/// How one segment's bytes reach another. At most 4 transports of 16 rails each.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_plan {
    /// Who owns the remote segment.
    pub peer: u16,
    /// The segment on this side.
    pub local: u32,
    /// The segment on the peer's side.
    pub remote: u32,
    /// Where probes read from.
    pub scratch_local: polyrail_core_place,
    /// Where probes write to.
    pub scratch_remote: polyrail_core_place,
    /// How much scratch there is on either side.
    pub scratch_bytes: u32,
    /// The rails that reach it.
    pub rails: *const polyrail_core_plan_rail,
    /// How many.
    pub rail_count: usize,
}

impl From<polyrail_core_place> for Place {
    fn from(place: polyrail_core_place) -> Self {
        Self {
            segment: SegmentRef(place.segment),
            offset: place.offset,
        }
    }
}

impl From<Place> for polyrail_core_place {
    fn from(place: Place) -> Self {
        Self {
            segment: place.segment.0,
            offset: place.offset,
        }
    }
}

fn plan(said: &polyrail_core_plan, rails: &[polyrail_core_plan_rail]) -> Option<Plan> {
    let mut plan = Plan {
        peer: PeerId(said.peer),
        local: SegmentRef(said.local),
        remote: SegmentRef(said.remote),
        transports: heapless::Vec::new(),
        scratch_local: said.scratch_local.into(),
        scratch_remote: said.scratch_remote.into(),
        scratch_bytes: said.scratch_bytes,
        path: None,
    };
    for rail in rails {
        let transport = TransportId(rail.transport);
        let row = PlanRail {
            rail: RailId(rail.rail),
            tier: rail.tier,
            class: RailClass::PRIMARY,
        };
        let known = plan
            .transports
            .iter()
            .position(|row| row.transport == transport);
        let index = match known {
            Some(index) => index,
            None => {
                let rails = heapless::Vec::new();
                plan.transports
                    .push(PlanTransport { transport, rails })
                    .ok()?;
                plan.transports.len() - 1
            }
        };
        plan.transports.get_mut(index)?.rails.push(row).ok()?;
    }
    Some(plan)
}

/// Makes a plan known under a number that the caller draws: the row in the lower half, and in the upper half a generation
/// that tells it from the one before in that row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_install_plan(
    core: *mut polyrail_core_worker,
    now: u64,
    number: u64,
    said: *const polyrail_core_plan,
) -> i32 {
    let install = || -> Result<(), Code> {
        // SAFETY: the contract of the crate.
        let (core, said) = unsafe { (change(core)?, look(said)?) };
        // SAFETY: as above.
        let rails = unsafe { several(said.rails, said.rail_count) }?;
        if said.scratch_bytes == 0 || rails.is_empty() {
            return Err(ARGUMENT);
        }
        let plan = plan(said, rails).ok_or(ARGUMENT)?;
        let number = PlanId::from_bits(number);
        let installed = core
            .core
            .install_plan(Instant::from_nanos(now), number, &plan);
        if installed { Ok(()) } else { Err(LIMIT) }
    };
    code(install())
}

/// Refuses new requests for a plan. Those that have it end as they would have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_retire_plan(
    core: *mut polyrail_core_worker,
    number: u64,
) -> i32 {
    // SAFETY: the contract of the crate.
    let core = unsafe { change(core) };
    code(core.map(|core| core.core.retire_plan(PlanId::from_bits(number))))
}
