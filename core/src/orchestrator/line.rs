//! Who goes first: the requests of one peer that have bytes to bind, in their classes.
//!
//! Strictly in the order of classes, and within one in the order of submission. The first of a class that has not
//! been served for a while moves up by one class, for a turn of some slices, so nothing starves.
//!
//! A read that waits for one of its own credits holds up nothing but reads: others pass it. It stays where it is, and is
//! the first to be tried whenever something happens, so it has the next credit, and the room that this credit's read left.

use super::request::RequestRow;
use crate::queue::Queue;
use crate::table::{NIL, Table};
use crate::time::{Duration, Instant};
use crate::units::RequestId;
use crate::work::Priority;

/// Classes of requests: `High`; `Normal` of up to one slice; longer ones; `Low`.
const CLASSES: usize = 4;

/// Slices after which one that has moved up goes back.
const TURN: u8 = 16;

/// A class, 0 the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(u8);

impl Class {
    /// Before all others.
    pub(super) const FIRST: Self = Self(0);

    /// The class of a request.
    pub(super) fn of(priority: Priority, is_small: bool) -> Self {
        match (priority, is_small) {
            (Priority::High, _) => Self(0),
            (Priority::Normal, true) => Self(1),
            (Priority::Normal, false) => Self(2),
            (Priority::Low, _) => Self(3),
        }
    }

    /// Whether it may use room above a window.
    pub(super) fn is_urgent(self) -> bool {
        self == Self::FIRST
    }

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

type Requests<'a> = Table<'a, RequestRow, RequestId>;

/// Requests of one peer with bytes to bind, in the order in which they go.
#[derive(Debug)]
pub(super) struct Waiters {
    queues: [Queue<0>; CLASSES],
    /// Since when each class has had requests and was not served.
    since: [Instant; CLASSES],
    /// No class with requests, but for the first one, has waited since earlier. May be early, never late.
    oldest: Instant,
    /// Of each class the last one of those in front that others have passed; [`NIL`]: none.
    passed: [u32; CLASSES],
    length: u32,
}

impl Waiters {
    pub(super) const EMPTY: Self = Self {
        queues: [Queue::EMPTY; CLASSES],
        since: [Instant::ZERO; CLASSES],
        oldest: Instant::MAX,
        passed: [NIL; CLASSES],
        length: 0,
    };

