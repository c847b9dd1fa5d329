//! Calls: what a program asks of a peer's program.

use std::time::Duration;

use crate::engine::Engine;
use crate::error::CallError;
use crate::segments::SegmentId;

/// A program's own requests to a peer's program, over the control plane.
pub trait Calls: Send + Sync {
    /// Carries out a peer's call. One at a time; may block. The engine is the one that was called.
    fn call(&self, engine: &Engine, method: u16, body: &[u8]) -> Result<Vec<u8>, String>;
}

impl Engine {
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

    /// Carries out a peer's call.
    pub(crate) fn carry_out(&self, method: u16, body: &[u8]) -> Result<Vec<u8>, String> {
        match &self.inner.tasks.calls {
            Some(calls) => calls.call(self, method, body),
            None => Err(format!(
                "the program of engine \"{}\" takes no calls",
                self.inner.config.name
            )),
        }
    }
}
