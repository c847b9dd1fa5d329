//! Hops: how long each takes, how it ends, and what moves when nobody expects it any more.

use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::stage::{Hop, Stage};
use polyrail_core::time::Duration;
use polyrail_core::work::{Cause, Op};

use super::memory::{self, Content};
use super::scenario::FaultKind;
pub(super) use super::scenario::Where;
use super::{SERVER_STREAM, What, World};
use crate::model::chance::{Chance, ONE};

/// What ends without proof moves its bytes within this.
const LATE_MAX: Duration = Duration::from_micros(300);

/// How a hop ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Good,
    Failed,
    Unfenced,
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
        let server = &mut self.servers[index];
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
    }

    /// A hop has ended.
    pub(super) fn end_hop(&mut self, host: usize, stage: &Stage, fate: Fate) {
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
        };
        let now = self.instant();
        if let Err(refusal) = self.hosts[host].handle_stage(now, stage.id, &report) {
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
        self.late[host] += 1;
        self.agenda.enter(at, What::Late { host, stage, read });
        open
    }

    /// What had no proof moves its bytes.
    pub(super) fn move_late(&mut self, host: usize, stage: &Stage, read: Option<Content>) {
        let content = read.unwrap_or_else(|| self.read(host, stage));
        self.write(host, stage, content);
        self.late[host] -= 1;
        if let (0, Some(proof_ns)) = (self.late[host], self.setting.proof_ns) {
            self.agenda.enter(self.now + proof_ns, What::Proof { host });
        }
    }

    /// If nothing of a host's hops can move any more, slots that they named are usable again: its own, and those of
    /// its peer that it gave back without proof.
    pub(super) fn prove(&mut self, host: usize) {
        if self.late[host] > 0 {
            return;
        }
        let now = self.instant();
        for (owner, is_own) in [(host, true), (1 - host, false)] {
            for pool in memory::pool_ids() {
                let quarantined = self.hosts[owner].quarantined(pool);
                let freed: Vec<u32> = quarantined
                    .filter(|(_, suspect)| suspect.stage.is_some() == is_own)
                    .map(|(slot, _)| slot)
                    .collect();
                for slot in freed {
                    self.history.restored_slots +=
                        u64::from(self.hosts[owner].restore(now, pool, slot));
                }
            }
        }
    }
}
