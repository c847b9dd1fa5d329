//! Notifications that this program sends, until it is known what became of them.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use polyrail_control::codec::NOTIFICATION_BYTES_MAX as FRAME_BYTES_MAX;
use polyrail_control::plane::{Delivery as Outcome, Plane};
use polyrail_core::units::PeerId;

use crate::engine::Engine;
use crate::error::{DeliveryError, NotifyError, SubmitError};
use crate::fork::Owned;
use crate::lock::lock;
use crate::notification::Desk;
use crate::parcel::{self, NOTIFICATION_BYTES_MAX};
use crate::peers::Numbers;
use crate::request::{Request, Terms};
use crate::segments::SegmentId;
use crate::wakers::{WakerThread, Wakers};

/// Notifications to one peer that may not be confirmed yet, those of batches under way included. A long one counts once
/// for each 4 KiB.
pub(crate) const NOTIFICATIONS_MAX: usize = 16_384;

/// What became of a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeliveryStatus {
    /// Its batch has not ended, or the peer has not confirmed it. One that the peer has no room for waits so.
    Pending,
    /// The peer's engine has it for its program, or the program has taken it. It gets it once.
    Delivered,
    /// It was not sent, because its batch did not complete.
    Withheld,
    /// It never reached the peer and will not: the session had ended, or this engine has.
    Undelivered,
    /// It was sent, and the session or this engine ended before the peer had confirmed it: the peer has it
    /// once or not at all.
    Unknown,
}

/// Tells what became of a notification. Clones tell of the same one; dropping them changes nothing. It can be waited for, also by
/// a task that awaits it: it is ready once it is not [`DeliveryStatus::Pending`] any more.
pub struct Delivery {
    slip: Owned<Slip>,
    /// Where the waker of this handle is, once it has been awaited.
    place: Option<usize>,
}

impl Delivery {
    pub(crate) fn new(slip: Owned<Slip>) -> Self {
        Self { slip, place: None }
    }

    /// How it stands. In a forked child: `Unknown`.
    ///
    /// Example: [guide](crate::guide#telling-the-peers-program).
    pub fn status(&self) -> DeliveryStatus {
        match self.slip.is_ours() {
            true => lock(&self.slip.state).status,
            false => DeliveryStatus::Unknown,
        }
    }

    /// Waits until it is not `Pending` any more.
    ///
    /// Example: [guide](crate::guide#telling-the-peers-program).
    pub fn wait(&self, timeout: Duration) -> Result<DeliveryStatus, DeliveryError> {
        if !self.slip.is_ours() {
            return Err(DeliveryError::Forked);
        }
        let start = Instant::now();
        let mut state = lock(&self.slip.state);
        while state.status == DeliveryStatus::Pending {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(DeliveryError::TimedOut { after: timeout });
            }
            (state, _) = self
                .slip
                .known
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state.status)
    }
}

impl Future for Delivery {
    type Output = DeliveryStatus;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<DeliveryStatus> {
        let Self { slip, place } = &mut *self;
        if !slip.is_ours() {
            return Poll::Ready(DeliveryStatus::Unknown);
        }
        let waker = slip.waker_thread.defer(context.waker());
        let mut state = lock(&slip.state);
        if state.status != DeliveryStatus::Pending {
            return Poll::Ready(state.status);
        }
        let old = state.wakers.set(place, &waker);
        drop(state);
        drop(old);
        Poll::Pending
    }
}

impl Clone for Delivery {
    fn clone(&self) -> Self {
        Self::new(self.slip.clone())
    }
}

impl Drop for Delivery {
    /// Nobody awaits this handle any more.
    fn drop(&mut self) {
        let place = self.place.filter(|_| self.slip.is_ours());
        let waker = place.and_then(|place| lock(&self.slip.state).wakers.take(place));
        drop(waker);
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delivery({:?})", self.status())
    }
}

/// What goes to programs of peers, and what has come from them.
pub(crate) struct Mail {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) desk: Owned<Desk>,
}

impl Mail {
    /// For so many peers.
    pub(crate) fn new(desk: Desk, peers: usize) -> Self {
        Self {
            outbox: Arc::new(Outbox::new(peers, desk.waker_thread.clone())),
            desk: Owned::new(Arc::new(desk)),
        }
    }
}

