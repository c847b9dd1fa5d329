//! Sessions that peers have with this engine: who, from where, since when, and how much they have moved.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use polyrail_control::plane::{Guest, SessionEnd};
use polyrail_transport::{SessionId, remark};
use serde::Serialize;

use crate::lock::lock;

/// A session that a peer has with this engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionStatus {
    /// What the peer calls itself.
    pub peer: String,
    /// Whom its certificate names, if it has shown one.
    pub member: Option<String>,
    /// Where it came from first.
    pub address: String,
    /// How long it has had the session, in seconds.
    pub seconds: f64,
    /// Bytes that have gone between the two since they met, both directions, as the peer counts them: about half a second ago.
    pub bytes: u64,
}

struct Known {
    peer: String,
    member: Option<String>,
    address: String,
    since: Instant,
    bytes: u64,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Guests {
    known: Mutex<HashMap<SessionId, Known>>,
    /// One has gone.
    fewer: Condvar,
}

impl Guests {
    pub(crate) fn begin(&self, guest: &Guest<'_>) {
        let known = Known {
            peer: guest.name.escape_debug().to_string(),
            member: guest.member.map(|name| name.escape_debug().to_string()),
            address: guest.address.to_owned(),
            since: Instant::now(),
            bytes: 0,
        };
        let Known {
            peer,
            member,
            address,
            ..
        } = &known;
        let shown = member.as_ref();
        let shown = shown.map_or(String::new(), |name| format!(", certificate of {name},"));
        remark!(event = "session_began", peer = peer.as_str(), address = address.as_str();
            "a session of \"{peer}\"{shown} at {address} has begun");
        lock(&self.known).insert(guest.session, known);
    }

    pub(crate) fn moved(&self, session: SessionId, bytes: u64) {
        if let Some(known) = lock(&self.known).get_mut(&session) {
            known.bytes = known.bytes.max(bytes);
        }
    }

    pub(crate) fn end(&self, session: SessionId, why: SessionEnd) {
        let Some(known) = lock(&self.known).remove(&session) else {
            return;
        };
        let Known {
            peer,
            address,
            since,
            bytes,
            ..
        } = known;
        let seconds = since.elapsed().as_secs_f64();
        let why = why.to_string();
        remark!(event = "session_ended", peer = peer.as_str(), address = address.as_str(), bytes = bytes,
            seconds = seconds, why = why.as_str();
            "the session of \"{peer}\" at {address} is over after {seconds:.3} s: {why}; {bytes} bytes moved");
        self.fewer.notify_all();
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.known).len()
    }

    /// Waits until one has gone, but no longer than that.
    pub(crate) fn wait(&self, longest: Duration) {
        let known = lock(&self.known);
        // Woken for nothing, whoever waits looks once more.
        let waited = self.fewer.wait_timeout(known, longest);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The oldest first.
    pub(crate) fn list(&self) -> Vec<SessionStatus> {
        let known = lock(&self.known);
        let mut all: Vec<_> = known.values().collect();
        all.sort_by_key(|known| known.since);
        let status = |known: &Known| SessionStatus {
            peer: known.peer.clone(),
            member: known.member.clone(),
            address: known.address.clone(),
            seconds: known.since.elapsed().as_secs_f64(),
            bytes: known.bytes,
        };
        all.into_iter().map(status).collect()
    }
}
