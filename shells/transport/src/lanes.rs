//! What a target's service remembers of the inbound lanes of one session.

use std::collections::HashMap;

use polyrail_core::units::{Epoch, LaneId};

/// Lanes that were fenced before they ever came, and that are remembered one by one.
const FENCED_MAX: usize = 128;

/// The inbound lanes of a session: a record `R` of each that was admitted, and of others only up to which epoch they were
/// fenced.
///
/// Fences of lanes that never were cost whoever sends them nothing, so there is room for a few of them only. Of more, the
/// one with the lowest epoch goes, and from then on no lane of the session may begin for the first time with an epoch
/// up to that.
#[derive(Debug)]
pub struct Lanes<R> {
    known: HashMap<LaneId, R>,
    fenced: Vec<(LaneId, Epoch)>,
    /// What those that are not remembered any more were fenced up to.
    floor: Epoch,
}

impl<R> Default for Lanes<R> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            fenced: Vec::new(),
            floor: Epoch::default(),
        }
    }
}

impl<R> Lanes<R> {
    /// The record of a lane that was admitted.
    pub fn get_mut(&mut self, lane: LaneId) -> Option<&mut R> {
        self.known.get_mut(&lane)
    }

    /// All records.
    pub fn values(&self) -> impl Iterator<Item = &R> {
        self.known.values()
    }

    /// How many lanes were admitted.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Up to which epoch a lane was fenced that was never admitted.
    pub fn fenced(&self, lane: LaneId) -> Epoch {
        let of_lane = self.fenced.iter().find(|(of, _)| *of == lane);
        of_lane.map_or(self.floor, |(_, epoch)| self.floor.max(*epoch))
    }

    /// Remembers that a lane was fenced, if it was never admitted; otherwise that is for its record, which this gives.
    pub fn fence(&mut self, lane: LaneId, epoch: Epoch) -> Option<&mut R> {
        if self.known.contains_key(&lane) {
            return self.known.get_mut(&lane);
        }
        if let Some((_, fenced)) = self.fenced.iter_mut().find(|(of, _)| *of == lane) {
            *fenced = epoch.max(*fenced);
            return None;
        }
        if epoch <= self.floor {
            return None;
        }
        self.fenced.push((lane, epoch));
        if self.fenced.len() > FENCED_MAX
            && let Some(lowest) = self.fenced.iter().map(|(_, epoch)| *epoch).min()
        {
            self.floor = lowest;
            self.fenced.retain(|(_, epoch)| *epoch > lowest);
        }
        None
    }

    /// The record of a lane that may be admitted, made by `new` if there is none, with the epoch up to which it was fenced.
    /// `None`: there are `most` of them.
    pub fn admit(
        &mut self,
        lane: LaneId,
        most: usize,
        new: impl FnOnce(Epoch) -> R,
    ) -> Option<&mut R> {
        if !self.known.contains_key(&lane) {
            if self.known.len() >= most {
                return None;
            }
            let fenced = self.fenced(lane);
            self.fenced.retain(|(of, _)| *of != lane);
            self.known.insert(lane, new(fenced));
        }
        self.known.get_mut(&lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_of_lanes_that_never_were_take_little_room_and_hold_all_the_same() {
        let mut lanes = Lanes::<Epoch>::default();
        // A lane that has failed to open again and again, then a flood.
        assert!(lanes.fence(LaneId(7), Epoch(50)).is_none());
        for number in 1_000..100_000 {
            assert!(lanes.fence(LaneId(number), Epoch(1)).is_none());
            assert!(lanes.fenced(LaneId(number)) >= Epoch(1));
        }
        assert!(lanes.fenced.capacity() <= 4 * FENCED_MAX);
        assert_eq!(lanes.fenced(LaneId(7)), Epoch(50));
        // Whoever has flooded it has spoilt the first epoch for lanes of the session, and no other.
        assert_eq!(lanes.fenced(LaneId(8)), Epoch(1));
        assert_eq!(
            lanes.admit(LaneId(7), 1, |fenced| fenced),
            Some(&mut Epoch(50))
        );
        assert_eq!(lanes.admit(LaneId(8), 1, |fenced| fenced), None, "full");
        assert_eq!(lanes.fence(LaneId(7), Epoch(51)), Some(&mut Epoch(50)));
    }

    #[test]
    fn a_few_fences_of_lanes_that_never_were_say_nothing_of_others() {
        let mut lanes = Lanes::<Epoch>::default();
        for number in 0..FENCED_MAX as u32 {
            lanes.fence(LaneId(number), Epoch(9));
        }
        assert_eq!(lanes.fenced(LaneId(0)), Epoch(9));
        assert_eq!(lanes.fenced(LaneId(FENCED_MAX as u32)), Epoch(0));
    }
}
