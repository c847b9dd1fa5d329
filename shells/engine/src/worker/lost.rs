//! Peers that are lost: a worker lets go of them once nothing is open with them.

use std::sync::Arc;

use polyrail_core::time::{Duration, Instant};
use polyrail_record::Recorded;
use polyrail_transport::Endpoint;

use crate::leaving::Leaving;

/// How often a worker looks whether it can let go of a lost peer.
const FORGET_INTERVAL: Duration = Duration::from_millis(5);
/// How long it waits for submissions that may name such a peer. Those that come later core ends as the peer did.
const FORGET_PATIENCE: Duration = Duration::from_secs(1);

/// The lost peers of a worker.
#[derive(Default)]
pub(super) struct LostPeers {
    /// Those that something is open with, since when the last of them, and when to look again.
    leaving: Vec<Arc<Leaving>>,
    since: Instant,
    look_at: Instant,
}

impl LostPeers {
    /// To be let go of as soon as nothing is open with it.
    pub(super) fn add(&mut self, now: Instant, lost: Arc<Leaving>) {
        self.leaving.push(lost);
        self.since = now;
        self.look_at = now;
    }

    /// When to look whether some can be let go of.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.leaving.is_empty()).then_some(self.look_at)
    }

    /// Lets go of those that nothing is open with any more: how many. `None`: it was not looked. `on_their_way`: whether there
    /// are submissions that may name them.
    pub(super) fn forget(
        &mut self,
        now: Instant,
        on_their_way: bool,
        core: &mut Recorded<'_>,
        endpoint: &mut dyn Endpoint,
    ) -> Option<usize> {
        if self.leaving.is_empty() || now < self.look_at {
            return None;
        }
        self.look_at = now + FORGET_INTERVAL;
        if on_their_way && now < self.since + FORGET_PATIENCE {
            return None;
        }
        let count = self.leaving.len();
        self.leaving.retain(|lost| {
            let open = !core.forget_peer(now, lost.numbers.peer);
            if !open {
                for rail in &lost.numbers.rails() {
                    endpoint.forget_rail(*rail);
                }
                for segment in &lost.segments {
                    endpoint.detach_remote(*segment);
                }
            }
            open
        });
        Some(count - self.leaving.len())
    }
}
