//! What the control plane does, and lanes that open.

use polyrail_control::codec::Frame as Letter;
use polyrail_core::message::Frame;
use polyrail_core::units::{Epoch, LaneId, PeerId};
use polyrail_core::work::{Cause, LaneFact, LaneLimits};

use super::agenda::{LaneIndex, What};
use super::{World, far};
use crate::setup::Cut;

impl World<'_> {
    pub(super) fn opens(&mut self, lane: LaneIndex, epoch: u32) {
        let rail = self.lanes[lane as usize].rail as usize;
        if let Some((after, opens)) = self.luck.unopened(self.now, rail) {
            let at = self.now + after;
            let refused = LaneFact::OpenFailed(Cause::Refused);
            return self.agenda.enter(
                at,
                match opens {
                    true => What::Opens { lane, epoch },
                    false => What::Fact {
                        lane,
                        epoch,
                        fact: refused,
                    },
                },
            );
        }
        match self.cuts[rail] {
            // The process that it was opened to is gone, or nobody knows yet that it is another one.
            Cut::No if !self.far.is_open(lane, epoch) || !self.has_session(lane) => {
                self.fact(lane, epoch, LaneFact::OpenFailed(Cause::Reset));
            }
            // Nobody answers; the deadline ends it.
            Cut::Silent => {}
            Cut::Error => self.fact(lane, epoch, LaneFact::OpenFailed(Cause::Refused)),
            Cut::No => {
                let device = &self.setup.devices[self.setup.rails[rail].from];
                let limits = LaneLimits {
                    works_max: device.queue_depth,
                    work_bytes_max: device.work_bytes_max,
                    reads_max: device.reads_max,
                    covers: device.covers,
                    // As connections do, and queue pairs do not.
                    counts: !device.covers,
                    patience_ms: 0,
                };
                self.fact(lane, epoch, LaneFact::Opened { limits });
            }
        }
    }

    fn has_session(&self, lane: LaneIndex) -> bool {
        let row = &self.lanes[lane as usize];
        let engine = self.workers[row.worker as usize].engine;
        let peer = self.setup.engines[engine].rail_peers[row.id.rail().index()];
        self.sessions[engine][usize::from(peer)].open
    }

    pub(super) fn fact(&mut self, lane: LaneIndex, epoch: u32, fact: LaneFact) {
        let rail = self.lanes[lane as usize].rail as usize;
        if let Some(after) = self.luck.repeated(self.now, rail) {
            let at = self.now + after;
            self.agenda.enter(at, What::Fact { lane, epoch, fact });
        }
        let (worker, id) = {
            let row = &self.lanes[lane as usize];
            (row.worker, row.id)
        };
        self.workers[worker as usize]
            .inbox
            .lanes
            .push((id, Epoch(epoch), fact));
        self.wake(worker, self.now);
    }

    /// Sends bytes between an engine and a peer, over whichever rail still works; none does: they are lost.
    pub(super) fn send(
        &mut self,
        engine: u32,
        peer: u32,
        frame: &Letter,
        arrives: fn(u32) -> What,
    ) {
        let row = &self.setup.engines[engine as usize];
        let mut rails = row.rails.iter().zip(&row.rail_peers);
        let far = row.peers[peer as usize];
        let heard = self.sessions[engine as usize][peer as usize].open
            && self.muted[row.host] == 0
            && self.muted[far] == 0;
        if heard && rails.any(|(rail, to)| u32::from(*to) == peer && self.cuts[*rail] == Cut::No) {
            let usual = self.now + self.setup.timing.control_us * 1_000;
            for after in self.luck.frame(self.now).into_iter().flatten() {
                self.letters.push((engine, peer, far::encode(frame)));
                self.agenda
                    .enter(usual + after, arrives(self.letters.len() as u32 - 1));
            }
        }
    }

    /// A peer has carried out what it was asked for.
    pub(super) fn answer(&mut self, letter: u32) {
        let (engine, peer, bytes) = std::mem::take(&mut self.letters[letter as usize]);
        for frame in far::decode(&bytes) {
            if let Letter::SeePath { question, .. } = frame {
                let seen = self.see_path(engine, peer, question);
                self.send(engine, peer, &seen, |letter| What::LetterNear { letter });
            }
            let Letter::Fence { lane, epoch } = frame else {
                continue;
            };
            let id = LaneId(lane);
            let worker =
                self.setup.engines[engine as usize].first_worker + usize::from(id.worker());
            let index = self.first_lane[worker] + u32::from(id.rail().0);
            let Some(delivered) = self.far.fence(index, epoch) else {
                continue;
            };
            let fenced = Letter::Fenced {
                lane,
                epoch,
                delivered,
            };
            self.send(engine, peer, &fenced, |letter| What::LetterNear { letter });
        }
    }

    pub(super) fn letter_near(&mut self, letter: u32) {
        let (engine, peer, bytes) = std::mem::take(&mut self.letters[letter as usize]);
        let first = self.setup.engines[engine as usize].first_worker;
        let letters = far::decode(&bytes);
        for letter in &letters {
            if let Letter::PathSeen { question, view } = letter {
                self.path_seen(engine, peer, *question, *view);
            }
        }
        for frame in letters.iter().filter_map(far::to_core) {
            let workers = match frame {
                Frame::Alive => first..first + usize::from(*self.setup.engine.workers.get_ref()),
                Frame::Fenced { lane, .. } => {
                    let worker = first + usize::from(lane.worker());
                    worker..worker + 1
                }
            };
            for worker in workers {
                self.workers[worker]
                    .inbox
                    .frames
                    .push((PeerId(peer as u16), frame));
                self.wake(worker as u32, self.now);
            }
        }
    }

    pub(super) fn heartbeat(&mut self, engine: u32, peer: u32) {
        self.send(engine, peer, &Letter::Heartbeat, |letter| {
            What::LetterNear { letter }
        });
        let at = self.now + self.setup.timing.heartbeat_ms.max(1) * 1_000_000;
        self.agenda.enter(at, What::Heartbeat { engine, peer });
    }
}
