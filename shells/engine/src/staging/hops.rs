//! Hops: what core wants moved, as requests of workers, and the slots that they leave behind.

use polyrail_core::report::Report;
use polyrail_core::stage::{Hop, Stage, Staged};
use polyrail_core::time::Instant;
use polyrail_core::units::StageId;
use polyrail_core::work::{Op, Place};

use super::requests::{follow, not_begun, terms};
use super::work::Work;
use super::{IN, OUT, Word};
use crate::batch::Batch;
use crate::engine::Engine;
use crate::error::{ReleaseError, SubmitError};
use crate::intake::refused;
use crate::request::Request;
use crate::segments::{Segment, SegmentId};

impl Work {
    /// Has a hop carried out. `false`: there is no room for it now.
    pub(super) fn begin(
        &mut self,
        core: &mut Staged<'_>,
        engine: &Engine,
        now: Instant,
        stage: &Stage,
    ) -> bool {
        let request = hop_request(engine, stage);
        let terms = terms(now, stage.deadline, stage.priority);
        let id = stage.id;
        let words = self.words.clone();
        match self.with_room(engine, || engine.submit_hop(&request, &terms)) {
            Ok(batch) => {
                let ended = batch.clone();
                let tell = move |report| words.put(Word::HopEnded(id, report, ended));
                follow(batch, tell);
            }
            Err(SubmitError::Full) => return false,
            Err(error) => {
                let (status, cause) = not_begun(&error);
                self.fail(core, now, id, refused(status, cause));
            }
        }
        true
    }

    fn fail(&self, core: &mut Staged<'_>, now: Instant, id: StageId, report: Report) {
        if let Err(refusal) = core.handle_stage(now, id, &report) {
            log::debug!("a hop that did not begin changes nothing: {refusal:?}");
        }
    }
}

/// Puts slots back into use that nothing touches any more.
pub(super) fn let_go(held: &mut Vec<(StageId, Batch)>, core: &mut Staged<'_>, now: Instant) {
    held.retain(|(id, batch)| {
        match batch.wait_released(std::time::Duration::ZERO) {
            Err(ReleaseError::TimedOut { held, .. }) if held > 0 => return true,
            // What may be open yet is the far end, which is not this side's to use again.
            Ok(_) | Err(ReleaseError::TimedOut { .. }) => {}
            Err(ReleaseError::Unprovable { .. } | ReleaseError::Forked) => return false,
        }
        for pool in [IN, OUT] {
            let mut quarantined = core.quarantined(pool);
            let of_hop = quarantined.find(|(_, suspect)| suspect.stage == Some(*id));
            drop(quarantined);
            if let Some((slot, _)) = of_hop
                && core.restore(now, pool, slot)
            {
                log::info!("a staging slot is used again: what held it has ended");
            }
        }
        false
    });
}

/// What a hop is as a request: of memory here with what is elsewhere, a file or a GPU of this host included.
fn hop_request(engine: &Engine, stage: &Stage) -> Request {
    let segment = |place: Place| SegmentId(place.segment.0);
    let is_far = |place: Place| {
        let found = engine.inner.segments.get(segment(place));
        matches!(found, Some(Segment::Remote(_) | Segment::Device(..)))
    };
    let (op, local, remote) = match stage.hop {
        Hop::Copy if is_far(stage.local) => (Op::Read, stage.remote, stage.local),
        Hop::Copy | Hop::Network { .. } => (stage.op, stage.local, stage.remote),
    };
    Request {
        op,
        local: segment(local),
        local_offset: local.offset,
        remote: segment(remote),
        remote_offset: remote.offset,
        length: stage.length.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use polyrail_core::report::{Local, Remote, Status};
    use polyrail_core::stage::{
        Claim, Direction, Line, PeerStaging, PoolConfig, PoolView, Slot, StagedConfig,
        StagedRequest, StagedTables,
    };
    use polyrail_core::table::Row;
    use polyrail_core::units::{PeerId, SegmentRef};
    use polyrail_core::work::{Cause, Priority};

    use super::*;
    use crate::batch::Shared;
    use crate::config::SendQueueConfig;
    use crate::post::Post;
    use crate::rows::RowId;

    /// A hop that ended although the kernel holds its memory.
    fn held(shared: &Arc<Shared>) -> (Batch, Report) {
        let report = Report {
            status: Status::Indeterminate,
            delivered_bytes: 0,
            cause: Some(Cause::Cancelled),
            local: Local::Held,
            remote: Remote::Unknown,
        };
        let _ = shared.record(0, report);
        assert!(!shared.finish().is_over());
        let post = Post::new(&SendQueueConfig::default()).unwrap();
        (Batch::new(shared.clone(), Arc::new(post)), report)
    }

    #[test]
    fn a_slot_that_was_held_is_used_again_once_it_is_let_go_of() {
        let at = |segment| Place {
            segment: SegmentRef(segment),
            offset: 0,
        };
        let pools =
            [(Direction::In, 8), (Direction::Out, 9)].map(|(direction, segment)| PoolConfig {
                direction,
                first: at(segment),
                slot_bytes: 4096,
                slots: 1,
            });
        let (mut peers, mut slots) = ([PeerStaging::EMPTY], [Slot::EMPTY, Slot::EMPTY]);
        let (mut claims, mut requests) = ([const { Claim::EMPTY }; 4], [const { Row::EMPTY }; 2]);
        let mut lines = [const { Line::EMPTY }; 4];
        let tables = StagedTables {
            peers: &mut peers,
            claims: &mut claims,
            requests: &mut requests,
            slots: &mut slots,
            lines: &mut lines,
        };
        let mut core = Staged::new(tables, &pools, StagedConfig::DEFAULT).unwrap();
        let request = StagedRequest {
            peer: PeerId(0),
            op: Op::Write,
            local: at(1),
            remote: at(2),
            length: 100,
            local_pool: Some(OUT),
            remote_pool: None,
            deadline: None,
            priority: Priority::Normal,
        };
        core.submit(Instant::ZERO, &request).unwrap();
        let stage = core.poll_stage().unwrap();
        let pending = Report {
            local: Local::Held,
            remote: Remote::Unknown,
            ..refused(Status::Pending, Cause::Cancelled)
        };
        let shared = Arc::new(Shared::with_reports(RowId::default(), vec![pending]));
        let (batch, report) = held(&shared);
        core.handle_stage(Instant::ZERO, stage.id, &report).unwrap();
        let mut batches = vec![(stage.id, batch)];
        let view = |core: &Staged<'_>| core.pool(OUT).unwrap();
        let_go(&mut batches, &mut core, Instant::ZERO);
        assert_eq!((view(&core).quarantined, batches.len()), (1, 1));
        shared.settle(0);
        let_go(&mut batches, &mut core, Instant::ZERO);
        let PoolView { quarantined, .. } = view(&core);
        assert_eq!((quarantined, batches.len()), (0, 0));
    }
}
