//! Notifications that peers' programs send to this one, until it takes them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polyrail_control::codec::PARCELS;
use polyrail_control::plane::{Notifier, Plane};
use polyrail_transport::SessionId;
use polyrail_transport::tally::Tally;

use crate::arrivals::Arrivals;
use crate::engine::Engine;
use crate::error::ReceiveError;
use crate::fork::Owned;
use crate::lock::lock;
use crate::parcel::{self, Parcel};
use crate::queue::{EventQueue, Nothing};
use crate::wakers::WakerThread;

/// Notifications that may wait for the program, of all peers. A long one counts once for each 4 KiB.
const WAITING_MAX: usize = 16_384;
/// Of one session, so that no peer takes the room of others.
const SESSION_WAITING_MAX: usize = 1_024;

/// What a peer's program told this one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notification {
    /// What the sender's engine calls itself. Its own word, not proof of who it is.
    pub from: String,
    /// Drawn at random when the sender's engine started: tells engines of one name apart.
    pub incarnation: u64,
    /// What it said, at most [`NOTIFICATION_BYTES_MAX`](crate::NOTIFICATION_BYTES_MAX) bytes.
    pub bytes: Vec<u8>,
}

/// Where notifications wait, between the control thread and the program.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: EventQueue<(SessionId, Notification)>,
    room: Mutex<Room>,
    /// Notifications of which the first part has come, one of a session.
    begun: Mutex<HashMap<SessionId, Begun>>,
    pub(crate) arrivals: Arrivals,
}

/// A notification of which the first part has come. It has its room.
#[derive(Debug)]
struct Begun {
    bytes: Vec<u8>,
    length: usize,
}

/// Who has how many waiting.
#[derive(Debug, Default)]
struct Room {
    total: usize,
    /// Of these, places of notifications that have begun and not come whole yet.
    begun: usize,
    sessions: Tally<SessionId>,
    /// Sessions that there was no room for, and that are to be told when there is.
    refused: HashSet<SessionId>,
}

impl Room {
    /// Takes places, or notes that there were none.
    fn take(&mut self, session: SessionId, places: usize) -> bool {
        let has_share = self.sessions.of(&session) + places <= SESSION_WAITING_MAX;
        let free = has_share && self.total + places <= WAITING_MAX;
        if free {
            self.sessions.add(session, places);
            self.total += places;
        } else {
            self.refused.insert(session);
        }
        free
    }

    /// The same for one that begins. Such have half of all places: whoever never goes on leaves room for what is whole.
    fn take_begun(&mut self, session: SessionId, places: usize) -> bool {
        if self.begun + places > WAITING_MAX / 2 {
            self.refused.insert(session);
            return false;
        }
        let free = self.take(session, places);
        if free {
            self.begun += places;
        }
        free
    }

