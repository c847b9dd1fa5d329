//! The thread that stages: core's decisions about slots, and the requests that carry them out.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, Weak};

use polyrail_control::plane::{Party, Plane};
use polyrail_core::orchestrator::Proof;
use polyrail_core::stage::{
    Claim, CopyEnd, Direction, Line, PeerStaging, PoolConfig, Slot, StageMessage, Staged,
    StagedConfig, StagedTables, Unproven,
};
use polyrail_core::table::Row;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::PeerId;
use polyrail_core::work::{Cause, Op};
use polyrail_transport::clock::Clock;
use polyrail_transport::mishap;
use polyrail_transport::timespec;
use rustix::event::{PollFd, PollFlags, poll};

use super::hops::Hops;
use super::parties::Parties;
use super::requests::{Intake, Missing, Requests, UNPROVEN, rows_of};
use super::{IN, OUT, Word, Words, alive};
use crate::engine::{Engine, Inner};
use crate::intake::End;
use crate::lock::lock;
use crate::post::{Command, Post};
use crate::stats::SlotStats;

/// Chunks on their way to one peer, at most. The same number in every engine: a peer may have as many here.
pub(super) const CHUNKS: usize = 32;
/// How often it is looked whether a worker has room, beside being told that it has.
const ROOM_LOOK: Duration = Duration::from_millis(50);

