//! `polyrail top`: what a running engine does, asked of its metrics port again and again.

mod fetch;
mod screen;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::address;
use crate::exit::Failure;
use crate::sizes;
use fetch::fetch;

/// Rates of a rail that are kept for its chart.
const HISTORY: usize = 40;

/// Watches a running engine over its metrics port: rails with their rates and states, workers, limits.
///
/// The address is that of `serve --metrics`, or of `Engine::expose` in a program.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  polyrail top 127.0.0.1:9090\n  polyrail top 127.0.0.1:9090 --once --json"
)]
pub(crate) struct TopArgs {
    /// Where the engine answers about its metrics.
    #[arg(value_name = "HOST:PORT", value_parser = address::target, required_unless_present = "reference")]
    at: Option<String>,
    /// Look once and end. Rates are of the second before.
    #[arg(long)]
    once: bool,
    /// Print what the engine answers, one JSON object on each line.
    #[arg(long)]
    json: bool,
    /// Seconds between looks.
    #[arg(long, value_name = "S", default_value = "1", allow_negative_numbers = true, value_parser = sizes::seconds)]
    interval: Duration,
    /// Print all metrics, with their labels and meanings, and ask nobody.
    #[arg(long, conflicts_with = "at")]
    reference: bool,
}

/// What the engine says of itself, as far as it is shown.
#[derive(Deserialize)]
struct Snapshot {
    name: String,
    version: String,
    listening: Option<String>,
    rails: Vec<Rail>,
    workers: Vec<Worker>,
    limits: Vec<Limit>,
    failovers: Vec<Failover>,
    sessions: Vec<Session>,
    unsettled: Unsettled,
    fences: Fences,
}

#[derive(Deserialize)]
struct Rail {
    #[serde(rename = "rail")]
    name: String,
    is_spare: bool,
    is_withdrawn: bool,
    state: String,
    bytes: u64,
    inflight_bytes: u64,
    bytes_per_sec: u64,
}

#[derive(Deserialize)]
struct Worker {
    worker: Option<u16>,
    held: u32,
    limit: u32,
    waiting: u32,
    completions: u64,
    admission_timeouts: u64,
}

#[derive(Deserialize)]
struct Limit {
    what: String,
    used: u64,
    most: u64,
}

/// One that a peer has with it.
#[derive(Deserialize)]
struct Session {
    peer: String,
    address: String,
    seconds: f64,
    bytes: u64,
}

#[derive(Deserialize)]
struct Unsettled {
    requests: u64,
    held_bytes: u64,
    unknown_bytes: u64,
    oldest: Option<f64>,
}

#[derive(Deserialize)]
struct Fences {
    waiting: u64,
    oldest: Option<f64>,
}

#[derive(Deserialize)]
struct Failover {
    from: String,
    to: String,
    count: u64,
}

/// What has been seen so far.
#[derive(Default)]
struct Seen {
    /// When the last look was, and what each rail had carried then.
    last: Option<(Instant, BTreeMap<String, u64>)>,
    /// Bytes per second of each rail, the newest one last.
    rates: BTreeMap<String, VecDeque<f64>>,
}

impl Seen {
    /// Notes one look more.
    fn look(&mut self, at: Instant, snapshot: &Snapshot) {
        let mut carried: BTreeMap<String, u64> = BTreeMap::new();
        for rail in &snapshot.rails {
            // A rail to a peer that came back has the name of the one before.
            *carried.entry(rail.name.clone()).or_default() += rail.bytes;
        }
        if let Some((before, had)) = &self.last {
            let seconds = at.duration_since(*before).as_secs_f64();
            for (name, bytes) in &carried {
                let had = had.get(name).copied().unwrap_or(0);
                let rates = self.rates.entry(name.clone()).or_default();
                // Less than before: another engine answers there now.
                rates.push_back(bytes.saturating_sub(had) as f64 / seconds);
                while rates.len() > HISTORY {
                    rates.pop_front();
                }
            }
            self.rates.retain(|name, _| carried.contains_key(name));
        }
        self.last = Some((at, carried));
    }
}

