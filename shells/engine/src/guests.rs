//! Sessions that peers have with this engine: who, from where, since when, and how much they have moved.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use polyrail_control::plane::{Guest, SessionEnd};
use polyrail_transport::{SessionId, remark};
use serde::Serialize;

use crate::calls::Caller;
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

impl fmt::Display for SessionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            peer,
            member,
            address,
            seconds,
            bytes,
        } = self;
        let member = member.as_ref();
        let member = member.map_or(String::new(), |name| format!(", certificate of {name},"));
        let moved = *bytes as f64 / 1e9;
        write!(
            f,
            "session of \"{peer}\"{member} at {address}: {seconds:.1} s, {moved:.3} GB moved"
        )
    }
}

struct Known {
    who: Arc<Caller>,
    since: Instant,
    bytes: u64,
}

/// What a peer calls itself, and whom its certificate names, for people to read.
fn shown(who: &Caller) -> (String, Option<String>) {
    let member = who.member.as_ref();
    let member = member.map(|name| name.escape_debug().to_string());
    (who.peer.escape_debug().to_string(), member)
}

/// All of them.
#[derive(Default)]
pub(crate) struct Guests {
    known: Mutex<HashMap<SessionId, Known>>,
    /// One has gone.
    fewer: Condvar,
}

impl Guests {
    /// A session begins; `domain` is the name of its trust domain.
    pub(crate) fn begin(&self, guest: &Guest<'_>, domain: Option<&str>) {
        let who = Caller {
            peer: guest.name.to_owned(),
            member: guest.member.map(str::to_owned),
            address: guest.address.to_owned(),
            domain: domain.map(str::to_owned),
            trust: guest.domain,
        };
        let (peer, member) = shown(&who);
        let address = guest.address;
        let member = member.map_or(String::new(), |name| format!(", certificate of {name},"));
        remark!(event = "session_began", peer = peer.as_str(), address = address;
            "a session of \"{peer}\"{member} at {address} has begun");
        let known = Known {
            who: Arc::new(who),
            since: Instant::now(),
            bytes: 0,
        };
        lock(&self.known).insert(guest.session, known);
    }

    /// Who has a session; `None`: it is over.
    pub(crate) fn who(&self, session: SessionId) -> Option<Arc<Caller>> {
        Some(lock(&self.known).get(&session)?.who.clone())
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
        let Known { who, since, bytes } = known;
        let (peer, _) = shown(&who);
        let address = &who.address;
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
        let status = |known: &Known| {
            let (peer, member) = shown(&known.who);
            SessionStatus {
                peer,
                member,
                address: known.who.address.clone(),
                seconds: known.since.elapsed().as_secs_f64(),
                bytes: known.bytes,
            }
        };
        all.into_iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::stats::Stats;

    #[test]
    fn what_a_target_says_of_itself_names_its_sessions() {
        let status = |peer: &str, member: Option<&str>| SessionStatus {
            peer: peer.to_owned(),
            member: member.map(str::to_owned),
            address: "10.0.0.1:4711".to_owned(),
            seconds: 12.34,
            bytes: 1_471_000_000,
        };
        let stats = Stats {
            sessions: vec![
                status("bench", None),
                status("cp", Some("spiffe://example/a")),
            ],
            ..Stats::default()
        };
        let expected = "session of \"bench\" at 10.0.0.1:4711: 12.3 s, 1.471 GB moved\n\
             session of \"cp\", certificate of spiffe://example/a, at 10.0.0.1:4711: 12.3 s, 1.471 GB moved\n\
             tent_transport_failover_total 0";
        assert_eq!(stats.to_string(), expected);
    }
}
