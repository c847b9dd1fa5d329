//! What happens to whole hosts: their workers stand still, nobody hears them, their process is another one.

use polyrail_core::orchestrator::Proof;
use polyrail_core::units::PeerId;
use polyrail_core::work::{Cause, LaneFact};

use super::World;
use super::agenda::What;
use crate::setup::Incident;

/// The end of a peer's process is proved within this.
const PROOF_NS_MAX: u64 = 50_000_000;

/// What an engine and a peer have with each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// Both know of it, and it has not ended.
    pub(super) open: bool,
    /// How often one has ended.
    number: u32,
    /// How many of the incidents that keep the peer away are not over.
    away: u32,
    /// Since the last one that both knew of, the peer's process has become another one.
    restarted: bool,
    /// The peer's process is gone, and no other one comes.
    dead: bool,
}

impl Session {
    /// The first one.
    pub(super) const FIRST: Self = Self {
        open: true,
        number: 0,
        away: 0,
        restarted: false,
        dead: false,
    };

    /// Whether the peer's process is gone for good.
    pub(super) const fn is_dead(&self) -> bool {
        self.dead
    }
}

impl World<'_> {
    pub(super) fn incident(&mut self, index: usize) {
        let (_, host, incident) = self.setup.incidents[index];
        match incident {
            Incident::Stalls { until } => self.host_stalls(host, until),
            Incident::Muted(true) => self.muted[host] += 1,
            Incident::Muted(false) => self.muted[host] -= 1,
            Incident::Dies => self.peer_dies(host),
            Incident::Down => self.peer_down(host),
            Incident::Back { restarted } => self.peer_back(host, restarted),
            Incident::AgentDies => self.agent_dies(host),
            Incident::AgentStarts => self.agent_starts(host),
        }
    }

    fn host_stalls(&mut self, host: usize, until: u64) {
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            if self.setup.engines[worker.engine].host == host {
                worker.stall(self.now, until);
            }
        }
    }

    /// Engines that have a host as a peer, and which of theirs it is.
    fn engines_with(&self, host: usize) -> Vec<(u32, u16)> {
        let engines = self.setup.engines.iter().enumerate();
        let known = |(index, engine): (usize, &crate::setup::Engine)| {
            let peer = engine.peers.iter().position(|peer| *peer == host)?;
            Some((index as u32, peer as u16))
        };
        engines.filter_map(known).collect()
    }

    /// Nothing of what was sent to it lands any more. Some lanes break at once, of others nothing is seen.
    fn peer_down(&mut self, host: usize) {
        for (engine, peer) in self.engines_with(host) {
            let session = &mut self.sessions[engine as usize][usize::from(peer)];
            session.open = false;
            // What was proved of its death stays so.
            session.number += u32::from(!session.dead);
            session.away += 1;
        }
        for lane in 0..self.lanes.len() {
            let row = &self.lanes[lane];
            let rail = &self.setup.rails[row.rail as usize];
            let epoch = row.epoch;
            if self.setup.devices[rail.to].host != host || epoch == 0 {
                continue;
            }
            self.far.end(lane as u32, epoch);
            if self.luck.below(2) == 0 {
                let fact = LaneFact::Broken(Cause::Reset);
                let at = self.now + self.setup.timing.error_us * 1_000;
                let lane = lane as u32;
                self.agenda.enter(at, What::Fact { lane, epoch, fact });
            }
        }
    }

    /// It is down for good.
    fn peer_dies(&mut self, host: usize) {
        self.peer_down(host);
        for (engine, peer) in self.engines_with(host) {
            let session = &mut self.sessions[engine as usize][usize::from(peer)];
            session.dead = true;
            let at = self.now + self.luck.below(PROOF_NS_MAX);
            let what = What::Proved {
                engine,
                peer,
                number: session.number,
            };
            self.agenda.enter(at, what);
        }
    }

    fn peer_back(&mut self, host: usize, restarted: bool) {
        for (engine, peer) in self.engines_with(host) {
            let session = &mut self.sessions[engine as usize][usize::from(peer)];
            session.restarted |= restarted;
            session.away -= 1;
            if session.away > 0 {
                // Something else keeps it down still.
                continue;
            }
            let at = self.now + self.luck.below(PROOF_NS_MAX);
            let what = What::Proved {
                engine,
                peer,
                number: session.number,
            };
            self.agenda.enter(at, what);
        }
    }

    /// An engine learns what has become of a peer, unless that is old news.
    pub(super) fn proved(&mut self, engine: u32, peer: u16, number: u32) {
        let session = &mut self.sessions[engine as usize][usize::from(peer)];
        if session.number != number {
            return;
        }
        let dead = session.dead;
        session.open = !dead;
        let restarted = std::mem::take(&mut session.restarted);
        let proof = match restarted || dead {
            true => Proof::ProcessGone,
            false => Proof::SessionEnded,
        };
        for worker in self.workers_of(engine) {
            self.workers[worker]
                .inbox
                .proofs
                .push((PeerId(peer), proof));
            self.wake(worker as u32, self.now);
        }
        if restarted && !dead {
            let at = self.now + self.luck.below(PROOF_NS_MAX);
            self.agenda.enter(at, What::Replans { engine, peer });
        }
    }

    /// Workers make new plans for a peer.
    pub(super) fn replans(&mut self, engine: u32, peer: u16) {
        if self.sessions[engine as usize][usize::from(peer)].dead {
            return;
        }
        for worker in self.workers_of(engine) {
            self.workers[worker].inbox.replans.push(peer);
            self.wake(worker as u32, self.now);
        }
    }

    fn workers_of(&self, engine: u32) -> std::ops::Range<usize> {
        let first = self.setup.engines[engine as usize].first_worker;
        first..first + usize::from(*self.setup.engine.workers.get_ref())
    }
}
