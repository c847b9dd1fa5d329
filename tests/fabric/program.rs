//! The program on the hosts of a fabric.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fabric::{End, Fabric, address};
use crate::waiting::until;

/// How long starting may take.
const START: Duration = Duration::from_secs(20);

/// The program under test: `POLYRAIL_BIN`, or what was built beside this test.
#[track_caller]
fn binary() -> PathBuf {
    if let Some(path) = env::var_os("POLYRAIL_BIN") {
        return path.into();
    }
    let this = env::current_exe().expect("a test knows where it is");
    // A test is TARGET/PROFILE/deps/this, a program TARGET/PROFILE/this.
    let folders = this.ancestors().skip(1).take(2);
    let mut places = folders.map(|folder| folder.join("polyrail"));
    places.find(|place| place.exists()).unwrap_or_else(|| {
        panic!(
            "there is no polyrail beside {}: run `cargo build --release` first and test with \
             --release, or set POLYRAIL_BIN to the program",
            this.display()
        )
    })
}

/// How a host is told which addresses are rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rails {
    /// One by one.
    Named,
    /// All that begin so, whenever they come.
    Within(&'static str),
}

impl Rails {
    fn say(self, fabric: &Fabric, end: End, command: &mut Command) {
        match self {
            Self::Named => command.args(["--rails", &fabric.addresses(end)]),
            Self::Within(prefix) => command
                .env("POLYRAIL_RAILS_WITHIN", prefix)
                .env("POLYRAIL_RAIL_MAP", "nearest"),
        };
    }
}

/// A target on its host; killed when dropped.
#[derive(Debug)]
pub(crate) struct Target {
    child: Child,
    /// `HOST:PORT` on rail 0.
    pub(crate) address: String,
}

impl Target {
    /// Starts one that uses all rails.
    #[track_caller]
    pub(crate) fn start(fabric: &Fabric) -> Self {
        Self::start_with(fabric, Rails::Named)
    }

    /// The same, told of its rails in this way.
    #[track_caller]
    pub(crate) fn start_with(fabric: &Fabric, rails: Rails) -> Self {
        let first = address(0, End::Target);
        let listen = match rails {
            Rails::Named => &first,
            Rails::Within(_) => "0.0.0.0",
        };
        let mut command = fabric.on(End::Target, binary());
        command.args(["serve", "--listen", &format!("{listen}:0")]);
        rails.say(fabric, End::Target, &mut command);
        let mut child = command
            .args(["--memory", "256MiB", "--insecure"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the target starts");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("it is piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("a pipe can be read");
        let address = line
            .strip_prefix("listening ")
            .and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_default().replace("0.0.0.0", &first);
        let target = Self { child, address };
        assert!(
            !target.address.is_empty(),
            "the target said \"{}\"",
            line.trim_end()
        );
        target
    }

    /// Sends it a signal by name, as `kill` takes it.
    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status();
        assert!(kill.expect("kill can be run").success());
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A benchmark on the initiator's host; killed when dropped.
#[derive(Debug)]
pub(crate) struct Bench {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    measuring: Receiver<Instant>,
}

/// How a benchmark ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Its one cell.
    #[track_caller]
    pub(crate) fn cell(&self) -> Value {
        let parsed = serde_json::from_str(self.stdout.trim());
        parsed.unwrap_or_else(|e| panic!("not one cell ({e}): {self:?}"))
    }
}

impl Bench {
    /// Starts one over all rails.
    #[track_caller]
    pub(crate) fn start(fabric: &Fabric, target: &Target, flags: &str) -> Self {
        Self::start_with(fabric, target, flags, Rails::Named)
    }

    /// The same, told of its rails in this way.
    #[track_caller]
    pub(crate) fn start_with(fabric: &Fabric, target: &Target, flags: &str, rails: Rails) -> Self {
        let mut command = fabric.on(End::Initiator, binary());
        command.args(["bench", "--json", "--target", &target.address]);
        rails.say(fabric, End::Initiator, &mut command);
        let mut child = command
            .args(flags.split_whitespace())
            .env("RUST_LOG", "info")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the benchmark starts");
        let (tell, measuring) = channel();
        let stdout = child.stdout.take().map(|mut stdout| {
            thread::spawn(move || {
                let mut text = String::new();
                // What is not text fails where it is read as JSON.
                let _ = stdout.read_to_string(&mut text);
                text
            })
        });
        let stderr = child.stderr.take();
        let stderr = stderr.map(|stderr| thread::spawn(move || follow(stderr, &tell)));
        Self {
            child,
            stdout,
            stderr,
            measuring,
        }
    }

    /// Waits until the warm-up is over; answers when that was.
    #[track_caller]
    pub(crate) fn until_measuring(&mut self) -> Instant {
        until("the benchmark measures", START, || {
            self.expect_running();
            self.measuring.try_recv().ok()
        })
    }

    /// Fails if it has ended already.
    #[track_caller]
    pub(crate) fn expect_running(&mut self) {
        let status = self.child.try_wait().expect("a child can be waited for");
        assert!(
            status.is_none(),
            "the benchmark ended too early: {:?}",
            self.ended()
        );
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn finish(mut self, bound: Duration) -> Ended {
        until("the benchmark ends", bound, || {
            self.child.try_wait().expect("a child can be waited for")
        });
        self.ended()
    }

    fn ended(&mut self) -> Ended {
        let code = self.child.wait().expect("a child can be waited for").code();
        let text = |reader: Option<JoinHandle<String>>| {
            reader
                .map(|reader| reader.join().expect("the reader ends"))
                .unwrap_or_default()
        };
        Ended {
            code,
            stdout: text(self.stdout.take()),
            stderr: text(self.stderr.take()),
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Collects standard error and tells when the measuring starts.
fn follow(stderr: ChildStderr, measuring: &Sender<Instant>) -> String {
    let mut text = String::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if line.contains("measuring") {
            // The test may have ended.
            let _ = measuring.send(Instant::now());
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}
