//! Everybody by turns: for each round and each cell, one after the other, each in processes of its own.
//!
//! Whose turn it is not is stopped (SIGSTOP), so that those who spin while they are idle disturb nobody.
//! polyrail is not: it sleeps when idle.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::cell::Cell;
use crate::table;

/// How to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds; the table has the median over them, with the least and the greatest.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Milliseconds that each measures a cell in a round.
    #[arg(long, default_value_t = 300)]
    millis: u32,
    /// A Python that has the peers' packages; without it they are left out.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Who takes part, by the beginnings of their names; all if not given.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Which cells, by the beginnings of their names, such as `write 4K`; all if not given.
    #[arg(long, value_delimiter = ',')]
    cells: Vec<String>,
    /// Another build of this program to compare with, as `NAME=PATH`.
    #[arg(long)]
    with: Vec<String>,
    /// Everybody may use that both ends are on one host; there are no floors then.
    #[arg(long)]
    one_host: bool,
    /// polyrail with a cluster's key takes part too.
    #[arg(long, conflicts_with = "one_host")]
    keyed: bool,
    /// What polyrail and bare sockets send is encrypted by the kernel. The bare sockets know their keys already.
    #[arg(long, conflicts_with = "one_host")]
    encrypt: bool,
    /// Where rows go, one JSON object a line.
    #[arg(long)]
    rows: Option<PathBuf>,
}

/// Somebody who takes part.
struct Player {
    name: String,
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Whether it is stopped between its turns.
    stops: bool,
    dead: bool,
}

impl Player {
    /// Starts one; `Err`: it cannot take part, and why.
    fn start(name: &str, command: &mut Command) -> Result<Self, String> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| error.to_string())?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("no pipes".into());
        };
        let mut player = Self {
            name: name.into(),
            process,
            input,
            output: BufReader::new(output),
            stops: !name.starts_with("polyrail"),
            dead: false,
        };
        player.answer()?;
        player.signal(libc::SIGSTOP);
        Ok(player)
    }

    fn signal(&self, signal: i32) {
        if self.stops {
            // SAFETY: no memory is involved; the group is the one that was made for this process.
            unsafe { libc::kill(-(self.process.id() as i32), signal) };
        }
    }

    /// The next line that is meant for us.
    fn answer(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        loop {
            line.clear();
            match self.output.read_line(&mut line) {
                Ok(0) => return Err("it ended".into()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
            if let Some(answer) = line.strip_prefix("@@ ") {
                return serde_json::from_str(answer).map_err(|error| error.to_string());
            }
        }
    }

    fn measure(&mut self, cell: Cell, millis: u32) -> Value {
        self.signal(libc::SIGCONT);
        let asked = writeln!(self.input, "{} {millis}", cell.words());
        let answer = match asked.and_then(|()| self.input.flush()) {
            Ok(()) => self.answer(),
            Err(error) => Err(error.to_string()),
        };
        self.signal(libc::SIGSTOP);
        answer.unwrap_or_else(|error| {
            self.dead = true;
            json!({ "error": error })
        })
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // The target is in the same group.
        // SAFETY: no memory is involved; the group is the one that was made for this process.
        unsafe { libc::kill(-(self.process.id() as i32), libc::SIGKILL) };
        let _ = self.process.wait();
    }
}

/// Runs everybody and prints the table.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    let wanted = |list: &[String], name: &str| {
        // An × is not on every keyboard.
        let plain = |name: &str| name.replace('×', "x");
        list.is_empty()
            || list
                .iter()
                .any(|start| plain(name).starts_with(&plain(start)))
    };
    let folder = tempfile::tempdir()?;
    let key = folder.path().join("cluster.key");
    polyrail::keygen(&key).map_err(io::Error::other)?;
    let mut players = Vec::new();
    for (name, mut command) in commands(args, &key)? {
        if !wanted(&args.only, &name) {
            continue;
        }
        match Player::start(&name, &mut command) {
            Ok(player) => players.push(player),
            Err(error) => eprintln!("{name} takes no part: {error}"),
        }
    }
    let cells = Cell::all().into_iter();
    let cells: Vec<Cell> = cells
        .filter(|cell| wanted(&args.cells, &cell.to_string()))
        .collect();
    let mut file = match &args.rows {
        Some(path) => Some(BufWriter::new(File::create(path)?)),
        None => None,
    };
    let mut rows = Vec::new();
    for round in 0..args.rounds {
        for cell in &cells {
            let count = players.len();
            // Another one begins in each round, so that nobody always follows the same.
            for turn in 0..count {
                let player = &mut players[(turn + round as usize) % count];
                if player.dead {
                    continue;
                }
                let mut row = player.measure(*cell, args.millis);
                if let Some(error) = row.get("error") {
                    eprintln!("{} {cell}: {error}", player.name);
                }
                row["who"] = json!(player.name);
                row["cell"] = json!(cell.to_string());
                row["round"] = json!(round);
                if let Some(file) = &mut file {
                    writeln!(file, "{row}")?;
                    file.flush()?;
                }
                rows.push(row);
            }
        }
        eprintln!("round {} of {} done", round + 1, args.rounds);
    }
    drop(players);
    print!("{}", table::markdown(&rows));
    Ok(())
}

