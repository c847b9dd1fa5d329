//! What the two ends of a connection tell each other of the classes of rails between them, before anything is sent.

use polyrail_control::codec::Frame as Letter;
use polyrail_core::path::class::{ClassSet, RailClass};
use polyrail_core::path::hint::Connection;
use polyrail_core::path::view::PathView;
use polyrail_core::plan::PlanPath;

use super::agenda::What;
use super::{LaneIndex, World};
use crate::setup::Setup;

/// After how long a question is asked again, as the control plane does.
const AGAIN_NS: u64 = 20_000_000;

/// A program does without a peer that is gone for good and has not answered for so long.
const GIVE_UP_NS: u64 = 1_000_000_000;

/// What an engine and a peer have agreed on.
enum Agreement {
    /// The peer has been asked. These submitters wait for the answer.
    Asked { waits: Vec<u32> },
    /// Both see the connection so; `None`: no paths are isolated.
    Agreed(Option<(PlanPath, PathView)>),
    /// They do not: nothing is ever sent.
    Refused,
}

/// One connection.
struct Row {
    agreement: Agreement,
    /// The question that an answer is waited for to, or that was answered last.
    question: u64,
    /// What is there at all.
    classes: ClassSet,
}

/// All connections, by engine and peer.
pub(super) struct Paths(Vec<Vec<Row>>);

impl Paths {
    pub(super) fn new(setup: &Setup) -> Self {
        let row = |engine, peer| Row {
            agreement: match setup.isolation {
                Some(_) => Agreement::Asked { waits: Vec::new() },
                None => Agreement::Agreed(None),
            },
            question: 0,
            classes: setup.classes_of(engine, peer),
        };
        let engines = setup.engines.iter().enumerate();
        let rows = engines.map(|(index, engine)| {
            let peers = 0..engine.peers.len();
            peers.map(|peer| row(index, peer)).collect()
        });
        Self(rows.collect())
    }

    /// What core is to know of a connection; outer `None`: it is not known yet, or will never be.
    pub(super) fn agreed(&self, engine: usize, peer: usize) -> Option<Option<PlanPath>> {
        match &self.0[engine][peer].agreement {
            Agreement::Agreed(path) => Some(path.as_ref().map(|(path, _)| *path)),
            Agreement::Asked { .. } | Agreement::Refused => None,
        }
    }

    /// What an agent calls a connection.
    pub(super) fn connection(&self, engine: usize, peer: usize) -> Option<Connection> {
        let Agreement::Agreed(Some((_, view))) = &self.0[engine][peer].agreement else {
            return None;
        };
        let (own, peer) = (view.own?, view.peer?);
        Some(Connection { own, peer })
    }
}

