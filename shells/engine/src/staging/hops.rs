//! Hops: what core wants moved, as requests of workers, and the slots that they leave behind.

use std::collections::HashMap;

use polyrail_core::report::{Local, Remote, Report, Status, Unbegun};
use polyrail_core::stage::{Hop, Stage, Staged};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::StageId;
use polyrail_core::work::{Op, Place};

use super::Word;
use super::requests::{follow, not_begun, terms};
use super::work::Work;
use crate::batch::Batch;
use crate::engine::Engine;
use crate::error::{ReleaseError, SubmitError};
use crate::request::{Request, Terms};
use crate::segments::{Segment, SegmentId};

/// How often it is looked whether memory here that was held has been let go of, and what a peer's is like.
const HELD_LOOK: Duration = Duration::from_millis(50);
const UNKNOWN_LOOK: Duration = Duration::from_millis(500);

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
        let terms = Terms {
            // The peer goes on with it as soon as it is told.
            visible: matches!(stage.hop, Hop::Network { .. }),
            ..terms(now, stage.deadline, stage.priority)
        };
        let id = stage.id;
        let words = self.words.clone();
        match self.with_room(engine, || engine.submit_hop(&request, &terms)) {
            Ok(batch) => {
                self.hops.out.insert(id, batch.clone());
                let ended = batch.clone();
                let tell = move |report| words.put(Word::HopEnded(id, report, ended));
                follow(batch, tell);
            }
            Err(SubmitError::Full(_)) => return false,
            Err(error) => {
                self.fail(core, now, id, not_begun(&error).report());
            }
        }
        true
    }

    /// Calls a hop back.
    pub(super) fn call_back(&mut self, core: &mut Staged<'_>, now: Instant, id: StageId) {
        if self.hops.waiting.take_if(|stage| stage.id == id).is_some() {
            let report = Unbegun::Cancelled.report();
            return self.fail(core, now, id, report);
        }
        if let Some(batch) = self.hops.out.get(&id) {
            batch.cancel();
        }
    }

    fn fail(&self, core: &mut Staged<'_>, now: Instant, id: StageId, report: Report) {
        if let Err(refusal) = core.handle_stage(now, id, &report) {
            log::debug!("a hop that did not begin changes nothing: {refusal:?}");
        }
    }
}

/// What has been handed to workers.
#[derive(Default)]
pub(super) struct Hops {
    /// One that a worker has no room for now.
    pub(super) waiting: Option<Stage>,
    /// Those that are being carried out.
    out: HashMap<StageId, Batch>,
    /// Those that ended without proof, with what was known of them last.
    unproven: Vec<(StageId, Batch, Known)>,
}

/// What is known of the memory of both sides.
type Known = (Local, Remote);

impl Hops {
    /// One has ended.
    pub(super) fn end(&mut self, id: StageId, report: &Report, batch: Batch) {
        self.out.remove(&id);
        if report.status == Status::Indeterminate {
            let known = (report.local, report.remote);
            self.unproven.push((id, batch, known));
        }
    }

    /// When to look at those that ended without proof: memory on this side is wanted soon.
    pub(super) fn look_within(&self) -> Option<Duration> {
        let holds = |(_, _, (local, _)): &(_, _, Known)| *local == Local::Held;
        match self.unproven.iter().any(holds) {
            true => Some(HELD_LOOK),
            false => (!self.unproven.is_empty()).then_some(UNKNOWN_LOOK),
        }
    }

    /// Tells core what has become known of hops that ended without proof.
    pub(super) fn prove(&mut self, core: &mut Staged<'_>, now: Instant) {
        self.unproven.retain_mut(|(id, batch, known)| {
            let open = batch.wait_released(std::time::Duration::ZERO);
            let report = batch.report(0).filter(|report| {
                let before = std::mem::replace(known, (report.local, report.remote));
                before != *known
            });
            if let Some(report) = report
                && let Err(refusal) = core.handle_stage(now, *id, &report)
            {
                log::debug!("proof of the end of a hop changes nothing: {refusal:?}");
            }
            matches!(open, Err(ReleaseError::TimedOut { .. }))
        });
    }
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

    use polyrail_core::stage::{
        Claim, Direction, Event, Line, PeerStaging, PoolConfig, PoolView, Slot, StagedConfig,
        StagedRequest, StagedTables, Unproven,
    };
    use polyrail_core::table::Row;
    use polyrail_core::units::{PeerId, SegmentRef};
    use polyrail_core::work::{Cause, Priority};
    use polyrail_transport::clock::Clock;

    use super::super::OUT;
    use super::*;
    use crate::batch::Shared;
    use crate::config::SendQueueConfig;
    use crate::post::{Post, Pulse};
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
        let pulse = Pulse::new(None, Clock::start());
        let post = Post::new(64, &SendQueueConfig::default(), pulse, Arc::default()).unwrap();
        (Batch::new(shared.clone(), Arc::new(post)), report)
    }

    #[test]
    fn a_slot_that_was_held_is_used_again_and_its_request_settled_once_it_is_let_go_of() {
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
            unproven: &mut [Unproven::EMPTY],
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
        let shared = Arc::new(Shared::with_reports(
            RowId::default(),
            vec![Report::PENDING],
        ));
        let (batch, report) = held(&shared);
        core.handle_stage(Instant::ZERO, stage.id, &report).unwrap();
        let mut hops = Hops::default();
        hops.end(stage.id, &report, batch);
        let view = |core: &Staged<'_>| core.pool(OUT).unwrap();
        let ended = |core: &mut Staged<'_>| core.poll_event();
        assert!(matches!(ended(&mut core), Some(Event::Ended { .. })));
        hops.prove(&mut core, Instant::ZERO);
        assert_eq!((view(&core).quarantined, ended(&mut core)), (1, None));
        assert!(hops.look_within().is_some());
        shared.settle(0, Local::Released, Remote::Settled);
        hops.prove(&mut core, Instant::ZERO);
        let PoolView { quarantined, .. } = view(&core);
        assert_eq!((quarantined, hops.look_within()), (0, None));
        // And the request that it was of is settled.
        let told = ended(&mut core);
        let clean = (Local::Released, Remote::Settled);
        assert!(
            matches!(told, Some(Event::Settled { local, remote, .. }) if (local, remote) == clean),
            "{told:?}"
        );
    }
}
