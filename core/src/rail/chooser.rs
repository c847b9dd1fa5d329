//! The seam between core and a policy: what core asks of one.
//!
//! [`Spray`] is core's own and has no state: core compiled for it has no row, no atomic and no branch for any other.
//! [`Policies`](super::policies::Policies) are all of core's, by transport. Another crate's implements [`Chooser`], and says
//! [`Sharing`] of itself without a body.

use core::fmt;

use super::documented::{Shares, Target, Targets};
use super::estimate::Sample;
use super::health::HealthMode;
use super::select::{Candidate, Usable, least_predicted};
use crate::plan::{PLAN_RAILS_MAX, PlanRail};
use crate::units::{RailId, TransportId};

/// How slices get their rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Several in a row, as [`spray`](super::spray) says: slices wait only for rails of their own plan.
    Runs,
    /// One by one: [`Chooser::choose`] is asked for each when it is first in the one line to its peer.
    Slices,
    /// By counts that are fixed when a request is submitted: see [`Sharing`].
    Shares,
}

/// A policy: it chooses rails. What it remembers is its own.
///
/// Rails that are not healthy, and classes of rails that path isolation does not want, are never among those it is asked about.
/// It is asked with the number of the transport that the rails are of, since transports may differ.
pub trait Chooser: Sharing {
    /// Which candidate takes the next slice of `length` bytes, by its position; `None`: the slice waits until something
    /// changes. One without room takes nothing. Slices that are sent again come here whatever [`Self::binding`] says.
    fn choose(
        &mut self,
        transport: TransportId,
        candidates: &[Candidate],
        length: u32,
    ) -> Option<usize>;

    /// A slice has gone to a rail, chosen here or by shares.
    fn took(&mut self, _transport: TransportId, _rail: RailId) {}

    /// Keeps the rails that are to be used, and to have lanes, as long as these are the healthy ones.
    fn retain(&self, _transport: TransportId, _rails: &mut heapless::Vec<Usable, PLAN_RAILS_MAX>) {}

    /// How slices get their rails.
    fn binding(&self, _transport: TransportId) -> Binding {
        Binding::Slices
    }

    /// How rails are paused and come back.
    fn health(&self, _transport: TransportId) -> HealthMode {
        HealthMode::Decay
    }
}

/// What a policy of [`Binding::Shares`] does besides. Others leave it as it is.
pub trait Sharing: fmt::Debug {
    /// For how many requests it remembers shares; `None`: no transport has any.
    fn share_rows(&self) -> Option<usize> {
        None
    }

    /// What the request in a row still has for its rails.
    fn shares(&self, _row: u32) -> Shares {
        Shares::NONE
    }

    /// Remembers it.
    fn set_shares(&mut self, _row: u32, _shares: Shares) {}

    /// A rail has so many bytes more that only it is to carry and that are not in flight.
    fn give(&self, _rail: RailId, _bytes: u64) {}

    /// And so many less: they are in flight now, or another's, or nobody wants them.
    fn take_back(&self, _rail: RailId, _bytes: u64) {}

    /// What of that a rail has.
    fn assigned_bytes(&self, _rail: RailId) -> u64 {
        0
    }

    /// A rail as it stands, at a position in its plan.
    fn target(&self, _transport: TransportId, position: usize, rail: PlanRail) -> Target {
        Target::unknown(position, rail.tier)
    }

    /// Shares out `length` bytes.
    fn allocate(&mut self, _: TransportId, _: &Targets, _length: u64, _slice_bytes: u32) -> Shares {
        Shares::NONE
    }

    /// The rail for a single slice.
    fn best(&mut self, _: TransportId, _: &Targets, _slice_bytes: u32) -> Option<usize> {
        None
    }

    /// A slice has completed on a rail.
    fn learn(&self, _transport: TransportId, _rail: RailId, _sample: Sample) {}

    /// A rail's number can mean another one from now on.
    fn forget(&self, _rail: RailId) {}
}

/// The least predicted completion among rails with room, and only if waiting would not end sooner: see
/// [`spray`](super::spray).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Spray;

impl Sharing for Spray {}

impl Chooser for Spray {
    /// One that is sent again has waited enough.
    fn choose(&mut self, _: TransportId, candidates: &[Candidate], _: u32) -> Option<usize> {
        least_predicted(candidates)
    }

    fn binding(&self, _: TransportId) -> Binding {
        Binding::Runs
    }
}

const _: () = assert!(size_of::<Spray>() == 0);
