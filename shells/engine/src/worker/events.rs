//! Events of core: what has ended, and what is worth a line in the log.

use polyrail_core::orchestrator::Event;
use polyrail_core::report::{Local, Remote};

use super::Loop;
use crate::lock::lock;
use crate::post::Command;
use crate::rows::RowId;

impl Loop<'_> {
    /// A batch has ended. Its notification goes out once what it tells of can be seen, not merely has arrived.
    pub(super) fn finish(&mut self, row: RowId) {
        let Self {
            post,
            endpoint,
            around,
            unseen,
            afterwards,
            intake,
            ..
        } = self;
        intake.close(row);
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

    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::RequestDone { request, tag } => {
                // It leaves room for another.
                self.intake.look_again();
                let last = self.core.transport_of(request);
                let transports = &self.around.transports;
                let at_staged = || last.is_some_and(|last| transports.stages(last));
                if let Some(report) = self.core.take(request)
                    && !self
                        .handover
                        .takes(self.rhythm.looked, tag, &report, at_staged)
                {
                    let report = self.told(self.rhythm.looked, tag, report);
                    self.around.log_end(last, &report);
                    self.report(tag, report);
                }
            }
            Event::BatchDone { batch, tag } => {
                let (row, _) = RowId::from_tag(tag);
                if self.core.take_batch(batch).is_some() && self.handover.has_ended(row) {
                    self.finish(row);
                }
            }
            Event::Settled { tag } => self.post.settle(tag, Local::Released, Remote::Settled),
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
