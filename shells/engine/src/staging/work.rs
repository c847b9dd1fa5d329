//! The thread that stages: core's decisions about slots, and the requests that carry them out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Weak};

use polyrail_control::plane::{Party, Plane};
use polyrail_core::orchestrator::Cancelled;
use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::ring::Entry;
use polyrail_core::stage::{
    Claim, CopyEnd, Direction, Hop, Line, PeerStaging, PoolConfig, Slot, Stage, StageMessage,
    StageRefused, Staged, StagedConfig, StagedRequest, StagedTables,
};
use polyrail_core::table::Row;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{StageId, StagedId};
use polyrail_core::work::{Cause, Op, Place, Priority};
use polyrail_transport::clock::Clock;
use polyrail_transport::timespec;
use rustix::event::{PollFd, PollFlags, poll};

use super::parties::{PARTIES_MAX, Parties};
use super::{IN, OUT, SHUTDOWN_MAX, Word, Words, alive};
use crate::batch::Batch;
use crate::engine::{Engine, Inner};
use crate::error::{ReleaseError, SubmitError};
use crate::post::{Command, Due, Flags, Post};
use crate::request::{Request, Terms};
use crate::rows::RowId;
use crate::segments::{Segment, SegmentId};

/// Chunks on their way to one peer, at most. The same number in every engine: a peer may have as many here.
const CHUNKS: usize = 32;
/// Staged requests under way.
const REQUESTS: usize = 1024;
/// How long a hop waits that a worker had no room for.
const RETRY: Duration = Duration::from_millis(1);
/// How often it is looked whether memory that was held has been let go of.
const HELD_LOOK: Duration = Duration::from_millis(50);

/// The thread's own.
pub(super) struct Work {
    engine: Weak<Inner>,
    plane: Plane,
    clock: Clock,
    post: Arc<Post>,
    words: Arc<Words>,
    parties: Parties,
    /// Batches that have not ended.
    open: HashMap<u16, Open>,
    /// The request that each staged one of core's is.
    tags: HashMap<StagedId, u64>,
    /// A submission that core has no row for now.
    held_back: Option<Entry>,
    /// A hop that a worker has no room for now.
    hop: Option<Stage>,
    /// Hops that ended although something may still touch memory here: their slots are not used until that is over.
    held: Vec<(StageId, Batch)>,
    ending_at: Option<Instant>,
    config: StagedConfig,
    /// It is in the program's code.
    pub(super) tells: Arc<AtomicBool>,
}

/// A batch that has not ended.
struct Open {
    row: RowId,
    /// How many requests it has, once the last has come.
    count: Option<usize>,
    ended: usize,
    running: Vec<Running>,
}

/// A request that was begun.
enum Running {
    Staged(StagedId),
    /// As a batch of its own.
    Direct(Batch),
}

impl Work {
    pub(super) fn new(
        engine: Weak<Inner>,
        post: Arc<Post>,
        words: Arc<Words>,
        inner: &Inner,
    ) -> Self {
        Self {
            engine,
            plane: inner.sessions.plane.clone(),
            clock: inner.clock,
            post,
            words,
            parties: Parties::default(),
            open: HashMap::new(),
            tags: HashMap::new(),
            held_back: None,
            hop: None,
            held: Vec::new(),
            ending_at: None,
            tells: Arc::default(),
            config: StagedConfig {
                answer_timeout: inner.config.health.fence_timeout.into(),
                ..StagedConfig::DEFAULT
            },
        }
    }

