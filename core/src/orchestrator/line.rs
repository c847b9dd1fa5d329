//! Who goes first: the requests of one peer that have bytes to bind.
//!
//! Requests that can take the same rails, in the same direction, stand in one line; so none waits for the rails of another.
//! A line has classes. Slices to be sent again go first. Then priorities go strictly in their order, but short and long
//! requests of normal priority share: see [`SHORT_SHARE`]. The first one of a class that has not been served for a while
//! moves up by one class, for a turn of some slices, so nothing starves.

use super::request::RequestRow;
use crate::queue::Queue;
use crate::table::Table;
use crate::time::{Duration, Instant};
use crate::units::RequestId;
use crate::work::{Op, Priority};

/// Classes of requests: with slices to be sent again; `High`; `Normal` of up to one slice; longer ones; `Low`.
const CLASSES: usize = 5;
/// Lines of one peer. Requests of further sets of rails join the line that has the number of their set.
const LINES: usize = 8;

/// Slices after which one that has moved up goes back.
const TURN: u8 = 16;

/// While short and long requests wait, short ones get so many bytes for [`LONG_SHARE`] of the long ones: a long one takes 3.5
/// times as long as alone, and the short ones 1.4 times as long as without it.
const SHORT_SHARE: i64 = 5;
const LONG_SHARE: i64 = 2;
/// Bytes that one of the two can be behind, in parts of the other's share.
const BEHIND_MAX: i64 = 8 << 20;

/// A class, 0 the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Class(u8);

impl Class {
    /// Slices to be sent again: they have rows in the table of attempts, and others may wait for these.
    pub(super) const AGAIN: Self = Self(0);
    const SHORT: Self = Self(2);
    const LONG: Self = Self(3);

    /// The class of a request.
    pub(super) fn of(priority: Priority, is_small: bool) -> Self {
        match (priority, is_small) {
            (Priority::High, _) => Self(1),
            (Priority::Normal, true) => Self::SHORT,
            (Priority::Normal, false) => Self::LONG,
            (Priority::Low, _) => Self(4),
        }
    }

    /// The priority of the requests of a class.
    pub(super) fn priority(self) -> Priority {
        match self.0 {
            1 => Priority::High,
            4 => Priority::Low,
            _ => Priority::Normal,
        }
    }

    /// Whether it may use room above a window.
    pub(super) fn is_urgent(self) -> bool {
        self.0 == 1
    }

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Which rails a request can take, and which way: requests with the same one stand in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Route(u32);

impl Route {
    /// Of a set of rails, said by any number that is its own in the lower 31 bits, in one direction.
    pub(super) fn new(rails: u32, op: Op) -> Self {
        Self(rails << 1 | u32::from(op == Op::Read))
    }
}

type Requests<'a> = Table<'a, RequestRow, RequestId>;

/// Requests that can take the same rails.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Line {
    /// Of those that are in it; of the last one that was.
    route: Route,
    queues: [Queue<0>; CLASSES],
    /// Since when each class has had requests and was not served.
    since: [Instant; CLASSES],
    length: u32,
}

impl Line {
    const EMPTY: Self = Self {
        route: Route(0),
        queues: [Queue::EMPTY; CLASSES],
        since: [Instant::ZERO; CLASSES],
        length: 0,
    };

    fn first_from(&self, class: usize) -> Option<u32> {
        self.queues.iter().skip(class).find_map(Queue::front)
    }
}

/// Lines in which the first one waits for something, so that nobody behind it goes now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// All wait, one bit for each line.
    all: u8,
    /// All but what is urgent.
    usual: u8,
}

impl Held {
    /// A request waits: those behind it in its line do too. What is urgent finds room where others do not.
    pub(super) fn hold(&mut self, row: &RequestRow) {
        debug_assert!(usize::from(row.line) < LINES, "line {}", row.line);
        let line = 1 << (row.line & 7);
        self.usual |= line;
        let is_urgent = row.home.is_urgent() || row.class.is_urgent();
        self.all |= if is_urgent { line } else { 0 };
    }

