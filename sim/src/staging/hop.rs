//! Hops: how long each takes, how it ends, and what moves when nobody expects it any more.

use std::collections::BTreeMap;

use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::stage::{Hop, Stage, StagedConfig};
use polyrail_core::time::Duration;
use polyrail_core::units::StageId;
use polyrail_core::work::{Cause, Op};

use super::memory::{self, Content};
use super::scenario::FaultKind;
pub(super) use super::scenario::Where;
use super::session::Session;
use super::setup::Setup;
use super::{SERVER_STREAM, What, World};
use crate::model::chance::{Chance, ONE};

/// What ends without proof moves its bytes within this.
const LATE_MAX: Duration = Duration::from_micros(300);
/// What is called back ends within this.
const CALL_MAX: Duration = Duration::from_micros(800);

/// How a hop ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Good,
    Failed,
    Unfenced,
    /// It was called back before.
    Cancelled,
    /// The other host has not been heard for as long as anybody waits.
    Silent,
}

/// What is being carried out.
#[derive(Debug)]
pub(super) struct Hops {
    servers: [Server; servers::COUNT],
    pub(super) out: BTreeMap<(usize, StageId), Out>,
    /// Hops of each host that have ended without proof and may still move something.
    late: [u32; 2],
    /// Those that have ended without proof.
    unproven: Vec<(usize, StageId)>,
}

impl Hops {
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            servers: servers::all(setup),
            out: BTreeMap::new(),
            late: [0; 2],
            unproven: Vec::new(),
        }
    }
}

/// A hop that has not ended.
#[derive(Debug)]
pub(super) struct Out {
    pub(super) stage: Stage,
    /// In which it goes to the other host, if it does.
    pub(super) session: Session,
    /// In which it was handed out.
    since: Session,
    /// How it would end if that session were not over: it goes on in the next one.
    pub(super) waits: Option<Fate>,
}

/// Something that carries out hops, one after the other.
#[derive(Debug)]
pub(super) struct Server {
    bytes_per_sec: u64,
    delay_ns: u64,
    free_at: u64,
    chance: Chance,
}

/// The servers: each host's copies in and out, and the network away from each host.
pub(super) mod servers {
    use super::{Chance, SERVER_STREAM, Server, Where};
    use crate::staging::Setup;

    /// How many.
    pub(in crate::staging) const COUNT: usize = 6;
    /// Their names, in order.
    pub(crate) const NAMES: [&str; COUNT] = [
        "0: slot to GPU",
        "0: GPU to slot",
        "network 0 to 1",
        "1: slot to GPU",
        "1: GPU to slot",
        "network 1 to 0",
    ];

    /// The one that serves a hop there, at this host; a copy into the GPU, or out of it.
    pub(in crate::staging) fn index(hop: Where, host: usize, inwards: bool) -> usize {
        3 * host
            + match (hop, inwards) {
                (Where::Copy, true) => 0,
                (Where::Copy, false) => 1,
                (Where::Network, _) => 2,
            }
    }

    pub(in crate::staging) fn all(setup: &Setup) -> [Server; COUNT] {
        std::array::from_fn(|index| {
            let (bytes_per_sec, delay_ns) = match index % 3 {
                2 => setup.network,
                _ => setup.copy,
            };
            Server {
                bytes_per_sec,
                delay_ns,
                free_at: 0,
                chance: Chance::new(setup.seed, SERVER_STREAM + index as u64),
            }
        })
    }
}

fn report(status: Status, cause: Option<Cause>) -> Report {
    Report {
        status,
        delivered_bytes: 0,
        cause,
        local: Local::Released,
        remote: Remote::Settled,
    }
}