    /// The thread: the tables, and the loop over them.
    pub(super) fn run(mut self, pools: &[PoolConfig; 2]) {
        let slots_count = pools.iter().map(|pool| pool.slots as usize).sum();
        let mut peers: Vec<_> = (0..PARTIES_MAX).map(|_| PeerStaging::EMPTY).collect();
        let mut claims: Vec<_> = (0..2 * PARTIES_MAX * CHUNKS)
            .map(|_| Claim::EMPTY)
            .collect();
        let mut requests: Vec<_> = (0..REQUESTS).map(|_| Row::EMPTY).collect();
        let mut slots: Vec<_> = (0..slots_count).map(|_| Slot::EMPTY).collect();
        let mut lines: Vec<_> = (0..2 * PARTIES_MAX * pools.len())
            .map(|_| Line::EMPTY)
            .collect();
        let tables = StagedTables {
            peers: &mut peers,
            claims: &mut claims,
            requests: &mut requests,
            slots: &mut slots,
            lines: &mut lines,
        };
        let Some(mut core) = Staged::new(tables, pools, self.config) else {
            return log::error!("the staging tables do not fit the pools");
        };
        loop {
            let now = self.clock.now();
            let Some(engine) = alive(&self.engine) else {
                return;
            };
            self.round(&mut core, &engine, now);
            if let Some(at) = self.ending_at
                && (self.open.is_empty() || now >= at)
            {
                return;
            }
            drop(engine);
            self.sleep(core.poll_timeout());
        }
    }

