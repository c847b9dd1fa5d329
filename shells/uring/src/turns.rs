//! Writes of one file past the page cache, and writes through it, take turns.
//!
//! A write past the cache throws the pages that the cache has of its range away, before and after; it cannot throw away
//! a page that somebody has written in between. Such a page then hides what was written past it: for all of
//! its bytes, and one page may be a large folio that holds neighbours too. So a file is never written in both ways at
//! once. Reads need no turn: they leave nothing in the cache that cannot be thrown away.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::Stat;

/// A way to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Through the page cache.
    Cached,
    /// Past it.
    Direct,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Cached => Self::Direct,
            Self::Direct => Self::Cached,
        }
    }
}

/// What a file is to the kernel: the device it is on and its number there, or the device that it is.
type FileId = (u64, Option<u64>);

/// Of all files that have a range.
static FILES: Mutex<Vec<(FileId, Weak<Turns>)>> = Mutex::new(Vec::new());

/// Whose turn it is to write a file. All ranges of one file share it.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<State>);

/// Writes, by their side.
#[derive(Debug, Default)]
struct State {
    under_way: [usize; 2],
    waiting: [usize; 2],
}

/// One write's place: it waits, or is under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    side: Side,
    under_way: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Turns {
    /// Those of the file with this status.
    pub(crate) fn of(stat: &Stat, is_device: bool) -> Arc<Self> {
        let id = match is_device {
            true => (stat.st_rdev, None),
            false => (stat.st_dev, Some(stat.st_ino)),
        };
        let mut files = locked(&FILES);
        files.retain(|(_, turns)| turns.strong_count() > 0);
        let known = files.iter().find(|(known, _)| *known == id);
        if let Some(turns) = known.and_then(|(_, turns)| turns.upgrade()) {
            return turns;
        }
        let turns = Arc::new(Self::default());
        files.push((id, Arc::downgrade(&turns)));
        turns
    }

    /// A place for a write, which waits at first.
    pub(crate) fn wait(self: &Arc<Self>, side: Side) -> Turn {
        locked(&self.0).waiting[side as usize] += 1;
        Turn {
            turns: self.clone(),
            side,
            under_way: false,
        }
    }
}

impl Turn {
    /// Which way the write goes.
    pub(crate) fn side(&self) -> Side {
        self.side
    }

    /// Whether the write may begin, or has. Who waits on the other side comes first once this side has had a turn.
    pub(crate) fn begin(&mut self) -> bool {
        if self.under_way {
            return true;
        }
        let (own, other) = (self.side as usize, self.side.other() as usize);
        let mut state = locked(&self.turns.0);
        let is_taken = state.under_way[other] > 0;
        let is_over = state.under_way[own] > 0 && state.waiting[other] > 0;
        if is_taken || is_over {
            return false;
        }
        state.waiting[own] -= 1;
        state.under_way[own] += 1;
        self.under_way = true;
        true
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = locked(&self.turns.0);
        let counts = match self.under_way {
            true => &mut state.under_way,
            false => &mut state.waiting,
        };
        counts[self.side as usize] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sides_take_turns_and_neither_waits_for_ever() {
        let turns = Arc::new(Turns::default());
        let wait = |side| turns.wait(side);
        let mut first = wait(Side::Direct);
        let mut second = wait(Side::Direct);
        assert!(first.begin() && second.begin(), "one side, together");
        let mut cached = wait(Side::Cached);
        assert!(!cached.begin(), "the other side is under way");
        let mut late = wait(Side::Direct);
        assert!(!late.begin(), "somebody waits on the other side");
        assert!(first.begin(), "what is under way stays so");
        drop(first);
        assert!(!cached.begin());
        drop(second);
        assert!(cached.begin() && !late.begin());
        drop(cached);
        assert!(late.begin());
        // Who gives up waiting holds nobody up.
        drop(wait(Side::Cached));
        assert!(wait(Side::Direct).begin());
    }

    #[test]
    fn ranges_of_one_file_share_their_turns() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| std::fs::File::create(folder.path().join(name)).unwrap();
        let turns = |file: &std::fs::File| Turns::of(&rustix::fs::fstat(file).unwrap(), false);
        let (one, other) = (file("one"), file("other"));
        let of_one = turns(&one);
        assert!(Arc::ptr_eq(&of_one, &turns(&file("one"))));
        assert!(!Arc::ptr_eq(&of_one, &turns(&other)));
    }
}
