//! Requests that a lane's endpoint carries out while it is asked: what the caller's own processor copies within
//! microseconds is done before it could be queued.
//!
//! Nothing of such a request is kept. What does not come to its end at once is submitted like any other, and moved by the
//! attempts of that; so what fails, waits or is to be proved is met there, and nowhere else.

use super::{Chooser, Orchestrator, Request};
use crate::rail::chooser::Binding;
use crate::rail::estimate::{Observation, Sample};
use crate::report::Report;
use crate::time::{Duration, Instant};
use crate::units::{Epoch, LaneId, TransportId};
use crate::work::{Place, Work};

/// One of so many works is measured: to read the clock and to learn take as long as copying some KiB.
const MEASURE_EVERY: u8 = 16;

/// A request as one work, for a lane that has nothing else to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AtOnce {
    /// The lane.
    pub lane: LaneId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The transport that the lane is of.
    pub transport: TransportId,
    /// What it is to do. Nobody asks for a completion, so its cookie means nothing.
    pub work: Work,
    /// It is to be measured how long that takes.
    pub is_measured: bool,
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// The lane that may carry a request out now, as one work, in a call that returns when it is done. `None`: it is to be
    /// submitted, because there is something to choose, to wait for or to be overtaken: rails beside that lane, an
    /// agent's wishes, a deadline, a peer that is silent, something else on the lane or in line to its peer.
    ///
    /// Asking changes nothing. If the request has been carried out, [`Self::handle_at_once`] is told; if it has not, or not
    /// all of it, it is submitted. Its batch and tag are not looked at.
    pub fn at_once(&self, request: &Request) -> Option<AtOnce> {
        if request.deadline != Instant::MAX {
            return None;
        }
        let plan = self.plan_to_submit(request.plan)?;
        let peer = self.peers.get(plan.peer.index())?;
        if !peer.is_free() || peer.unbound_bytes > 0 {
            return None;
        }
        let rank = self.best_rank(request.plan);
        let [rail] = plan.rails(rank).as_slice() else {
            return None;
        };
        let rail = rail.rail;
        if self.binding_of(rail) != Binding::Runs {
            return None;
        }
        let lane = self.lanes.get(rail.index())?;
        let is_idle = lane.is_open() && lane.flight.len() == 0;
        let length = u32::try_from(request.length).ok()?;
        if !is_idle || length == 0 || length > lane.work_bytes_max() || !self.is_healthy(rail) {
            return None;
        }
        request.local_offset.checked_add(request.length)?;
        request.remote_offset.checked_add(request.length)?;
        Some(AtOnce {
            lane: self.lane_id(rail),
            epoch: lane.epoch(),
            transport: plan.transports.get(usize::from(rank))?.transport,
            work: Work {
                cookie: 0,
                op: request.op,
                local: Place {
                    segment: plan.local,
                    offset: request.local_offset,
                },
                remote: Place {
                    segment: plan.remote,
                    offset: request.remote_offset,
                },
                length,
                signal: true,
            },
            is_measured: self.carried_at_once == 0,
        })
    }

    /// What [`Self::at_once`] gave has been carried out, whole. If it was to be measured, `took` says how long that was.
    /// Like any completion it counts as a sign of the peer. The answer is how the request has ended.
    pub fn handle_at_once(
        &mut self,
        now: Instant,
        done: &AtOnce,
        took: Option<Duration>,
    ) -> Report {
        let rail = done.lane.rail();
        let bytes = u64::from(done.work.length);
        let report = Report::moved(bytes);
        let Some(row) = self.shared.known(rail) else {
            return report;
        };
        match took {
            None => row.carried(now, bytes),
            Some(took) => row.handle_observation(&Observation::new(Sample {
                posted_at: now,
                seen_at: now + took,
                ahead_bytes: 0,
                bytes,
            })),
        }
        self.carried_at_once = (self.carried_at_once + 1) % MEASURE_EVERY;
        self.rail_succeeded(rail);
        if let Some(peer) = row.peer() {
            self.heard(now, peer);
        }
        report
    }
}
