//! How many of something each has: sessions, addresses.

use std::collections::HashMap;
use std::hash::Hash;

/// Counts by key. One that is 0 takes no room.
#[derive(Debug)]
pub struct Tally<K>(HashMap<K, usize>);

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Tally<K> {
    /// How many there are of a key.
    pub fn of(&self, key: &K) -> usize {
        self.0.get(key).copied().unwrap_or_default()
    }

    /// So many more; `count` is not 0.
    pub fn add(&mut self, key: K, count: usize) {
        *self.0.entry(key).or_default() += count;
    }

    /// So many fewer, of those that were added.
    pub fn take(&mut self, key: &K, count: usize) {
        if let Some(left) = self.0.get_mut(key) {
            *left -= count;
            if *left == 0 {
                self.0.remove(key);
            }
        }
    }

    /// Keys whose count is not 0.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nobody has anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_nothing_takes_no_room() {
        let mut tally = Tally::default();
        tally.add("a", 2);
        tally.add("b", 1);
        tally.add("a", 3);
        assert_eq!((tally.of(&"a"), tally.of(&"b"), tally.of(&"c")), (5, 1, 0));
        tally.take(&"a", 4);
        tally.take(&"b", 1);
        assert_eq!((tally.of(&"a"), tally.len()), (1, 1));
        tally.take(&"c", 9);
        tally.take(&"a", 1);
        assert!(tally.is_empty());
    }
}
