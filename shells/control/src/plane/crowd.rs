//! Connections that have proved nothing yet, with a share of the room for each address.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use polyrail_transport::place::Place;

use super::wires::Key;

/// Connections by age, in all and of each address.
#[derive(Debug)]
pub(super) struct Crowd {
    /// In all. The oldest makes room.
    most: usize,
    places: BTreeMap<Key, Place>,
    keys: HashMap<Place, BTreeSet<Key>>,
}

impl Crowd {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            places: BTreeMap::new(),
            keys: HashMap::new(),
        }
    }

    /// Of one address. Its own oldest makes room.
    pub(super) fn share(&self) -> usize {
        self.most.div_ceil(2)
    }

    /// Who has to go before one more from there comes.
    pub(super) fn makes_room(&self, place: Place) -> Option<Key> {
        let own = self.keys.get(&place);
        let own = own.filter(|keys| keys.len() >= self.share());
        let oldest = || self.places.first_key_value().map(|(key, _)| *key);
        match own {
            Some(keys) => keys.first().copied(),
            None if self.places.len() >= self.most => oldest(),
            None => None,
        }
    }

    /// Whether it was not in it.
    pub(super) fn insert(&mut self, key: Key, place: Place) -> bool {
        self.keys.entry(place).or_default().insert(key);
        self.places.insert(key, place).is_none()
    }

    /// Whether it was in it.
    pub(super) fn remove(&mut self, key: Key) -> bool {
        let Some(place) = self.places.remove(&key) else {
            return false;
        };
        if let Some(keys) = self.keys.get_mut(&place) {
            keys.remove(&key);
            if keys.is_empty() {
                self.keys.remove(&place);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share_and_all_of_them_have_a_bound() {
        let place = |host: u8| Place::of([10, 0, 0, host].into());
        let mut crowd = Crowd::new(512);
        let mut come = |key: Key, from: u8| {
            let gone = crowd.makes_room(place(from));
            gone.into_iter()
                .for_each(|gone| assert!(crowd.remove(gone)));
            assert!(crowd.insert(key, place(from)));
            gone
        };
        // (from, first key, how many come, the first that goes, how many go)
        let cases = [
            (1, 0, 300, Some(0), 44),
            (2, 1_000, 256, None, 0),
            // All are full now: the oldest of all go.
            (3, 4_000, 10, Some(44), 10),
            // And here its own.
            (2, 5_000, 1, Some(1_000), 1),
        ];
        for (from, first, count, gone_first, gone_count) in cases {
            let gone: Vec<_> = (first..first + count)
                .filter_map(|key| come(key, from))
                .collect();
            assert_eq!(
                (gone.first().copied(), gone.len()),
                (gone_first, gone_count),
                "{from}"
            );
        }
    }
}
