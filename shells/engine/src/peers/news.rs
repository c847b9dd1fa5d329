//! What a program is told of its peers: who is there, who was lost, and who has come back.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;

use super::Peer;
use crate::engine::Engine;
use crate::error::ReceiveError;
use crate::fork::Owned;
use crate::lock::lock;
use crate::queue::{EventQueue, Nothing};
use crate::wakers::WakerThread;

/// Events that may wait for the program.
const EVENTS_MAX: usize = 1024;
/// Lost peers that are remembered, the last ones, so that one that comes back is known.
const LOST_MAX: usize = 256;

/// Where a peer stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PeerState {
    /// There is a session with it. It may be silent all the same.
    Present,
    /// It is about to end: nothing more begins with it.
    Leaving,
    /// It was lost, and nobody has answered at its address since.
    Lost,
}

impl PeerState {
    /// As JSON, C and Python say it too.
    ///
    /// Example: [guide](crate::guide#peers-that-come-and-go).
    pub fn name(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Leaving => "leaving",
            Self::Lost => "lost",
        }
    }
}

/// A peer as the program sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PeerStatus {
    /// What its engine calls itself. Its own word, not proof of who it is.
    pub name: String,
    /// Where this engine first reached it.
    pub address: SocketAddr,
    /// Drawn at random when its engine started: tells processes at one address apart.
    pub incarnation: u64,
    /// Where it stands.
    pub state: PeerState,
}

impl PeerStatus {
    fn of(peer: &Peer, state: PeerState) -> Self {
        Self {
            name: peer.name.clone(),
            address: peer.dialed,
            incarnation: peer.incarnation,
            state,
        }
    }
}

/// Something has happened to a peer that this engine has opened segments of.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PeerEvent {
    /// It is lost: its process has ended, another one answers at its address, it has left before its end, or it was
    /// [declared lost](Engine::declare_lost). Its segments are lost with it. One that is only silent is not lost.
    Lost(PeerStatus),
    /// It was lost, and is there again: the same process, with its memory. Segments that do not stand are to be opened anew.
    Back(PeerStatus),
    /// Another process is there in its place, with other memory. Segments that do not stand are to be opened anew.
    Changed(PeerStatus),
    /// So many events were dropped here, because the program had not taken those before: look at [`Engine::peers`].
    Missed(u64),
}

/// A peer that was lost.
#[derive(Debug)]
struct Lost {
    status: PeerStatus,
    /// Where else it was reached.
    addresses: Vec<SocketAddr>,
}

/// What has happened to peers, until the program takes it.
pub(crate) struct News {
    queue: EventQueue<PeerEvent>,
    /// Those that were lost and have not come back, the first lost first.
    lost: Mutex<VecDeque<Lost>>,
    waker_thread: Arc<WakerThread>,
}

impl News {
    pub(crate) fn new(waker_thread: Arc<WakerThread>) -> io::Result<Self> {
        Ok(Self {
            queue: EventQueue::new()?,
            lost: Mutex::default(),
            waker_thread,
        })
    }

    fn tell(&self, event: PeerEvent) {
        self.queue
            .push_within(EVENTS_MAX, event, |last| match last {
                PeerEvent::Missed(events) => *events += 1,
                // The last makes room for the word that it is missing too.
                last => *last = PeerEvent::Missed(2),
            });
    }

    /// A peer was lost.
    pub(crate) fn lose(&self, peer: &Peer) {
        let status = PeerStatus::of(peer, PeerState::Lost);
        let rails = peer.rails.iter().map(|rail| rail.pair.remote);
        let mut lost = lock(&self.lost);
        if lost.len() >= LOST_MAX {
            lost.pop_front();
        }
        lost.push_back(Lost {
            status: status.clone(),
            addresses: rails.collect(),
        });
        self.tell(PeerEvent::Lost(status));
    }

    /// There is a peer where one was lost, perhaps.
    fn meet(&self, peer: &Peer, address: SocketAddr) {
        let mut lost = lock(&self.lost);
        let was_there =
            |lost: &Lost| lost.status.address == address || lost.addresses.contains(&address);
        let Some(place) = lost.iter().rposition(was_there) else {
            return;
        };
        let before = lost.remove(place).map(|lost| lost.status.incarnation);
        // Those that were there before that one do not come back any more.
        lost.retain(|lost| !was_there(lost));
        let status = PeerStatus::of(peer, PeerState::Present);
        self.tell(match before == Some(peer.incarnation) {
            true => PeerEvent::Back(status),
            false => PeerEvent::Changed(status),
        });
    }

