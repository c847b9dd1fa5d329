//! What is due. One lower bound of all deadlines is kept; when it is reached everything is looked at and the
//! bound found anew. Deadlines move back with each completion, so the bound is touched far more often than
//! it is reached.

use super::{Chooser, Orchestrator, Reason};
use crate::time::Instant;
use crate::units::{PeerId, RailId};

impl<P: Chooser> Orchestrator<'_, P> {
    /// Does everything that is due at `now` and finds when the next thing is.
    pub(super) fn timers(&mut self, now: Instant) {
        self.next_timeout = Instant::MAX;
        self.next_reason = Reason::Bind;
        for index in 0..self.lanes_used {
            self.lane_timers(now, RailId(index as u16));
        }
        for index in 0..self.peers_used {
            self.peer_timers(now, PeerId(index as u16));
        }
        self.request_timers(now);
        // Room may have appeared that nobody told of.
        if !(self.ready.is_empty() && self.waiting.is_empty()) {
            self.bind_all();
        }
    }
}
