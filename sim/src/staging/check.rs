//! What has to hold after every event, of every report, and in the end.

use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::work::Cause;

use super::memory::{self, Owner};
use super::{Begun, World, source};

impl World<'_> {
    /// What must not be has been.
    pub(super) fn violate(&mut self, what: String) {
        self.history.violations += 1;
        let text = format!("{} ns: {what}", self.now);
        self.history.violation.get_or_insert(text);
    }

    /// Core's own invariants.
    pub(super) fn audit(&mut self, host: usize) {
        if let Err(violation) = self.hosts[host].audit() {
            self.violate(format!("host {host}: {violation:?}"));
        }
    }

    /// A request has been reported: whether that is true, and what it adds to the numbers.
    pub(super) fn count(&mut self, owner: Owner, begun: Begun, report: &Report) {
        let thread = self.setup.threads[begun.thread];
        let open = report.local == Local::Held || report.remote == Remote::Unknown;
        if open != (report.status == Status::Indeterminate) {
            self.violate(format!("{owner:?} is reported as {report:?}"));
        }
        let complete = report.status == Status::Completed;
        if complete
            && (report.delivered_bytes != thread.block
                || !self.is_whole(begun.number, thread.block))
        {
            self.violate(format!("{owner:?} has completed, and bytes are missing"));
        }
        let chunks = thread.block.div_ceil(u64::from(self.setup.slot_bytes));
        let hops = chunks * (1 + u64::from(thread.local_gpu) + u64::from(thread.remote_gpu));
        let history = &mut self.history;
        history.requests += 1;
        history.failed_requests += u64::from(!complete);
        history.staging_lost += u64::from(report.cause == Some(Cause::StagingLost));
        history.request_ns.push(self.now - begun.at);
        history.ended_at = self.now;
        if complete {
            history.needed_hops += hops;
        } else {
            history.spoilt_hops += hops;
        }
        let from = source(owner.0, thread.op);
        history
            .arrived
            .push((begun.at, report.delivered_bytes, from));
    }

    /// What holds when everything is over.
    pub(super) fn rest(&mut self) {
        if let Some((owner, _)) = self.under_way.first_key_value() {
            return self.violate(format!("{owner:?} is never reported"));
        }
        for host in 0..2 {
            for pool in memory::pool_ids() {
                let Some(view) = self.hosts[host].pool(pool) else {
                    continue;
                };
                self.history.quarantined_slots += u64::from(view.quarantined);
                if view.used > 0 {
                    return self.violate(format!(
                        "host {host}: {} slots of {pool:?} are still in use",
                        view.used
                    ));
                }
            }
        }
        let history = &self.history;
        // A hop that fails is done again; of what fails without proof all of its chunk. Nothing else is.
        let most = history.needed_hops
            + history.spoilt_hops
            + history.failed_hops
            + 3 * history.unfenced_hops;
        if history.hops > most {
            self.violate(format!(
                "{} hops, where {most} should do",
                self.history.hops
            ));
        }
    }
}