impl World<'_> {
    /// A hop waits for its server and is carried out.
    pub(super) fn begin_hop(&mut self, host: usize, stage: Stage) {
        self.history.hops += 1;
        self.moved_at = self.now;
        let (hop, at_host, inwards) = memory::place_of(host, &stage);
        let index = servers::index(hop, at_host, inwards);
        let server = &mut self.hops.servers[index];
        let begins = server.free_at.max(self.now);
        let rate = server.bytes_per_sec as f64 * self.setup.factor(begins, at_host, hop);
        let nominal = (f64::from(stage.length) * 1e9 / rate) as u64;
        let stretch = u64::from(server.chance.stretch(&self.setup.jitter));
        server.free_at = begins + (nominal * stretch / u64::from(ONE)).max(1);
        let (ends, delay_ns) = (server.free_at, server.delay_ns);
        let trouble = self.setup.trouble;
        let fault = |kind| self.setup.fault(ends, at_host, hop, kind).is_some();
        let (fails, unfenced) = (fault(FaultKind::Fail), fault(FaultKind::Unfenced));
        let fate = if unfenced || self.happens(trouble.unfenced_one_in) {
            Fate::Unfenced
        } else if fails || self.happens(trouble.failed_one_in) {
            Fate::Failed
        } else {
            Fate::Good
        };
        let mut rates = [0; servers::COUNT];
        rates[index] = u64::from(stage.length) * 1_000 / (ends - begins).max(1);
        self.history.passed.hold(begins, ends, &rates);
        self.agenda
            .enter(ends + delay_ns, What::Ends { host, stage, fate });
        let out = Out {
            stage,
            session: self.sessions[host].here,
            since: self.sessions[host].here,
            waits: None,
        };
        if self.hops.out.insert((host, stage.id), out).is_some() {
            self.violate(format!("{:?} is handed out twice", stage.id));
        }
    }

    /// A hop is called back: it ends as it would have, or before.
    pub(super) fn call_back(&mut self, host: usize, id: StageId) {
        let Some(out) = self.hops.out.get(&(host, id)) else {
            return self.violate(format!("{id:?} is called back and is not out"));
        };
        let stage = out.stage;
        let fate = Fate::Cancelled;
        let at = self.soon(CALL_MAX);
        self.agenda.enter(at, What::Ends { host, stage, fate });
    }

    /// Whether a hop ends now: not without its session, and not while the other host is stopped.
    fn may_end(&mut self, host: usize, stage: &Stage, fate: Fate) -> bool {
        let Some(out) = self.hops.out.get_mut(&(host, stage.id)) else {
            return false;
        };
        if stage.hop == Hop::Copy || matches!(fate, Fate::Silent | Fate::Cancelled) {
            return true;
        }
        if self.sessions[host].there != Some(out.session) {
            out.waits = Some(fate);
            return false;
        }
        if out.session != out.since && memory::is_far_slot(stage.remote) {
            let id = stage.id;
            self.violate(format!("{id:?} uses a slot that is another's by now"));
        }
        let Some(until) = self.setup.stopped_until(1 - host, self.now) else {
            return true;
        };
        let silent_at = self.now + StagedConfig::DEFAULT.answer_timeout.as_nanos();
        let stage = *stage;
        let (at, fate) = if until <= silent_at {
            (until, fate)
        } else {
            (silent_at, Fate::Silent)
        };
        self.agenda.enter(at, What::Ends { host, stage, fate });
        false
    }

    /// A hop has ended.
    pub(super) fn end_hop(&mut self, host: usize, stage: &Stage, fate: Fate) {
        if !self.may_end(host, stage, fate) {
            return;
        }
        self.moved_at = self.now;
        let report = match fate {
            Fate::Good => {
                let content = self.read(host, stage);
                self.write(host, stage, content);
                report(Status::Completed, None)
            }
            Fate::Failed => {
                self.history.failed_hops += 1;
                report(Status::Failed, Some(Cause::Reset))
            }
            Fate::Unfenced => {
                self.history.unfenced_hops += 1;
                self.leave_unfenced(host, *stage)
            }
            Fate::Cancelled => report(Status::Cancelled, Some(Cause::Cancelled)),
            Fate::Silent => self.leave_silent(host, *stage),
        };
        self.report_hop(host, stage, &report);
    }

    /// Core is told how a hop has ended.
    pub(super) fn report_hop(&mut self, host: usize, stage: &Stage, report: &Report) {
        self.hops.out.remove(&(host, stage.id));
        if report.status == Status::Indeterminate {
            self.hops.unproven.push((host, stage.id));
        }
        let now = self.instant(host);
        if let Err(refusal) = self.hosts[host].handle_stage(now, stage.id, report) {
            self.violate(format!(
                "the report of {:?} is refused: {refusal:?}",
                stage.id
            ));
        }
    }

    /// A hop ends without proof of one kind or both; what is not proven happens.
    fn leave_unfenced(&mut self, host: usize, stage: Stage) -> Report {
        let mut open = Report {
            local: Local::Held,
            remote: Remote::Unknown,
            ..report(Status::Indeterminate, Some(Cause::Silent))
        };
        let at = self.soon(LATE_MAX);
        let is_network = stage.hop != Hop::Copy;
        let mut read = None;
        match (is_network, stage.op) {
            (true, Op::Read) => open.remote = Remote::Settled,
            (true, Op::Write) if self.chance.below(3) == 0 => {
                // Nothing arrives any more, but the source may still be read.
                open.remote = Remote::Settled;
                return open;
            }
            (true, Op::Write) if self.chance.below(2) == 0 => {
                open.local = Local::Released;
                read = Some(self.read(host, &stage));
            }
            _ => {}
        }
        self.move_later(host, stage, read, at);
        open
    }

    /// Nobody hears of the other host. What was written arrives when it goes on.
    fn leave_silent(&mut self, host: usize, stage: Stage) -> Report {
        if stage.op == Op::Read {
            return report(Status::Failed, Some(Cause::PeerSilent));
        }
        self.history.unfenced_hops += 1;
        let read = Some(self.read(host, &stage));
        let at = self.soon(LATE_MAX);
        let at = self.setup.stopped_until(1 - host, at).unwrap_or(at);
        self.move_later(host, stage, read, at);
        Report {
            remote: Remote::Unknown,
            ..report(Status::Indeterminate, Some(Cause::PeerSilent))
        }
    }

    fn move_later(&mut self, host: usize, stage: Stage, read: Option<Content>, at: u64) {
        self.hops.late[host] += 1;
        let session = self.hops.out.get(&(host, stage.id));
        let late = What::Late {
            host,
            stage,
            read,
            session: session.map_or(self.sessions[host].here, |out| out.session),
        };
        self.agenda.enter(at, late);
    }

    /// What had no proof moves its bytes.
    pub(super) fn move_late(
        &mut self,
        host: usize,
        stage: &Stage,
        read: Option<Content>,
        session: Session,
    ) {
        if stage.hop == Hop::Copy || self.sessions[host].there == Some(session) {
            let content = read.unwrap_or_else(|| self.read(host, stage));
            self.write(host, stage, content);
        }
        self.hops.late[host] -= 1;
        if let (0, Some(proof_ns)) = (self.hops.late[host], self.setting.proof_ns) {
            self.agenda.enter(self.now + proof_ns, What::Proof { host });
        }
    }

    /// If nothing of a host's hops can move any more, core is told of each that had ended without proof; and its peer, that
    /// slots which it gave back without are free.
    pub(super) fn prove(&mut self, host: usize) {
        if self.hops.late[host] > 0 {
            return;
        }
        let proven = Report {
            local: Local::Released,
            remote: Remote::Settled,
            ..report(Status::Indeterminate, Some(Cause::Silent))
        };
        let before = self.quarantined();
        let unproven = std::mem::take(&mut self.hops.unproven);
        let (own, others) = unproven.into_iter().partition(|(of, _)| *of == host);
        self.hops.unproven = others;
        let own: Vec<_> = own;
        let now = self.instant(host);
        for (_, id) in own {
            // What it named may be known already.
            let _ = self.hosts[host].handle_stage(now, id, &proven);
        }
        let (owner, now) = (1 - host, self.instant(1 - host));
        for pool in memory::pool_ids() {
            let quarantined = self.hosts[owner].quarantined(pool);
            let given: Vec<u32> = quarantined
                .filter(|(_, suspect)| suspect.stage.is_none())
                .map(|(slot, _)| slot)
                .collect();
            for slot in given {
                self.hosts[owner].restore(now, pool, slot);
            }
        }
        self.history.restored_slots += before - self.quarantined();
    }

    /// Slots of both hosts that are quarantined.
    pub(super) fn quarantined(&self) -> u64 {
        let views = self
            .hosts
            .iter()
            .flat_map(|host| memory::pool_ids().map(|pool| host.pool(pool)));
        views
            .flatten()
            .map(|view| u64::from(view.quarantined))
            .sum()
    }
}
