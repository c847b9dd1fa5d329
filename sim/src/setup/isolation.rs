//! Path isolation: where hosts are, how the two ends of a connection see it, and what agents say.

use std::net::IpAddr;

use polyrail_core::path::class::{CLASSES_MAX, ClassSet, RailClass};
use polyrail_core::path::config::{PathConfig, PathMode};
use polyrail_core::path::island::{IslandPrefix, PathClass};
use polyrail_core::path::layout::QueuePairs;
use polyrail_core::path::share::Shares;
use polyrail_core::path::view::PathView;
use polyrail_core::plan::PlanPath;

use super::{Builder, Checked, Cut, Interval, MS, Setup};
use crate::scenario::{self, Hint};

const HINT_AGE_MS_MAX: u64 = 60_000;

/// How paths are isolated.
#[derive(Clone, Debug)]
pub(crate) struct Isolation {
    /// What all hosts have alike; queue pairs and prefix are each connection's and host's.
    config: PathConfig,
    /// By host: which islands it knows.
    prefixes: Vec<IslandPrefix>,
    /// By host: whether it has an agent.
    pub(crate) agents: Vec<bool>,
    /// What agents say, in order of time.
    pub(crate) said: Vec<Said>,
}

/// What an agent says from some time on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) at: u64,
    pub(crate) host: usize,
    /// Of connections to this host; `None`: of all.
    pub(crate) to: Option<usize>,
    pub(crate) shares: Option<Shares>,
}

/// A rail between two hosts, as one of them sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) class: RailClass,
    pub(crate) own: IpAddr,
    pub(crate) peer: IpAddr,
}

impl Isolation {
    /// Whether agents are asked.
    pub(crate) fn heeds_hints(&self) -> bool {
        self.config.mode == PathMode::Advanced
    }

    /// How long an agent may be silent, in nanoseconds.
    pub(crate) fn hint_age_ns(&self) -> u64 {
        self.config.hint_age_max.as_nanos()
    }

    /// How a host sees a connection over these rails, and what core is to know of that.
    pub(crate) fn see(&self, host: usize, rails: &[Seen]) -> (PlanPath, PathView) {
        let mut queue_pairs = [0_u16; CLASSES_MAX];
        for rail in rails {
            queue_pairs[rail.class.index()] += 1;
        }
        let config = PathConfig {
            island_prefix: self.prefixes[host],
            queue_pairs,
            ..self.config
        };
        let primary = rails.iter().filter(|rail| rail.class == RailClass::PRIMARY);
        let view = PathView::new(&config, primary.map(|rail| (rail.own, rail.peer)));
        let class = view.class;
        (PlanPath { config, class }, view)
    }
}

impl Setup {
    /// The rails from an engine to one of its peers, as the engine sees them.
    pub(crate) fn rails_seen(&self, engine: usize, peer: usize) -> Vec<Seen> {
        let row = &self.engines[engine];
        let to_peer = row.rails.iter().zip(&row.rail_peers);
        let to_peer = to_peer.filter(|(_, to)| usize::from(**to) == peer);
        to_peer
            .map(|(rail, _)| &self.rails[*rail])
            .filter(|rail| rail.stands_in_for.is_none())
            .filter_map(|rail| {
                Some(Seen {
                    class: rail.class,
                    own: self.devices[rail.from].address?,
                    peer: self.devices[rail.to].address?,
                })
            })
            .collect()
    }

    /// What core is to know of a connection, if paths are isolated.
    pub(crate) fn path_of(&self, engine: usize, peer: usize) -> Option<PlanPath> {
        let isolation = self.isolation.as_ref()?;
        let host = self.engines[engine].host;
        Some(isolation.see(host, &self.rails_seen(engine, peer)).0)
    }

    /// Classes that a connection may use at all.
    pub(crate) fn classes_of(&self, engine: usize, peer: usize) -> ClassSet {
        let path = self.path_of(engine, peer);
        path.map_or(RailClass::all().collect(), |path| {
            QueuePairs::new(&path.config, path.class).classes()
        })
    }

