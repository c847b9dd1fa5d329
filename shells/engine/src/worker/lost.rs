//! Peers that are lost: a worker lets go of them once nothing is open with them.

use std::collections::VecDeque;
use std::sync::Arc;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{PeerId, PlanId};
use polyrail_record::Recorded;
use polyrail_transport::Endpoint;

use crate::leaving::Leaving;
use crate::staging::Handover;

/// How often a worker looks whether it can let go of a lost peer.
const FORGET_INTERVAL: Duration = Duration::from_millis(5);
/// Plans of lost peers that are remembered for submissions that come late.
const FORGOTTEN_MAX: usize = 1024;
/// How long it waits for submissions that may name such a peer. Those that come later find its plans gone.
const FORGET_PATIENCE: Duration = Duration::from_secs(1);

/// The lost peers of a worker.
#[derive(Default)]
pub(super) struct LostPeers {
    /// Those that something is open with, since when the last of them, and when to look again.
    leaving: Vec<Arc<Leaving>>,
    since: Instant,
    look_at: Instant,
    /// Peers whose end is proved, until they are forgotten.
    gone: Vec<PeerId>,
    /// Plans of peers whose end was proved, the last forgotten ones: what is submitted to them late is told.
    forgotten: VecDeque<PlanId>,
}

impl LostPeers {
    /// To be let go of as soon as nothing is open with it.
    pub(super) fn add(&mut self, now: Instant, lost: Arc<Leaving>) {
        self.leaving.push(lost);
        self.since = now;
        self.look_at = now;
    }

    /// Its process has ended.
    pub(super) fn is_gone(&mut self, peer: PeerId) {
        if !self.gone.contains(&peer) {
            self.gone.push(peer);
        }
    }

    /// Whether a plan was one of a peer whose end was proved.
    pub(super) fn knew(&self, plan: PlanId) -> bool {
        self.forgotten.contains(&plan)
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
        handover: &mut Handover,
    ) -> Option<usize> {
        if self.leaving.is_empty() || now < self.look_at {
            return None;
        }
        self.look_at = now + FORGET_INTERVAL;
        if on_their_way && now < self.since + FORGET_PATIENCE {
            return None;
        }
        let count = self.leaving.len();
        let Self {
            leaving,
            gone,
            forgotten,
            ..
        } = self;
        leaving.retain(|lost| {
            let open = !core.forget_peer(now, lost.numbers.peer);
            if !open {
                let known = gone.len();
                gone.retain(|peer| *peer != lost.numbers.peer);
                if gone.len() < known {
                    forgotten.extend(&lost.plans);
                    let surplus = forgotten.len().saturating_sub(FORGOTTEN_MAX);
                    forgotten.drain(..surplus);
                }
                for plan in &lost.plans {
                    handover.forget(*plan);
                }
                for rail in &lost.numbers.rails {
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