impl Engine {
    /// The notification that the terms ask for, with its place in the line to the peer of all requests.
    pub(crate) fn outgoing(
        &self,
        requests: &[Request],
        terms: &Terms<'_>,
    ) -> Result<Option<Outgoing>, SubmitError> {
        if !terms.tells() {
            return Ok(None);
        }
        if !self.inner.is_ours() {
            return Err(SubmitError::Forked);
        }
        let length = terms.notification.map_or(0, <[u8]>::len);
        if length > NOTIFICATION_BYTES_MAX {
            return Err(SubmitError::NotificationSize { bytes: length });
        }
        let Some(peer) = self.one_peer(requests)? else {
            return Ok(None);
        };
        let letter = Letter {
            bytes: terms.notification.map(<[u8]>::to_vec),
            arrival: terms.arrival,
        };
        let addressee = self.addressee(peer).filter(|known| known.reads(&letter));
        let Some(addressee) = addressee else {
            return Err(SubmitError::NotificationUnsupported);
        };
        let notification = Outgoing::new(&self.inner.mail.outbox, addressee, letter);
        let notification = notification.ok_or(SubmitError::Full(None))?;
        // From here on nobody else gets the number; the peer may have been lost before.
        if self.one_peer(requests)? != Some(peer) {
            return Err(SubmitError::NotificationUnsupported);
        }
        Ok(Some(notification))
    }

    /// The peer of all requests; `None`: there are none.
    fn one_peer(&self, requests: &[Request]) -> Result<Option<PeerId>, SubmitError> {
        let mut known: Option<(SegmentId, PeerId)> = None;
        for (index, Request { remote, .. }) in requests.iter().enumerate() {
            if known.is_some_and(|(segment, _)| segment == *remote) {
                continue;
            }
            let segment = *remote;
            let segments = &self.inner.segments;
            let remote = segments.remote(segment);
            let peer = remote.ok_or_else(|| segments.missing(index, segment))?.peer;
            if known.is_some_and(|(_, other)| other != peer) {
                return Err(SubmitError::NotificationPeers { index });
            }
            known = Some((segment, peer));
        }
        Ok(known.map(|(_, peer)| peer))
    }

    /// The peer that has this number now, if notifications can go to it.
    fn addressee(&self, peer: PeerId) -> Option<Addressee> {
        let peers = lock(&self.inner.sessions.peers);
        let known = peers.get(peer).filter(|peer| peer.notifies)?;
        Some(Addressee {
            numbers: known.numbers.clone(),
            parcels: known.parcels,
        })
    }

    /// Tells the program of the peer that owns `remote` something, by itself, at most
    /// [`NOTIFICATION_BYTES_MAX`](crate::NOTIFICATION_BYTES_MAX) bytes. It gets it once and after what was
    /// told it before, also if connections are lost meanwhile. Does not wait for batches under way; see
    /// [`Self::submit_notifying`].
    ///
    /// Example: [guide](crate::guide#telling-the-peers-program).
    pub fn notify(&self, remote: SegmentId, bytes: &[u8]) -> Result<Delivery, NotifyError> {
        let inner = &self.inner;
        if !inner.is_ours() {
            return Err(NotifyError::Forked);
        }
        if self.takes_nothing() {
            return Err(NotifyError::ShutDown);
        }
        let length = bytes.len();
        if length > NOTIFICATION_BYTES_MAX {
            return Err(NotifyError::TooLong { bytes: length });
        }
        let lost = |peer| NotifyError::PeerLost {
            segment: remote,
            peer,
        };
        let now = inner.segments.leads_to(remote).map_err(lost)?;
        let find = || match (inner.segments.remote(now), inner.segments.lost(now)) {
            (Some(segment), _) => Ok(segment.peer),
            (None, Some(peer)) => Err(lost(peer)),
            (None, None) => Err(NotifyError::Stale { segment: remote }),
        };
        let letter = Letter {
            bytes: Some(bytes.to_vec()),
            arrival: None,
        };
        let addressee = self.addressee(find()?);
        let addressee = addressee.filter(|known| known.reads(&letter));
        let addressee = addressee.ok_or(NotifyError::Unsupported)?;
        // From here on nobody else gets the number; the peer may have been lost before.
        find()?;
        let outgoing = Outgoing::new(&inner.mail.outbox, addressee, letter);
        let outgoing = outgoing.ok_or(NotifyError::Full)?;
        let delivery = Delivery::new(Owned::new(outgoing.slip().clone()));
        outgoing.send(&inner.sessions.plane);
        Ok(delivery)
    }
}

