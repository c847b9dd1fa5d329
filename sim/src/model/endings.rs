//! What must hold where nothing heals: every request is reported within its bound, the memory of each is accounted
//! for, and those who have to do with other peers do not notice.
//!
//! Of a connection that is *dark*, nothing passes any more, for good: all its rails are cut, and with them the control
//! plane. Its requests are reported within `fence_timeout` of the last sign of life that their worker was handed, or
//! of their submission if that was later; with proof that the peer's process is gone, as soon as this side has let go
//! of its lanes.
//!
//! Of a connection that has lost some of its rails, or only its control plane, requests are reported within what core's
//! waits can add up to: each rail that is gone may cost the opening of a lane and the wait for its fence, on top of what
//! everybody waits for at most.

use polyrail_core::report::{Local, Remote, Report};
use polyrail_core::units::{LaneId, PeerId};
use polyrail_core::work::{LaneFact, Scope};

use super::checks::{PATIENCE_NS, SLOWER_MAX};
use super::luck::HELD_DELAYS;
use super::{LET_GO_NS, World};
use crate::setup::{Cut, Incident, Interval, Setup};

/// A worker that nothing holds up looks at what is due within this, whatever it is at.
const LOOK_NS: u64 = 1_000_000;
/// A lane is given twice its patience to move something, and that is doubled four times at most.
const PATIENCE_FLOORS: u64 = 2 * 16;
/// With every chance trouble absent, a batch of somebody who has to do with other peers takes at most this, beside what
/// its bytes take.
const BYSTANDER_NS: u64 = 100_000_000;

/// What is gone for good of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    /// From then on nothing passes.
    pub(super) dark_from: Option<u64>,
    /// Nobody answers fences in the end.
    pub(super) unproven: bool,
}

/// A report that said less than its worker knew by then. What makes up for that must come in the same step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind {
    number: u64,
    /// This side's memory is held, and nobody holds it.
    held: bool,
    /// The peer's memory is open, and nobody can write there any more.
    open: bool,
}

/// What a worker was last told of a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// When it was last given a sign of life.
    heard_at: Option<u64>,
    /// When it was given proof that the process is gone, for good.
    gone_at: Option<u64>,
}

impl Setup {
    /// The rails between an engine and a peer, of all.
    fn rails_between(&self, engine: usize, peer: usize) -> impl Iterator<Item = usize> + Clone {
        let row = &self.engines[engine];
        let rails = row.rails.iter().zip(&row.rail_peers);
        rails.filter_map(move |(rail, to)| (usize::from(*to) == peer).then_some(*rail))
    }

    /// What is gone for good of the connection between an engine and a peer.
    pub(super) fn gone(&self, engine: usize, peer: usize) -> Gone {
        let is_dark = |row: &&Interval| {
            let mut rails = self.rails_between(engine, peer);
            rails.all(|rail| row.cuts[rail] != Cut::No)
        };
        let dark = self.intervals.iter().rev().take_while(is_dark).last();
        let row = &self.engines[engine];
        let hosts = [row.host, row.peers[peer]];
        let mutes = self
            .incidents
            .iter()
            .filter(|(_, host, _)| hosts.contains(host));
        let balance: i32 = mutes
            .map(|(_, host, incident)| match incident {
                Incident::Muted(true) => 1,
                Incident::Muted(false) => -1,
                Incident::Dies if *host == row.peers[peer] => 1,
                _ => 0,
            })
            .sum();
        Gone {
            dark_from: dark.map(|row| row.starts_at),
            unproven: dark.is_some() || balance > 0,
        }
    }

    /// What is gone for good of a submitter's connection.
    pub(super) fn gone_of(&self, submitter: u32) -> Gone {
        let row = &self.submitters[submitter as usize];
        self.gone(row.engine, usize::from(row.peer))
    }

    /// Whether anything that goes wrong stays so.
    pub(super) fn is_ending(&self) -> bool {
        let cut = |row: &Interval| row.cuts.iter().any(|cut| *cut != Cut::No);
        let engines = self.engines.iter().enumerate();
        let mut pairs =
            engines.flat_map(|(index, row)| (0..row.peers.len()).map(move |peer| (index, peer)));
        self.intervals.last().is_some_and(cut)
            || pairs.any(|(engine, peer)| self.gone(engine, peer).unproven)
    }

    /// Whether a submitter's own rails are all gone in the end, or fences of its connection are not answered.
    pub(super) fn has_no_way(&self, submitter: u32) -> bool {
        let cuts = self.intervals.last().map(|row| &row.cuts);
        let is_cut = |rail: usize| cuts.is_some_and(|cuts| cuts[rail] != Cut::No);
        self.gone_of(submitter).unproven || self.used_rails(submitter).all(is_cut)
    }

