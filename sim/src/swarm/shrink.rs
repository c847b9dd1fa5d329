//! Makes a scenario that goes wrong smaller, for as long as it still goes wrong in the same way.

use std::time::{Duration, Instant};

use super::{kind_of, violation_of};
use crate::Policy;
use crate::case::Case;

impl Case {
    /// Smaller scenarios, one change each, large changes first.
    fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut case = self.clone();
            change(&mut case);
            all.push(case);
        };
        for index in 0..self.loads.len() {
            with(&|case| {
                case.loads.remove(index);
            });
        }
        for index in 0..self.faults.len() {
            with(&|case| {
                case.faults.remove(index);
            });
        }
        // `until_ms` and `late_us` come first, and mean nothing alone.
        if !self.trouble.is_empty() {
            with(&|case| case.trouble.clear());
        }
        for index in 2..self.trouble.len() {
            with(&|case| {
                case.trouble.remove(index);
            });
        }
        if !self.spares.is_empty() {
            with(&|case| case.spares.clear());
        }
        for index in 0..self.rails.len() {
            with(&|case| {
                let rail = case.rails.remove(index);
                case.spared.retain(|spared| *spared != rail);
            });
        }
        if let Some(isolation) = &self.isolation {
            with(&|case| case.isolation = None);
            for index in 0..isolation.hints.len() {
                with(&|case| {
                    if let Some(isolation) = &mut case.isolation {
                        isolation.hints.remove(index);
                    }
                });
            }
        }
        for index in 0..self.bottlenecks.len() {
            with(&|case| {
                case.bottlenecks.remove(index);
            });
        }
        let numbers: [fn(&mut crate::case::Load) -> &mut u64; 5] = [
            |load| &mut load.count,
            |load| &mut load.threads,
            |load| &mut load.batch,
            |load| &mut load.block,
            |load| &mut load.processes,
        ];
        for index in 0..self.loads.len() {
            for number in numbers {
                let value = *number(&mut self.loads[index].clone());
                for less in [1, value / 2, value - 1] {
                    if less > 0 && less < value {
                        with(&|case| *number(&mut case.loads[index]) = less);
                    }
                }
            }
            let load = &self.loads[index];
            if load.pause_us + load.deadline_us + load.cancel_one_in > 0 {
                with(&|case| case.loads[index].pause_us = 0);
                with(&|case| case.loads[index].deadline_us = 0);
                with(&|case| case.loads[index].cancel_one_in = 0);
            }
            if !load.rails.is_empty() {
                with(&|case| case.loads[index].rails.clear());
            }
            if load.priority.is_some() {
                with(&|case| case.loads[index].priority = None);
            }
            if load.in_a_row {
                with(&|case| case.loads[index].in_a_row = false);
            }
        }
        for index in 0..self.faults.len() {
            if self.faults[index].times > 1 {
                with(&|case| case.faults[index].times -= 1);
            }
        }
        for index in 0..self.engine.len() {
            with(&|case| {
                case.engine.remove(index);
            });
        }
        for index in 0..self.jitter.len() {
            with(&|case| {
                case.jitter.remove(index);
            });
        }
        with(&|case| {
            case.jitter = vec![("service_percent", 0.0), ("outlier_one_in", 0.0)];
        });
        for index in 0..self.timing.len() {
            with(&|case| {
                case.timing.remove(index);
            });
        }
        for index in 0..self.limits.len() {
            with(&|case| {
                case.limits.remove(index);
            });
        }
        with(&|case| case.room.clear());
        with(&|case| case.policy = Policy::Spray);
        all.retain(|case| case.size() < self.size());
        all
    }

    /// How much there is to read in it.
    fn size(&self) -> u64 {
        let loads = self.loads.iter().map(|load| {
            let options = [load.pause_us, load.deadline_us, load.cancel_one_in];
            let given = options.iter().filter(|value| **value > 0).count() as u64;
            20 + load.count
                + load.threads
                + load.batch
                + load.processes
                + load.block.ilog2() as u64
                + load.rails.len() as u64
                + given
        });
        let plain = self.jitter.len() == 2;
        let knobs = self.engine.len()
            + if plain { 0 } else { 1 + self.jitter.len() }
            + self.timing.len()
            + self.limits.len()
            + self.room.len()
            + self.trouble.len();
        let faults = self
            .faults
            .iter()
            .map(|fault| 10 + fault.times)
            .sum::<u64>();
        loads.sum::<u64>()
            + faults
            + 5 * (self.rails.len() + self.bottlenecks.len()) as u64
            + knobs as u64
            + self
                .isolation
                .as_ref()
                .map_or(0, |row| 10 + 5 * row.hints.len() as u64)
            + u64::from(self.policy != Policy::Spray)
    }
}

/// The smallest scenario found in so long that goes wrong as `case` does.
pub fn shrink(case: &Case, violation: &str, within: Duration) -> (Case, String) {
    let kind = kind_of(violation);
    let mut best = (case.clone(), violation.to_owned());
    let began = Instant::now();
    'again: loop {
        for smaller in best.0.smaller() {
            if began.elapsed() > within {
                break;
            }
            if let Some(violation) = violation_of(&smaller).filter(|text| kind_of(text) == kind) {
                best = (smaller, violation);
                continue 'again;
            }
        }
        break;
    }
    best
}