/// What a notification and its handles share.
pub(crate) struct Slip {
    state: Mutex<SlipState>,
    known: Condvar,
    waker_thread: Arc<WakerThread>,
}

struct SlipState {
    status: DeliveryStatus,
    /// Tasks that wait. They can be woken anywhere.
    wakers: Wakers,
}

impl Slip {
    fn set(&self, status: DeliveryStatus) {
        let mut state = lock(&self.state);
        state.status = status;
        let wakers = state.wakers.take_all();
        drop(state);
        self.known.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// How many notifications to each peer are not confirmed, and those that wait for what they tell of to be seen.
pub(crate) struct Outbox {
    counts: Box<[AtomicUsize]>,
    line: Mutex<Line>,
    waker_thread: Arc<WakerThread>,
}

/// Notifications in the order in which they are to go out.
#[derive(Default)]
struct Line {
    ticket_last: u64,
    peers: HashMap<PeerId, VecDeque<Held>>,
}

/// One that may not go out yet.
struct Held {
    /// What has to be seen before; `None`: only those before it hold it up.
    ticket: Option<u64>,
    outgoing: Outgoing,
}

impl Outbox {
    pub(crate) fn new(peers: usize, waker_thread: Arc<WakerThread>) -> Self {
        Self {
            waker_thread,
            counts: (0..peers).map(|_| AtomicUsize::new(0)).collect(),
            line: Mutex::default(),
        }
    }

    /// What a ticket was drawn for can be seen: what waited for it goes out, in its turn.
    fn seen(&self, ticket: u64, plane: &Plane) {
        let mut line = lock(&self.line);
        line.peers.retain(|_, held| {
            for held in held.iter_mut() {
                held.ticket = held.ticket.filter(|other| *other != ticket);
            }
            while held.front().is_some_and(|held| held.ticket.is_none()) {
                if let Some(first) = held.pop_front() {
                    first.outgoing.go(plane);
                }
            }
            !held.is_empty()
        });
    }

    /// Draws so many tickets. The first.
    pub(crate) fn draw(&self, tickets: u64) -> u64 {
        let mut line = lock(&self.line);
        let first = line.ticket_last + 1;
        line.ticket_last += tickets;
        first
    }

    /// How many places are taken of a peer, or of all.
    pub(crate) fn unconfirmed(&self, of: Option<PeerId>) -> usize {
        let own = of.map(|peer| usize::from(peer.0));
        let counts = self.counts.iter().enumerate();
        let counts = counts.filter(|(peer, _)| own.is_none_or(|own| own == *peer));
        counts.map(|(_, count)| count.load(Acquire)).sum()
    }

    /// Takes room for a notification; `None`: there is none now.
    fn take(self: &Arc<Self>, peer: PeerId, places: usize) -> Option<Place> {
        let more = |count: usize| Some(count + places).filter(|count| *count <= NOTIFICATIONS_MAX);
        let count = self.counts.get(usize::from(peer.0))?;
        count.fetch_update(SeqCst, SeqCst, more).ok()?;
        Some(Place {
            outbox: self.clone(),
            peer,
            places,
        })
    }
}

/// Places in an [`Outbox`], given back when they are dropped.
struct Place {
    outbox: Arc<Outbox>,
    peer: PeerId,
    places: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(count) = self.outbox.counts.get(usize::from(self.peer.0)) {
            count.fetch_sub(self.places, SeqCst);
            self.outbox.waker_thread.room_came();
        }
    }
}

/// A notification that is in line, and waits for what it tells of to be seen.
pub(crate) struct Ticket {
    outbox: Arc<Outbox>,
    peer: PeerId,
    number: u64,
}

impl Ticket {
    /// Whose program it is for.
    pub(crate) fn peer(&self) -> PeerId {
        self.peer
    }

