//! What goes wrong in a trial, and when.

use crate::case::{Fault, Target};

use super::draw::Draw;

/// Each burst is a change of the fabric, which costs time to look at.
const BURSTS_US_MAX: u64 = 2_000_000;

/// What goes wrong besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trouble {
    Errors,
    Lost,
    Silence,
    Outage,
    Flapping,
    Slowdown,
    Bursts,
    Stall,
}

impl Draw {
    /// Draws what will go wrong.
    pub(super) fn trouble(&mut self) {
        let kinds = [
            (Trouble::Errors, "errors"),
            (Trouble::Errors, "errors"),
            (Trouble::Lost, "lost completions"),
            (Trouble::Silence, "silence"),
            (Trouble::Outage, "outage"),
            (Trouble::Flapping, "flapping"),
            (Trouble::Slowdown, "rates change"),
            (Trouble::Slowdown, "rates change"),
            (Trouble::Bursts, "bursts of others"),
            (Trouble::Stall, "stalls"),
        ];
        let count = match self.chance.below(4) {
            0 | 1 => 0,
            2 => 1,
            _ => 1 + self.chance.below(3),
        };
        for _ in 0..count {
            let (kind, feature) = self.one_of(&kinds);
            if self.has(feature, !self.trouble.contains(&kind)) {
                self.trouble.push(kind);
            }
        }
        self.has("no trouble", count == 0);
    }

    /// Draws when, and to what it happens.
    pub(super) fn faults(&mut self) {
        for kind in self.trouble.clone() {
            self.fault(kind);
        }
        if !self.case.trouble.is_empty() {
            let until_ms = self.case.duration_ms as f64;
            self.case.trouble.push(("until_ms", until_ms));
        }
    }

    fn fault(&mut self, kind: Trouble) {
        let all = self.duration_us;
        let (name, factor) = match kind {
            Trouble::Errors => {
                let one_in = self.between(100, 1_000_000);
                self.case.trouble.push(("error_one_in", one_in as f64));
                self.case.trouble.push(("late_us", 100.0));
                self.has("an error in less than 1,000 works", one_in < 1_000);
                return;
            }
            Trouble::Lost => {
                let one_in = self.between(500, 100_000);
                self.case.trouble.push(("lost_one_in", one_in as f64));
                return;
            }
            Trouble::Silence => ("silent", None),
            Trouble::Outage => ("error", None),
            Trouble::Flapping => (self.one_of(&["silent", "error"]), None),
            Trouble::Slowdown => {
                let factor = self.between(10, 900) as f64 / 1_000.0;
                ("slow", Some(factor))
            }
            Trouble::Bursts => {
                let factor = self.between(10, 500) as f64 / 1_000.0;
                ("bursts", Some(factor))
            }
            Trouble::Stall => ("stall", None),
        };
        let times = match kind {
            Trouble::Flapping => self.between(3, 20),
            Trouble::Slowdown | Trouble::Stall => self.between(1, 10),
            _ => 1,
        };
        let every_us = all / (times + 1);
        let for_us = match kind {
            Trouble::Bursts => all.min(BURSTS_US_MAX),
            Trouble::Stall => self.between(100, (every_us / 8).min(20_000)),
            _ => self.between(50, every_us / 2),
        };
        let at_us = match kind {
            Trouble::Bursts => 0,
            _ => self.chance.below(every_us.max(1)),
        };
        let target = self.target(kind);
        self.case.faults.push(Fault {
            kind: name,
            target,
            at_us,
            for_us,
            every_us,
            times,
            factor,
        });
    }

    /// One device mostly; all of a host now and then.
    fn target(&mut self, kind: Trouble) -> Target {
        let (from, to) = self.pairs[0];
        if kind == Trouble::Stall {
            return Target::Host(from);
        }
        if !self.case.bottlenecks.is_empty() && kind == Trouble::Slowdown && self.one_in(2) {
            return Target::Bottleneck(0);
        }
        if self.one_in(6) {
            return Target::Devices(self.one_of(&[from, to]));
        }
        let rails = self.case.rails.len() as u64;
        let rail = self.case.rails[self.chance.below(rails) as usize];
        Target::Device(self.one_of(&[rail.from, rail.to]))
    }
}