/// Runs the command.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let Some(at) = &args.at else {
        let page = polyrail::metrics_reference();
        return write!(io::stdout(), "{page}").map_err(Failure::output);
    };
    watch(args, at)
}

fn watch(args: &TopArgs, at: &str) -> Result<(), Failure> {
    let mut seen = Seen::default();
    let mut lines = 0;
    let is_terminal = io::stdout().is_terminal();
    loop {
        let text = fetch(at)?;
        let mut shows = true;
        if args.json {
            writeln!(io::stdout(), "{text}").map_err(Failure::output)?;
        } else {
            let snapshot: Snapshot = serde_json::from_str(&text)
                .map_err(|e| Failure::Environment(format!("{at} answers something else: {e}")))?;
            // There is no rate before the second look.
            shows = seen.last.is_some();
            seen.look(Instant::now(), &snapshot);
            if shows {
                let screen = screen::draw(at, &snapshot, &seen);
                lines = show(&screen, is_terminal.then_some(lines)).map_err(Failure::output)?;
            }
        }
        if args.once && shows {
            return Ok(());
        }
        thread::sleep(args.interval);
    }
}

/// Shows it, over what was shown before if it can be taken back. How many lines it has.
fn show(screen: &str, before: Option<usize>) -> io::Result<usize> {
    let mut out = io::stdout().lock();
    if let Some(lines @ 1..) = before {
        write!(out, "\x1b[{lines}A\x1b[J")?;
    }
    out.write_all(screen.as_bytes())?;
    out.flush()?;
    Ok(screen.lines().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn snapshot(bytes: [u64; 2]) -> Snapshot {
        let text = format!(
            r#"{{"name": "node-7", "version": "1", "listening": "10.0.0.1:7000",
            "rails": [
                {{"rail": "tcp:a>b", "is_spare": false, "is_withdrawn": false, "state": "healthy", "bytes": {},
                  "inflight_bytes": 65536,
                  "bytes_per_sec": 2000000000}},
                {{"rail": "tcp:c>d", "is_spare": false, "is_withdrawn": false, "state": "paused", "bytes": {},
                  "inflight_bytes": 0,
                  "bytes_per_sec": 1000000000}},
                {{"rail": "tcp:a>d", "is_spare": true, "is_withdrawn": false, "state": "healthy", "bytes": 0,
                  "inflight_bytes": 0, "bytes_per_sec": 1}},
                {{"rail": "tcp:e>f", "is_spare": false, "is_withdrawn": true, "state": "healthy", "bytes": 0,
                  "inflight_bytes": 0, "bytes_per_sec": 1}}],
            "workers": [{{"worker": 0, "held": 3, "limit": 16384, "waiting": 0, "completions": 9,
                "admission_timeouts": 0}}],
            "limits": [{{"what": "peers", "used": 2, "most": 1024}}],
            "failovers": [{{"from": "shm", "to": "tcp", "count": 4}}],
            "sessions": [{{"peer": "decode-3", "address": "10.0.0.9:40000", "seconds": 12.5, "bytes": 3000000000}},
                {{"peer": "idle", "address": "10.0.0.8:40000", "seconds": 1.0, "bytes": 0}}],
            "unsettled": {{"requests": 2, "held_bytes": 1048576, "unknown_bytes": 2097152, "oldest": 3.5}},
            "fences": {{"waiting": 1, "oldest": 0.5}}}}"#,
            bytes[0], bytes[1]
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let mut seen = Seen::default();
        let begin = Instant::now();
        seen.look(begin, &snapshot([0, 50]));
        assert!(seen.rates.is_empty());
        seen.look(begin + Duration::from_secs(2), &snapshot([2_000, 40]));
        let rates = |name: &str| seen.rates[name].iter().copied().collect::<Vec<_>>();
        assert_eq!(rates("tcp:a>b"), [1000.0]);
        assert_eq!(
            rates("tcp:c>d"),
            [0.0],
            "an engine that began anew has no negative rate"
        );
    }
}
