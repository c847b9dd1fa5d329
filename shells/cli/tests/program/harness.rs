//! Runs the program with a bound on its time.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// More than anything here may take, also on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(40);

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Fails unless it ended with this code.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Fails unless standard error names all of these.
    #[track_caller]
    pub(crate) fn names(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(
                self.stderr.contains(part),
                "\"{part}\" is not named in {self:?}"
            );
        }
        self
    }
}

/// The program with these words after it.
pub(crate) fn polyrail(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_polyrail"));
    command
        .args(line.split_whitespace())
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs it to its end. One that does not end in time is killed, and the test fails.
#[track_caller]
pub(crate) fn run(line: &str) -> Ended {
    let child = polyrail(line).spawn().expect("the program starts");
    finish(child, line)
}

#[track_caller]
pub(crate) fn finish(mut child: Child, line: &str) -> Ended {
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let code = wait(&mut child, line);
    let text = |reader: JoinHandle<String>| reader.join().expect("the reader ends");
    Ended {
        code,
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

fn collect(stream: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            stream.read_to_end(&mut bytes).expect("a pipe can be read");
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[track_caller]
fn wait(child: &mut Child, line: &str) -> Option<i32> {
    let until = Instant::now() + BOUND;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status.code();
        }
        if Instant::now() > until {
            child.kill().expect("a child can be killed");
            panic!("polyrail {line} did not end within {BOUND:?}");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// A target that runs while the test does.
#[derive(Debug)]
pub(crate) struct Target {
    child: Option<Child>,
    /// Its first line.
    pub(crate) line: String,
    /// `HOST:PORT` of its metrics, if it says so.
    pub(crate) metrics: Option<String>,
}

impl Target {
    /// Starts one and waits until it listens.
    #[track_caller]
    pub(crate) fn start(flags: &str) -> Self {
        Self::start_with(flags, Stdio::inherit(), "warn")
    }

    /// Starts one that logs so much to `log`, and waits until it listens.
    #[track_caller]
    pub(crate) fn start_with(flags: &str, log: Stdio, level: &str) -> Self {
        let child = polyrail(&format!("serve {flags}"))
            .env("RUST_LOG", level)
            .stderr(log)
            .spawn()
            .expect("the program starts");
        Self::of(child)
    }

    /// One that has been started; waits until it listens.
    #[track_caller]
    pub(crate) fn of(mut child: Child) -> Self {
        let mut stdout = BufReader::new(child.stdout.as_mut().expect("it is piped"));
        let mut next = || {
            let mut line = String::new();
            stdout.read_line(&mut line).expect("a pipe can be read");
            line
        };
        let line = next();
        // The last one says how it is protected. One that has ended says nothing.
        let mut metrics = None;
        while let Some(at) = next().strip_prefix("metrics http://") {
            metrics = at.strip_suffix("/metrics\n").map(str::to_owned);
        }
        let target = Self {
            child: Some(child),
            line,
            metrics,
        };
        assert!(target.line.starts_with("listening "), "{target:?}");
        target
    }

    /// `HOST:PORT`.
    pub(crate) fn address(&self) -> &str {
        self.line
            .split(' ')
            .nth(1)
            .expect("the line has an address")
    }

    /// Sends a signal.
    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.child.as_ref().expect("it runs"));
        kill_process(pid, signal).expect("a child can be signalled");
    }

    /// Whether the kernel calls it ended.
    #[track_caller]
    pub(crate) fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().expect("it runs");
        child.try_wait().expect("it is a child").is_some()
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Sends a signal and waits for the end.
    #[track_caller]
    pub(crate) fn end(mut self, signal: Signal) -> Ended {
        let child = self.child.take().expect("it runs");
        let pid = Pid::from_child(&child);
        kill_process(pid, signal).expect("a child can be signalled");
        finish(child, "serve")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
