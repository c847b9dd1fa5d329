//! Pictures of runs: a page for people, and a trace for a viewer of traces.
//!
//! The page is one file without scripts and without a network: HTML with SVG inside, whose colours are
//! variables of its style sheet, so that it follows the reader's light or dark background. The charts are
//! written as SVG text by `svg`: libraries of charts write fixed colours into every element.

mod axis;
mod figure;
mod latency;
mod page;
mod policies;
mod posting;
mod rails;
mod settings;
mod staging;
mod svg;
mod trace;

pub use figure::page as figure_page;
pub use page::page;
pub use posting::page as posting_page;
pub use staging::page as staging_page;
pub use trace::{TRACED_SLICES_MAX, trace};

use crate::model::History;
use crate::report::Outcome;
use crate::setup::{Cut, PPM, Setup};

/// A run, and how it went from instant to instant.
#[derive(Clone, Debug)]
pub struct Run {
    /// The numbers.
    pub outcome: Outcome,
    pub(crate) history: History,
}

/// Something that is wrong with a rail for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) rail: usize,
    pub(crate) from: u64,
    /// [`u64::MAX`]: to the end.
    pub(crate) to: u64,
    pub(crate) what: Wrong,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    Silent,
    Error,
    /// It has this many millionths of its best rate.
    Slow(u64),
}

impl Wrong {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Silent => "silent".to_owned(),
            Self::Error => "fails".to_owned(),
            Self::Slow(ppm) => format!("× {}", ppm as f64 / PPM as f64),
        }
    }
}

/// What is wrong with which rail when, by rail and time.
pub(crate) fn faults(setup: &Setup) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    for rail in 0..setup.rails.len() {
        let rate_in = |interval: &crate::setup::Interval| {
            let servers = setup.routes[crate::setup::route_of(rail, false)]
                .servers
                .iter();
            let rates = servers.map(|server| interval.bytes_per_sec[*server as usize]);
            rates.min().unwrap_or(0)
        };
        let best = setup
            .intervals
            .iter()
            .map(rate_in)
            .max()
            .unwrap_or(0)
            .max(1);
        for (index, interval) in setup.intervals.iter().enumerate() {
            let rate = rate_in(interval);
            let what = match interval.cuts[rail] {
                Cut::Silent => Wrong::Silent,
                Cut::Error => Wrong::Error,
                Cut::No if rate < best => {
                    Wrong::Slow((u128::from(rate) * u128::from(PPM) / u128::from(best)) as u64)
                }
                Cut::No => continue,
            };
            let next = setup.intervals.get(index + 1);
            let (from, to) = (
                interval.starts_at,
                next.map_or(u64::MAX, |next| next.starts_at),
            );
            match faults.last_mut() {
                Some(last) if (last.rail, last.to, last.what) == (rail, from, what) => last.to = to,
                _ => faults.push(Fault {
                    rail,
                    from,
                    to,
                    what,
                }),
            }
        }
    }
    faults
}