    /// Gives places back. The sessions that can go on by that: not before a good part is free, so that there
    /// is not one message for each notification.
    fn give(&mut self, session: SessionId, places: usize) -> Vec<SessionId> {
        self.total -= places;
        self.sessions.take(&session, places);
        if self.refused.is_empty() || self.total > WAITING_MAX / 2 {
            return Vec::new();
        }
        let sessions = &self.sessions;
        self.refused
            .extract_if(|session| sessions.of(session) <= SESSION_WAITING_MAX / 2)
            .collect()
    }
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: EventQueue::new()?,
            room: Mutex::default(),
            begun: Mutex::default(),
            arrivals: Arrivals::default(),
        })
    }

    /// Takes in what has come; `false`: there is no room.
    pub(crate) fn put(&self, from: &Notifier<'_>, body: Vec<u8>) -> bool {
        let take = |bytes| lock(&self.room).take(from.session, parcel::places(bytes));
        if from.features & PARCELS == 0 {
            return take(body.len()) && self.has_come(from, body);
        }
        match Parcel::read(&body) {
            Some(Parcel::Whole(bytes)) => take(bytes.len()) && self.has_come(from, bytes.to_vec()),
            Some(Parcel::Begins { bytes, first }) => {
                self.let_go(from.session);
                self.begins(from.session, bytes, first)
            }
            Some(Parcel::GoesOn(more)) => self.goes_on(from, more),
            Some(Parcel::Arrived(tag)) => self.arrivals.add(from.session, tag),
            None => {
                log::debug!("\"{}\" sends what is no notification", from.name);
                true
            }
        }
    }

    /// A long one begins, if there is room.
    fn begins(&self, session: SessionId, length: usize, first: &[u8]) -> bool {
        if !lock(&self.room).take_begun(session, parcel::places(length)) {
            return false;
        }
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(first);
        lock(&self.begun).insert(session, Begun { bytes, length });
        true
    }

    /// More of it.
    fn goes_on(&self, from: &Notifier<'_>, more: &[u8]) -> bool {
        let mut begun = lock(&self.begun);
        // Its beginning may have been lost with another session.
        let Some(known) = begun.get_mut(&from.session) else {
            return true;
        };
        let left = known.length - known.bytes.len();
        known.bytes.extend(&more[..more.len().min(left)]);
        if known.bytes.len() < known.length {
            return true;
        }
        let whole = begun.remove(&from.session);
        drop(begun);
        whole.is_none_or(|whole| {
            lock(&self.room).begun -= parcel::places(whole.length);
            self.has_come(from, whole.bytes)
        })
    }

    /// What has begun in a session will not go on.
    fn let_go(&self, session: SessionId) {
        let begun = lock(&self.begun).remove(&session);
        if let Some(begun) = begun {
            let places = parcel::places(begun.length);
            let mut room = lock(&self.room);
            room.begun -= places;
            // Who is refused asks again by itself.
            room.give(session, places);
        }
    }

    /// One is there, and has its room.
    fn has_come(&self, from: &Notifier<'_>, bytes: Vec<u8>) -> bool {
        let notification = Notification {
            from: from.name.into(),
            incarnation: from.incarnation,
            bytes,
        };
        self.queue.push((from.session, notification));
        true
    }

    /// A session is over: what it sent is still for the program, but it waits for no word.
    pub(crate) fn forget(&self, session: SessionId) {
        self.let_go(session);
        lock(&self.room).refused.remove(&session);
    }

    /// Nothing will come any more.
    pub(crate) fn close(&self) {
        self.queue.close();
        self.arrivals.close();
    }
}

/// The inbox, and whom to tell that there is room in it.
pub(crate) struct Desk {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) plane: Plane,
    pub(crate) waker_thread: Arc<WakerThread>,
}

impl Desk {
    fn hand_over(&self, (session, notification): (SessionId, Notification)) -> Notification {
        let places = parcel::places(notification.bytes.len());
        let relieved = lock(&self.inbox.room).give(session, places);
        for session in relieved {
            self.plane.notification_room(session);
        }
        notification
    }
}

/// What peers' programs tell this one, in the order in which it came; in order for each peer. See
/// [`Engine::notifications`](crate::Engine::notifications). Clones are handles of the same queue: each
/// notification goes to one taker.
///
/// Its descriptor ([`AsFd`]) is readable exactly while a notification waits to be taken, so it can be put in a
/// program's own epoll or poll: take with [`Self::poll`] until there is none. Only look whether it is
/// readable; reading or writing it breaks that promise.
///
/// A program that does not take what comes holds up its peers: 1,024 wait here for each session, 16,384 in
/// all, and the rest with the senders, who are told `Full` in the end.
#[derive(Clone)]
pub struct Notifications {
    desk: Owned<Desk>,
}

impl Notifications {
    pub(crate) fn new(desk: Owned<Desk>) -> Self {
        Self { desk }
    }

    /// Takes a notification if one waits. In a forked child: never.
    ///
    /// Example: [guide](crate::guide#telling-the-peers-program).
    pub fn poll(&self) -> Option<Notification> {
        if !self.desk.is_ours() {
            return None;
        }
        let entry = self.desk.inbox.queue.pop()?;
        Some(self.desk.hand_over(entry))
    }

    /// Takes a notification, for tasks: a stream of them, one by one. `None`: the engine has ended, or this is a forked child.
    /// Dropping the future loses nothing.
    ///
    /// Example: [guide](crate::guide#tasks).
    pub async fn next(&self) -> Option<Notification> {
        if !self.desk.is_ours() {
            return None;
        }
        let entry = self.desk.inbox.queue.next(&self.desk.waker_thread).await?;
        Some(self.desk.hand_over(entry))
    }

    /// Takes a notification; blocks until there is one.
    ///
    /// Example: [guide](crate::guide#telling-the-peers-program).
    pub fn wait(&self, timeout: Duration) -> Result<Notification, ReceiveError> {
        if !self.desk.is_ours() {
            return Err(ReceiveError::Forked);
        }
        match self.desk.inbox.queue.pop_timeout(timeout) {
            Ok(entry) => Ok(self.desk.hand_over(entry)),
            Err(Nothing::TimedOut) => Err(ReceiveError::TimedOut { after: timeout }),
            Err(Nothing::Closed) => Err(ReceiveError::ShutDown),
        }
    }
}

