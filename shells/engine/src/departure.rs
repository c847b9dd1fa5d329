//! Engines that are about to end, in good order: this one, and its peers.
//!
//! Whoever is about to end tells those who have a session with it. They begin nothing more with it, let what is under way
//! end, and say goodbye; so nothing fails by that, unless it takes longer than is waited for.

use std::fmt;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use polyrail_core::units::PeerId;

use crate::engine::Engine;
use crate::lock::lock;

/// How often it is looked whether anything is under way still.
const LOOK: Duration = Duration::from_millis(5);

/// What was under way still when [`Engine::drain`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Undrained {
    /// Sessions that peers have with this engine.
    pub sessions: usize,
    /// Requests of this engine's own, and notifications that are not confirmed.
    pub requests: usize,
}

impl Undrained {
    /// Whether it is nothing.
    ///
    /// Example: [guide](crate::guide#changing-and-ending).
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Undrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sessions, requests } = self;
        write!(f, "{sessions} sessions of peers and {requests} requests")
    }
}

impl Engine {
    /// Prepares an end that nobody notices: what is under way ends, and nothing begins any more. Call [`Self::shutdown`] next;
    /// that cannot be undone.
    ///
    /// Submissions are refused as [`SubmitError::ShutDown`](crate::SubmitError::ShutDown) from now on, and so are sessions with
    /// peers that have none. Peers that have one are told: their submissions to this engine's segments are refused as
    /// [`SubmitError::PeerLost`](crate::SubmitError::PeerLost) before anything has begun, so that their programs go elsewhere, or
    /// open the segments again once this engine's successor is there; they leave when what they have under way has ended.
    ///
    /// Returns when all of that is so, or after `within`, or when somebody shuts the engine down meanwhile: with what is under
    /// way still. Peers of older builds do not understand; they are among those that are waited for.
    ///
    /// Example: [guide](crate::guide#changing-and-ending).
    pub fn drain(&self, within: Duration) -> Undrained {
        let inner = &self.inner;
        if !inner.is_ours() {
            return Undrained::default();
        }
        inner.ending.drains.store(true, Release);
        inner.sessions.plane.leave();
        let until = Instant::now() + within;
        loop {
            let left = self.undrained();
            let now = Instant::now();
            if left.is_nothing() || now >= until || self.is_closing() {
                return left;
            }
            inner.guests.wait(LOOK.min(until - now));
        }
    }

    fn undrained(&self) -> Undrained {
        let inner = &self.inner;
        let posts = inner.workers.posts.iter().chain(inner.staging.post());
        let held =
            posts.map(|post| post.room.load().held as usize + post.hop_room.load().held as usize);
        Undrained {
            sessions: inner.guests.count(),
            requests: held.sum::<usize>() + inner.mail.outbox.unconfirmed(None),
        }
    }

    /// Whether it takes nothing more from the program: it is ending, or about to.
    pub(crate) fn takes_nothing(&self) -> bool {
        self.is_closing() || self.inner.ending.drains.load(Acquire)
    }

    /// A peer is about to end: nothing more begins with it, and it is left once nothing is under way with it.
    pub(crate) fn see_off(&self, id: PeerId) {
        let inner = &self.inner;
        let Some(peer) = lock(&inner.sessions.peers).get(id).cloned() else {
            return;
        };
        if !inner.segments.set_leaving(id, peer.dialed) {
            return;
        }
        let (name, address) = (peer.name.escape_debug(), peer.dialed);
        log::info!("peer \"{name}\" at {address} is about to end: nothing more begins with it");
        let (weak, incarnation) = (self.downgrade(), peer.incarnation);
        let spawned = std::thread::Builder::new()
            .name("polyrail-leave".into())
            .spawn(move || {
                while let Some(engine) = weak.upgrade().map(Self::from_inner) {
                    if engine.is_closing() || engine.has_left(id, incarnation) {
                        return;
                    }
                    drop(engine);
                    std::thread::sleep(LOOK);
                }
            });
        if let Err(error) = spawned {
            log::error!("cannot start a thread to leave peer {}: {error}", id.0);
        }
    }

    /// Leaves a peer that nothing is under way with. Whether it is left, be it that it was lost meanwhile.
    fn has_left(&self, id: PeerId, incarnation: u64) -> bool {
        let inner = &self.inner;
        let known = lock(&inner.sessions.peers)
            .get(id)
            .map(|peer| peer.incarnation);
        if known != Some(incarnation) {
            return true;
        }
        inner.mail.outbox.unconfirmed(Some(id)) == 0 && self.leave_peer(id, incarnation)
    }
}