    /// Tells it from all others of its engine.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// It can be seen.
    pub(crate) fn go(self, plane: &Plane) {
        self.outbox.seen(self.number, plane);
    }
}

/// Whose program something is for.
pub(crate) struct Addressee {
    /// Nobody else has the number meanwhile.
    numbers: Arc<Numbers>,
    /// It knows parcels.
    parcels: bool,
}

impl Addressee {
    /// Whether its build understands this.
    fn reads(&self, letter: &Letter) -> bool {
        let length = letter.bytes.as_ref().map_or(0, Vec::len);
        self.parcels || letter.arrival.is_none() && length <= FRAME_BYTES_MAX
    }
}

/// What a program tells another.
pub(crate) struct Letter {
    bytes: Option<Vec<u8>>,
    /// The tag of a batch that has arrived.
    arrival: Option<u64>,
}

/// A notification that has not been sent.
pub(crate) struct Outgoing {
    addressee: Addressee,
    letter: Letter,
    place: Place,
    slip: Arc<Slip>,
}

impl Outgoing {
    /// `None`: there is no room for it now.
    pub(crate) fn new(outbox: &Arc<Outbox>, addressee: Addressee, letter: Letter) -> Option<Self> {
        let places = parcel::places(letter.bytes.as_ref().map_or(0, Vec::len));
        let place = outbox.take(addressee.numbers.peer, places)?;
        let slip = Slip {
            state: Mutex::new(SlipState {
                status: DeliveryStatus::Pending,
                wakers: Wakers::default(),
            }),
            known: Condvar::new(),
            waker_thread: outbox.waker_thread.clone(),
        };
        Some(Self {
            addressee,
            letter,
            place,
            slip: Arc::new(slip),
        })
    }

    pub(crate) fn slip(&self) -> &Arc<Slip> {
        &self.slip
    }

    /// Its batch did not complete.
    pub(crate) fn withhold(self) {
        self.slip.set(DeliveryStatus::Withheld);
    }

    /// Sends it, behind those to the same peer that wait.
    pub(crate) fn send(self, plane: &Plane) {
        let outbox = self.place.outbox.clone();
        let mut line = lock(&outbox.line);
        match line.peers.get_mut(&self.addressee.numbers.peer) {
            Some(held) => held.push_back(Held {
                ticket: None,
                outgoing: self,
            }),
            None => self.go(plane),
        }
    }

    /// Puts it in line. It goes out in its turn, and not before [`Ticket::go`].
    pub(crate) fn send_after(self) -> Ticket {
        let (outbox, peer) = (self.place.outbox.clone(), self.addressee.numbers.peer);
        let mut line = lock(&outbox.line);
        line.ticket_last += 1;
        let number = line.ticket_last;
        let held = line.peers.entry(peer).or_default();
        held.push_back(Held {
            ticket: Some(number),
            outgoing: self,
        });
        drop(line);
        Ticket {
            outbox,
            peer,
            number,
        }
    }

    /// Hands it to the control plane, which answers.
    fn go(self, plane: &Plane) {
        let Self {
            addressee,
            letter,
            place,
            slip,
        } = self;
        let peer = addressee.numbers.peer;
        let mut frames: Vec<_> = letter.arrival.map(parcel::arrival).into_iter().collect();
        match letter.bytes {
            Some(bytes) if addressee.parcels => frames.extend(parcel::notification(&bytes)),
            Some(bytes) => frames.push(bytes),
            None => {}
        }
        let answer = move |outcome| {
            drop(addressee);
            // First, so that whoever has waited finds room.
            drop(place);
            slip.set(match outcome {
                Outcome::Delivered => DeliveryStatus::Delivered,
                Outcome::Undelivered => DeliveryStatus::Undelivered,
                Outcome::Unknown => DeliveryStatus::Unknown,
            });
        };
        plane.notify_in_parts(peer, frames, Box::new(answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::config::Config;
    use crate::machine::Machine;
    use crate::peers::Peers;

    #[test]
    fn nobody_gets_the_number_of_a_peer_that_something_is_on_its_way_to() {
        let config = Config::default();
        let machine = Arc::new(Machine::this(&config));
        let mut peers = Peers::new(
            config.estimate(),
            machine,
            false,
            &config.limits,
            Vec::new(),
        );
        let addressee = Arc::new(peers.take_numbers().unwrap());
        let peer = addressee.peer;
        let addressee = Addressee {
            numbers: addressee,
            parcels: true,
        };
        let letter = Letter {
            bytes: Some(b"late".to_vec()),
            arrival: None,
        };
        let outgoing =
            Outgoing::new(&Arc::new(Outbox::new(4, Arc::default())), addressee, letter).unwrap();
        // The peer is lost, and as many come as there are numbers.
        let mut others = Vec::new();
        while let Ok(numbers) = peers.take_numbers() {
            assert_ne!(numbers.peer, peer, "it would be told what was for another");
            others.push(numbers);
        }
        outgoing.withhold();
        assert_eq!(peers.take_numbers().unwrap().peer, peer);
    }
}