    fn holds(self, class: usize) -> u8 {
        match Class(class as u8).is_urgent() {
            true => self.all,
            false => self.usual,
        }
    }
}

const _: () = assert!(LINES <= 8);

/// Where a request goes in its class.
#[derive(Clone, Copy)]
enum End {
    Back,
    Front,
}

/// The lines of one peer.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Lines {
    lines: [Line; LINES],
    /// Lines that have requests of each class, one bit each.
    there: [u8; CLASSES],
    /// No class with requests, but for the first two, has waited since earlier. May be early, never late.
    oldest: Instant,
    length: u32,
    /// Above 0: it is the long ones' turn.
    long_turn: i64,
}

impl Lines {
    pub(super) const EMPTY: Self = Self {
        lines: [const { Line::EMPTY }; LINES],
        there: [0; CLASSES],
        oldest: Instant::MAX,
        length: 0,
        long_turn: 0,
    };

    pub(super) fn len(&self) -> usize {
        self.length as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The one that goes first, of all but those that are held. Among lines, the one that was submitted first.
    pub(super) fn first(&self, requests: &Requests<'_>, held: Held) -> Option<u32> {
        let order = match self.long_turn > 0 {
            true => [0, 1, 3, 2, 4],
            false => [0, 1, 2, 3, 4],
        };
        order
            .into_iter()
            .find_map(|class| self.first_of(requests, class, held))
    }

    fn first_of(&self, requests: &Requests<'_>, class: usize, held: Held) -> Option<u32> {
        let there = self.there.get(class)? & !held.holds(class);
        if there == 0 {
            return None;
        }
        let front = |line: u32| {
            let line = self.lines.get(line as usize)?;
            line.queues.get(class)?.front()
        };
        if there.is_power_of_two() {
            return front(there.trailing_zeros());
        }
        let lines = (0..LINES as u32).filter(|line| there & 1 << line != 0);
        let since = |index: &u32| requests.at(*index).map(|row| row.submitted_at);
        lines.filter_map(front).min_by_key(since)
    }

    /// The one that goes after `index` in its line.
    pub(super) fn behind(&self, requests: &mut Requests<'_>, index: u32) -> Option<u32> {
        let row = requests.at(index)?;
        let (line, class) = (self.lines.get(usize::from(row.line))?, row.class.index());
        let next = line.queues.get(class)?.after(requests, index);
        next.or_else(|| line.first_from(class + 1))
    }

    /// The one after `index` of all.
    pub(super) fn after(&self, requests: &mut Requests<'_>, index: u32) -> Option<u32> {
        let line = usize::from(requests.at(index)?.line);
        let later = || self.lines.iter().skip(line + 1);
        self.behind(requests, index)
            .or_else(|| later().find_map(|line| line.first_from(0)))
    }

    /// The first one of all, to go through them.
    pub(super) fn any(&self) -> Option<u32> {
        self.lines.iter().find_map(|line| line.first_from(0))
    }

    /// The last one of those of a route and class.
    pub(super) fn last(&self, route: Route, class: Class) -> Option<u32> {
        let line = self.lines.get(self.line_of(route)?)?;
        line.queues.get(class.index())?.back()
    }

    /// The line of a route, if it has one with requests in it.
    fn line_of(&self, route: Route) -> Option<usize> {
        let mut lines = self.lines.iter();
        lines.position(|line| line.length > 0 && line.route == route)
    }

    /// The line that a request of a route is to stand in.
    fn line_for(&self, route: Route) -> usize {
        let empty = || self.lines.iter().position(|line| line.length == 0);
        let line = self.line_of(route).or_else(empty);
        line.unwrap_or(route.0 as usize % LINES)
    }

    /// Puts `other`, of the same class and line, where a request stands.
    pub(super) fn replace(&mut self, requests: &mut Requests<'_>, index: u32, other: u32) {
        let place = requests.at(index).map(|row| (row.line, row.class));
        debug_assert!(
            place == requests.at(other).map(|row| (row.line, row.class)),
            "row {other} is not of the class or line of row {index}"
        );
        if let Some(queue) = place.and_then(|(line, class)| self.queue_mut(line, class)) {
            queue.replace(requests, index, other);
        }
    }

    fn queue_mut(&mut self, line: u8, class: Class) -> Option<&mut Queue<0>> {
        let line = self.lines.get_mut(usize::from(line))?;
        line.queues.get_mut(class.index())
    }

    /// Puts a request last in its class. `since` is from when its class has waited if it is alone there.
    pub(super) fn push(
        &mut self,
        requests: &mut Requests<'_>,
        index: u32,
        route: Route,
        since: Instant,
    ) {
        self.put(requests, index, (route, None, since), End::Back);
    }

    /// Puts a request first of its line, because it has slices to be sent again.
    pub(super) fn push_first(&mut self, requests: &mut Requests<'_>, index: u32, route: Route) {
        self.remove(requests, index);
        let place = (route, Some(Class::AGAIN), Instant::MAX);
        self.put(requests, index, place, End::Front);
    }

    /// Puts a request first in the class where it belongs, if it is in line.
    pub(super) fn go_home(&mut self, requests: &mut Requests<'_>, index: u32) {
        if let Some((route, row)) = self.route_of(requests, index).zip(requests.at(index)) {
            self.go_to(requests, index, (route, row.home));
        }
    }

    /// Puts a request that takes other rails from now on first in its class of their line.
    pub(super) fn reroute(&mut self, requests: &mut Requests<'_>, index: u32, route: Route) {
        if let Some(row) = requests.at(index) {
            self.go_to(requests, index, (route, row.class));
        }
    }

    fn go_to(&mut self, requests: &mut Requests<'_>, index: u32, (route, class): (Route, Class)) {
        if self.remove(requests, index) {
            self.put(
                requests,
                index,
                (route, Some(class), Instant::MAX),
                End::Front,
            );
        }
    }

    fn route_of(&self, requests: &Requests<'_>, index: u32) -> Option<Route> {
        let line = requests.at(index)?.line;
        Some(self.lines.get(usize::from(line))?.route)
    }

    /// Puts a request that is in no line into one, at an end of a class: another one than it is of, or that.
    fn put(
        &mut self,
        requests: &mut Requests<'_>,
        index: u32,
        (route, class, since): (Route, Option<Class>, Instant),
        end: End,
    ) {
        let number = self.line_for(route);
        let (Some(row), Some(line)) = (requests.at_mut(index), self.lines.get_mut(number)) else {
            return;
        };
        row.line = number as u8;
        row.class = class.unwrap_or(row.class);
        let class = row.class.index();
        let (Some(queue), Some(waits_since), Some(there)) = (
            line.queues.get_mut(class),
            line.since.get_mut(class),
            self.there.get_mut(class),
        ) else {
            return;
        };
        if queue.is_empty() && since != Instant::MAX {
            *waits_since = since;
            self.oldest = self.oldest.min(since);
        }
        if line.length == 0 {
            line.route = route;
        }
        let before = queue.len();
        match end {
            End::Back => queue.push_back(requests, index),
            End::Front => queue.push_front(requests, index),
        }
        let added = (queue.len() - before) as u32;
        line.length += added;
        self.length += added;
        *there |= 1 << number;
        debug_assert!(added == 1, "request {index} is in line already");
        self.check(number);
    }

    /// Takes a request out. Whether it was there.
    pub(super) fn remove(&mut self, requests: &mut Requests<'_>, index: u32) -> bool {
        let Some((number, class)) = requests.at(index).map(|row| (row.line, row.class.index()))
        else {
            return false;
        };
        let Some(line) = self.lines.get_mut(usize::from(number)) else {
            return false;
        };
        let (Some(queue), Some(there)) = (line.queues.get_mut(class), self.there.get_mut(class))
        else {
            return false;
        };
        let before = queue.len();
        queue.remove(requests, index);
        let was_there = queue.len() < before;
        line.length -= u32::from(was_there);
        self.length -= u32::from(was_there);
        if queue.is_empty() {
            *there &= !(1 << number);
        }
        self.check(number.into());
        was_there
    }

    /// A line has as many requests as its classes, and of each class it is said whether there are any.
    fn check(&self, number: usize) {
        let Some(line) = self.lines.get(number) else {
            return;
        };
        let requests = line.queues.iter().map(Queue::len).sum::<usize>();
        debug_assert!(
            line.length as usize == requests && line.length <= self.length,
            "line {number} has {requests} requests, and says {} of {}",
            line.length,
            self.length
        );
        let mut classes = line.queues.iter().zip(self.there);
        debug_assert!(
            classes.all(|(queue, there)| (there >> number & 1 == 0) == queue.is_empty()),
            "which classes line {number} has, and which it says: {:?}",
            self.there
        );
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

    #[cold]
    fn promote_late(&mut self, now: Instant, requests: &mut Requests<'_>, patience: Duration) {
        self.oldest = Instant::MAX;
        for number in 0..LINES {
            for class in 2..CLASSES {
                self.promote_first(now, requests, patience, number, class);
            }
        }
    }

    /// The same for one class of a line.
    fn promote_first(
        &mut self,
        now: Instant,
        requests: &mut Requests<'_>,
        patience: Duration,
        number: usize,
        class: usize,
    ) {
        let line = self.lines.get_mut(number);
        let Some((since, index)) = line.and_then(|line| {
            let first = line.queues.get(class)?.front()?;
            Some((line.since.get_mut(class)?, first))
        }) else {
            return;
        };
        let waited = now.since(*since) >= patience;
        *since = if waited { now } else { *since };
        self.oldest = self.oldest.min(*since);
        if !waited {
            return;
        }
        let Some(route) = self.route_of(requests, index) else {
            return;
        };
        self.remove(requests, index);
        if let Some(row) = requests.at_mut(index) {
            row.turn = TURN;
        }
        let above = Some(Class(class as u8 - 1));
        self.put(requests, index, (route, above, now), End::Back);
    }

    /// So many slices of a request got rails, of so many bytes: its class was served. If it had moved up it goes back to
    /// where it belongs once its turn is over, and it has nothing to be sent again.
    pub(super) fn served(
        &mut self,
        now: Instant,
        requests: &mut Requests<'_>,
        index: u32,
        (slices, bytes): (u32, u64),
    ) {
        let Some(row) = requests.at_mut(index) else {
            return;
        };
        row.turn = row
            .turn
            .saturating_sub(u8::try_from(slices).unwrap_or(u8::MAX));
        let (class, home, number) = (row.class, row.home, usize::from(row.line));
        let stays = class == home || row.turn > 0 || !row.waiting.is_empty();
        if let Some(line) = self.lines.get_mut(number) {
            for class in [class, home] {
                if let Some(since) = line.since.get_mut(class.index()) {
                    *since = now;
                }
            }
        }
        self.count(home, bytes);
        if !stays {
            self.go_home(requests, index);
        }
    }

    /// Short and long requests take turns by bytes while there are both.
    fn count(&mut self, class: Class, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(BEHIND_MAX);
        let [_, _, short, long, _] = self.there;
        let turn = match class {
            _ if short == 0 || long == 0 => 0,
            Class::SHORT => self.long_turn + bytes.saturating_mul(LONG_SHARE),
            Class::LONG => self.long_turn - bytes.saturating_mul(SHORT_SHARE),
            _ => return,
        };
        self.long_turn = turn.clamp(-BEHIND_MAX, BEHIND_MAX);
    }
}
