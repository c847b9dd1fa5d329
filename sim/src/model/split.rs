//! What path isolation promises of bytes: they take the classes that are wanted and no others, each its share.
//!
//! It promises that as far as nothing stands in the way, so only the undisturbed spells count: those in which a worker
//! goes from nothing to do to nothing to do, with one wish, with all rails healthy, and sends every byte once.

use polyrail_core::path::class::{CLASSES_MAX, ClassSet, RailClass};
use polyrail_core::path::island::PathClass;
use polyrail_core::path::share::Shares;
use polyrail_core::rail::health::RailState;
use polyrail_core::rail::select::Policy;
use polyrail_core::units::{PeerId, RailId};
use polyrail_core::work::Work;

use super::agents::READ_INTERVAL_NS;
use super::engines::REMOTE;
use super::{LaneIndex, World};
use crate::setup::Setup;

/// So many slices a class may be off its share: three classes that were off the other way before.
const SLICES_OFF_MAX: u64 = 4;

/// What is known of a connection beforehand.
#[derive(Clone, Copy, Debug)]
struct Rule {
    /// Classes that it has rails of.
    there: ClassSet,
    /// Agents are heard.
    heeds: bool,
    /// Those that carry everything while no agent says anything.
    usual: ClassSet,
    /// Requests up to here take the primary class, whatever an agent says.
    small_bytes_max: Option<u64>,
    /// Classes without room are waited for, so that shares come out exactly: with slices of so many bytes at most.
    exact: Option<u64>,
}

/// What went from one worker to one peer since the worker had nothing to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// `None`: nothing is promised that could be checked.
    rule: Option<Rule>,
    /// What core was told last that an agent wants, and whether it was since it has its plans: before, it does not heed it.
    hint: Option<Shares>,
    is_told: bool,
    /// Bytes of requests taken.
    submitted: u64,
    /// Bytes posted, by class.
    posted: [u64; CLASSES_MAX],
    /// Something stood in the way.
    disturbed: bool,
    /// A rail was ever not healthy: classes may catch up with what they could not carry at any time.
    uneven: bool,
}

impl Split {
    fn new(rule: Option<Rule>) -> Self {
        Self {
            rule,
            hint: None,
            is_told: false,
            submitted: 0,
            posted: [0; CLASSES_MAX],
            disturbed: false,
            uneven: false,
        }
    }

    /// The worker has nothing to do: what was wrong, if anything was.
    fn close(&mut self) -> Option<String> {
        let wrong = self.wrong();
        *self = Self {
            hint: self.hint,
            is_told: self.is_told,
            uneven: self.uneven,
            ..Self::new(self.rule)
        };
        wrong
    }

    fn wrong(&self) -> Option<String> {
        let rule = self.rule.as_ref()?;
        let total: u64 = self.posted.iter().sum();
        let knows = self.is_told || !rule.heeds;
        if self.disturbed || !knows || total != self.submitted {
            return None;
        }
        let wanted = self.hint.map_or(rule.usual, |shares| shares.classes());
        let wanted = wanted.and(rule.there);
        if wanted.is_empty() {
            return None;
        }
        let shares = self.hint.filter(|_| !self.uneven).zip(rule.exact);
        let whole = |shares: &Shares| -> u64 {
            wanted.iter().map(|class| u64::from(shares.of(class))).sum()
        };
        for (class, posted) in RailClass::all().zip(self.posted) {
            if posted > 0 && !wanted.contains(class) {
                let text = format!("{posted} bytes went over class {class}, which is not wanted");
                return Some(text);
            }
            let Some((shares, slice_bytes)) = shares.filter(|_| wanted.contains(class)) else {
                continue;
            };
            let (part, whole) = (u64::from(shares.of(class)), whole(&shares));
            let share = u128::from(total) * u128::from(part) / u128::from(whole);
            if u128::from(posted).abs_diff(share) > u128::from(SLICES_OFF_MAX * slice_bytes) {
                return Some(format!(
                    "{posted} of {total} bytes went over class {class}, whose share is {part} of {whole}"
                ));
            }
        }
        None
    }
}

