//! What a device or a peer says that is not so.
//!
//! Some of it cannot be: it names what is not there, or is over, or not in that state. It must change nothing, and all
//! checks stay on. The rest could be, and core has to believe it: then bytes are not looked at, but nothing may panic,
//! hang, be reported twice or leave core's invariants broken, and once the lies stop everything comes right.

use polyrail_core::message::Frame;
use polyrail_core::orchestrator::Proof;
use polyrail_core::time::Instant;
use polyrail_core::units::{Epoch, LaneId, PeerId, RailId, RequestId};
use polyrail_core::work::{Cause, Completion, LaneFact, LaneLimits, Outcome, Scope};

use super::World;

/// Lies of one round, at most.
const LIES_MAX: u64 = 4;

impl World<'_> {
    /// Tells a worker that has nothing to do lies, at times.
    pub(super) fn tell_lies(&mut self, worker: u32) {
        if self.luck.lies(self.now) {
            for _ in 0..=self.luck.below(LIES_MAX) {
                self.lie(worker);
            }
        }
        if self.luck.tells_false(self.now) {
            for _ in 0..=self.luck.below(LIES_MAX) {
                self.tell_false(worker);
            }
        }
    }

    /// A number as far from all others as from zero.
    fn any(&mut self) -> u64 {
        let most = u64::MAX >> self.luck.below(64);
        self.luck.below(most)
    }

    /// One of a worker's lanes, of all.
    fn own_lane(&mut self, worker: u32) -> usize {
        let engine = &self.setup.engines[self.workers[worker as usize].engine];
        let rails = engine.rails.len() as u64;
        self.first_lane[worker as usize] as usize + self.luck.below(rails) as usize
    }

    /// Something that cannot be.
    fn lie(&mut self, worker: u32) {
        let at = Instant::from_nanos(self.now);
        let index = self.own_lane(worker);
        let (lane, epoch) = (self.lanes[index].id, self.lanes[index].epoch);
        let (any, other) = (self.any(), self.any());
        let nowhere = LaneId::new(
            other as u16,
            RailId((any as u16).max(self.lanes.len() as u16)),
        );
        let peers = self.told[worker as usize].len() as u64;
        let no_peer = PeerId(any.clamp(peers, u64::from(u16::MAX)) as u16);
        // Of an epoch that is over, or has not begun.
        let wrong_epoch = match any % 2 {
            0 => epoch.wrapping_sub(1 + other as u32 % 3),
            _ => epoch.wrapping_add(1 + other as u32 % 3),
        };
        let open = |cookie: u64| {
            self.lanes[index]
                .open_works
                .iter()
                .any(|work| work.cookie == cookie)
        };
        let own = self.lanes[index]
            .open_works
            .first()
            .map_or(any, |work| work.cookie);
        let never = [any, own ^ 1 << 40, own ^ 1 << 33]
            .into_iter()
            .find(|cookie| !open(*cookie));
        let last = self.workers[worker as usize].last_completion;
        let row = &self.lanes[index];
        let fact = match other % 6 {
            0 if !row.opening => LaneFact::Opened {
                limits: limits(any),
            },
            1 if !row.opening => LaneFact::OpenFailed(cause(any)),
            2 if !row.fencing => LaneFact::Fenced {
                scope: Scope::Local,
                delivered: None,
            },
            3 if !row.fencing => LaneFact::Fenced {
                scope: Scope::Remote,
                delivered: Some(any as u32),
            },
            4 => LaneFact::Unfenceable {
                scope: Scope::Local,
            },
            _ => LaneFact::Writable,
        };
        let completion = |lane, epoch, cookie| Completion {
            lane,
            epoch: Epoch(epoch),
            cookie,
            at,
            outcome: match other % 3 {
                0 => Outcome::Error(cause(any)),
                _ => Outcome::Success,
            },
        };
        let fenced = |lane, epoch| Frame::Fenced {
            lane,
            epoch: Epoch(epoch),
            delivered: any as u32,
        };
        let is_fencing = row.fencing;
        let core = &mut self.workers[worker as usize].core;
        match self.luck.below(11) {
            0 => core.handle_completions(at, &[completion(nowhere, epoch, own)]),
            1 => core.handle_completions(at, &[completion(lane, wrong_epoch, own)]),
            2 => core.handle_completions(
                at,
                never
                    .map(|cookie| completion(lane, epoch, cookie))
                    .as_slice(),
            ),
            3 => core.handle_completions(at, last.filter(|last| !open(last.cookie)).as_slice()),
            4 => core.handle_lane(at, lane, Epoch(epoch), fact),
            5 => core.handle_lane(at, lane, Epoch(wrong_epoch), LaneFact::Broken(cause(any))),
            6 => core.handle_lane(at, nowhere, Epoch(epoch), LaneFact::Broken(cause(any))),
            7 => core.handle_frame(at, no_peer, &fenced(lane, epoch)),
            8 => core.handle_peer_gone(at, no_peer, Proof::ProcessGone),
            9 => {
                let request = RequestId {
                    index: any as u32,
                    generation: u32::MAX,
                };
                core.cancel(at, request);
                core.handle_wake();
            }
            // A frame that says nothing new is a sign of life all the same, so the peer has to be there.
            _ => {
                let engine = &self.setup.engines[self.workers[worker as usize].engine];
                let peer = engine.rail_peers[lane.rail().index()];
                let gone = self.gone[self.workers[worker as usize].engine][usize::from(peer)];
                if gone.dark_from.is_none_or(|from| self.now < from) {
                    self.note_heard(worker, PeerId(peer));
                    let epoch = if is_fencing { wrong_epoch } else { epoch };
                    let core = &mut self.workers[worker as usize].core;
                    core.handle_frame(at, PeerId(peer), &fenced(lane, epoch));
                }
            }
        }
    }

    /// Something that could be, and is not.
    fn tell_false(&mut self, worker: u32) {
        let at = Instant::from_nanos(self.now);
        let index = self.own_lane(worker);
        let (any, other) = (self.any(), self.any());
        let row = &self.lanes[index];
        let (lane, epoch) = (row.id, Epoch(row.epoch));
        let work = row
            .open_works
            .get(any as usize % row.open_works.len().max(1))
            .copied();
        let engine = &self.setup.engines[self.workers[worker as usize].engine];
        let peer = PeerId(engine.rail_peers[lane.rail().index()]);
        let core = &mut self.workers[worker as usize].core;
        match self.luck.below(7) {
            0 | 1 => {
                let completion = work.map(|work| Completion {
                    lane,
                    epoch,
                    cookie: work.cookie,
                    at,
                    outcome: match other % 3 {
                        0 => Outcome::Error(cause(any)),
                        _ => Outcome::Success,
                    },
                });
                core.handle_completions(at, completion.as_slice());
            }
            2 => core.handle_lane(
                at,
                lane,
                epoch,
                LaneFact::Opened {
                    limits: limits(any),
                },
            ),
            3 => core.handle_lane(at, lane, epoch, LaneFact::Broken(cause(any))),
            4 => {
                let scope = Scope::Local;
                let delivered = None;
                core.handle_lane(at, lane, epoch, LaneFact::Fenced { scope, delivered });
            }
            5 => {
                let delivered = any as u32;
                core.handle_frame(
                    at,
                    peer,
                    &Frame::Fenced {
                        lane,
                        epoch,
                        delivered,
                    },
                );
            }
            _ => core.handle_peer_gone(at, peer, Proof::SessionEnded),
        }
    }
}

fn cause(any: u64) -> Cause {
    Cause::ALL[any as usize % Cause::ALL.len()]
}

/// Limits of a lane, small ones and zeros among them.
fn limits(any: u64) -> LaneLimits {
    LaneLimits {
        covers: any.is_multiple_of(3),
        ..LaneLimits::new(
            (any % 20) as u16,
            [u32::MAX, 65_536, 5_000, 700][(any % 4) as usize],
        )
    }
}