    /// Whether all rails of one of a submitter's transports are gone in the end.
    pub(super) fn has_lost_transport(&self, submitter: u32) -> bool {
        let cuts = self.intervals.last().map(|row| &row.cuts);
        let is_cut = |rail: usize| cuts.is_some_and(|cuts| cuts[rail] != Cut::No);
        let is_lost = |rank: u8| {
            let mut rails = self.used_rails(submitter);
            rails.all(|rail| self.rails[rail].rank != rank || is_cut(rail))
        };
        let mut ranks = self.used_rails(submitter).map(|rail| self.rails[rail].rank);
        ranks.any(is_lost)
    }

    /// How much later than it is due a worker may look.
    pub(super) fn look_ns(&self) -> u64 {
        let stall_us = match self.trouble.stall_one_in {
            0 => 0,
            _ => self.trouble.late_us,
        };
        LOOK_NS + (self.engine.poll_us + stall_us) * 1_000
    }

    /// How long what all submitters move takes, if it all goes over the slowest part at a time, and each slice waits
    /// for a look.
    pub(super) fn work_ns(&self) -> u64 {
        let rates = self.intervals.iter().flat_map(|row| &row.bytes_per_sec);
        let slowest = rates.copied().min().unwrap_or(1).max(1);
        let batches = |row: &crate::setup::Submitter| row.count.unwrap_or(u64::MAX >> 40);
        let each = |row: &crate::setup::Submitter| row.block * u64::from(row.batch) * batches(row);
        let bytes: u64 = self.submitters.iter().map(each).sum();
        let longest = self
            .devices
            .iter()
            .map(|row| row.work_bytes_max)
            .min()
            .unwrap_or(u32::MAX);
        let slice_bytes = u64::from(longest.min(self.limits.slice_bytes).max(1));
        let slices = |row: &crate::setup::Submitter| {
            row.block.div_ceil(slice_bytes) * u64::from(row.batch) * batches(row)
        };
        let slices: u64 = self.submitters.iter().map(slices).sum();
        let work_ns = u128::from(bytes) * 1_000_000_000 / u128::from(slowest);
        let work_ns = u64::try_from(work_ns).unwrap_or(u64::MAX);
        work_ns.saturating_add(slices.saturating_mul(self.engine.poll_us * 1_000))
    }

    /// Within how long of the last change for the worse a request is reported whose connection has lost something for
    /// good, and not everything.
    pub(super) fn partly_gone_ns(&self) -> u64 {
        let limits = &self.limits;
        let cuts = self.intervals.last().map_or(0, |row| {
            row.cuts.iter().filter(|cut| **cut != Cut::No).count() as u64
        });
        let each = limits.fence_timeout_us
            + limits.open_timeout_us
            + PATIENCE_FLOORS * limits.progress_floor_us;
        let work_ns = self.work_ns().saturating_mul(SLOWER_MAX);
        (self.waits_ns() + PATIENCE_NS + cuts * each * 1_000 + self.look_ns())
            .saturating_add(work_ns)
    }

    /// How long a batch may take of somebody who has to do with none of those that something is gone of, if nothing else
    /// goes wrong: whose worker may be short of rows only until those who hold them are reported.
    pub(super) fn bystander_ns(&self, submitter: u32) -> Option<u64> {
        let row = &self.submitters[submitter as usize];
        let engine = &self.engines[row.engine];
        let hosts = [engine.host, engine.peers[usize::from(row.peer)]];
        let trouble = &self.trouble;
        let chances = [
            trouble.error_one_in,
            trouble.refuse_one_in,
            trouble.lost_one_in,
            trouble.late_one_in,
            trouble.twice_one_in,
            trouble.full_one_in,
            trouble.rejected_one_in,
            trouble.unknown_one_in,
            trouble.broken_one_in,
            trouble.facts_one_in,
            trouble.lie_one_in,
            trouble.false_one_in,
            trouble.unopened_one_in,
            trouble.held_one_in,
            trouble.repeated_one_in,
            trouble.frame_lost_one_in,
            trouble.frame_late_one_in,
            trouble.frame_twice_one_in,
            trouble.stall_one_in,
            trouble.agent_crash_one_in,
        ];
        let is_whole = |interval: &Interval| {
            let mut rails = self.rails_between(row.engine, usize::from(row.peer));
            rails.all(|rail| interval.cuts[rail] == Cut::No)
        };
        let spared = self.is_ending()
            && chances.iter().all(|one_in| *one_in == 0)
            && self.intervals.iter().all(is_whole)
            && self
                .incidents
                .iter()
                .all(|(_, host, _)| !hosts.contains(host));
        // Rows for attempts are held until those whose they are have been reported.
        let rows_ns = (self.limits.fence_timeout_us + self.limits.peer_silence_us) * 1_000;
        let most = BYSTANDER_NS + rows_ns + self.work_ns().saturating_mul(SLOWER_MAX);
        spared.then_some(most)
    }
}