    pub(super) fn len(&self) -> usize {
        self.length as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The one that goes first.
    pub(super) fn front(&self) -> Option<u32> {
        self.queues.iter().find_map(Queue::front)
    }

    /// The last one of a class.
    pub(super) fn last(&self, class: Class) -> Option<u32> {
        self.queues.get(class.index())?.back()
    }

    /// Puts `other`, of the same class, where a request stands.
    pub(super) fn replace(&mut self, requests: &mut Requests<'_>, index: u32, other: u32) {
        let class = requests.at(index).map(|row| row.class.index());
        if let Some(class) = class
            && let (Some(queue), Some(passed)) =
                (self.queues.get_mut(class), self.passed.get_mut(class))
        {
            queue.replace(requests, index, other);
            if *passed == index {
                *passed = other;
            }
        }
    }

    /// The one that goes after `index`.
    pub(super) fn after(&self, requests: &mut Requests<'_>, index: u32) -> Option<u32> {
        let class = requests.at(index)?.class.index();
        let next = self.queues.get(class)?.after(requests, index);
        next.or_else(|| self.queues.iter().skip(class + 1).find_map(Queue::front))
    }

    /// The one that goes after `index`, which waits for a credit of its own: behind all that do.
    pub(super) fn pass(&mut self, requests: &mut Requests<'_>, index: u32) -> Option<u32> {
        let class = requests.at(index)?.class.index();
        let (queue, passed) = (self.queues.get(class)?, self.passed.get_mut(class)?);
        let behind = match *passed {
            NIL => queue.front(),
            last => queue.after(requests, last),
        };
        if behind == Some(index) {
            *passed = index;
        }
        let last = if *passed == NIL { index } else { *passed };
        self.after(requests, last)
    }

    /// Whether the last one of each class that others have passed stands in it.
    pub(super) fn is_sound(&self, requests: &Requests<'_>) -> bool {
        let mut passed = (0..CLASSES)
            .zip(&self.passed)
            .filter(|(_, row)| **row != NIL);
        passed.all(|(class, row)| {
            let row = requests.at(*row);
            row.is_some_and(|row| row.class.index() == class && row.is_in_line())
        })
    }

    /// Puts a request last in its class. `since` is from when its class has waited if it is alone there.
    pub(super) fn push(&mut self, requests: &mut Requests<'_>, index: u32, since: Instant) {
        let class = requests.at(index).map_or(CLASSES, |row| row.class.index());
        if let (Some(queue), Some(waits_since)) =
            (self.queues.get_mut(class), self.since.get_mut(class))
        {
            if queue.is_empty() {
                *waits_since = since;
                self.oldest = self.oldest.min(since);
            }
            let before = queue.len();
            queue.push_back(requests, index);
            self.length += (queue.len() - before) as u32;
        }
    }

    /// Puts a request first of all, because it has slices to be sent again: they have rows in the table of attempts,
    /// and the others might wait for these.
    pub(super) fn push_first(&mut self, requests: &mut Requests<'_>, index: u32) {
        // Also where it has moved up: it stands behind others of the first class then.
        self.remove(requests, index);
        if let Some(row) = requests.at_mut(index) {
            row.class = Class::FIRST;
        }
        let [first, ..] = &mut self.queues;
        let before = first.len();
        first.push_front(requests, index);
        self.length += (first.len() - before) as u32;
    }

    /// Takes a request out. Whether it was there.
    pub(super) fn remove(&mut self, requests: &mut Requests<'_>, index: u32) -> bool {
        let class = requests.at(index).map_or(CLASSES, |row| row.class.index());
        let (Some(queue), Some(passed)) = (self.queues.get_mut(class), self.passed.get_mut(class))
        else {
            return false;
        };
        if *passed == index {
            *passed = queue.before(requests, index).unwrap_or(NIL);
        }
        let before = queue.len();
        queue.remove(requests, index);
        let was_there = queue.len() < before;
        self.length -= u32::from(was_there);
        was_there
    }

    /// Moves the first of each class that was not served since `patience` ago up by one class.
    #[inline]
    pub(super) fn promote(
        &mut self,
        now: Instant,
        requests: &mut Requests<'_>,
        patience: Duration,
    ) {
        if now.since(self.oldest) >= patience {
            self.promote_late(now, requests, patience);
        }
    }

    #[inline(never)]
    fn promote_late(&mut self, now: Instant, requests: &mut Requests<'_>, patience: Duration) {
        for class in 1..CLASSES {
            let Some(index) = self.queues.get(class).and_then(Queue::front) else {
                continue;
            };
            let waited = self.since.get(class).map(|since| now.since(*since));
            if waited < Some(patience) {
                continue;
            }
            self.remove(requests, index);
            if let Some(row) = requests.at_mut(index) {
                row.class = Class(class as u8 - 1);
                row.turn = TURN;
            }
            self.push(requests, index, now);
            if let Some(since) = self.since.get_mut(class) {
                *since = now;
            }
        }
        let waiting = self.queues.iter().zip(&self.since).skip(1);
        let waiting = waiting.filter(|(queue, _)| !queue.is_empty());
        self.oldest = waiting
            .map(|(_, since)| *since)
            .min()
            .unwrap_or(Instant::MAX);
    }

    /// So many slices of a request got rails: its class was served. If it had moved up it goes back to where it
    /// belongs once its turn is over, and it has nothing to be sent again.
    pub(super) fn served(
        &mut self,
        now: Instant,
        requests: &mut Requests<'_>,
        index: u32,
        slices: u32,
    ) {
        let row = requests.at_mut(index);
        if row.is_some_and(|row| self.served_at(now, row, slices)) {
            self.served_above(now, requests, index);
        }
    }

    /// The same for a request that is where it belongs. Whether it is not, and [`Self::served_above`] has the rest to do.
    #[inline]
    pub(super) fn served_at(&mut self, now: Instant, row: &mut RequestRow, slices: u32) -> bool {
        row.turn = row
            .turn
            .saturating_sub(u8::try_from(slices).unwrap_or(u8::MAX));
        if let Some(since) = self.since.get_mut(row.home.index()) {
            *since = now;
        }
        row.class != row.home
    }

    #[inline(never)]
    pub(super) fn served_above(&mut self, now: Instant, requests: &mut Requests<'_>, index: u32) {
        let Some(row) = requests.at_mut(index) else {
            return;
        };
        let stays = row.turn > 0 || !row.waiting.is_empty();
        let class = row.class;
        if let Some(since) = self.since.get_mut(class.index()) {
            *since = now;
        }
        if !stays {
            self.go_home(requests, index);
        }
    }

    /// Puts a request first in the class where it belongs, if it is in line.
    pub(super) fn go_home(&mut self, requests: &mut Requests<'_>, index: u32) {
        let Some(home) = requests.at(index).map(|row| row.home) else {
            return;
        };
        if self.remove(requests, index) {
            if let Some(row) = requests.at_mut(index) {
                row.class = home;
            }
            if let Some(queue) = self.queues.get_mut(home.index()) {
                queue.push_front(requests, index);
                self.length += 1;
            }
        }
    }
}