/// Who can take part, and how each is started.
fn commands(args: &Args, key: &Path) -> io::Result<Vec<(String, Command)>> {
    let own = std::env::current_exe()?;
    let initiator = |program: &Path, words: &[&str]| {
        let mut command = Command::new(program);
        command.arg("initiator").args(words);
        command
    };
    let mut all = Vec::new();
    if args.one_host {
        for memory in ["private", "shared"] {
            let words = ["polyrail", "--memory", memory];
            all.push((format!("polyrail-{memory}"), initiator(&own, &words)));
        }
        let words = ["polyrail", "--memory", "private", "--workers", "2"];
        all.push((
            "polyrail-private-2-workers".to_owned(),
            initiator(&own, &words),
        ));
        all.extend(peers(args, true));
        return Ok(all);
    }
    for connections in ["1", "2", "4"] {
        for (name, spin) in [("block", None), ("spin", Some("--spin"))] {
            let mut command = initiator(&own, &["sockets", "--connections", connections]);
            command.args(spin);
            command.args(args.encrypt.then_some("--encrypt"));
            all.push((format!("sockets-{name}-{connections}"), command));
        }
    }
    let polyrail = |program: &Path, keyed: bool| {
        let mut command = initiator(program, &["polyrail"]);
        if keyed || args.encrypt {
            command.arg("--key").arg(key);
        }
        command.args(args.encrypt.then_some("--encrypt"));
        command
    };
    all.push(("polyrail".to_owned(), polyrail(&own, false)));
    if args.keyed {
        all.push(("polyrail-keyed".to_owned(), polyrail(&own, true)));
    }
    for other in &args.with {
        let (name, path) = other
            .split_once('=')
            .ok_or_else(|| io::Error::other(format!("--with {other}: say NAME=PATH")))?;
        let command = polyrail(Path::new(path), false);
        all.push((format!("polyrail-{name}"), command));
    }
    let mut rails = polyrail(&own, false);
    rails.args(["--rails", "4"]);
    all.push(("polyrail-4-rails".to_owned(), rails));
    all.extend(peers(args, false));
    Ok(all)
}

/// Other engines, and how each is started: over TCP, or over whatever joins processes of one host.
fn peers(args: &Args, one_host: bool) -> Vec<(String, Command)> {
    let Some(python) = &args.python else {
        eprintln!("no --python: the peers are left out");
        return Vec::new();
    };
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let script = |name: &str| {
        let mut command = Command::new(python);
        command.arg(peers.join(name));
        if one_host {
            command.env("UCX_TLS", "all");
            command.env("UCX_NET_DEVICES", "all");
        }
        command
    };
    let mut alone = script("nixl_ucx.py");
    alone.arg("--no-progress");
    let mut all = vec![
        ("nixl-no-progress".to_owned(), alone),
        ("nixl".to_owned(), script("nixl_ucx.py")),
    ];
    if !one_host {
        // Its transport between processes of one host is not in its wheel.
        all.insert(0, ("mooncake".to_owned(), script("mooncake_tcp.py")));
    }
    all
}
