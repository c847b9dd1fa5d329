//! Events of core: what has ended, and what is worth a line in the log.

use polyrail_core::orchestrator::{About, Event};
use polyrail_core::report::Report;
use polyrail_core::time::Instant;

use super::Loop;
use crate::lock::lock;
use crate::post::Command;
use crate::rows::RowId;
use crate::stats::{End, Over};
use crate::visible::Seen;

impl Loop<'_> {
    /// All of a batch has been reported. It ends now, or once what it has written can be seen, if that is asked for.
    pub(super) fn finish(&mut self, row: RowId) {
        self.intake.close(row);
        let Some((first, peers)) = self.post.sight(row) else {
            return self.end_batch(row);
        };
        let mut tickets = Vec::new();
        for (ticket, peer) in (first..).zip(peers) {
            let session = lock(&self.around.peers).get(peer).map(|peer| peer.session);
            if session.is_some_and(|session| self.endpoint.make_visible(session, ticket)) {
                tickets.push(ticket);
            }
        }
        match tickets.is_empty() {
            true => self.end_batch(row),
            false => {
                let (now, within) = (self.wait_policy.looked, self.fence_timeout);
                self.unseen_batches.add(row, tickets, now, within);
            }
        }
    }

    /// Something that was asked for can be seen.
    pub(super) fn seen(&mut self, ticket: u64) {
        match self.unseen_batches.seen(ticket) {
            Some(Seen::InTime(row)) => self.end_batch(row),
            Some(Seen::Late(row)) => self.post.believe(row),
            None => {}
        }
        let place = self.unseen.iter().position(|held| held.number() == ticket);
        if let Some(place) = place {
            self.unseen.swap_remove(place).go(&self.around.plane);
        }
    }

    /// Ends batches that have waited to be seen for long enough.
    pub(super) fn end_unseen(&mut self, now: Instant) {
        while let Some(row) = self.unseen_batches.overdue(now) {
            self.post.doubt(row);
            self.end_batch(row);
        }
    }

    /// A batch has ended. Its notification goes out once what it tells of can be seen, not merely has arrived.
    fn end_batch(&mut self, row: RowId) {
        let Self {
            post,
            endpoint,
            around,
            unseen,
            afterwards,
            ..
        } = self;
        let ended = post.finish(row, |ticket| {
            let session = lock(&around.peers)
                .get(ticket.peer())
                .map(|peer| peer.session);
            let number = ticket.number();
            match session.is_some_and(|session| endpoint.make_visible(session, number)) {
                true => unseen.push(ticket),
                false => ticket.go(&around.plane),
            }
        });
        if let Some(ended) = ended {
            afterwards.keep(ended);
        }
    }

    fn count(&self, about: Option<About>, report: &Report) {
        let Some(about) = about else {
            return;
        };
        let over = match about.transport {
            // It is the staging thread's to count.
            Some(transport) if self.around.transports.stages(transport) => return,
            Some(transport) => Over::Transport(transport),
            None => Over::Nothing,
        };
        let end = End {
            over,
            op: about.op,
            length: about.length,
            status: report.status,
            delivered_bytes: report.delivered_bytes,
            took: Some(self.wait_policy.looked.since(about.submitted_at)),
        };
        self.post.requests.count(&end, 1);
    }

    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::RequestDone { request, tag } => {
                // It leaves room for another.
                self.intake.look_again();
                let about = self.core.about(request);
                if let Some(report) = self.core.take(request) {
                    self.around
                        .log_end(about.and_then(|about| about.transport), &report);
                    self.count(about, &report);
                    let bytes = about.map_or(0, |about| about.length);
                    self.post
                        .unsettled
                        .reported(self.wait_policy.looked, tag, bytes, &report);
                    self.report(tag, report);
                }
            }
            Event::BatchDone { batch, tag } => {
                let (row, _) = RowId::from_tag(tag);
                if self.core.take_batch(batch).is_some() {
                    self.finish(row);
                }
            }
            Event::Settled { tag, local, remote } => self.post.settle(tag, local, remote),
            Event::HandedOver { request, .. } => {
                if let Some(handed) = self.core.handed(request) {
                    self.handover.take(self.wait_policy.looked, request, handed);
                }
            }
            Event::CalledBack { request, .. } => {
                if let Some(how) = self.handover.call_back(request) {
                    self.core.hand_back(request, &how);
                }
            }
            Event::Failover {
                from, to, attempt, ..
            } => self.around.count_failover(from, to, attempt),
            Event::RailChanged {
                rail,
                state,
                cause,
                expired,
            } => self.around.log_rail(rail, state, cause, expired),
            Event::PeerChanged { peer, silent } => self.around.log_peer(peer, silent),
            Event::WakeWorker { worker } => {
                if let Some(other) = self.around.posts.get(usize::from(worker)) {
                    other.send(Command::Room);
                }
            }
        }
    }
}
