//! Workloads: engines, plans and submitters.

use std::collections::BTreeMap;

use polyrail_core::work::Op;

use super::{
    Builder, Checked, DURATION_MS_MAX, Engine, MS, PlanOf, Setup, Submitter, WORKERS_ALL_MAX,
};
use crate::model::ledger::REQUEST_BYTES_MAX;
use crate::scenario::{Workload, WorkloadOp, size};

/// Rails of one engine to one peer, at most: what a plan can name.
const PEER_RAILS_MAX: usize = polyrail_core::plan::PLAN_RAILS_MAX;
/// Limits that keep a mistyped number from taking all memory.
const BATCH_MAX: u32 = 4_096;
const PROCESSES_MAX: u16 = 64;
const SUBMITTERS_MAX: u32 = 4096;
const OUTSTANDING_MAX: u64 = 65_536;
const TIME_US_MAX: u64 = 60_000_000;

impl Builder<'_> {
    pub(super) fn workloads(&self, setup: &mut Setup) -> Checked<()> {
        let mut engines: BTreeMap<(usize, u16), usize> = BTreeMap::new();
        for (number, workload) in self.scenario.workload.iter().enumerate() {
            for from in self.some_hosts(&workload.from)? {
                for to in self.some_hosts(&workload.to)? {
                    self.workload(setup, &mut engines, (number, workload), (from, to))?;
                }
            }
        }
        Ok(())
    }

    /// One workload between two hosts.
    fn workload(
        &self,
        setup: &mut Setup,
        engines: &mut BTreeMap<(usize, u16), usize>,
        (number, workload): (usize, &Workload),
        (from, to): (usize, usize),
    ) -> Checked<()> {
        let workers = usize::from(*self.scenario.engine.workers.get_ref());
        let Some(block) = size(workload.block.get_ref())
            .filter(|block| (1..=REQUEST_BYTES_MAX / 2).contains(block))
        else {
            return self.error(
                &workload.block,
                "block is a size of 1 to 32GiB, like 65536 or \"64KiB\"",
            );
        };
        let (batch_min, batch) = workload.batch.get_ref().bounds();
        if batch_min == 0 || batch > BATCH_MAX || batch_min > batch {
            let text = format!("batch is 1 to {BATCH_MAX} requests, or [least, most]");
            return self.error(&workload.batch, text);
        }
        let room = self.scenario.room.requests;
        if room > 0 && u32::from(room) < batch {
            let text = format!("{batch} requests, and [room] has {room}");
            return self.error(&workload.batch, text);
        }
        let threads = self.within(&workload.threads, 1, SUBMITTERS_MAX, "threads")?;
        let processes = self.within(&workload.processes, 1, PROCESSES_MAX, "processes")?;
        if u64::from(batch) * u64::from(threads) > OUTSTANDING_MAX {
            return self.error(
                &workload.threads,
                format!("threads × batch is at most {OUTSTANDING_MAX}"),
            );
        }
        if let (Some(_), Some(seconds)) = (&workload.count, &workload.seconds) {
            return self.error(seconds, "count or seconds, not both");
        }
        if !(0.0..=DURATION_MS_MAX as f64).contains(&workload.start_ms) {
            return self.error(
                &workload.from,
                format!("start_ms is 0 to {DURATION_MS_MAX}"),
            );
        }
        let starts_at = (workload.start_ms * MS) as u64;
        let stops_at = match (&workload.count, &workload.seconds) {
            (Some(_), _) => u64::MAX,
            (_, Some(seconds)) => {
                let seconds = self.within(seconds, 0.000_001, 3_600.0, "seconds")?;
                starts_at + (seconds * 1_000.0 * MS) as u64
            }
            _ => setup.ends_at,
        };
        let op = match workload.op {
            WorkloadOp::Write => Op::Write,
            WorkloadOp::Read => Op::Read,
        };
        if (engines.len() + usize::from(processes)) * workers > WORKERS_ALL_MAX {
            let text = format!("engines have more than {WORKERS_ALL_MAX} workers together");
            return self.error(&workload.processes, text);
        }
        for process in 0..processes {
            let engine = *engines.entry((from, process)).or_insert_with(|| {
                let first_worker = setup.engines.len() * workers;
                setup.engines.push(Engine {
                    host: from,
                    peers: Vec::new(),
                    rails: Vec::new(),
                    rail_peers: Vec::new(),
                    first_worker,
                });
                setup.engines.len() - 1
            });
            let plan = self.plan(setup, engine, to, workload)?;
            let peer = setup.plans[plan].peer;
            for thread in 0..threads {
                setup.submitters.push(Submitter {
                    workload: number,
                    engine,
                    worker: engine * workers + thread as usize % workers,
                    peer,
                    plan: plan as u32,
                    op,
                    block,
                    batch,
                    batch_min,
                    count: workload.count.as_ref().map(|count| *count.get_ref()),
                    starts_at,
                    stops_at,
                    pause_ns: workload.pause_us.min(TIME_US_MAX) * 1_000,
                    deadline_ns: workload.deadline_us.min(TIME_US_MAX) * 1_000,
                    priority: workload.priority,
                    cancel_one_in: workload.cancel_one_in,
                    in_a_row: workload.in_a_row,
                });
            }
        }
        Ok(())
    }

    /// The plan of an engine for a workload, and with it the engine's rails to that peer.
    fn plan(
        &self,
        setup: &mut Setup,
        engine: usize,
        to: usize,
        workload: &Workload,
    ) -> Checked<usize> {
        let row = &mut setup.engines[engine];
        let peer = match row.peers.iter().position(|peer| *peer == to) {
            Some(peer) => peer,
            None => {
                row.peers.push(to);
                let peer = row.peers.len() - 1;
                for (rail, ends) in self.rails.iter().enumerate() {
                    if (self.devices[ends.from].host, self.devices[ends.to].host) == (row.host, to)
                    {
                        row.rails.push(rail);
                        row.rail_peers.push(peer as u16);
                    }
                }
                peer
            }
        };
        let tier = |rail: usize| {
            polyrail_core::topology::tier(workload.numa, self.devices[self.rails[rail].from].numa)
        };
        let mut named = Vec::new();
        for target in &workload.rails {
            named.extend(self.cut(target)?);
        }
        let is_named = |rail: usize| workload.rails.is_empty() || named.contains(&rail);
        let rails: Vec<_> = (0..row.rails.len())
            .filter(|number| usize::from(row.rail_peers[*number]) == peer)
            .filter(|number| is_named(row.rails[*number]))
            .map(|number| (number as u16, tier(row.rails[number])))
            .collect();
        if rails.is_empty() || rails.len() > PEER_RAILS_MAX {
            let text = format!(
                "{} rails lead from {} to {}; a plan has 1 to {PEER_RAILS_MAX}",
                rails.len(),
                workload.from.get_ref(),
                workload.to.get_ref()
            );
            return self.error(&workload.to, text);
        }
        let plan = PlanOf {
            engine,
            peer: peer as u16,
            rails,
        };
        Ok(match setup.plans.iter().position(|known| *known == plan) {
            Some(known) => known,
            None => {
                setup.plans.push(plan);
                setup.plans.len() - 1
            }
        })
    }
}