impl World<'_> {
    /// A worker is given a sign of life of a peer.
    pub(super) fn note_heard(&mut self, worker: u32, peer: PeerId) {
        let row = &mut self.told[worker as usize][peer.index()];
        row.heard_at = Some(self.now);
    }

    /// A worker learns of a peer: time runs from then.
    pub(super) fn note_known(&mut self, worker: u32, peer: PeerId, now: u64) {
        let row = &mut self.told[worker as usize][peer.index()];
        row.heard_at.get_or_insert(now);
    }

    /// A worker is given proof that a peer's process is gone.
    pub(super) fn note_gone(&mut self, worker: u32, peer: PeerId) {
        let engine = self.workers[worker as usize].engine;
        if self.sessions[engine][peer.index()].is_dead() {
            let row = &mut self.told[worker as usize][peer.index()];
            row.gone_at.get_or_insert(self.now);
        }
    }

    /// A worker is told a fact of a lane.
    pub(super) fn note_fact(&mut self, worker: u32, lane: LaneId, epoch: u32, fact: LaneFact) {
        let index = self.first_lane[worker as usize] as usize + lane.rail().index();
        let row = &mut self.lanes[index];
        if epoch == row.epoch {
            let was_opening = row.opening;
            row.opening &= !matches!(
                fact,
                LaneFact::Opened { .. } | LaneFact::OpenFailed(_) | LaneFact::Broken(_)
            );
            match fact {
                LaneFact::Opened { .. } if was_opening => row.opens(self.now),
                _ => {
                    row.ended += u32::from(
                        was_opening && !row.opening && self.setup.limits.reset_cooldown_us > 0,
                    )
                }
            }
        }
        let row = &mut self.lanes[index];
        match fact {
            LaneFact::Fenced {
                scope: Scope::Local,
                ..
            } => row.released = row.released.max(epoch),
            LaneFact::Opened { .. } if epoch == row.epoch => {
                let engine = &self.setup.engines[self.workers[worker as usize].engine];
                let peer = PeerId(engine.rail_peers[lane.rail().index()]);
                self.note_heard(worker, peer);
            }
            _ => {}
        }
    }

    /// When a request that a submitter has submitted must have been reported; `None`: that is not limited.
    fn due_at(&self, submitter: u32) -> Option<u64> {
        let row = &self.setup.submitters[submitter as usize];
        let submitted_at = self.loops[submitter as usize].taken_at;
        let gone = self.gone[row.engine][usize::from(row.peer)];
        let look_ns = self.setup.look_ns();
        if gone.dark_from.is_some_and(|from| from < self.now) {
            let told = self.told[row.worker][usize::from(row.peer)];
            let from = told
                .heard_at
                .unwrap_or(0)
                .max(submitted_at)
                .max(self.luck.false_until());
            let limits = &self.setup.limits;
            let silent_us = limits.fence_timeout_us.max(limits.peer_silence_us);
            let silent = from + silent_us * 1_000 + look_ns;
            let held_us = match self.setup.trouble.held_one_in {
                0 => 0,
                _ => HELD_DELAYS * self.setup.trouble.late_us,
            };
            let gone = told
                .gone_at
                .map(|at| at.max(submitted_at) + LET_GO_NS + held_us * 1_000 + 2 * look_ns);
            return Some(gone.map_or(silent, |gone| gone.min(silent)));
        }
        if self.setup.limits.reset_cooldown_us > 0 {
            // Cut rails are let back in after each cooldown, and requests stay with a transport of several for ever.
            return None;
        }
        let calm_at = self.setup.calm_at();
        (self.is_ending && calm_at < self.now)
            .then(|| submitted_at.max(calm_at) + self.setup.partly_gone_ns())
    }

    /// A request of a submitter's is reported: within its bound, and with memory held only if somebody holds it.
    pub(super) fn check_ending(&mut self, submitter: u32, number: u64, report: &Report, now: u64) {
        let worker = &self.workers[self.setup.submitters[submitter as usize].worker];
        // A worker that stands still when something is due does it when it goes on.
        let look_ns = self.setup.look_ns();
        let due = self
            .due_at(submitter)
            .map(|due| match worker.stalled_since <= due + look_ns {
                true => due.max(worker.stalled_until + look_ns),
                false => due,
            });
        if let Some(due) = due.filter(|due| *due < now) {
            let text = format!(
                "request {number} was reported {} ns after it had to be: {report:?}",
                now - due
            );
            self.ledger.violation(now, text);
        }
        let row = &self.setup.submitters[submitter as usize];
        let engine = &self.setup.engines[row.engine];
        let own =
            |index: &usize| engine.rail_peers[self.lanes[*index].id.rail().index()] == row.peer;
        let first = self.first_lane[row.worker] as usize;
        let lanes = first..first + engine.rails.len();
        let held = lanes.clone().filter(own).any(|index| {
            let lane = &self.lanes[index];
            lane.epoch > lane.released
        });
        if self.setup.trouble.false_one_in != 0 {
            // It was told that what is not over is, and that what is over is not.
            return;
        }
        let open = lanes.filter(own).any(|index| {
            let lane = &self.lanes[index];
            lane.epoch > lane.answered
        });
        let behind = Behind {
            number,
            held: report.local == Local::Held && !held,
            open: report.remote == Remote::Unknown && !open,
        };
        if behind.held || behind.open {
            self.behind.push(behind);
        }
    }

    /// A request that was reported with something open is settled after all, as far as this says.
    pub(super) fn settles(&mut self, number: u64, local: Local, remote: Remote) {
        self.ledger.settled(number, local, remote);
        for row in self.behind.iter_mut().filter(|row| row.number == number) {
            row.held &= local == Local::Held;
            row.open &= remote == Remote::Unknown;
        }
    }

    /// A worker has said all that it has to say: of no request less than it knows.
    pub(super) fn check_behind(&mut self, now: u64) {
        for row in std::mem::take(&mut self.behind) {
            let number = row.number;
            if row.held {
                let text = format!(
                    "request {number} holds this side's memory, and all lanes have been let go of"
                );
                self.ledger.violation(now, text);
            }
            if row.open {
                let text = format!(
                    "request {number} leaves the peer's memory open, and all fences were answered"
                );
                self.ledger.violation(now, text);
            }
        }
    }

    /// How many rows of a worker may be left for good: those of requests that wait for a proof that will not come, each
    /// of which may have gone as part of one more.
    pub(super) fn may_be_left(&self, worker: usize) -> usize {
        let open = self.ledger.open().filter(|submitter| {
            let row = &self.setup.submitters[*submitter as usize];
            row.worker == worker && self.gone[row.engine][usize::from(row.peer)].unproven
        });
        2 * open.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    /// Two rails between two hosts, and what happens.
    fn setup(faults: &str) -> Setup {
        let mut text =
            "name = \"x\"\nduration_ms = 10\n[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n"
                .to_owned();
        for (host, number) in [("a", 0), ("a", 1), ("b", 0), ("b", 1)] {
            text += &format!(
                "[[device]]\nhost = \"{host}\"\nname = \"n{number}\"\nrate_gbits_per_sec = 8\ndelay_us = 1\n"
            );
        }
        for number in 0..2 {
            text += &format!("[[rail]]\nfrom = \"a/n{number}\"\nto = \"b/n{number}\"\n");
        }
        text += "[[workload]]\nfrom = \"a\"\nto = \"b\"\nop = \"write\"\nblock = 1\ncount = 1\n";
        for fault in faults.split(';').filter(|fault| !fault.is_empty()) {
            let words: Vec<_> = fault.split(' ').collect();
            text += &format!(
                "[[fault]]\nkind = \"{}\"\ntarget = \"{}\"\nat_ms = {}\n",
                words[0], words[1], words[2]
            );
            if let Some(for_ms) = words.get(3) {
                text += &format!("for_ms = {for_ms}\n");
            }
        }
        Setup::new(&text, &Scenario::parse(&text).unwrap(), None).unwrap()
    }

    #[test]
    fn what_is_gone_for_good_is_told_from_what_comes_back() {
        // (faults, since when the peer is dark in milliseconds, whether its fences stay unanswered, whether anything is gone)
        let cases = [
            ("", None, false, false),
            ("silent b/n* 5 20", None, false, false),
            ("silent b/n* 5", Some(5), true, true),
            ("silent b/n0 5;error b/n1 7", Some(7), true, true),
            ("silent b/n0 5;error b/n1 7 20", None, false, true),
            ("silent b/n* 5 20;error b/n* 10", Some(5), true, true),
            ("mute b 5", None, true, true),
            ("mute a 5 2;mute a 6", None, true, true),
            ("mute a 5 2", None, false, false),
            ("death b 5", Some(5), true, true),
        ];
        for (faults, dark_ms, unproven, ends) in cases {
            let setup = setup(faults);
            let dark_from = dark_ms.map(|ms: u64| ms * 1_000_000);
            let gone = Gone {
                dark_from,
                unproven,
            };
            assert_eq!(
                (setup.gone(0, 0), setup.is_ending()),
                (gone, ends),
                "{faults}"
            );
            assert_eq!(setup.has_no_way(0), unproven, "{faults}");
        }
    }
}