impl World<'_> {
    /// Asks all peers.
    pub(super) fn begin_paths(&mut self) {
        if self.setup.isolation.is_none() {
            return;
        }
        for engine in 0..self.setup.engines.len() {
            for peer in 0..self.setup.engines[engine].peers.len() {
                self.ask_path(engine as u32, peer as u16);
            }
        }
    }

    /// Asks a peer how it sees the connection. Without path isolation there is nothing to ask, and workers go on.
    pub(super) fn ask_path(&mut self, engine: u32, peer: u16) {
        if self.setup.isolation.is_none() {
            return self.replans(engine, peer);
        }
        let row = &mut self.paths.0[engine as usize][usize::from(peer)];
        row.question += 1;
        let question = row.question;
        if !matches!(row.agreement, Agreement::Asked { .. }) {
            row.agreement = Agreement::Asked { waits: Vec::new() };
        }
        self.asks_path(engine, peer, question);
    }

    /// Sends the question, and once more if it is not answered.
    pub(super) fn asks_path(&mut self, engine: u32, peer: u16, question: u64) {
        let row = &self.paths.0[engine as usize][usize::from(peer)];
        if row.question != question || !matches!(row.agreement, Agreement::Asked { .. }) {
            return;
        }
        let gone = self.gone[engine as usize][usize::from(peer)];
        if gone.unproven && self.now > self.setup.calm_at() + GIVE_UP_NS {
            return self.agree(engine, peer, Agreement::Refused);
        }
        let seen = self.setup.rails_seen(engine as usize, usize::from(peer));
        let rails = seen.iter().map(|rail| (rail.own, rail.peer)).collect();
        let frame = Letter::SeePath { question, rails };
        let far = |letter| What::LetterFar { letter };
        self.send(engine, u32::from(peer), &frame, far);
        let what = What::AsksPath {
            engine,
            peer,
            question,
        };
        self.agenda.enter(self.now + AGAIN_NS, what);
    }

    /// How a peer sees the connection with an engine.
    pub(super) fn see_path(&self, engine: u32, peer: u32, question: u64) -> Letter {
        let far = self.setup.engines[engine as usize].peers[peer as usize];
        let isolation = self.setup.isolation.as_ref();
        let view = isolation.map(|isolation| {
            let mut seen = self.setup.rails_seen(engine as usize, peer as usize);
            for rail in &mut seen {
                std::mem::swap(&mut rail.own, &mut rail.peer);
            }
            isolation.see(far, &seen).1
        });
        Letter::PathSeen { question, view }
    }

    /// A peer has said how it sees the connection.
    pub(super) fn path_seen(
        &mut self,
        engine: u32,
        peer: u32,
        question: u64,
        theirs: Option<PathView>,
    ) {
        let Some(isolation) = &self.setup.isolation else {
            return;
        };
        let (host, seen) = (
            self.setup.engines[engine as usize].host,
            self.setup.rails_seen(engine as usize, peer as usize),
        );
        let (path, ours) = isolation.see(host, &seen);
        let row = &self.paths.0[engine as usize][peer as usize];
        if row.question != question || !matches!(row.agreement, Agreement::Asked { .. }) {
            return;
        }
        let agree = theirs.is_some_and(|theirs| ours.agree(&theirs).is_ok());
        let agreement = match agree {
            true => Agreement::Agreed(Some((path, ours))),
            false => Agreement::Refused,
        };
        self.agree(engine, peer as u16, agreement);
    }

    /// It is known what an engine and a peer have agreed on: whoever waits for that goes on.
    fn agree(&mut self, engine: u32, peer: u16, agreement: Agreement) {
        let is_dead = self.sessions[engine as usize][usize::from(peer)].is_dead();
        let agreement = if is_dead {
            Agreement::Refused
        } else {
            agreement
        };
        let row = &mut self.paths.0[engine as usize][usize::from(peer)];
        let agree = matches!(agreement, Agreement::Agreed(_));
        let before = std::mem::replace(&mut row.agreement, agreement);
        if agree {
            self.replans(engine, peer);
        }
        if let Agreement::Asked { waits } = before {
            for submitter in waits {
                self.starts(submitter);
            }
        }
    }

    /// Whether a submitter has to wait until its peer has said how it sees the connection: its program waits for the
    /// peer's segment, and goes on as soon as it is given it.
    pub(super) fn waits_for_path(&mut self, index: u32) -> bool {
        let submitter = &self.setup.submitters[index as usize];
        let row = &mut self.paths.0[submitter.engine][usize::from(submitter.peer)];
        let Agreement::Asked { waits } = &mut row.agreement else {
            return false;
        };
        waits.push(index);
        true
    }

    /// A submitter starts, or goes on with the batch that it has ready, once it is known how its peer sees the
    /// connection.
    pub(super) fn starts(&mut self, index: u32) {
        if self.waits_for_path(index) {
            return;
        }
        let submitter = &self.setup.submitters[index as usize];
        let path = self
            .paths
            .agreed(submitter.engine, usize::from(submitter.peer));
        let row = &mut self.loops[index as usize];
        match path {
            Some(_) if row.active => self.submits(index, self.now),
            Some(_) => {
                row.active = true;
                self.submit_next(index, self.now);
            }
            None => {
                // Its program is told so instead of being given a segment.
                row.active = false;
                self.active -= 1;
                self.history.requests += u64::from(submitter.batch);
                self.history.failed_requests += u64::from(submitter.batch);
            }
        }
    }

    /// Core opens a lane: not one on a rail of a class that is not to be there.
    pub(super) fn check_class(&mut self, lane: LaneIndex) {
        let row = &self.lanes[lane as usize];
        let engine = self.workers[row.worker as usize].engine;
        let peer = self.setup.engines[engine].rail_peers[row.id.rail().index()];
        let RailClass(class) = self.setup.rails[row.rail as usize].class;
        let classes = self.paths.0[engine][usize::from(peer)].classes;
        if !classes.contains(RailClass(class)) {
            let text = format!("lane {lane} opens on a rail of class {class}, which is suppressed");
            self.ledger.violation(self.now, text);
        }
    }
}