    /// Nothing will come any more.
    pub(crate) fn close(&self) {
        self.queue.close();
    }
}

/// What happens to the peers of an engine, in the order in which it happened: see [`Engine::peer_events`]. Clones are handles
/// of the same queue: each event goes to one taker.
///
/// Its descriptor ([`AsFd`]) is readable exactly while an event waits to be taken, so it can be put in a program's own epoll
/// or poll: take with [`Self::poll`] until there is none. Only look whether it is readable; reading or writing it breaks that
/// promise.
///
/// 1,024 events wait here. What comes while they do is counted, and told as [`PeerEvent::Missed`].
#[derive(Clone)]
pub struct PeerEvents {
    news: Owned<News>,
}

impl PeerEvents {
    /// Takes an event if one waits. In a forked child: never.
    ///
    /// Example: [guide](crate::guide#peers-that-come-and-go).
    pub fn poll(&self) -> Option<PeerEvent> {
        self.news.is_ours().then(|| self.news.queue.pop()).flatten()
    }

    /// Takes an event, for tasks: a stream of them, one by one. `None`: the engine has ended, or this is a forked child. Dropping
    /// the future loses nothing.
    ///
    /// Example: [guide](crate::guide#peers-that-come-and-go).
    pub async fn next(&self) -> Option<PeerEvent> {
        match self.news.is_ours() {
            true => self.news.queue.next(&self.news.waker_thread).await,
            false => None,
        }
    }

    /// Takes an event; blocks until there is one.
    ///
    /// Example: [guide](crate::guide#peers-that-come-and-go).
    pub fn wait(&self, timeout: Duration) -> Result<PeerEvent, ReceiveError> {
        if !self.news.is_ours() {
            return Err(ReceiveError::Forked);
        }
        let taken = self.news.queue.pop_timeout(timeout);
        taken.map_err(|why| match why {
            Nothing::TimedOut => ReceiveError::TimedOut { after: timeout },
            Nothing::Closed => ReceiveError::ShutDown,
        })
    }
}

impl AsFd for PeerEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.queue.as_fd()
    }
}

impl AsRawFd for PeerEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for PeerEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerEvents(fd {})", self.as_raw_fd())
    }
}

impl Engine {
    /// The peers whose segments this engine has opened, and up to 256 that were lost and have not come back.
    ///
    /// Example: [guide](crate::guide#peers-that-come-and-go).
    pub fn peers(&self) -> Vec<PeerStatus> {
        let inner = &self.inner;
        if !inner.is_ours() {
            return Vec::new();
        }
        let present: Vec<_> = lock(&inner.sessions.peers).iter().cloned().collect();
        let status = |peer: &Peer| {
            let state = match inner.segments.is_leaving(peer.id) {
                true => PeerState::Leaving,
                false => PeerState::Present,
            };
            PeerStatus::of(peer, state)
        };
        let mut all: Vec<_> = present.iter().map(status).collect();
        let lost = lock(&inner.sessions.news.lost);
        all.extend(lost.iter().map(|lost| lost.status.clone()));
        all
    }

    /// What happens to the peers whose segments this engine has opened.
    ///
    /// Example: [guide](crate::guide#peers-that-come-and-go).
    pub fn peer_events(&self) -> PeerEvents {
        PeerEvents {
            news: self.inner.sessions.news.clone(),
        }
    }

    /// Tells that there is a peer again where one was lost, if there is.
    pub(crate) fn tell_of_return(&self, address: SocketAddr) {
        let sessions = &self.inner.sessions;
        let peer = lock(&sessions.peers).at(address).cloned();
        if let Some(peer) = peer {
            sessions.news.meet(&peer, address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_there_is_no_room_for_are_counted_in_their_place() {
        let news = News::new(Arc::default()).unwrap();
        let event = |number: u64| {
            PeerEvent::Lost(PeerStatus {
                name: "peer".into(),
                address: ([127, 0, 0, 1], 1).into(),
                incarnation: number,
                state: PeerState::Lost,
            })
        };
        let more = EVENTS_MAX as u64 + 9;
        (0..more).for_each(|number| news.tell(event(number)));
        for number in 0..EVENTS_MAX as u64 - 1 {
            assert_eq!(news.queue.pop(), Some(event(number)));
        }
        news.tell(event(more));
        assert_eq!(news.queue.pop(), Some(PeerEvent::Missed(10)));
        assert_eq!(news.queue.pop(), Some(event(more)));
        assert_eq!(news.queue.pop(), None);
    }
}
