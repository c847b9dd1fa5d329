//! Agents that say which class of rails is to carry what, and engines that read it: through core's own record, in
//! memory that both have, as the shells do.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use polyrail_core::path::hint::{Client, Connection, HintReader, HintWriter, NoHint, words_for};
use polyrail_core::path::share::Shares;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::PeerId;

use super::World;
use super::agenda::What;
use crate::setup::{Isolation, Said, Setup};

/// How often a worker reads what is said, as the engine's does.
pub(super) const READ_INTERVAL_NS: u64 = 10_000_000;
/// How often an agent that is not there is looked for.
const ATTACH_INTERVAL_NS: u64 = 100_000_000;
/// An agent beats so many times in what readers let pass.
const BEATS: u64 = 5;
/// One that was killed by chance is started again within so many times what readers let pass.
const RESTART_AGES: u64 = 4;

type Words = Arc<[AtomicU64]>;

/// The agent of one host.
struct Agent {
    words: Words,
    /// `None`: it is dead.
    writer: Option<HintWriter<Words>>,
    /// Those that were killed: they say nothing any more, not even that they have ended.
    killed: Vec<HintWriter<Words>>,
    /// How many were started: what was entered for an earlier one means nothing.
    lives: u32,
    /// Its last sign of life.
    beat_at: u64,
    /// When it said last what it has to say; `None`: nothing in this life.
    spoke_at: Option<u64>,
    /// What it said last of all connections, of what there is to say on its host.
    said_of_all: Option<usize>,
}

impl Agent {
    fn new(slots: usize) -> Self {
        let words = words_for(slots as u32);
        Self {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            writer: None,
            killed: Vec::new(),
            lives: 0,
            beat_at: 0,
            spoke_at: None,
            said_of_all: None,
        }
    }
}

/// What one engine knows of its host's agent, for one peer.
#[derive(Default)]
struct Reader {
    reader: Option<HintReader<Words>>,
    attach_at: u64,
}

/// All agents, and who reads them.
pub(super) struct Agents {
    /// By host.
    rows: Vec<Option<Agent>>,
    /// By engine and peer.
    readers: Vec<Vec<Reader>>,
    /// By worker: when it reads next.
    read_at: Vec<u64>,
    said: Vec<Said>,
    age_max_ns: u64,
}

impl Agents {
    /// One for each host that something is to be said on; none of them runs yet.
    pub(super) fn new(setup: &Setup) -> Self {
        let isolation = setup.isolation.as_ref();
        let has_one = |host: usize| isolation.is_some_and(|isolation| isolation.agents[host]);
        let connections = |host: usize| {
            let engines = setup.engines.iter().filter(|engine| engine.host == host);
            engines.map(|engine| engine.peers.len()).sum::<usize>()
        };
        let readers = |engine: &crate::setup::Engine| {
            engine.peers.iter().map(|_| Reader::default()).collect()
        };
        Self {
            rows: (0..setup.hosts)
                .map(|host| has_one(host).then(|| Agent::new(connections(host).max(1))))
                .collect(),
            readers: setup.engines.iter().map(readers).collect(),
            read_at: vec![0; setup.workers()],
            said: isolation.map_or(Vec::new(), |isolation| isolation.said.clone()),
            age_max_ns: isolation.map_or(0, Isolation::hint_age_ns),
        }
    }

    /// The agent says what it has to say now. What it has said already it says once more, which changes nothing.
    fn speak(&mut self, setup: &Setup, now: u64, host: usize) {
        let Some(row) = self.rows[host].as_mut() else {
            return;
        };
        let Some(writer) = row.writer.as_mut() else {
            return;
        };
        row.spoke_at = Some(now);
        let is_due = |said: &&Said| said.host == host && said.at <= now;
        let due: Vec<_> = self.said.iter().filter(is_due).collect();
        let of_all = due.iter().rposition(|said| said.to.is_none());
        if of_all != row.said_of_all {
            row.said_of_all = of_all;
            writer.set_all(of_all.and_then(|index| due[index].shares));
        }
        for said in due.into_iter().skip(of_all.map_or(0, |index| index + 1)) {
            let leases: Vec<_> = writer.leases().collect();
            for lease in leases {
                let of_host = |peer| {
                    let mut devices = setup.devices.iter();
                    devices.any(|row| row.address == Some(peer) && Some(row.host) == said.to)
                };
                let fits = lease
                    .details
                    .is_some_and(|(_, connection)| of_host(connection.peer));
                if fits && lease.shares != said.shares {
                    // Nobody gives a slot back meanwhile.
                    let _ = writer.set(lease.id, said.shares);
                }
            }
        }
    }

