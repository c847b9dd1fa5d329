//! What happens to queue pairs, workers and the poller at the times that the scenario says.

use polyrail_core::work::Cause;

use super::pair::Health;
use super::scenario::FaultKind;
use super::{What, World};
use crate::setup::PPM;

impl World<'_> {
    /// A fault begins, or ends.
    pub(super) fn fault(&mut self, fault: usize, ends: bool) {
        let row = &self.setup.faults[fault];
        let target = row.target;
        match row.kind {
            FaultKind::Slow => {
                let factor = if ends { 1.0 } else { row.factor };
                self.pairs[target].rate_ppm = (factor * PPM as f64) as u64;
            }
            FaultKind::Fail if !ends => {
                self.break_down(target, Some(Cause::RetryExceeded));
                self.notice_later(target);
            }
            FaultKind::Silent if !ends => {
                if self.pairs[target].health == Health::Works {
                    self.pairs[target].health = Health::Silent;
                    self.notice_later(target);
                }
            }
            FaultKind::Fail | FaultKind::Silent => {}
            FaultKind::Degrade if ends => {
                self.credits[target].restore();
            }
            FaultKind::Degrade => {
                self.credits[target].degrade();
            }
            FaultKind::PollerStalls => {
                self.poller.stalled = !ends;
                self.rouse();
            }
            FaultKind::WorkerStops => self.stop_worker(target, ends),
        }
    }

    fn notice_later(&mut self, pair: usize) {
        let at = self.now + self.setup.engine.notice_us * 1_000;
        let epoch = self.pairs[pair].epoch;
        self.agenda.enter(at, What::Noticed { pair, epoch });
    }
}