    /// Whether a rail may carry something in an interval, as far as mode and topology say; what agents say is no
    /// limit.
    pub(crate) fn may_carry(&self, rail: usize, interval: &Interval) -> bool {
        let own = self.rails[rail];
        let engine_of = |(index, row): (usize, &super::Engine)| {
            let number = row.rails.iter().position(|other| *other == rail)?;
            Some((index, usize::from(row.rail_peers[number])))
        };
        let connection = self.engines.iter().enumerate().find_map(engine_of);
        let path = connection.and_then(|(engine, peer)| self.path_of(engine, peer));
        let Some(path) = path.filter(|path| path.config.mode == PathMode::Vanilla) else {
            return true;
        };
        let is_supplementary = own.class != RailClass::PRIMARY;
        if path.class == PathClass::InterIsland {
            return !is_supplementary;
        }
        let hosts =
            |rail: &super::Rail| [rail.from, rail.to].map(|device| self.devices[device].host);
        let alive = |(index, other): (usize, &super::Rail)| {
            other.class != RailClass::PRIMARY
                && hosts(other) == hosts(&own)
                && interval.cuts[index] == Cut::No
        };
        is_supplementary || !self.rails.iter().enumerate().any(alive)
    }
}

impl Builder<'_> {
    /// The tables of path isolation.
    pub(super) fn isolation(&self) -> Checked<Option<Isolation>> {
        let Some(table) = &self.scenario.path else {
            return match self.scenario.hint.first() {
                Some(hint) => self.error(&hint.host, "hints need a [path] in mode advanced"),
                None => Ok(None),
            };
        };
        self.within(&table.island_prefix_bits, 0, 32, "island_prefix_bits")?;
        self.within(
            &table.hint_age_max_ms,
            1,
            HINT_AGE_MS_MAX,
            "hint_age_max_ms",
        )?;
        let config = table.config();
        let mut isolation = Isolation {
            config,
            prefixes: self.prefixes(config.island_prefix)?,
            agents: vec![false; self.hosts.len()],
            said: Vec::new(),
        };
        for hint in &self.scenario.hint {
            if !isolation.heeds_hints() {
                return self.error(&hint.host, "hints need a [path] in mode advanced");
            }
            let said = self.said(hint)?;
            isolation.agents[said.host] = true;
            isolation.said.push(said);
        }
        isolation.said.sort_by_key(|said| said.at);
        Ok(Some(isolation))
    }

    /// By host: the islands that it knows.
    fn prefixes(&self, usual: IslandPrefix) -> Checked<Vec<IslandPrefix>> {
        let mut prefixes = Vec::new();
        for host in &self.scenario.host {
            let own = match &host.island_prefix_bits {
                Some(bits) => scenario::prefix(self.within(bits, 0, 32, "island_prefix_bits")?),
                None => usual,
            };
            let count = host.count.as_ref().map_or(1, |count| *count.get_ref());
            prefixes.extend((0..count).map(|_| own));
        }
        Ok(prefixes)
    }

    fn said(&self, hint: &Hint) -> Checked<Said> {
        let at_ms = self.within(&hint.at_ms, 0.0, super::DURATION_MS_MAX as f64, "at_ms")?;
        let shares = match &hint.shares {
            Some(given) => {
                let mut parts = [0; CLASSES_MAX];
                for (part, given) in parts.iter_mut().zip(given.get_ref()) {
                    *part = *given;
                }
                match Shares::new(parts) {
                    Ok(shares) if given.get_ref().len() <= CLASSES_MAX => Some(shares),
                    Ok(_) => return self.error(given, "there are 8 classes"),
                    Err(error) => return self.error(given, error.to_string()),
                }
            }
            None => None,
        };
        Ok(Said {
            at: (at_ms * MS) as u64,
            host: self.host(&hint.host)?,
            to: match &hint.to {
                Some(to) => Some(self.host(to)?),
                None => None,
            },
            shares,
        })
    }

    /// Whether path isolation has what it goes by: addresses, and a primary rail wherever there are any.
    pub(super) fn check_isolation(&self, setup: &Setup) -> Checked<()> {
        let Some(table) = &self.scenario.path else {
            return Ok(());
        };
        for (engine, row) in setup.engines.iter().enumerate() {
            for (peer, far) in row.peers.iter().enumerate() {
                let seen = setup.rails_seen(engine, peer);
                let (near, far) = (&self.hosts[row.host].0, &self.hosts[*far].0);
                let counts = |(rail, to): &(&usize, &u16)| {
                    usize::from(**to) == peer && self.rails[**rail].stands_in_for.is_none()
                };
                let rails = row.rails.iter().zip(&row.rail_peers);
                if seen.len() < rails.filter(counts).count() {
                    let text = format!("a device between {near} and {far} has no address");
                    return self.error(&table.island_prefix_bits, text);
                }
                if !seen.iter().any(|rail| rail.class == RailClass::PRIMARY) {
                    let text = format!("no rail from {near} to {far} is of class 0");
                    return self.error(&table.island_prefix_bits, text);
                }
            }
        }
        Ok(())
    }
}