impl Setup {
    /// By worker and peer; nothing without path isolation.
    pub(super) fn splits(&self, policy: Policy) -> Vec<Vec<Split>> {
        if self.isolation.is_none() {
            return Vec::new();
        }
        let workers = usize::from(*self.engine.workers.get_ref());
        let row = |worker: usize| {
            let engine = worker / workers;
            let peers = 0..self.engines[engine].peers.len();
            let split = |peer| Split::new(self.rule_of(engine, peer, policy));
            peers.map(split).collect()
        };
        (0..self.workers()).map(row).collect()
    }

    fn rule_of(&self, engine: usize, peer: usize, policy: Policy) -> Option<Rule> {
        let row = &self.engines[engine];
        let to_peer = row.rails.iter().zip(&row.rail_peers);
        let to_peer = to_peer.filter(|(_, to)| usize::from(**to) == peer);
        let mut ranks = to_peer.map(|(rail, _)| self.rails[*rail].rank);
        let rank = ranks.next()?;
        let heeds = self.isolation.as_ref()?.heeds_hints();
        // Rails of another rank are no way out of a class, and a hint that is read too rarely is forgotten meanwhile.
        let is_read = !heeds || self.isolation.as_ref()?.hint_age_ns() >= 2 * READ_INTERVAL_NS;
        if !ranks.all(|other| other == rank) || !is_read {
            return None;
        }
        let path = self.path_of(engine, peer)?;
        let there = self.classes_of(engine, peer);
        let near = path.class == PathClass::IntraIsland;
        let supplementary = ClassSet::SUPPLEMENTARY.and(there);
        let usual = match near {
            true => supplementary.or_else(ClassSet::PRIMARY),
            false => ClassSet::PRIMARY,
        };
        // The documented policy has shares of its own, by predicted times.
        let exact = path.config.hint_strict && policy != Policy::Documented;
        Some(Rule {
            there,
            heeds,
            usual,
            small_bytes_max: (heeds && !near).then_some(path.config.small_bytes_max),
            exact: exact.then_some(u64::from(self.limits.slice_bytes)),
        })
    }
}