impl AsFd for Notifications {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.desk.inbox.queue.as_fd()
    }
}

impl AsRawFd for Notifications {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Notifications(fd {})", self.as_raw_fd())
    }
}

impl Engine {
    /// What the programs of peers that opened segments here tell this one.
    ///
    /// Example: [guide](crate::guide#telling-the-peers-program).
    pub fn notifications(&self) -> Notifications {
        Notifications::new(self.inner.mail.desk.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId([1; 16]);
    const B: SessionId = SessionId([2; 16]);

    fn session(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    #[test]
    fn a_session_that_fills_its_share_leaves_room_for_others_and_is_told_at_half() {
        let mut room = Room::default();
        assert!((0..SESSION_WAITING_MAX).all(|_| room.take(A, 1)));
        assert!(!room.take(A, 1) && !room.take(A, 1));
        assert!(room.take(B, 1));
        assert_eq!(room.give(B, 1), []);
        for left in (SESSION_WAITING_MAX / 2..SESSION_WAITING_MAX).rev() {
            let told = room.give(A, 1);
            assert_eq!(told.is_empty(), left > SESSION_WAITING_MAX / 2, "{left}");
        }
        assert_eq!(room.give(A, 1), [], "told once");
    }

    #[test]
    fn when_all_is_full_everybody_refused_is_told_in_the_end() {
        let mut room = Room::default();
        let crowd = (WAITING_MAX / SESSION_WAITING_MAX) as u8;
        for number in 0..crowd {
            assert!((0..SESSION_WAITING_MAX).all(|_| room.take(session(number), 1)));
        }
        // It has nothing here, and is refused all the same.
        assert!(!room.take(session(crowd), 1));
        assert!(!room.take(session(0), 1));
        let mut told = Vec::new();
        for number in 0..crowd {
            for _ in 0..SESSION_WAITING_MAX {
                told.extend(room.give(session(number), 1));
            }
        }
        told.sort_unstable_by_key(|session| session.0);
        assert_eq!(told, [session(0), session(crowd)]);
        assert_eq!((room.total, room.sessions.len()), (0, 0));
    }

    #[test]
    fn sessions_that_come_and_go_leave_nothing() {
        let inbox = Inbox::new().unwrap();
        for _ in 0..SESSION_WAITING_MAX + 1 {
            let from = Notifier {
                session: A,
                name: "a",
                incarnation: 1,
                features: 0,
            };
            inbox.put(&from, vec![]);
        }
        inbox.forget(A);
        assert!(lock(&inbox.room).refused.is_empty());
    }

    #[test]
    fn who_begins_and_never_goes_on_leaves_room_for_what_is_whole() {
        let inbox = Inbox::new().unwrap();
        let say = |number: u8, frame: Vec<u8>| {
            let from = Notifier {
                session: session(number),
                name: "a",
                incarnation: 1,
                features: PARCELS,
            };
            inbox.put(&from, frame)
        };
        let long = parcel::notification(&vec![7; parcel::NOTIFICATION_BYTES_MAX]);
        let most = (WAITING_MAX / 2 / parcel::places(parcel::NOTIFICATION_BYTES_MAX)) as u8;
        assert!((0..most).all(|number| say(number, long[0].clone())));
        assert!(!say(most, long[0].clone()), "no more begin");
        assert!(say(most, parcel::notification(b"whole").remove(0)));
        // One that begins anew has left its place, one that comes whole leaves it, and so does one whose session ends.
        assert!(say(0, long[0].clone()) && !say(most, long[0].clone()));
        assert!(long[1..].iter().all(|frame| say(0, frame.clone())));
        assert!(say(most, long[0].clone()) && !say(0, long[0].clone()));
        inbox.forget(session(1));
        assert!(say(0, long[0].clone()));
        // What goes on and has never begun is for nobody.
        assert!(say(200, long[1].clone()));
        let waiting = [inbox.queue.pop(), inbox.queue.pop(), inbox.queue.pop()];
        let lengths = waiting.map(|entry| entry.map(|(_, notification)| notification.bytes.len()));
        assert_eq!(
            lengths,
            [Some(5), Some(parcel::NOTIFICATION_BYTES_MAX), None]
        );
    }
}