    /// Whether a host's agent lives and says this of connections to another host, or of all; if not, in words what it
    /// does.
    fn check_hint(&self, now: u64, host: usize, to: usize, hint: Shares) -> Result<(), String> {
        let Some(row) = &self.rows[host] else {
            return Err("does not exist".to_owned());
        };
        let silent_ns = now - row.beat_at;
        if silent_ns > self.age_max_ns {
            return Err(format!("has been silent for {silent_ns} ns"));
        }
        let is_due = |said: &&Said| said.host == host && Some(said.at) <= row.spoke_at;
        let due: Vec<_> = self.said.iter().filter(is_due).collect();
        let of_all = due.iter().rposition(|said| said.to.is_none());
        let mut since = due.iter().skip(of_all.map_or(0, |index| index + 1));
        let of_this = since.rfind(|said| said.to == Some(to));
        let mut in_force = of_all.map(|index| &due[index]).into_iter().chain(of_this);
        match in_force.any(|said| said.shares == Some(hint)) {
            true => Ok(()),
            false => Err("does not say so".to_owned()),
        }
    }

    /// What an engine reads of one peer.
    fn read(
        &mut self,
        now: u64,
        host: usize,
        (engine, peer): (usize, usize),
        connection: Connection,
    ) -> Option<Shares> {
        let words = &self.rows[host].as_ref()?.words;
        let row = &mut self.readers[engine][peer];
        if row.reader.is_none() && row.attach_at <= now {
            row.attach_at = now + ATTACH_INTERVAL_NS;
            let client = Client {
                pid: engine as u32 + 1,
                started: 1,
            };
            let age_max = Duration::from_nanos(self.age_max_ns);
            row.reader = HintReader::attach(words.clone(), client, connection, age_max).ok();
        }
        match row.reader.as_ref()?.try_read(Instant::from_nanos(now)) {
            Ok(shares) => Some(shares),
            Err(NoHint::Absent | NoHint::Restarted) => {
                row.reader = None;
                None
            }
            Err(NoHint::Stale { .. } | NoHint::Torn | NoHint::Unset) => None,
        }
    }
}

