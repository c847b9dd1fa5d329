//! Path isolation at the moment of binding: which classes of rails a slice may take now, and which of them are to
//! have lanes.
//!
//! What is suppressed has been taken out of the plan when that was installed, so nothing here, and no other policy,
//! can open it. The rest is a wish: health and reachability come first, and slices that are sent again go wherever
//! they can.

use super::bind::Next;
use super::open_rails::Way;
use super::{Chooser, Orchestrator};
use crate::path::class::{ClassSet, RailClass};
use crate::path::share::Shares;
use crate::path::{Path, Preference};
use crate::plan::{PlanPath, PlanRails};
use crate::rail::spray::Line;
use crate::time::Instant;
use crate::units::{PeerId, RailId};

/// How what goes to one peer is steered.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Steering {
    of: PlanPath,
    path: Path,
    /// What an agent wants, and until when it counts.
    hint: Option<(Shares, Instant)>,
}

impl Steering {
    pub(super) fn new(of: PlanPath) -> Self {
        Self {
            of,
            path: Path::new(&of.config, of.class),
            hint: None,
        }
    }

    /// Whether it is what a plan says. Then it goes on, and no claim is forgotten.
    pub(super) fn is_of(&self, path: PlanPath) -> bool {
        self.of == path
    }

    fn preference(&mut self, now: Instant, bytes: u64) -> Preference {
        let hint = self.hint.filter(|(_, until)| now <= *until);
        self.path
            .preference(bytes, || hint.map(|(shares, _)| shares))
    }
}

/// What a slice may do, as far as classes go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    preference: Preference,
    /// With a healthy rail.
    reachable: ClassSet,
    /// It may take these now.
    pub(super) takes: ClassSet,
    /// It would take these if all had room, so they are to have lanes.
    pub(super) wants: ClassSet,
    /// Some of those have a lane that is open.
    pub(super) some_open: bool,
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// What an agent wants the bytes to a peer to be from now on, until it is said anew or the path's `hint_age_max`
    /// is over; `None`: nothing. Only peers that path isolation steers in mode `Advanced` heed it, and only as far as
    /// health allows. Give it again and again: a hint that nobody repeats is not believed for long.
    pub fn handle_hint(&mut self, now: Instant, peer: PeerId, hint: Option<Shares>) {
        let row = self.peers.get_mut(peer.index());
        let Some(steering) = row.and_then(|row| row.steering.as_mut()) else {
            return;
        };
        let shares = |hint: Option<(Shares, Instant)>| hint.map(|(shares, _)| shares);
        let changed = shares(steering.hint) != hint;
        let until = now + steering.of.config.hint_age_max;
        steering.hint = hint.map(|shares| (shares, until));
        if changed {
            self.bind_again(peer);
        }
    }

    /// How often a hint has been asked for, for what goes to a peer; see [`Path::hint_reads`].
    pub fn hint_reads(&self, peer: PeerId) -> u64 {
        let row = self.peers.get(peer.index());
        row.and_then(|row| row.steering.as_ref())
            .map_or(0, |steering| steering.path.hint_reads())
    }

    /// What a transfer of so many bytes should do; `None`: nobody steers it.
    pub(super) fn preference(
        &mut self,
        now: Instant,
        peer: PeerId,
        bytes: u64,
    ) -> Option<Preference> {
        let row = self.peers.get_mut(peer.index())?;
        Some(row.steering.as_mut()?.preference(now, bytes))
    }

    /// What the next slice of a transfer may do.
    pub(super) fn lead(&self, way: Way, preference: Preference, length: u32, line: Line) -> Lead {
        let view = self.view();
        let (mut reachable, mut open, mut room) = (ClassSet::NONE, ClassSet::NONE, ClassSet::NONE);
        for rail in view.rails_in_use(way) {
            if self.is_healthy(rail.rail) {
                reachable = reachable.with(rail.class);
            }
            let Some(spot) = view.spot(*rail, way.op) else {
                continue;
            };
            open = open.with(rail.class);
            let takes = spot.room.takes(length.min(spot.work_bytes_max), line);
            if takes && spot.works > 0 {
                room = room.with(rail.class);
            }
        }
        let classes = |room| {
            let steering = self.peers.get(way.peer.index())?.steering.as_ref()?;
            let path = &steering.path;
            Some(path.classes(&preference, length, reachable, room))
        };
        let wants = classes(reachable).unwrap_or(ClassSet::NONE);
        Lead {
            preference,
            reachable,
            takes: classes(room).unwrap_or(ClassSet::NONE),
            wants,
            some_open: !open.and(wants).is_empty(),
        }
    }

    /// The same for a slice that any policy binds. One that is sent again, perhaps not to a certain rail, has no turn:
    /// it takes any class that its transfer names, or whatever there is.
    pub(super) fn lead_next(
        &mut self,
        now: Instant,
        way: Way,
        next: &Next,
        line: Line,
    ) -> Option<Lead> {
        let bytes = self.requests.get(next.request)?.length;
        let preference = self.preference(now, way.peer, bytes)?;
        if !next.again {
            return Some(self.lead(way, preference, next.length, line));
        }
        let usable = self.view().rails_in_use(way);
        let usable = usable.filter(|rail| next.avoid != Some(rail.rail));
        let reachable: ClassSet = usable
            .filter(|rail| self.is_healthy(rail.rail))
            .map(|rail| rail.class)
            .collect();
        let wants = preference.classes().and(reachable).or_else(reachable);
        let open = |class: RailClass| {
            let rails = self.view().rails_in_use(way);
            let mut of_class = rails.filter(|rail| rail.class == class);
            of_class.any(|rail| self.view().spot(*rail, way.op).is_some())
        };
        Some(Lead {
            preference: Preference::Within(wants),
            reachable,
            takes: wants,
            wants,
            some_open: wants.iter().any(open),
        })
    }

    /// A slice went to a rail by this lead.
    pub(super) fn led(&mut self, way: Way, lead: &Lead, rail: RailId, length: u32) {
        let rails = self.view().rails(way);
        let class = rails.iter().find(|row| row.rail == rail);
        let class = class.map(|row| row.class);
        debug_assert!(
            class.is_none_or(|class| lead.takes.or_else(lead.wants).contains(class)),
            "a slice went to class {class:?}, and was to take {:?}",
            lead.takes
        );
        let row = self.peers.get_mut(way.peer.index());
        if let Some(steering) = row.and_then(|row| row.steering.as_mut())
            && let Some(class) = class
        {
            let path = &mut steering.path;
            path.handle_bound(&lead.preference, length, lead.reachable, class);
        }
    }

    /// The rails that a request should go to as a whole, for the policy that shares it out at once: of the classes
    /// that are preferred, if one of those has a usable rail.
    pub(super) fn wished(
        &mut self,
        now: Instant,
        peer: PeerId,
        bytes: u64,
        rails: &PlanRails,
    ) -> Option<ClassSet> {
        let preference = self.preference(now, peer, bytes)?;
        let healthy = rails.iter().filter(|rail| self.is_healthy(rail.rail));
        let reachable: ClassSet = healthy.map(|rail| rail.class).collect();
        Some(preference.classes().and(reachable).or_else(reachable))
    }
}
