//! Who waits for his handshake: addresses have their turns, so that a crowd at one does not keep another waiting. Every other
//! turn is for addresses where somebody has proved himself before, so that a crowd at thousands of them keeps no member
//! waiting either.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use polyrail_transport::place::Place;

use super::wires::Key;

/// Addresses that are remembered because somebody has proved himself there, the last ones.
const PROVED_MAX: usize = 4096;

/// Connections whose first message of TLS has come. Of each address the oldest is the next.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Counts turns.
    count: u64,
    /// Of addresses where nobody has proved himself, and of the others.
    turns: [BTreeMap<u64, Place>; 2],
    /// Whose turn was last.
    last: usize,
    /// Those of an address, and its turn.
    waiting: HashMap<Place, Waiting>,
    /// Where somebody has proved himself, with when that was last.
    proved: HashMap<Place, u64>,
    proved_in_order: BTreeMap<u64, Place>,
}

#[derive(Debug)]
struct Waiting {
    /// Which of the [`Line::turns`].
    kind: usize,
    turn: u64,
    keys: BTreeSet<Key>,
}

impl Line {
    /// Joins it behind others of the same address, and once.
    pub(super) fn join(&mut self, key: Key, place: Place) {
        if let Some(waiting) = self.waiting.get_mut(&place) {
            waiting.keys.insert(key);
            return;
        }
        self.give_turn(place, BTreeSet::from([key]));
    }

    /// Leaves it, if it is in it.
    pub(super) fn leave(&mut self, key: Key, place: Place) {
        let Some(waiting) = self.waiting.get_mut(&place) else {
            return;
        };
        waiting.keys.remove(&key);
        if waiting.keys.is_empty() {
            self.turns[waiting.kind].remove(&waiting.turn);
            self.waiting.remove(&place);
        }
    }

    /// Takes who is next. His address has its next turn after all others of its kind.
    pub(super) fn next(&mut self) -> Option<Key> {
        let kind = match self.turns[1 - self.last].is_empty() {
            true => self.last,
            false => 1 - self.last,
        };
        let (_, place) = self.turns[kind].pop_first()?;
        self.last = kind;
        let mut keys = self.waiting.remove(&place)?.keys;
        let key = keys.pop_first();
        if !keys.is_empty() {
            self.give_turn(place, keys);
        }
        key
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.iter().all(BTreeMap::is_empty)
    }

    /// Somebody at an address has proved himself.
    pub(super) fn note_proved(&mut self, place: Place) {
        self.count += 1;
        if let Some(before) = self.proved.insert(place, self.count) {
            self.proved_in_order.remove(&before);
        }
        self.proved_in_order.insert(self.count, place);
        if self.proved.len() > PROVED_MAX
            && let Some((_, oldest)) = self.proved_in_order.pop_first()
        {
            self.proved.remove(&oldest);
        }
    }

    fn give_turn(&mut self, place: Place, keys: BTreeSet<Key>) {
        self.count += 1;
        let turn = self.count;
        let kind = usize::from(self.proved.contains_key(&place));
        self.turns[kind].insert(turn, place);
        self.waiting.insert(place, Waiting { kind, turn, keys });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u32) -> Place {
        Place::of(std::net::Ipv4Addr::from(0x0a00_0000 + number).into())
    }

    #[test]
    fn addresses_have_their_turns() {
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

    #[test]
    fn every_other_turn_is_for_where_somebody_has_proved_himself() {
        let mut line = Line::default();
        line.note_proved(place(7));
        line.note_proved(place(7));
        for stranger in 1_000..2_000 {
            line.join(stranger, place(stranger as u32));
        }
        for key in [1, 2, 3] {
            line.join(key, place(7));
        }
        line.leave(3, place(7));
        let order: Vec<_> = std::iter::from_fn(|| line.next()).collect();
        assert_eq!(order[..6], [1, 1_000, 2, 1_001, 1_002, 1_003]);
        assert_eq!(order.len(), 1_002);
        assert!(line.is_empty() && line.waiting.is_empty());
    }

    #[test]
    fn the_last_addresses_that_proved_themselves_are_remembered() {
        let mut line = Line::default();
        for number in 0..2 * PROVED_MAX as u32 {
            line.note_proved(place(number));
            // This one is there again and again.
            line.note_proved(place(5));
        }
        assert_eq!(line.proved.len(), PROVED_MAX);
        assert_eq!(line.proved_in_order.len(), PROVED_MAX);
        assert!(line.proved.contains_key(&place(5)));
        assert!(!line.proved.contains_key(&place(6)));
    }
}
