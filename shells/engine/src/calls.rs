//! Calls: what a program asks of a peer's program.

use std::time::Duration;

use polyrail_transport::memory::{Access, TrustDomain};

use crate::engine::Engine;
use crate::error::CallError;
use crate::segments::SegmentId;

/// A program's own requests to a peer's program, over the control plane.
pub trait Calls: Send + Sync {
    /// Carries out a peer's call. One at a time, on a thread for that; may block. Addresses take turns, and calls of
    /// one are carried out in the order in which they came. The engine is the one that was called.
    ///
    /// Calls come from peers of all trust domains. What the caller may know of and change is for the program to decide:
    /// [`Engine::access_of`] says it for segments.
    fn call(
        &self,
        engine: &Engine,
        caller: &Caller,
        method: u16,
        body: &[u8],
    ) -> Result<Vec<u8>, String>;
}

/// The peer whose program calls.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Caller {
    /// What its engine calls itself. Its own word, not proof of who it is.
    pub peer: String,
    /// Whom its certificate names, if it has shown one.
    pub member: Option<String>,
    /// Where its session came from first, with the port.
    pub address: String,
    /// The name of its trust domain; `None`: the common one.
    pub domain: Option<String>,
    /// The same, as segments have it.
    pub(crate) trust: TrustDomain,
}

impl Engine {
    /// What a peer that calls may do with the segment of this name, memory or a file that is offered, as if it opened
    /// it. `None`: there is none that it could open, so it is not to be told of one either. Never what the engine has
    /// for itself.
    ///
    /// Example: [guide](crate::guide#telling-the-peers-program).
    pub fn access_of(&self, caller: &Caller, segment: &str) -> Option<Access> {
        // Peers use such memory as the engine tells them to; it is no program's, and others' bytes may be in it.
        if segment.contains(char::is_control) || !self.inner.is_ours() {
            return None;
        }
        let seen = self
            .inner
            .segments
            .describe(segment, caller.trust, |_| None)?;
        Some(seen.access)
    }

    /// Asks the program of the peer that owns `remote` to do something.
    ///
    /// Example: [guide](crate::guide#telling-the-peers-program).
    pub fn call(
        &self,
        remote: SegmentId,
        method: u16,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        if !self.inner.is_ours() {
            return Err(CallError::Forked);
        }
        let segments = &self.inner.segments;
        let lost = |peer| CallError::PeerLost {
            segment: remote,
            peer,
        };
        let now = segments.leads_to(remote).map_err(lost)?;
        let segment = segments
            .remote(now)
            .ok_or_else(|| match segments.lost(now) {
                Some(peer) => lost(peer),
                None => CallError::Stale { segment: remote },
            })?;
        self.inner
            .sessions
            .plane
            .call(segment.peer, method, body.to_vec(), timeout)
            .map_err(CallError::Ask)
    }
}
