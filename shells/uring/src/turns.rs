//! Writes of one file past the page cache, and writes through it, take turns.
//!
//! A write past the cache throws the pages that the cache has of its range away, before and after; it cannot throw away
//! a page that somebody has written in between. Such a page then hides what was written past it: for all of
//! its bytes, and one page may be a large folio that holds neighbours too. So a file is never written in both ways at
//! once. Reads need no turn: they leave nothing in the cache that cannot be thrown away.
//!
//! **Who is next.** While somebody waits for the other side, its own side begins nothing new, and once what is under way is
//! over, the other side goes first. The one who waits has to come and look, and its worker may be busy with something
//! else. So a turn is kept for [`KEPT`] after the last look, no longer: a worker that stands still holds others up for
//! so long, each time that it has looked. One that looks as often gets its turn as soon as the other side's writes are over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use polyrail_core::time::{Duration, Instant};
use rustix::fs::Stat;

use crate::durable::Losses;

/// How long after its last look a turn is kept for a write. Workers look every tenth of a millisecond, and are away for some
/// when others have their processor.
const KEPT: Duration = Duration::from_millis(5);

/// A way to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Side {
    /// Through the page cache.
    #[default]
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
pub(crate) struct Turns {
    state: Mutex<State>,
    losses: Losses,
}

/// Writes, by their side.
#[derive(Debug, Default)]
struct State {
    under_way: [usize; 2],
    waiting: [usize; 2],
    /// When one that waits, or has waited, looked last.
    looked: [Instant; 2],
    /// Whose writes began last.
    last: Side,
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

    /// What the file has lost.
    pub(crate) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// A place for a write, which waits at first.
    pub(crate) fn wait(self: &Arc<Self>, side: Side) -> Turn {
        locked(&self.state).waiting[side as usize] += 1;
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

    /// Whether the write may begin, or has.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        if self.under_way {
            return true;
        }
        let (own, other) = (self.side as usize, self.side.other() as usize);
        let mut state = locked(&self.turns.state);
        state.looked[own] = state.looked[own].max(now);
        let is_kept = now.since(state.looked[other]) < KEPT;
        let is_others = state.last == self.side && state.waiting[other] > 0 && is_kept;
        if state.under_way[other] > 0 || is_others {
            return false;
        }
        state.waiting[own] -= 1;
        state.under_way[own] += 1;
        state.last = self.side;
        self.under_way = true;
        true
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = locked(&self.turns.state);
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

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn the_sides_take_turns_and_neither_waits_for_ever() {
        let turns = Arc::new(Turns::default());
        let wait = |side| turns.wait(side);
        let mut first = wait(Side::Direct);
        let mut second = wait(Side::Direct);
        assert!(first.begin(NOW) && second.begin(NOW), "one side, together");
        let mut cached = wait(Side::Cached);
        assert!(!cached.begin(NOW), "the other side is under way");
        let mut late = wait(Side::Direct);
        assert!(!late.begin(NOW), "somebody waits on the other side");
        assert!(first.begin(NOW), "what is under way stays so");
        drop(first);
        assert!(!cached.begin(NOW));
        drop(second);
        // It once began as soon as nothing was under way, and so again and again before the other side looked.
        assert!(!late.begin(NOW), "the other side is next");
        assert!(cached.begin(NOW) && !late.begin(NOW));
        drop(cached);
        assert!(late.begin(NOW));
        drop(late);
        // Who gives up waiting holds nobody up.
        let mut given_up = wait(Side::Cached);
        let mut other = wait(Side::Direct);
        assert!(given_up.begin(NOW) && !other.begin(NOW));
        drop(given_up);
        assert!(other.begin(NOW));
    }

    /// A worker whose write waited and that was busy with something else let others have one write at a time, or none.
    #[test]
    fn who_does_not_come_and_look_holds_others_up_for_a_moment() {
        let turns = Arc::new(Turns::default());
        let mut first = turns.wait(Side::Direct);
        assert!(first.begin(NOW));
        let mut away = turns.wait(Side::Cached);
        assert!(!away.begin(NOW));
        let mut others = [Side::Direct; 2].map(|side| turns.wait(side));
        let before = NOW + KEPT.minus(Duration::from_nanos(1));
        assert!(others.iter_mut().all(|other| !other.begin(before)));
        assert!(others.iter_mut().all(|other| other.begin(NOW + KEPT)));
        // It looks again: what is under way ends, nothing else begins, and it is its turn.
        let now = NOW + KEPT.times(3);
        assert!(!away.begin(now));
        let mut late = turns.wait(Side::Direct);
        assert!(!late.begin(now));
        drop((first, others));
        assert!(!late.begin(now) && away.begin(now));
        drop(away);
        assert!(late.begin(now));
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
