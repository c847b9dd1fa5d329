//! One round of a worker: it hands in what is known, and does what core asks for.

use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::LaneAction;
use polyrail_core::time::Instant;

use super::Loop;

impl Loop<'_> {
    /// Hands in what is known, and does what comes of it. Whether there was anything, and when that was.
    pub(super) fn round(&mut self, start: Instant) -> (bool, Instant) {
        let mut busy = self.commands(start);
        // Before what was submitted since: after a sleep, what was said last may be long over.
        self.hints.heed(start, &self.around.peers, &mut self.core);
        busy |= self.submissions(start);
        self.endings(start);
        self.post.pulse.looks(start);
        self.endpoint.poll(start, &mut self.polled);
        // No completion is from the future.
        let seen = self.polled.completions.iter().map(|seen| seen.at);
        let now = seen.fold(start, Instant::max);
        let before = std::mem::replace(&mut self.wait_policy.looked, now);
        self.wait_policy.moved =
            !self.polled.completions.is_empty() || !self.polled.lanes.is_empty();
        busy |= self.wait_policy.moved;
        if !self.polled.completions.is_empty() {
            let count = self.polled.completions.len();
            self.post.pulse.completed(now, count);
        }
        self.core.handle_completions(now, &self.polled.completions);
        for report in &self.polled.lanes {
            self.core
                .handle_lane(now, report.lane, report.epoch, report.fact);
        }
        self.polled.completions.clear();
        self.polled.lanes.clear();
        let mut visible = std::mem::take(&mut self.polled.visible);
        visible.drain(..).for_each(|ticket| self.seen(ticket));
        self.polled.visible = visible;
        self.end_unseen(now);
        self.ask_for_ends();
        for disk in self.disks.heard(now) {
            self.core.handle_frame(now, *disk, &Frame::Alive);
        }
        if self.may_time_out(before, now) {
            self.core.handle_timeout(now);
        }
        if let Some(neighbours) = self.around.neighbours() {
            neighbours.look(now, self.around.fabric);
        }
        let Self { handover, core, .. } = self;
        handover.hand_over(now, |id, how| core.hand_back(id, how));
        busy |= self.drain(now);
        busy |= self.forget_peers(now);
        if busy && self.around.posts.len() > 1 {
            self.post.backlog.publish(self.core.backlog_bytes());
        }
        if let Some(neighbours) = self.around.neighbours() {
            neighbours.publish(now, busy, self.around.fabric);
        }
        (busy, now)
    }

    /// Asks peers to end lanes that have ended here, so that what those have written can be seen.
    fn ask_for_ends(&mut self) {
        let Self { polled, around, .. } = self;
        for (lane, epoch) in polled.fences.drain(..) {
            let peer = around.fabric.shared().peer(lane.rail());
            if let Some(peer) = peer.filter(|_| !around.fences_ignored()) {
                around.plane.fence(peer, lane, epoch);
            }
        }
    }

    /// Lets go of lost peers that nothing is open with any more. Whether there were any.
    fn forget_peers(&mut self, now: Instant) -> bool {
        let on_their_way = self.has_submissions();
        let forgotten = self
            .lost
            .forget(now, on_their_way, &mut self.core, &mut *self.endpoint);
        // It ends requests and fences lanes of those that something is open with.
        forgotten.is_some_and(|count| self.drain(now) | (count > 0))
    }

    /// Does everything that core asks for.
    fn drain(&mut self, now: Instant) -> bool {
        let mut busy = false;
        while let Some(post) = self.core.poll_post(now, &mut self.postings) {
            let posted = self.endpoint.post(&self.postings);
            let accepted = self.postings.works.iter().take(posted.accepted);
            accepted.for_each(|work| self.wait_policy.done.add(work.length));
            self.core
                .handle_posted(now, post, posted.accepted, posted.stop);
            busy = true;
        }
        while let Some(action) = self.core.poll_lane() {
            match action {
                LaneAction::Open { lane, epoch, by } => self.endpoint.open(lane, epoch, by),
                LaneAction::Fence { lane, epoch, scope } => self.endpoint.fence(lane, epoch, scope),
                LaneAction::Close { lane, epoch } => self.endpoint.close(lane, epoch),
            }
            busy = true;
        }
        while let Some(message) = self.core.poll_message(now) {
            match message {
                Message::Fence { .. } if self.around.fences_ignored() => {}
                // Its endpoint says it unasked.
                Message::Fence { peer, .. } if self.disks.has(peer) => {}
                Message::Fence { peer, lane, epoch } => {
                    self.post.fences.asked(now, lane, epoch);
                    self.around.plane.fence(peer, lane, epoch);
                }
            }
            busy = true;
        }
        while let Some(event) = self.core.poll_event() {
            self.event(event);
            busy = true;
        }
        busy
    }
}
