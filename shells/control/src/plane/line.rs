//! Who waits for his handshake: addresses have their turns, so that a crowd at one does not keep another waiting.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use polyrail_transport::place::Place;

use super::wires::Key;

/// Connections whose first message of TLS has come. Of each address the oldest is the next.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Counts turns.
    count: u64,
    turns: BTreeMap<u64, Place>,
    /// Those of an address, and its turn.
    waiting: HashMap<Place, (u64, BTreeSet<Key>)>,
}

impl Line {
    /// Joins it behind others of the same address, and once.
    pub(super) fn join(&mut self, key: Key, place: Place) {
        if let Some((_, keys)) = self.waiting.get_mut(&place) {
            keys.insert(key);
            return;
        }
        self.give_turn(place, BTreeSet::from([key]));
    }

    /// Leaves it, if it is in it.
    pub(super) fn leave(&mut self, key: Key, place: Place) {
        let Some((turn, keys)) = self.waiting.get_mut(&place) else {
            return;
        };
        keys.remove(&key);
        if keys.is_empty() {
            self.turns.remove(turn);
            self.waiting.remove(&place);
        }
    }

    /// Takes who is next. His address has its next turn after all others.
    pub(super) fn next(&mut self) -> Option<Key> {
        let (_, place) = self.turns.pop_first()?;
        let (_, mut keys) = self.waiting.remove(&place)?;
        let key = keys.pop_first();
        if !keys.is_empty() {
            self.give_turn(place, keys);
        }
        key
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    fn give_turn(&mut self, place: Place, keys: BTreeSet<Key>) {
        self.count += 1;
        self.turns.insert(self.count, place);
        self.waiting.insert(place, (self.count, keys));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_their_turns() {
        let place = |host: u8| Place::of([10, 0, 0, host].into());
        let mut line = Line::default();
        // Who joins twice has one place.
        for key in [1, 2, 3, 4, 1] {
            line.join(key, place(1));
        }
        line.join(10, place(2));
        line.join(11, place(2));
        line.join(20, place(3));
        line.leave(2, place(1));
        line.leave(20, place(3));
        // Who is not in it leaves nothing.
        line.leave(99, place(1));
        line.leave(99, place(4));
        let order: Vec<_> = std::iter::from_fn(|| line.next()).collect();
        assert_eq!(order, [1, 10, 3, 11, 4]);
        assert!(line.is_empty() && line.waiting.is_empty());
    }
}