/// The thread's own.
pub(super) struct Work {
    engine: Weak<Inner>,
    pub(super) plane: Plane,
    pub(super) clock: Clock,
    pub(super) post: Arc<Post>,
    pub(super) words: Arc<Words>,
    parties: Parties,
    pub(super) intake: Intake,
    pub(super) requests: Requests,
    pub(super) hops: Hops,
    /// Who waits until no hop of a session with a peer that is over is out.
    until_clear: Vec<(PeerId, Sender<()>)>,
    pub(super) ending_at: Option<Instant>,
    config: StagedConfig,
    /// It is in the program's code.
    pub(super) tells: Arc<AtomicBool>,
    /// How slots stand.
    pub(super) slots: Arc<Mutex<Vec<SlotStats>>>,
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
            parties: Parties::new(inner.config.limits.peers),
            intake: Intake::default(),
            requests: Requests::new(inner.config.limits.peers),
            hops: Hops::default(),
            until_clear: Vec::new(),
            ending_at: None,
            tells: Arc::default(),
            slots: Arc::default(),
            config: StagedConfig {
                // One of many never has all, be it that it never gives them back.
                party_slots_max: (inner.config.staging.slots / 2).max(1),
                answer_timeout: inner.config.health.fence_timeout.into(),
                ..StagedConfig::DEFAULT
            },
        }
    }

    /// The thread: the tables, and the loop over them.
    pub(super) fn run(mut self, pools: &[PoolConfig; 2]) {
        let (parties, rows) = (self.parties.most(), rows_of(self.parties.peers()));
        let slots_count = pools.iter().map(|pool| pool.slots as usize).sum();
        let mut peers: Vec<_> = (0..parties).map(|_| PeerStaging::EMPTY).collect();
        let mut claims: Vec<_> = (0..2 * parties * CHUNKS).map(|_| Claim::EMPTY).collect();
        let mut requests: Vec<_> = (0..rows).map(|_| Row::EMPTY).collect();
        let mut slots: Vec<_> = (0..slots_count).map(|_| Slot::EMPTY).collect();
        let mut lines: Vec<_> = (0..2 * parties * pools.len())
            .map(|_| Line::EMPTY)
            .collect();
        let mut unproven: Vec<_> = (0..UNPROVEN).map(|_| Unproven::EMPTY).collect();
        let tables = StagedTables {
            peers: &mut peers,
            claims: &mut claims,
            requests: &mut requests,
            slots: &mut slots,
            lines: &mut lines,
            unproven: &mut unproven,
        };
        let Some(mut core) = Staged::new(tables, pools, self.config) else {
            return log::error!("the staging tables do not fit the pools");
        };
        loop {
            mishap::check();
            let now = self.clock.now();
            let Some(engine) = alive(&self.engine) else {
                return;
            };
            self.round(&mut core, &engine, now);
            self.show(&core);
            if let Some(at) = self.ending_at
                && (self.post.is_idle() || now >= at)
            {
                return;
            }
            drop(engine);
            self.sleep(core.poll_timeout());
        }
    }

    /// Shows how slots stand, for who asks.
    fn show(&self, core: &Staged<'_>) {
        let pools = [("in", IN), ("out", OUT)].into_iter();
        let pools = pools.filter_map(|(direction, pool)| Some((direction, core.pool(pool)?)));
        let mut slots = lock(&self.slots);
        slots.clear();
        slots.extend(pools.map(|(direction, view)| SlotStats {
            direction,
            used: view.used,
            free: view.free,
            quarantined: view.quarantined,
        }));
    }

    fn sleep(&self, until: Option<Instant>) {
        let now = self.clock.now();
        let wants_room = self.hops.waiting.is_some() || self.intake.waits_for(Missing::Worker);
        let room = wants_room.then(|| now + ROOM_LOOK);
        let look = self.hops.look_within().map(|within| now + within);
        let until = [until, room, look, self.intake.due(), self.ending_at];
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
        for command in self.post.take_commands() {
            match command {
                Command::Cancel(row) => self.intake.ask(End::Cancel(row)),
                Command::ShutDown(until) => self.intake.ask(End::ShutDown(until)),
                _ => {}
            }
        }
        self.hops.prove(core, now);
        core.handle_timeout(now);
        // What has ended leaves room first.
        self.report_ended(core);
        loop {
            self.take_in(core, engine, now);
            while let Some(id) = core.poll_revoke() {
                self.call_back(core, now, id);
            }
            while let Some(stage) = self.hops.waiting.take().or_else(|| core.poll_stage()) {
                if !self.begin(core, engine, now, &stage) {
                    self.hops.waiting = Some(stage);
                    break;
                }
            }
            if !self.report_ended(core) || !self.intake.holds_any() {
                break;
            }
        }
        self.until_clear.retain(|(peer, clear)| {
            let waits = core.is_held_off(*peer);
            if !waits {
                // Whoever waited may have gone.
                let _ = clear.send(());
            }
            waits
        });
        while let Some((number, message)) = core.poll_message(now) {
            if let Some(party) = self.parties.party(number) {
                self.plane.stage(party, message);
            }
        }
    }

    fn hear(&mut self, core: &mut Staged<'_>, engine: &Engine, now: Instant, word: Word) {
        match word {
            Word::Said(party, message) => self.said(core, engine, now, party, &message),
            Word::HopEnded(id, report, batch) => {
                self.hops.end(id, &report, batch);
                if let Err(refusal) = core.handle_stage(now, id, &report) {
                    log::debug!("the end of a hop changes nothing: {refusal:?}");
                }
            }
            Word::Ended { tag, report } => self.report(tag, report),
            Word::PeerGone(peer, proof) => core.handle_peer_gone(now, peer, proof),
            Word::UntilClear(peer, clear) => self.until_clear.push((peer, clear)),
            Word::SessionGone(session) => {
                if let Some(number) = self.parties.forget(session) {
                    core.handle_peer_gone(now, number, Some(Proof::SessionEnded));
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
}

impl Drop for Work {
    /// However the thread ends. What is left is told by whoever ends the engine, once the workers have: they carry out what
    /// this one has begun. If it has panicked, nobody else tells it.
    fn drop(&mut self) {
        self.post.close(|row| self.intake.begun(row));
        if std::thread::panicking() {
            let left = self.post.abandon(true, |ticket| ticket.go(&self.plane));
            left.carry_out();
        }
    }
}
