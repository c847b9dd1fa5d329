//! Submitters that are alike: the same workload, from one host to another.

use polyrail_core::work::Op;

use crate::setup::{Setup, Submitter, route_of};

/// Submitters that are alike.
#[derive(Clone, Debug)]
pub(super) struct Class {
    /// By number, of all.
    pub(super) submitters: Vec<usize>,
    /// Hosts that bytes leave and reach.
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) starts_at: u64,
    /// Routes that can carry it.
    pub(super) routes: Vec<usize>,
    /// How many workers they have.
    pub(super) workers: u64,
    /// Bytes of a request, and how many are in a batch.
    pub(super) block: u64,
    pub(super) batch: u64,
    pub(super) op: Op,
}

impl Class {
    /// All that a setup has.
    pub(super) fn all(setup: &Setup) -> Vec<Self> {
        let mut keys = Vec::new();
        let mut classes: Vec<Self> = Vec::new();
        for (index, row) in setup.submitters.iter().enumerate() {
            let (near, far) = ends(setup, row);
            let key = (row.workload, near, far);
            match keys.iter().rposition(|known| *known == key) {
                Some(place) => classes[place].submitters.push(index),
                None => {
                    keys.push(key);
                    classes.push(Self::new(setup, index));
                }
            }
        }
        for class in &mut classes {
            let own = class.submitters.iter();
            let mut workers: Vec<_> = own.map(|index| setup.submitters[*index].worker).collect();
            workers.sort_unstable();
            workers.dedup();
            class.workers = workers.len() as u64;
        }
        classes
    }

    fn new(setup: &Setup, index: usize) -> Self {
        let row = &setup.submitters[index];
        let (near, far) = ends(setup, row);
        let reads = row.op == Op::Read;
        let (from, to) = if reads { (far, near) } else { (near, far) };
        let rails = setup.plans[row.plan as usize].rails.iter();
        let engine = &setup.engines[row.engine];
        let route = |(number, _): &(u16, u8)| route_of(engine.rails[usize::from(*number)], reads);
        // Those that lie in a row can go as one.
        let (block, batch) = match row.in_a_row {
            true => (row.block * u64::from(row.batch), 1),
            false => (row.block, u64::from(row.batch)),
        };
        Self {
            submitters: vec![index],
            from,
            to,
            starts_at: row.starts_at,
            routes: rails.map(route).collect(),
            workers: 1,
            block,
            batch,
            op: row.op,
        }
    }

    /// How many submitters there are.
    pub(super) fn count(&self) -> u64 {
        self.submitters.len() as u64
    }
}

/// The hosts of a submitter and of its peer.
fn ends(setup: &Setup, row: &Submitter) -> (usize, usize) {
    let engine = &setup.engines[row.engine];
    (engine.host, engine.peers[usize::from(row.peer)])
}
