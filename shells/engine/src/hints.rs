//! What an agent says of each peer, read from its file now and then by whichever worker is at work.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;

use polyrail_core::path::hint::{Client, Connection, HintReader, NoHint};
use polyrail_core::path::share::Shares;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::PeerId;
use polyrail_shared::hint::{ClientFile, default_path};
use polyrail_shared::{host_now, own_process};

use crate::config::{IsolationMode, PathConfig, core_duration};
use crate::lock::lock;
use crate::stats::HintStats;

/// How often a worker reads them.
pub(crate) const READ_INTERVAL: Duration = Duration::from_millis(10);
/// How often an agent that is not there is looked for.
const ATTACH_INTERVAL: Duration = Duration::from_millis(100);
/// What stands for the place where agents are if nobody says otherwise.
pub(crate) const AUTO: &str = "auto";

/// The readers of an engine, one for each peer that an agent may steer.
#[derive(Debug)]
pub(crate) struct Hints {
    file: PathBuf,
    age_max: Duration,
    process: Option<Client>,
    readers: Mutex<HashMap<PeerId, Reader>>,
}

#[derive(Debug)]
struct Reader {
    connection: Connection,
    reader: Option<HintReader<ClientFile>>,
    /// When to look for an agent again.
    attach_at: Instant,
}

impl Hints {
    /// `None` where no agent is asked: then its file is not opened either.
    pub(crate) fn new(config: &PathConfig) -> Option<Self> {
        let file = match config.hint_file.as_str() {
            AUTO => default_path(),
            path => PathBuf::from(path),
        };
        (config.mode == IsolationMode::Advanced).then(|| Self {
            file,
            age_max: core_duration(config.hint_age_max),
            process: own_process(),
            readers: Mutex::default(),
        })
    }

    /// What is to be done about each of these peers now. Those that are not named any more are let go.
    pub(crate) fn read(
        &self,
        peers: impl IntoIterator<Item = (PeerId, Connection)>,
    ) -> Vec<(PeerId, Option<Shares>)> {
        let now = host_now();
        let mut readers = lock(&self.readers);
        let mut said = Vec::new();
        for (peer, connection) in peers {
            let reader = readers
                .entry(peer)
                .or_insert_with(|| Reader::new(connection));
            if reader.connection != connection {
                // The number is another's now.
                *reader = Reader::new(connection);
            }
            said.push((peer, self.read_one(now, reader)));
        }
        readers.retain(|peer, _| said.iter().any(|(named, _)| named == peer));
        said
    }

    /// The agent that was heard last, if there is one.
    pub(crate) fn stats(&self) -> Option<HintStats> {
        let (now, readers) = (host_now(), lock(&self.readers));
        let agents = readers
            .values()
            .filter_map(|row| row.reader.as_ref()?.agent(now));
        let (generation, age) = agents.min_by_key(|(_, age)| *age)?;
        Some(HintStats {
            generation,
            age: age.into(),
        })
    }

    fn read_one(&self, now: Instant, row: &mut Reader) -> Option<Shares> {
        if row.reader.is_none() && row.attach_at <= now {
            row.attach_at = now + ATTACH_INTERVAL;
            row.reader = self.attach(row.connection);
        }
        match row.reader.as_ref()?.try_read(now) {
            Ok(shares) => Some(shares),
            Err(NoHint::Absent | NoHint::Restarted) => {
                row.reader = None;
                None
            }
            Err(NoHint::Stale { .. } | NoHint::Torn | NoHint::Unset) => None,
        }
    }

    /// No agent, no hint: that is no error.
    fn attach(&self, connection: Connection) -> Option<HintReader<ClientFile>> {
        let file = ClientFile::open(&self.file).ok()?;
        HintReader::attach(file, self.process?, connection, self.age_max).ok()
    }
}

impl Reader {
    fn new(connection: Connection) -> Self {
        Self {
            connection,
            reader: None,
            attach_at: Instant::ZERO,
        }
    }
}