impl World<'_> {
    /// Core is told what an agent wants.
    pub(super) fn split_hinted(&mut self, worker: u32, peer: PeerId, hint: Option<Shares>) {
        let row = &mut self.splits[worker as usize][peer.index()];
        row.disturbed |= row.hint != hint || !row.is_told;
        (row.hint, row.is_told) = (hint, true);
    }

    /// Core has been given new plans for a peer.
    pub(super) fn split_replanned(&mut self, worker: u32, peer: u16) {
        let row = self.splits.get_mut(worker as usize);
        if let Some(row) = row.and_then(|row| row.get_mut(usize::from(peer))) {
            (row.disturbed, row.is_told) = (true, false);
        }
    }

    /// Core has taken so many requests of a submitter's.
    pub(super) fn split_submitted(&mut self, submitter: u32, taken: u32) {
        let of = &self.setup.submitters[submitter as usize];
        let row = self.splits.get_mut(of.worker);
        let Some(row) = row.and_then(|row| row.get_mut(usize::from(of.peer))) else {
            return;
        };
        row.submitted += of.block * u64::from(taken);
        let small_bytes_max = row.rule.and_then(|rule| rule.small_bytes_max);
        // Several that lie in a row may be one that is larger.
        row.disturbed |= small_bytes_max.is_some_and(|most| of.block <= most);
    }

    /// Something happened to a worker's lanes or requests: slices that had a class may go another way, or none.
    pub(super) fn split_disturbed(&mut self, worker: u32) {
        for row in self.splits.get_mut(worker as usize).into_iter().flatten() {
            row.disturbed = true;
        }
    }

    /// Works are taken from a worker for a lane.
    pub(super) fn split_posted(&mut self, lane: LaneIndex, works: &[Work]) {
        let lane = &self.lanes[lane as usize];
        let Some(row) = self.splits.get_mut(lane.worker as usize) else {
            return;
        };
        let engine = &self.setup.engines[self.workers[lane.worker as usize].engine];
        let peer = engine.rail_peers[lane.id.rail().index()];
        let class = self.setup.rails[lane.rail as usize].class;
        let of_requests = works.iter().filter(|work| work.remote.segment == REMOTE);
        let bytes: u64 = of_requests.map(|work| u64::from(work.length)).sum();
        row[usize::from(peer)].posted[class.index()] += bytes;
    }

    /// A worker has bound what it could: as its rails are now, or were on the way.
    pub(super) fn split_bound(&mut self, worker: u32) {
        let Some(rows) = self.splits.get_mut(worker as usize) else {
            return;
        };
        let engine = self.workers[worker as usize].engine;
        for (number, peer) in self.setup.engines[engine].rail_peers.iter().enumerate() {
            let view = self.shared[engine].view(RailId(number as u16));
            if view.is_some_and(|view| view.state != RailState::Healthy) {
                let row = &mut rows[usize::from(*peer)];
                (row.disturbed, row.uneven) = (true, true);
            }
        }
    }

    /// A worker may have nothing to do any more.
    pub(super) fn check_split(&mut self, worker: u32) {
        if self.workers[worker as usize].core.requests() > 0 {
            return;
        }
        let rows = self.splits.get_mut(worker as usize).into_iter().flatten();
        for (peer, row) in rows.enumerate() {
            if let Some(wrong) = row.close() {
                let text = format!("worker {worker} to peer {peer}: {wrong}");
                self.ledger.violation(self.now, text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: u64 = 4_096;

    #[test]
    fn only_what_nothing_stood_in_the_way_of_is_held_to_its_share() {
        let both = ClassSet::PRIMARY.with(RailClass::SUPPLEMENTARY);
        let near = Rule {
            there: both,
            heeds: true,
            usual: ClassSet::only(RailClass::SUPPLEMENTARY),
            small_bytes_max: None,
            exact: Some(SLICE),
        };
        let lenient = Rule {
            exact: None,
            ..near
        };
        let alone = Rule {
            there: ClassSet::PRIMARY,
            ..near
        };
        let quarter = Some(Shares::pair(256));
        let all = Some(Shares::pair(1_024));
        type Happens = fn(&mut Split);
        let as_it_is: Happens = |_| ();
        // (name, rule, hint, slices posted by class, what else happened, what is said)
        let cases: [(_, _, _, _, Happens, _); 15] = [
            ("as usual", near, None, [0, 9], as_it_is, ""),
            (
                "not as usual",
                near,
                None,
                [1, 8],
                as_it_is,
                "class primary",
            ),
            ("a quarter", near, quarter, [75, 25], as_it_is, ""),
            ("four slices off", near, quarter, [79, 21], as_it_is, ""),
            (
                "five slices off",
                near,
                quarter,
                [80, 20],
                as_it_is,
                "share is 768",
            ),
            (
                "five the other way",
                near,
                quarter,
                [70, 30],
                as_it_is,
                "share is 768",
            ),
            ("not waited for", lenient, quarter, [100, 0], as_it_is, ""),
            (
                "but not wanted",
                lenient,
                all,
                [1, 99],
                as_it_is,
                "class primary",
            ),
            ("nothing else is there", alone, all, [100, 0], as_it_is, ""),
            (
                "its share of what is",
                alone,
                quarter,
                [100, 0],
                as_it_is,
                "",
            ),
            (
                "sent twice",
                near,
                all,
                [1, 99],
                |row| row.submitted -= 1,
                "",
            ),
            (
                "disturbed",
                near,
                all,
                [1, 99],
                |row| row.disturbed = true,
                "",
            ),
            (
                "uneven",
                near,
                quarter,
                [100, 0],
                |row| row.uneven = true,
                "",
            ),
            (
                "not told",
                near,
                all,
                [1, 99],
                |row| row.is_told = false,
                "",
            ),
            ("no rule", near, all, [1, 99], |row| row.rule = None, ""),
        ];
        for (name, rule, hint, [first, second], happens, said) in cases {
            let mut split = Split::new(Some(rule));
            (split.hint, split.is_told) = (hint, true);
            split.posted[0] = first * SLICE;
            split.posted[1] = second * SLICE;
            split.submitted = (first + second) * SLICE;
            happens(&mut split);
            let wrong = split.close();
            assert_eq!(wrong.is_some(), !said.is_empty(), "{name}: {wrong:?}");
            assert!(wrong.unwrap_or_default().contains(said), "{name}");
            // The next spell begins with nothing.
            assert_eq!(split.close(), None, "{name}");
        }
    }
}