    fn sleep(&self, until: Option<Instant>) {
        // A hop that found no room is tried again before long.
        let soon = self.hop.map(|_| self.clock.now() + RETRY);
        let look = (!self.held.is_empty()).then(|| self.clock.now() + HELD_LOOK);
        let until = [until, soon, look, self.ending_at];
        let until = until.into_iter().flatten().min();
        let longest = until.map(|at| timespec(at.since(self.clock.now())));
        let mut waits = [PollFd::new(&*self.post.alarm.wake, PollFlags::IN)];
        match poll(&mut waits, longest.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                log::error!("the staging thread cannot sleep: {error}");
                std::thread::yield_now();
            }
        }
        let _ = rustix::io::read(&*self.post.alarm.wake, &mut [0; 8]);
    }

    /// Hands in what is known, and does what comes of it.
    fn round(&mut self, core: &mut Staged<'_>, engine: &Engine, now: Instant) {
        for word in self.words.take() {
            self.hear(core, engine, now, word);
        }
        while let Some(entry) = self.held_back.take().or_else(|| self.post.ring.pop()) {
            if !self.submit(core, engine, now, entry) {
                self.held_back = Some(entry);
                break;
            }
        }
        for command in self.post.take_commands() {
            match command {
                Command::Cancel(row) => self.cancel(core, now, row),
                Command::ShutDown(_) => {
                    self.ending_at = Some(now + SHUTDOWN_MAX.into());
                    core.shut_down(now);
                }
                _ => {}
            }
        }
        let_go(&mut self.held, core, now);
        core.handle_timeout(now);
        while let Some(stage) = self.hop.take().or_else(|| core.poll_stage()) {
            if !self.begin(core, engine, now, &stage) {
                self.hop = Some(stage);
                break;
            }
        }
        while let Some((number, message)) = core.poll_message(now) {
            if let Some(party) = self.parties.party(number) {
                self.plane.stage(party, message);
            }
        }
        while let Some(id) = core.poll_event() {
            if let (Some(report), Some(tag)) = (core.take(id), self.tags.remove(&id)) {
                self.report(tag, report);
            }
        }
    }

    fn hear(&mut self, core: &mut Staged<'_>, engine: &Engine, now: Instant, word: Word) {
        match word {
            Word::Said(party, message) => self.said(core, engine, now, party, &message),
            Word::HopEnded(id, report, batch) => {
                if report.local == Local::Held {
                    self.held.push((id, batch));
                }
                if let Err(refusal) = core.handle_stage(now, id, &report) {
                    log::debug!("the end of a hop changes nothing: {refusal:?}");
                }
            }
            Word::Ended { tag, report } => self.report(tag, report),
            Word::PeerGone(peer, proof) => core.handle_peer_gone(now, peer, proof),
            Word::SessionGone(session) => {
                if let Some(number) = self.parties.forget(session) {
                    core.handle_peer_gone(now, number, true);
                }
            }
        }
    }

    /// What a peer says about a slot.
    fn said(
        &mut self,
        core: &mut Staged<'_>,
        engine: &Engine,
        now: Instant,
        party: Party,
        message: &StageMessage,
    ) {
        let Some(number) = self.parties.number(party) else {
            if let StageMessage::Reserve { ticket, .. } = *message {
                self.plane.stage(party, StageMessage::Lost { ticket });
            }
            return;
        };
        if let StageMessage::Go {
            ticket,
            attempt,
            place,
            ..
        } = *message
        {
            let op = core
                .direction(number, ticket)
                .map(|direction| match direction {
                    Direction::In => Op::Write,
                    Direction::Out => Op::Read,
                });
            let files = &engine.inner.segments;
            if !op.is_some_and(|op| files.is_offered(place.segment.0, op)) {
                let end = CopyEnd::Failed(Cause::RemoteAccess);
                let answer = StageMessage::Went {
                    ticket,
                    attempt,
                    end,
                };
                return self.plane.stage(party, answer);
            }
        }
        if let Err(refusal) = core.handle_message(now, number, message) {
            log::debug!("a peer's word about a slot changes nothing: {refusal:?}");
        }
    }

    /// Begins one submission. `false`: there is no room for it now.
    fn submit(
        &mut self,
        core: &mut Staged<'_>,
        engine: &Engine,
        now: Instant,
        entry: Entry,
    ) -> bool {
        let [
            tag,
            segments,
            local_offset,
            remote_offset,
            length,
            flags,
            deadline,
            _,
        ] = entry;
        let Flags {
            op,
            last,
            priority,
            through_slots,
        } = Flags::from_bits(flags);
        let (row, position) = RowId::from_tag(tag);
        let open = self.open.entry(row.index).or_insert_with(|| Open {
            row,
            count: None,
            ended: 0,
            running: Vec::new(),
        });
        let request = Request {
            op,
            local: SegmentId(segments as u32),
            local_offset,
            remote: SegmentId((segments >> 32) as u32),
            remote_offset,
            length,
        };
        let due = Due {
            priority,
            deadline: Instant::from_nanos(deadline),
        };
        let begun = match self.ending_at {
            Some(_) => Err((Status::ShutDown, Cause::ShutDown)),
            None => match engine.route(position, &request, through_slots) {
                Ok(route) => match route.staged(&request, due) {
                    Some(staged) => stage(core, now, &staged),
                    None => direct(engine, now, tag, &request, due, &self.words),
                },
                Err(_) => Err((Status::PeerLost, Cause::PeerGone)),
            },
        };
        if last && !matches!(begun, Ok(None)) {
            open.count = Some(position + 1);
        }
        match begun {
            Ok(None) => return false,
            Ok(Some(running)) => {
                if let Running::Staged(id) = running {
                    self.tags.insert(id, tag);
                }
                open.running.push(running);
            }
            Err((status, cause)) => self.report(tag, refused(status, cause)),
        }
        true
    }

    fn cancel(&mut self, core: &mut Staged<'_>, now: Instant, row: RowId) {
        let Some(open) = self.open.get(&row.index).filter(|open| open.row == row) else {
            return;
        };
        for running in &open.running {
            match running {
                Running::Staged(id) => {
                    let _: Cancelled = core.cancel(now, *id);
                }
                Running::Direct(batch) => batch.cancel(),
            }
        }
    }

    /// Has a hop carried out. `false`: there is no room for it now.
    fn begin(
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
        match engine.submit_hop(&request, &terms) {
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

    fn report(&mut self, tag: u64, report: Report) {
        let (row, _) = RowId::from_tag(tag);
        self.post.report(tag, report);
        let Some(open) = self.open.get_mut(&row.index) else {
            return;
        };
        open.ended += 1;
        if open.count == Some(open.ended) {
            self.open.remove(&row.index);
            let ended = self.post.finish(row, |ticket| ticket.go(&self.plane));
            if let Some(ended) = ended {
                self.tells.store(true, Release);
                ended.tell();
                self.tells.store(false, Release);
            }
        }
    }
}

impl Drop for Work {
    /// However the thread ends. What is left is told by whoever ends the engine, once the workers have: they carry out what
    /// this one has begun. If it has panicked, nobody else tells it.
    fn drop(&mut self) {
        let open = &self.open;
        self.post.close(|row| {
            let open = open.get(&row.index).filter(|open| open.row == row);
            open.map_or(0, |open| open.running.len())
        });
        if std::thread::panicking() {
            let left = self.post.abandon(true, |ticket| ticket.go(&self.plane));
            left.carry_out();
        }
    }
}

/// What became of a try to begin a request. `Ok(None)`: there is no room for it now.
type Begun = Result<Option<Running>, (Status, Cause)>;

/// Hands a request to core.
fn stage(core: &mut Staged<'_>, now: Instant, request: &StagedRequest) -> Begun {
    match core.submit(now, request) {
        Ok(id) => Ok(Some(Running::Staged(id))),
        Err(StageRefused::Full) => Ok(None),
        Err(refused) => {
            log::error!("core refused a staged request that was checked: {refused:?}");
            Err((Status::Failed, Cause::LocalProtection))
        }
    }
}

/// Submits a request that a transport carries, as a batch of its own.
fn direct(
    engine: &Engine,
    now: Instant,
    tag: u64,
    request: &Request,
    due: Due,
    words: &Arc<Words>,
) -> Begun {
    let terms = terms(now, due.within(), due.priority);
    match engine.submit_with(std::slice::from_ref(request), &terms) {
        Ok(batch) => {
            let words = words.clone();
            follow(batch.clone(), move |report| {
                words.put(Word::Ended { tag, report });
            });
            Ok(Some(Running::Direct(batch)))
        }
        Err(SubmitError::Full) => Ok(None),
        Err(error) => Err(not_begun(&error)),
    }
}

/// Puts slots back into use that nothing touches any more.
fn let_go(held: &mut Vec<(StageId, Batch)>, core: &mut Staged<'_>, now: Instant) {
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

/// Tells how the one request of a batch has ended.
fn follow(batch: Batch, tell: impl FnOnce(Report) + Send + 'static) {
    let ended = batch.clone();
    batch.on_done(move |_| {
        if let Some(report) = ended.report(0) {
            tell(report);
        }
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

/// Nobody waits for room: this thread has others to serve.
pub(super) fn terms(now: Instant, deadline: Option<Instant>, priority: Priority) -> Terms<'static> {
    Terms {
        deadline: deadline.map(|at| at.since(now).into()),
        room_within: Some(std::time::Duration::ZERO),
        priority,
        ..Terms::default()
    }
}

/// How a request ends that no worker took.
pub(super) fn not_begun(error: &SubmitError) -> (Status, Cause) {
    match error {
        SubmitError::PeerLost { .. } => (Status::PeerLost, Cause::PeerGone),
        SubmitError::ShutDown => (Status::ShutDown, Cause::ShutDown),
        SubmitError::Forbidden { .. } | SubmitError::OutOfRange { .. } => {
            (Status::Failed, Cause::RemoteAccess)
        }
        _ => (Status::Failed, Cause::LocalOperation),
    }
}

/// Nothing of it has moved.
pub(super) fn refused(status: Status, cause: Cause) -> Report {
    Report {
        status,
        delivered_bytes: 0,
        cause: Some(cause),
        local: Local::Released,
        remote: Remote::Settled,
    }
}

#[cfg(test)]
mod tests {
    use polyrail_core::stage::PoolView;
    use polyrail_core::units::{PeerId, SegmentRef};

    use super::*;
    use crate::batch::Shared;
    use crate::config::SendQueueConfig;

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