impl World<'_> {
    /// Agents are started, and what they will say is entered.
    pub(super) fn begin_agents(&mut self) {
        for host in 0..self.agents.rows.len() {
            self.agent_starts(host);
        }
        for index in 0..self.agents.said.len() {
            let Said { at, host, .. } = self.agents.said[index];
            self.agenda.enter(at, What::Says { host: host as u32 });
        }
    }

    pub(super) fn agent_starts(&mut self, host: usize) {
        let Some(row) = self.agents.rows[host]
            .as_mut()
            .filter(|row| row.writer.is_none())
        else {
            return;
        };
        // There is room for a slot at least.
        row.writer = HintWriter::start(row.words.clone(), Instant::from_nanos(self.now)).ok();
        row.lives += 1;
        (row.beat_at, row.spoke_at, row.said_of_all) = (self.now, None, None);
        let (host, life) = (host as u32, row.lives);
        self.agenda.enter(self.now, What::Beats { host, life });
    }

    pub(super) fn agent_dies(&mut self, host: usize) {
        if let Some(row) = self.agents.rows[host].as_mut() {
            row.killed.extend(row.writer.take());
        }
    }

    pub(super) fn says(&mut self, host: u32) {
        self.agents.speak(self.setup, self.now, host as usize);
    }

    /// An agent gives a sign of life, unless it is killed just now.
    pub(super) fn beats(&mut self, host: u32, life: u32) {
        let age_ns = self.agents.age_max_ns;
        let Some(row) = self.agents.rows[host as usize]
            .as_mut()
            .filter(|row| row.lives == life)
        else {
            return;
        };
        let Some(writer) = row.writer.as_mut() else {
            return;
        };
        if self.luck.agent_crashes(self.now) {
            self.agent_dies(host as usize);
            let at = self.now + self.luck.below(RESTART_AGES * age_ns);
            return self.agenda.enter(at, What::AgentStarts { host });
        }
        writer.beat(Instant::from_nanos(self.now));
        row.beat_at = self.now;
        self.says(host);
        let at = self.now + (age_ns / BEATS).max(1);
        self.agenda.enter(at, What::Beats { host, life });
    }

    /// A worker tells core what an agent wants, now and then.
    pub(super) fn heed_hints(&mut self, index: u32) {
        let heeds = self
            .setup
            .isolation
            .as_ref()
            .is_some_and(Isolation::heeds_hints);
        if !heeds || self.now < self.agents.read_at[index as usize] {
            return;
        }
        self.agents.read_at[index as usize] = self.now + READ_INTERVAL_NS;
        let engine = self.workers[index as usize].engine;
        let host = self.setup.engines[engine].host;
        for peer in 0..self.setup.engines[engine].peers.len() {
            let Some(connection) = self.paths.connection(engine, peer) else {
                continue;
            };
            let hint = self.agents.read(self.now, host, (engine, peer), connection);
            let to = self.setup.engines[engine].peers[peer];
            if let Some(shares) = hint
                && let Err(wrong) = self.agents.check_hint(self.now, host, to, shares)
            {
                let text = format!("worker {index} hears {shares} of its agent, which {wrong}");
                self.ledger.violation(self.now, text);
            }
            let (now, peer) = (Instant::from_nanos(self.now), PeerId(peer as u16));
            self.split_hinted(index, peer, hint);
            self.workers[index as usize]
                .core
                .handle_hint(now, peer, hint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn a_hint_is_what_a_living_agent_said_last() {
        let text = r#"
            name = "hints"
            duration_ms = 10
            path = { mode = "advanced", hint_age_max_ms = 5 }
            hint = [
                { at_ms = 1, host = "a", shares = [1024] },
                { at_ms = 2, host = "a", to = "b", shares = [512, 512] },
                { at_ms = 3, host = "a", shares = [0, 1024] },
            ]
            [[host]]
            name = "a"
            [[host]]
            name = "b"
            [[device]]
            host = "*"
            name = "n"
            rate_gbits_per_sec = 1
            address = "10.0.0.1"
            [[rail]]
            from = "a/n"
            to = "b/n"
            [[workload]]
            from = "a"
            to = "b"
            op = "write"
            block = 1
        "#;
        let setup = Setup::new(text, &Scenario::parse(text).unwrap(), None).unwrap();
        let mut agents = Agents::new(&setup);
        let [none, half, all] = [0, 512, 1_024].map(Shares::pair);
        let ms = 1_000_000;
        // (name, when it spoke, now, to host, which hints are good)
        let cases = [
            ("it has not spoken", None, 0, 1, [false, false, false]),
            ("of all", Some(ms), ms, 1, [true, false, false]),
            ("of one", Some(2 * ms), 2 * ms, 1, [true, true, false]),
            ("another", Some(2 * ms), 2 * ms, 0, [true, false, false]),
            (
                "of all again",
                Some(3 * ms),
                8 * ms,
                1,
                [false, false, true],
            ),
            ("silent", Some(3 * ms), 8 * ms + 1, 1, [false, false, false]),
        ];
        for (name, spoke_at, now, to, good) in cases {
            let row = agents.rows[0].as_mut().unwrap();
            row.spoke_at = spoke_at;
            row.beat_at = spoke_at.unwrap_or(0);
            let seen = [none, half, all].map(|hint| agents.check_hint(now, 0, to, hint).is_ok());
            assert_eq!(seen, good, "{name}");
        }
        assert!(agents.check_hint(0, 1, 0, all).is_err(), "no agent");
    }
}
