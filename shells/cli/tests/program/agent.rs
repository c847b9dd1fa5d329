//! `agent`: its lines, its file, its end, and clients that die.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use polyrail_core::path::hint::{Client, Connection, HintReader, NoHint};
use polyrail_core::path::share::Shares;
use polyrail_core::time::Duration;
use polyrail_shared::hint::ClientFile;
use polyrail_shared::{host_now, own_process};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::{BOUND, Ended, finish, polyrail, run};

/// Longer than a busy machine may keep the agent from beating.
const AGE_MAX: Duration = Duration::from_secs(30);

/// An agent that runs while the test does.
pub(crate) struct Agent {
    child: Option<Child>,
    out: BufReader<ChildStdout>,
    first: String,
    folder: TempDir,
}

impl Agent {
    /// Starts one on a file of its own, that is controlled by its standard input, and waits until it runs.
    pub(crate) fn start() -> Self {
        Self::start_with("")
    }

    /// Starts one with more flags; `@` in them is its folder.
    fn start_with(flags: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().display().to_string();
        let flags = flags.replace('@', &place);
        let mut child = polyrail(&format!("agent --file {place}/hints {flags}"))
            .stdin(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut first = String::new();
        out.read_line(&mut first).expect("a pipe can be read");
        Self {
            child: Some(child),
            out,
            first,
            folder,
        }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("hints")
    }

    /// Says a line and reads the answer to its `ok`.
    pub(crate) fn tell(&mut self, line: &str) -> String {
        let child = self.child.as_mut().expect("it runs");
        let mut input = child.stdin.as_ref().expect("it is piped");
        writeln!(input, "{line}").expect("it reads");
        answer(&mut self.out)
    }

    fn attach_as(&self, client: Client) -> HintReader<ClientFile> {
        attach(&self.file(), client).expect("an agent and a slot")
    }

    fn attach(&self) -> HintReader<ClientFile> {
        self.attach_as(own_process().expect("the system tells"))
    }

    /// Sends a signal and waits for the end.
    fn end(mut self, signal: Signal) -> (Ended, TempDir) {
        let child = self.child.take().expect("it runs");
        kill_process(Pid::from_child(&child), signal).expect("a child can be signalled");
        let folder = tempfile::tempdir().expect("a folder");
        (
            finish(child, "agent"),
            std::mem::replace(&mut self.folder, folder),
        )
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn attach(file: &Path, client: Client) -> Result<HintReader<ClientFile>, NoHint> {
    let connection = Connection {
        own: [10, 0, 1, 2].into(),
        peer: [10, 0, 1, 3].into(),
    };
    let file = ClientFile::open(file).map_err(|_| NoHint::Absent)?;
    HintReader::attach(file, client, connection, AGE_MAX)
}

/// Lines up to one that ends an answer.
fn answer(source: &mut impl BufRead) -> String {
    let mut text = String::new();
    loop {
        let start = text.len();
        let read = source.read_line(&mut text).expect("it can be read");
        if read == 0 || text[start..].trim_end() == "ok" || text[start..].starts_with("error: ") {
            return text;
        }
    }
}

fn pair(share: u32) -> Option<Shares> {
    Some(Shares::pair(share))
}

#[test]
fn what_it_is_told_is_what_clients_read() {
    let mut agent = Agent::start();
    let file = agent.file();
    assert_eq!(agent.first, format!("agent {} slots=256\n", file.display()));
    let (one, two) = (agent.attach(), agent.attach());
    assert_eq!(one.try_read(host_now()), Err(NoHint::Unset));
    assert_eq!(agent.tell("set supplementary=512"), "ok\n");
    let id = one.connection_id().expect("a slot");
    assert_eq!(agent.tell(&format!("set 1=256 on {id}")), "ok\n");
    assert_eq!(
        (one.read(host_now()), two.read(host_now())),
        (pair(256), pair(512))
    );
    let pid = std::process::id();
    let shown = format!(
        "all: primary=512 supplementary=512\n\
         0.1: primary=768 supplementary=256 (process {pid} 10.0.1.2 > 10.0.1.3)\n\
         1.1: as all (process {pid} 10.0.1.2 > 10.0.1.3)\n\
         ok\n"
    );
    assert_eq!(agent.tell("show"), shown);
    assert_eq!(agent.tell("set none"), "ok\n");
    assert_eq!(one.try_read(host_now()), Err(NoHint::Unset));
    drop((one, two));
    assert_eq!(agent.tell("show"), "all: none\nok\n");
}

#[test]
fn it_ends_well_and_leaves_nothing() {
    for signal in [Signal::TERM, Signal::INT] {
        let agent = Agent::start_with("--socket @/socket");
        let mut stream =
            UnixStream::connect(agent.folder.path().join("socket")).expect("it listens");
        writeln!(stream, "set 1=512").expect("it reads");
        assert_eq!(answer(&mut BufReader::new(&stream)), "ok\n");
        let reader = agent.attach();
        assert_eq!(reader.read(host_now()), pair(512));
        // It does not wait for who is still connected.
        let (ended, folder) = agent.end(signal);
        ended.expect(0);
        assert_eq!(reader.try_read(host_now()), Err(NoHint::Absent));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}

#[test]
fn quit_ends_it_after_the_answer() {
    let mut agent = Agent::start();
    assert_eq!(agent.tell("quit"), "ok\n");
    let child = agent.child.take().expect("it runs");
    finish(child, "agent").expect(0);
    assert!(!agent.file().exists());
}

#[test]
fn a_wrong_line_is_named_and_the_next_one_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = format!("agent --file {}/hints", folder.path().display());
    let mut child = polyrail(&line)
        .stdin(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut input = child.stdin.take().expect("it is piped");
    let script =
        "# half and half\n\nset 1=half\nset 9=1\nset 1=512 on 7.1\nset 1=512\nshow\nquit\n";
    input.write_all(script.as_bytes()).expect("it reads");
    let ended = finish(child, &line).expect(0);
    let shown = "slots=256\nok\nall: primary=512 supplementary=512\nok\nok\n";
    assert!(ended.stdout.ends_with(shown), "{ended:?}");
    ended.names(&[
        "line 3: \"half\" in \"1=half\"",
        "line 4: \"9\" in \"9=1\"",
        "line 5: there is no connection 7.1",
    ]);
}

#[test]
fn each_client_of_a_socket_is_answered() {
    let agent = Agent::start_with("--socket @/socket");
    let socket = agent.folder.path().join("socket");
    let connect = || UnixStream::connect(&socket).expect("it listens");
    // One that never says anything holds nobody up.
    let silent = connect();
    let (first, second) = (connect(), connect());
    let ask = |mut stream: &UnixStream, line: &str| {
        writeln!(stream, "{line}").expect("it reads");
        answer(&mut BufReader::new(stream))
    };
    assert_eq!(ask(&first, "set 1=512"), "ok\n");
    assert_eq!(
        ask(&second, "show"),
        "all: primary=512 supplementary=512\nok\n"
    );
    let error = ask(&first, "set 1=x");
    assert!(error.starts_with("error: line 2: \"x\""), "{error}");
    let endless = connect();
    (&endless).write_all(&[b'x'; 5000]).expect("it reads");
    let mut told = String::new();
    // It hangs up with what was not read, which a reader may be told as an error.
    let _ = BufReader::new(&endless).read_to_string(&mut told);
    assert!(
        told.is_empty() || told.contains("longer than 4096 bytes"),
        "{told}"
    );
    assert_eq!(ask(&second, "quit"), "ok\n");
    drop(silent);
}

#[test]
fn a_second_agent_on_the_same_file_is_refused() {
    let agent = Agent::start_with("--socket @/socket");
    let place = agent.folder.path().display().to_string();
    run(&format!("agent --file {place}/hints"))
        .expect(3)
        .names(&[&format!("{place}/hints"), "another agent", "another file"]);
    run(&format!(
        "agent --file {place}/more --socket {place}/socket"
    ))
    .expect(3)
    .names(&[&format!("{place}/socket"), "another agent"]);
    assert!(agent.file().exists());
}

#[test]
fn what_is_no_hint_file_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let letter = folder.path().join("letter");
    fs::write(&letter, "dear reader").expect("a file");
    let place = letter.display().to_string();
    run(&format!("agent --file {place}"))
        .expect(3)
        .names(&[&place, "no hint record"]);
    run(&format!("agent --file {place}.hints --socket {place}"))
        .expect(3)
        .names(&[&place, "listen"]);
    assert_eq!(
        fs::read(&letter).expect("it is still there"),
        b"dear reader"
    );
}

#[test]
fn the_next_agent_takes_over_what_a_killed_one_left() {
    let agent = Agent::start();
    let file = agent.file();
    let reader = agent.attach();
    let (ended, folder) = agent.end(Signal::KILL);
    assert_eq!(ended.code, None, "{ended:?}");
    let line = format!("agent --file {}", file.display());
    let mut child = polyrail(&line)
        .stdin(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
    out.read_line(&mut String::new())
        .expect("a pipe can be read");
    assert_eq!(reader.try_read(host_now()), Err(NoHint::Restarted));
    let client = own_process().expect("the system tells");
    let reader = attach(&file, client).expect("an agent");
    assert_eq!(reader.try_read(host_now()), Err(NoHint::Unset));
    writeln!(
        child.stdin.as_ref().expect("it is piped"),
        "set 1=1024\nquit"
    )
    .expect("it reads");
    finish(child, &line).expect(0);
    drop(folder);
}

#[test]
fn slots_of_clients_that_die_are_free_again() {
    let mut agent = Agent::start_with("--slots 2");
    let mut sleeper = Command::new("sleep")
        .arg("600")
        .stdin(Stdio::null())
        .spawn()
        .expect("it starts");
    let stat = fs::read_to_string(format!("/proc/{}/stat", sleeper.id())).expect("it runs");
    let started = stat
        .rsplit(')')
        .next()
        .and_then(|tail| tail.split_whitespace().nth(19));
    let client = Client {
        pid: sleeper.id(),
        started: started
            .and_then(|ticks| ticks.parse().ok())
            .expect("a number"),
    };
    let its = agent.attach_as(client);
    let mine = agent.attach();
    assert_eq!(agent.attach().connection_id(), None);
    assert!(
        agent
            .tell("show")
            .contains(&format!("0.1: as all (process {}", client.pid))
    );
    sleeper.kill().expect("a child can be killed");
    // Nobody waits for it: the agent has to see that it is dead all the same.
    let until = Instant::now() + BOUND;
    while agent.tell("show").contains("0.1: ") {
        assert!(Instant::now() < until, "its slot is kept");
    }
    assert_eq!(its.try_read(host_now()), Err(NoHint::Restarted));
    let next = agent.attach();
    assert_eq!(
        next.connection_id().map(|id| id.to_string()).as_deref(),
        Some("0.2")
    );
    assert!(mine.connection_id().is_some_and(|id| id.slot == 1));
    sleeper.wait().expect("a child can be waited for");
}

#[test]
fn a_heart_that_stops_is_noticed() {
    let mut agent = Agent::start();
    agent.tell("set 1=512");
    let client = own_process().expect("the system tells");
    let file = ClientFile::open(&agent.file()).expect("an agent");
    let connection = Connection {
        own: [10, 0, 1, 2].into(),
        peer: [10, 0, 1, 3].into(),
    };
    let age_max = Duration::from_secs(1);
    let reader = HintReader::attach(file, client, connection, age_max).expect("an agent");
    let until = |what: &str, seen: &dyn Fn() -> bool| {
        let until = Instant::now() + BOUND;
        while !seen() {
            assert!(Instant::now() < until, "{what}");
            std::thread::yield_now();
        }
    };
    let pid = Pid::from_child(agent.child.as_ref().expect("it runs"));
    until("it beats", &|| reader.read(host_now()) == pair(512));
    kill_process(pid, Signal::STOP).expect("a child can be signalled");
    until("it is silent", &|| {
        matches!(reader.try_read(host_now()), Err(NoHint::Stale { .. }))
    });
    kill_process(pid, Signal::CONT).expect("a child can be signalled");
    until("it beats again", &|| reader.read(host_now()) == pair(512));
}
